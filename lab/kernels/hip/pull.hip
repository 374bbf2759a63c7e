#pragma once
// Pull all-reduce: meet, read every peer's input where it lies and reduce, meet again.
// Link traffic per rank: (world_size - 1) * N bytes in, in one phase; no staging.
//
// Inputs are registered (Call::registered), 16-byte aligned on every rank, and not the output. A vector that
// the message cuts off is read whole: an aligned vector lies in one allocation.
#include "elements.hpp"
#include "meeting.hpp"
#include "reduce.hpp"
#include "trace.hpp"

namespace lab {

template <typename T, Rounding R, typename Access>
LAB_DEVICE void pull_by(const Call& call) {
    const Turn turn = begin_call(call);
    const Span message = whole_message(call);
    const Share share = share_of(call, vectors_in<T>(call.count));
    const auto give_up = [&] { for_each(share, [&](u32 v) { poison<T>(call.output, message, v); }); };
    if (turn.dead()) return give_up();
    trace(call, u32(Algorithm::pull), turn.epoch, Event::begin);

    // 1. Meet the same block of every peer: all inputs have been written.
    const bool met = enter_release_acquire_system(call, turn, Algorithm::pull);
    advance_epoch(call, turn);
    if (!met) return give_up();
    trace(call, u32(Algorithm::pull), turn.epoch, Event::exchanged);

    // 2. Sum in rank order, the peers' terms from their inputs.
    in_shape(aligned(call) && call.count % per_vector<T> == 0, [&](auto shape) {
        const Call& now = loaded_anew(call);
        const Tensors inputs = inputs_in_rank_order(now);
        const auto load = [&](u32 v) {
            Gathered all;
            all.mine = load_vector<T, decltype(shape)>(now.input, message, v);
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j) all.others[j] = Access::load(inputs.of[j], v);
            return all;
        };
        const auto reduce = [&](u32 v, const Gathered& all) {
            const Vec16 sum = sum_in_rank_order<T, R>(now, all, u64(v) * per_vector<T>, turn.epoch);
            store_vector<T, decltype(shape)>(now.output, message, v, sum);
        };
        load_ahead<decltype(shape), world_size, Gathered>(share, load, reduce);
    });
    trace(call, u32(Algorithm::pull), turn.epoch, Event::reduced);

    // 3. Meet again: no peer's next kernel writes an input that is still read.
    leave_drained_system(call, turn, Algorithm::pull);
    let_successor_when_met(call);
    trace(call, u32(Algorithm::pull), turn.epoch, Event::end);
}

template <typename T, Rounding R>
LAB_DEVICE void pull(const Call& call) {
    pull_by<T, R, PastCaches>(call);
}

} // namespace lab

LAB_EXPORT(pull)
