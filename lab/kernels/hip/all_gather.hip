// All-gather: push the own part to every peer, meet, copy theirs out. The second half of two_shot.
// The input is one part of call.count elements, the output world_size of them. The input may be this rank's
// part of the output itself; otherwise it is disjoint from the output.
// Link traffic per rank: (world_size - 1) / world_size of the output's bytes out.
#include "parts.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void all_gather(const Call& call) {
    const Turn turn = begin_call(call);
    const Parts parts = equal_parts<T>(call);
    const Share share = share_of(call, parts.vectors);
    if (turn.dead()) return poison_parts<T>(call, parts, share, 0);
    trace(call, u32(Algorithm::all_gather), turn.epoch, Event::begin);

    // 1. My part into my gather slot on every peer, and into the output.
    in_shape(parts.whole, [&](auto shape) {
        const Span mine = whole_message(call);
        const auto load = [&](u32 i) { return load_vector<T, decltype(shape)>(call.input, mine, i); };
        const auto push = [&](u32 i, const Vec16& v) {
            push_to_gather(call, turn, i, v);
            store_vector<T, decltype(shape)>(call.output, parts.of(call.rank), i, v);
        };
        load_ahead<decltype(shape), 1, Vec16>(share, load, push);
    });
    trace(call, u32(Algorithm::all_gather), turn.epoch, Event::pushed);
    const bool met = exchange_release_acquire(call, turn, Algorithm::all_gather, Phase::gather);
    advance_epoch(call, turn);
    if (!met) return poison_parts<T>(call, parts, share, 1); // the own part is right
    let_successor_when_met(call);
    trace(call, u32(Algorithm::all_gather), turn.epoch, Event::exchanged);

    // 2. The peers' parts from my gather slots to the output.
    copy_out<T>(call, turn, parts, share);
    trace(call, u32(Algorithm::all_gather), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(all_gather)
