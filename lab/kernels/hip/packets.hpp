#pragma once
// Packets: 16 bytes of data that are their own flag.
//
// Between calls every word of a packet slot is `sentinel` (a NaN of all three element types). A pushed word
// is never the sentinel, so a word that differs has arrived: each word is checked, and no width of store
// needs to be indivisible beyond 32 bits. The reader puts the sentinel back; the writer comes again two calls
// later (see staging.hpp), behind that store.
#include "reduce.hpp"
#include "signal.hpp"

namespace lab {

constexpr u32 sentinel = 0xffffffffu;
constexpr u32 other_nan = 0x7fff7fffu; // what an input word equal to the sentinel is sent as

LAB_DEVICE bool arrived(const Vec16& v) {
    return v.word[0] != sentinel && v.word[1] != sentinel && v.word[2] != sentinel && v.word[3] != sentinel;
}

/// A vector of the input as it is sent. A NaN stays one, and which NaN does not show in a sum.
LAB_DEVICE Vec16 packet_of(Vec16 v) {
#pragma unroll
    for (u32 w = 0; w < 4; ++w) v.word[w] = v.word[w] == sentinel ? other_nan : v.word[w];
    return v;
}

/// My packet v to every peer.
LAB_DEVICE void push(const Call& call, const Turn& turn, u32 v, const Vec16& packet) {
#pragma unroll
    for (u32 k = 1; k < world_size; ++k)
        store_bypass(packet_slot(call, k, turn.parity, call.rank), v, packet);
}

/// Packets first, first + step, ... of every peer.
struct Expected {
    u32 first, step, count;

    /// The n-th of them; beyond the last, the first once more: a load there is no branch between the others.
    LAB_DEVICE u32 packet(u32 n) const { return n < count ? first + n * step : first; }
};

/// Take at most N packets of every peer from my slots, and give the slots back. False when a peer is lost.
template <u32 N>
LAB_DEVICE bool receive(const Call& arguments, const Turn& turn, Algorithm algorithm,
                        const Expected& expected, Gathered (&all)[N]) {
    const Call& call = loaded_anew(arguments);
    const Slots slots = slots_in_rank_order(call, packet_slot(call, 0, turn.parity, 0), call.packets_stride);

    // A round polls all of them at once, so that the loads are in flight together.
    const auto ready = [&] {
        bool here = true;
        loads_begin<N*(world_size - 1)>();
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j)
                all[n].others[j] = load_polled_bypass(slots.base, slots.of[j], expected.packet(n));
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 j = 0; j < world_size - 1; ++j) here &= arrived(all[n].others[j]);
        return here;
    };
    const auto missing = [&] {
        const Call& again = loaded_anew(call);
#pragma unroll 1
        for (u32 j = 0; j < world_size - 1; ++j) {
            const u32 s = other_rank(again, j);
            const Vec16* slot = packet_slot(again, 0, turn.parity, s);
#pragma unroll 1
            for (u32 n = 0; n < N; ++n)
                if (!arrived(load_polled_bypass(slot, 0, expected.packet(n)))) return Missing{s, sentinel};
        }
        return Missing{again.rank, sentinel};
    };
    if (!wait_bounded(call, turn, algorithm, Phase::packet, ready, missing)) return false;

    loads_end();
    const Vec16 empty = {{sentinel, sentinel, sentinel, sentinel}};
#pragma unroll
    for (u32 n = 0; n < N; ++n)
#pragma unroll
        for (u32 j = 0; j < world_size - 1; ++j)
            if (n < expected.count) store_bypass(slots.base, slots.of[j] + expected.packet(n), empty);
    return true;
}

} // namespace lab
