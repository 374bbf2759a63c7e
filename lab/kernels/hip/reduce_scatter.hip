// Reduce-scatter: push to each rank its part, reduce the own part. The first half of two_shot.
// The input is world_size parts of call.count elements, the output one: this rank's. It may be that part of
// the input itself; otherwise it is disjoint from the input.
// Link traffic per rank: (world_size - 1) / world_size of the input's bytes out.
#include "parts.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void reduce_scatter(const Call& call) {
    const Turn turn = begin_call(call);
    const Parts parts = equal_parts<T>(call);
    const Share share = share_of(call, parts.vectors);
    const Span result = whole_message(call);
    const auto give_up = [&] { for_each(share, [&](u32 i) { poison<T>(call.output, result, i); }); };
    if (turn.dead()) return give_up();
    trace(call, u32(Algorithm::reduce_scatter), turn.epoch, Event::begin);

    // 1. Each peer's part of my input into my scatter slot there.
    scatter<T>(call, turn, parts, share);
    trace(call, u32(Algorithm::reduce_scatter), turn.epoch, Event::pushed);
    const bool met = exchange_release_acquire(call, turn, Algorithm::reduce_scatter, Phase::scatter);
    advance_epoch(call, turn);
    if (!met) return give_up();
    let_successor_when_met(call);
    trace(call, u32(Algorithm::reduce_scatter), turn.epoch, Event::exchanged);

    // 2. Reduce my part in rank order.
    reduce<T, R>(call, turn, parts, share, [&](const Call& now, auto shape, u32 i, const Vec16& sum) {
        store_vector<T, decltype(shape)>(now.output, result, i, sum);
    });
    trace(call, u32(Algorithm::reduce_scatter), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(reduce_scatter)
