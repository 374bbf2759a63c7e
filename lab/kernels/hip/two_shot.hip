// Two-shot all-reduce: push to each rank its part, reduce the own part, push the result to every peer.
// Link traffic per rank: 2 (world_size - 1) / world_size * N bytes out, in two phases.
#include "parts.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void two_shot(const Call& call) {
    const Turn turn = begin_call(call);
    const Parts parts = parts_of_message<T>(call);
    const Share share = share_of(call, parts.vectors);
    if (turn.dead()) return poison_parts<T>(call, parts, share, 0);
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::begin);

    // 1. Each peer's part of my input into my scatter slot there.
    scatter<T>(call, turn, parts, share);
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::pushed);
    const bool scattered = exchange_release_acquire(call, turn, Algorithm::two_shot, Phase::scatter);
    advance_epoch(call, turn);
    if (!scattered) return poison_parts<T>(call, parts, share, 0);
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::exchanged);

    // 2. Reduce my part in rank order; the result goes to the output and, from registers, to every peer.
    const Span mine = parts.of(call.rank);
    reduce<T, R>(call, turn, parts, share, [&](const Call& now, auto shape, u32 i, const Vec16& sum) {
        push_to_gather(now, turn, i, sum);
        store_vector<T, decltype(shape)>(now.output, mine, i, sum);
    });
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::reduced);
    const bool gathered = exchange_release_acquire(call, turn, Algorithm::two_shot, Phase::gather);
    if (!gathered) return poison_parts<T>(call, parts, share, 1); // the own part is right
    let_successor_when_met(call);
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::gathered);

    // 3. The peers' parts from my gather slots to the output.
    copy_out<T>(call, turn, parts, share);
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(two_shot)
