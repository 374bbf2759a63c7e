#pragma once
// What a call is given, and where things lie in a rank's workspace.
//
// Workspace of a rank (one uncached allocation, mapped by every rank; offsets and strides come from
// staging.py):
//
//   flags    u64 [2 rows][max_blocks][max_ranks]   word `s` of a row is written by rank s alone
//   scatter  [2 parities][world_size] slots        inputs: whole (one-shot) or my part of them (two-shot)
//   gather   [2 parities][world_size] slots        two-shot's reduced parts, a region of their own
//   packets  [2 parities][world_size] slots        low-latency: every word is `sentinel` between calls
//
// Why two parities are enough: a slot of call e is written again in call e+2. Its writer has then finished
// e+1, in which it received something from every peer, so every peer had started e+1 and, kernels of a stream
// running one after the other, had finished e. This holds for any mix of algorithms, sizes and grids, because
// every call of every algorithm hears from every peer.
#include "target.hpp"

namespace lab {

constexpr u32 max_blocks = 512;

/// Words of this GPU alone. Between launches all `epoch` words are equal: see begin_call.
struct Control {
    u64 epoch[max_blocks];
    u64 aborted_at;    ///< epoch of the first lost wait, 0 while there is none
    u64 claimed_late;  ///< 1 once a late wait has been recorded
    u64 seed_words[8]; ///< counters of tests/seed_two_shot.hip; no other kernel reads them
};

/// Host-mapped; the host reads it without a device synchronisation. `kind` is written last.
struct WaitRecord {
    u64 kind; ///< 0 none, 1 late (it came, after the bound), 2 lost
    u64 algorithm, phase, peer, epoch;
    u64 block, thread, blocks, threads, count;
    u64 waited; ///< ticks
    u64 seen;   ///< the flag's value at the end of the wait
};

struct TraceEvent {
    u64 ticks;
    u64 what; ///< epoch << 32 | block << 16 | algorithm << 8 | event
};

/// Kernel argument, by value. Identical on all ranks but for rank, the pointers and nothing else.
struct Call {
    char* workspace[max_ranks]; ///< every rank's workspace as this rank maps it
    const void* input;
    void* output; ///< may be `input`; otherwise disjoint from it
    Control* control;
    WaitRecord* records; ///< [0] first late, [1] first lost
    TraceEvent* trace;   ///< [blocks][trace_events], read only in a build with -DLAB_TRACE=1
    u64 count;           ///< elements, 0 < count < 2^32
    u64 timeout, grace;  ///< ticks of wall_clock: late after timeout, lost after timeout + grace
    u64 scatter_offset, scatter_stride, gather_offset, gather_stride, packets_offset,
        packets_stride; ///< bytes
    u32 rank, blocks, threads, trace_events;
    u32 rounding_seed, aligned; ///< aligned: input and output are both 16-byte aligned
    u32 early;                  ///< this launch and its neighbours in the stream may overlap: see begin_call
};

LAB_DEVICE u64* flag_word(const Call& call, u32 owner, u32 row, u32 block, u32 writer) {
    return reinterpret_cast<u64*>(call.workspace[owner]) + (row * max_blocks + block) * max_ranks + writer;
}

LAB_DEVICE Vec16* scatter_slot(const Call& call, u32 owner, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[owner] + call.scatter_offset +
                                    (parity * world_size + writer) * call.scatter_stride);
}

LAB_DEVICE Vec16* gather_slot(const Call& call, u32 owner, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[owner] + call.gather_offset +
                                    (parity * world_size + writer) * call.gather_stride);
}

LAB_DEVICE Vec16* packet_slot(const Call& call, u32 owner, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[owner] + call.packets_offset +
                                    (parity * world_size + writer) * call.packets_stride);
}

/// The k-th peer after this rank, k = 1..world_size-1: ranks start on different links.
LAB_DEVICE u32 peer_after(const Call& call, u32 k) {
    const u32 peer = call.rank + k;
    return peer < world_size ? peer : peer - world_size;
}

} // namespace lab
