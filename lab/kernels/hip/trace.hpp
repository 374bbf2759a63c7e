#pragma once
// Phase stamps, one per block and event. Without -DLAB_TRACE=1 nothing of this reaches the machine code.
#include "staging.hpp"

#ifndef LAB_TRACE
#define LAB_TRACE 0
#endif

namespace lab {

enum class Event : u32 { begin, pushed, exchanged, reduced, gathered, end };

/// Thread 0 of a block stamps `event` of the current call; events beyond call.trace_events are dropped.
LAB_DEVICE void trace(const Call& call, u32 algorithm, u64 epoch, Event event) {
    if constexpr (LAB_TRACE) {
        if (thread_index() != 0 || u32(event) >= call.trace_events) return;
        TraceEvent* slot = call.trace + block_index() * call.trace_events + u32(event);
        slot->ticks = wall_clock();
        slot->what = epoch << 32 | u64(block_index()) << 16 | u64(algorithm) << 8 | u64(event);
    }
}

} // namespace lab
