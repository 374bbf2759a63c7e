// Low-latency all-reduce: the data is its own flag. One phase, no fence, no flag, no meeting of blocks.
// Link traffic per rank: (world_size - 1) * N bytes out.
//
// Between calls every word of a packet slot is `sentinel` (a NaN of all three element types). A pushed word
// is never the sentinel, so a word that differs has arrived: each word is checked, and no width of store
// needs to be indivisible beyond 32 bits. The reader puts the sentinel back; the writer comes again two calls
// later (see staging.hpp), behind that store.
#include "reduce.hpp"
#include "signal.hpp"
#include "trace.hpp"

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

/// The slots of this call. Looked up once, while the input is on its way.
struct Slots {
    Vec16* theirs[world_size]; ///< [k]: mine on peer_after(k)
    Vec16* mine;               ///< rank s's on this rank starts at s * stride
    u32 stride;                ///< vectors
};

LAB_DEVICE Slots slots_of(const Call& call, const Turn& turn) {
    Slots slots;
#pragma unroll
    for (u32 k = 1; k < world_size; ++k)
        slots.theirs[k] = packet_slot(call, peer_after(call, k), turn.parity, call.rank);
    slots.mine = packet_slot(call, call.rank, turn.parity, 0);
    slots.stride = u32(call.packets_stride / sizeof(Vec16));
    return slots;
}

LAB_DEVICE void push(const Slots& slots, u32 v, const Vec16& packet) {
#pragma unroll
    for (u32 k = 1; k < world_size; ++k) store_bypass(slots.theirs[k], v, packet);
}

/// Take every peer's packet v from my slots, give the slots back, sum, store. False when a peer is lost.
template <typename T, Rounding R>
LAB_DEVICE bool receive_and_sum(const Call& call, const Turn& turn, const Slots& slots, u32 v,
                                const Vec16& mine) {
    Vec16 terms[world_size];
#pragma unroll
    for (u32 s = 0; s < world_size; ++s) terms[s] = s == call.rank ? mine : Vec16{};

    // A round polls all peers at once, so that the loads are in flight together.
    const auto ready = [&] {
        bool all = true;
#pragma unroll
        for (u32 s = 0; s < world_size; ++s)
            if (s != call.rank) terms[s] = load_polled_bypass(slots.mine, s * slots.stride + v);
#pragma unroll
        for (u32 s = 0; s < world_size; ++s) all &= arrived(terms[s]);
        return all;
    };
    const auto missing = [&] {
#pragma unroll 1
        for (u32 s = 0; s < world_size; ++s)
            if (s != call.rank && !arrived(load_polled_bypass(slots.mine, s * slots.stride + v)))
                return Missing{s, sentinel};
        return Missing{call.rank, sentinel};
    };
    if (!wait_bounded(call, turn, Algorithm::low_latency, Phase::packet, ready, missing)) return false;

    const Vec16 empty = {{sentinel, sentinel, sentinel, sentinel}};
#pragma unroll
    for (u32 k = 1; k < world_size; ++k)
        store_bypass(slots.mine, peer_after(call, k) * slots.stride + v, empty);
    store_output<T>(call, v, sum_in_rank_order<T, R>(call, terms, v, turn.epoch));
    return true;
}

template <typename T, Rounding R>
LAB_DEVICE void low_latency(const Call& call) {
    const u32 vectors = vectors_of<T>(call);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;

    // 1. Push the first vector. It is asked for before the turn is looked at, so that the latencies overlap.
    const Turn turn = begin_call(call);
    Vec16 mine = {};
    if (first < vectors) mine = load_input<T>(call, first);
    const Slots slots = slots_of(call, turn);
    if (turn.dead()) return;
    mine = packet_of(mine);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::begin);
    if (first < vectors) push(slots, first, mine);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::pushed);
    block_barrier(); // every thread of the block has read the epoch word
    advance_epoch(call, turn);

    // 2. Take vectors as they arrive; the next one is pushed before each wait, to keep the link busy.
    for (u32 v = first; v < vectors; v += stride) {
        Vec16 next = {};
        if (v + stride < vectors) {
            next = packet_of(load_input<T>(call, v + stride));
            push(slots, v + stride, next);
        }
        if (!receive_and_sum<T, R>(call, turn, slots, v, mine)) return;
        mine = next;
    }
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(low_latency)
