// One-shot all-reduce: push the whole input to every peer, meet, reduce everything locally.
// Link traffic per rank: (world_size - 1) * N bytes out, in one phase.
#include "reduce.hpp"
#include "signal.hpp"
#include "trace.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void one_shot(const Call& call) {
    const Turn turn = begin_call(call);
    const Span message = whole_message(call);
    const Share share = share_of(call, vectors_in<T>(call.count));
    const bool whole = aligned(call) && call.count % per_vector<T> == 0;
    const auto give_up = [&] { for_each(share, [&](u32 v) { poison<T>(call.output, message, v); }); };
    if (turn.dead()) return give_up();
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::begin);

    // 1. My vectors of the input into my slot on every peer. The peer's same thread reads them in step 3.
    in_shape(whole, [&](auto shape) {
        const auto load = [&](u32 v) { return load_vector<T, decltype(shape)>(call.input, message, v); };
        const auto push = [&](u32 v, const Vec16& mine) {
#pragma unroll
            for (u32 k = 1; k < world_size; ++k)
                store_bypass(scatter_slot(call, k, turn.parity, call.rank), v, mine);
        };
        load_ahead<decltype(shape), 1, Vec16>(share, load, push);
    });
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::pushed);

    // 2. Meet the same block of every peer.
    const bool met = exchange_release_acquire(call, turn, Algorithm::one_shot, Phase::scatter);
    advance_epoch(call, turn);
    if (!met) return give_up();
    let_successor_when_met(call);
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::exchanged);

    // 3. Sum in rank order, own term from the input.
    in_shape(whole, [&](auto shape) {
        const Slots slots =
            slots_in_rank_order(call, scatter_slot(call, 0, turn.parity, 0), call.scatter_stride);
        const auto load = [&](u32 v) {
            Gathered all;
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j) all.others[j] = load_bypass(slots.base, slots.of[j], v);
            all.mine = load_vector<T, decltype(shape)>(call.input, message, v);
            return all;
        };
        const auto reduce = [&](u32 v, const Gathered& all) {
            const Vec16 sum = sum_in_rank_order<T, R>(call, all, u64(v) * per_vector<T>, turn.epoch);
            store_vector<T, decltype(shape)>(call.output, message, v, sum);
        };
        load_ahead<decltype(shape), world_size, Gathered>(share, load, reduce);
    });
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(one_shot)
