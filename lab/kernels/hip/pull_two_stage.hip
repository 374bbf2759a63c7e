#pragma once
// Two-stage pull: meet, reduce the own part of every peer's input, meet, read the peers' reduced parts.
// Link traffic per rank: 2 (world_size - 1) / world_size * N bytes in, in two phases.
//
// A reduced part lies in its owner's own gather slot, which no pushing kernel uses. It is written again
// behind the entry of a later call, so when every peer has ended this one: no meeting at the end, and one
// slot is enough. The output may be the input: of that, each rank reads its own part alone, and all that it
// reads of the peers' inputs it has read before the second meeting.
#include "meeting.hpp"
#include "parts.hpp"

namespace lab {

/// Where peer_after(k) puts what it has reduced.
LAB_DEVICE Vec16* reduced_part(const Call& call, u32 k) {
    return gather_slot(call, k, 0, peer_after(call, k));
}

template <typename T, Rounding R, typename Access>
LAB_DEVICE void pull_two_stage_by(const Call& call) {
    const Turn turn = begin_call(call);
    const Parts parts = parts_of_message<T>(call);
    const Share share = share_of(call, parts.vectors);
    if (turn.dead()) return poison_parts<T>(call, parts, share, 0);
    trace(call, u32(Algorithm::pull_two_stage), turn.epoch, Event::begin);

    // 1. Meet the same block of every peer: all inputs have been written.
    const bool met = enter_release_acquire_system(call, turn, Algorithm::pull_two_stage);
    advance_epoch(call, turn);
    if (!met) return poison_parts<T>(call, parts, share, 0);
    trace(call, u32(Algorithm::pull_two_stage), turn.epoch, Event::exchanged);

    // 2. My part of everybody's input in rank order, to the output and to where the peers read it.
    const Span mine = parts.of(call.rank);
    in_shape(parts.whole, [&](auto shape) {
        const u32 first = u32(mine.first / per_vector<T>), last = vectors_in<T>(call.count) - 1;
        const Tensors inputs = inputs_in_rank_order(call);
        const auto load = [&](u32 i) {
            const u32 v =
                shape.always || first + i < last ? first + i : last; // nothing beyond a peer's input is read
            Gathered all;
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j) all.others[j] = Access::load(inputs.of[j], v);
            all.mine = load_vector<T, decltype(shape)>(call.input, mine, v - first);
            return all;
        };
        const auto reduce = [&](u32 i, const Gathered& all) {
            if (!parts.holds<T, decltype(shape)>(call.rank, i)) return;
            const u64 place = mine.first + u64(i) * per_vector<T>;
            const Vec16 sum = sum_in_rank_order<T, R>(call, all, place, turn.epoch);
            store_bypass(reduced_part(call, 0), i, sum);
            store_vector<T, decltype(shape)>(call.output, mine, i, sum);
        };
        load_ahead<decltype(shape), world_size, Gathered>(share, load, reduce);
    });
    trace(call, u32(Algorithm::pull_two_stage), turn.epoch, Event::reduced);
    const bool gathered = exchange_release_acquire(call, turn, Algorithm::pull_two_stage, Phase::gather);
    if (!gathered) return poison_parts<T>(call, parts, share, 1); // the own part is right
    let_successor_when_met(call);
    trace(call, u32(Algorithm::pull_two_stage), turn.epoch, Event::gathered);

    // 3. The peers' parts from their gather slots to the output.
    in_shape(parts.whole, [&](auto shape) {
        const auto load = [&](u32 i) {
            OfPeers v;
#pragma unroll
            for (u32 k = 1; k < world_size; ++k) v.at[k - 1] = load_bypass(reduced_part(call, k), 0, i);
            return v;
        };
        const auto store = [&](u32 i, const OfPeers& v) {
#pragma unroll
            for (u32 k = 1; k < world_size; ++k)
                store_vector<T, decltype(shape)>(call.output, parts.of(peer_after(call, k)), i, v.at[k - 1]);
        };
        load_ahead<decltype(shape), world_size - 1, OfPeers>(share, load, store);
    });
    trace(call, u32(Algorithm::pull_two_stage), turn.epoch, Event::end);
}

template <typename T, Rounding R>
LAB_DEVICE void pull_two_stage(const Call& call) {
    pull_two_stage_by<T, R, PastCaches>(call);
}

} // namespace lab

LAB_EXPORT(pull_two_stage)
