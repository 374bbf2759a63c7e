#pragma once
// The steps of the algorithms that give each rank a part of the message: scatter, reduce, gather.
//
// Thread t of block b handles the same vectors of a part in every step and on every rank, so meeting the same
// block of the peers is enough: no barrier across the grid.
#include "reduce.hpp"
#include "signal.hpp"
#include "trace.hpp"

namespace lab {

/// A message of `total` elements in world_size parts; rank j owns elements [j * each, (j + 1) * each).
struct Parts {
    u64 each, total;
    u32 vectors; ///< of a part that is not cut off by the end of the message
    bool whole;  ///< every part is, and every vector of it is aligned

    LAB_DEVICE Span of(u32 rank) const {
        const u64 first = u64(rank) * each;
        return {first, first + each < total ? first + each : total, total};
    }

    /// Whether vector i of that rank's part has an element.
    template <typename T, typename Shape>
    LAB_DEVICE bool holds(u32 rank, u32 i) const {
        return Shape::always || u64(rank) * each + u64(i) * per_vector<T> < total;
    }
};

/// Parts of whole vectors; the message may end in any of them.
template <typename T>
LAB_DEVICE Parts parts_of_message(const Call& call) {
    const u32 vectors = (vectors_in<T>(call.count) + world_size - 1) / world_size;
    const u64 each = u64(vectors) * per_vector<T>;
    return {each, call.count, vectors, aligned(call) && each * world_size == call.count};
}

/// Parts of call.count elements each, wherever that puts them.
template <typename T>
LAB_DEVICE Parts equal_parts(const Call& call) {
    return {call.count, call.count * world_size, vectors_in<T>(call.count),
            aligned(call) && call.count % per_vector<T> == 0};
}

/// A vector for each peer, or of each: [k - 1] is peer_after(k)'s.
struct OfPeers {
    Vec16 at[world_size - 1];
};

/// Each peer's part of my input into my scatter slot there.
template <typename T>
LAB_DEVICE void scatter(const Call& arguments, const Turn& turn, const Parts& parts, const Share& share) {
    const Call& call = loaded_anew(arguments);
    in_shape(parts.whole, [&](auto shape) {
        const auto load = [&](u32 i) {
            OfPeers v;
#pragma unroll
            for (u32 k = 1; k < world_size; ++k)
                v.at[k - 1] = load_vector<T, decltype(shape)>(call.input, parts.of(peer_after(call, k)), i);
            return v;
        };
        const auto push = [&](u32 i, const OfPeers& v) {
#pragma unroll
            for (u32 k = 1; k < world_size; ++k)
                if (parts.holds<T, decltype(shape)>(peer_after(call, k), i))
                    store_bypass(scatter_slot(call, k, turn.parity, call.rank), i, v.at[k - 1]);
        };
        load_ahead<decltype(shape), world_size - 1, OfPeers>(share, load, push);
    });
}

/// My part of everybody's input, summed in rank order: done(call, shape, i, sum) for each of my vectors.
template <typename T, Rounding R, typename Done>
LAB_DEVICE void reduce(const Call& arguments, const Turn& turn, const Parts& parts, const Share& share,
                       const Done& done) {
    const Call& call = loaded_anew(arguments);
    const Span mine = parts.of(call.rank);
    in_shape(parts.whole, [&](auto shape) {
        const Slots slots =
            slots_in_rank_order(call, scatter_slot(call, 0, turn.parity, 0), call.scatter_stride);
        const auto load = [&](u32 i) {
            Gathered all;
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j) all.others[j] = load_bypass(slots.base, slots.of[j], i);
            all.mine = load_vector<T, decltype(shape)>(call.input, mine, i);
            return all;
        };
        const auto sum = [&](u32 i, const Gathered& all) {
            if (!parts.holds<T, decltype(shape)>(call.rank, i)) return;
            const u64 place = mine.first + u64(i) * per_vector<T>;
            done(call, shape, i, sum_in_rank_order<T, R>(call, all, place, turn.epoch));
        };
        load_ahead<decltype(shape), world_size, Gathered>(share, load, sum);
    });
}

/// Vector i of my part into my gather slot on every peer.
LAB_DEVICE void push_to_gather(const Call& call, const Turn& turn, u32 i, const Vec16& v) {
#pragma unroll
    for (u32 k = 1; k < world_size; ++k) store_bypass(gather_slot(call, k, turn.parity, call.rank), i, v);
}

/// The peers' parts from my gather slots to the output.
template <typename T>
LAB_DEVICE void copy_out(const Call& arguments, const Turn& turn, const Parts& parts, const Share& share) {
    const Call& call = loaded_anew(arguments);
    in_shape(parts.whole, [&](auto shape) {
        const Slots slots =
            slots_in_peer_order(call, gather_slot(call, 0, turn.parity, 0), call.gather_stride);
        const auto load = [&](u32 i) {
            OfPeers v;
#pragma unroll
            for (u32 k = 1; k < world_size; ++k) v.at[k - 1] = load_bypass(slots.base, slots.of[k - 1], i);
            return v;
        };
        const auto store = [&](u32 i, const OfPeers& v) {
#pragma unroll
            for (u32 k = 1; k < world_size; ++k)
                store_vector<T, decltype(shape)>(call.output, parts.of(peer_after(call, k)), i, v.at[k - 1]);
        };
        load_ahead<decltype(shape), world_size - 1, OfPeers>(share, load, store);
    });
}

/// My vectors of the parts of peer_after(from) and of all behind it: what a lost call has not written.
template <typename T>
LAB_DEVICE void poison_parts(const Call& arguments, const Parts& parts, const Share& share, u32 from) {
    const Call& call = loaded_anew(arguments);
    for (u32 k = from; k < world_size; ++k)
        for_each(share, [&](u32 i) { poison<T>(call.output, parts.of(peer_after(call, k)), i); });
}

} // namespace lab
