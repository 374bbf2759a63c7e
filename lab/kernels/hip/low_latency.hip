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

/// My packet v to every peer.
LAB_DEVICE void push(const Call& call, const Turn& turn, u32 v, const Vec16& packet) {
#pragma unroll
    for (u32 k = 1; k < world_size; ++k)
        store_bypass(packet_slot(call, k, turn.parity, call.rank), v, packet);
}

/// Take every peer's packet v from my slots, sum, store, give the slots back. False when a peer is lost.
template <typename T, Rounding R, typename Shape>
LAB_DEVICE bool receive_and_sum(const Call& arguments, const Turn& turn, u32 v, const Vec16& mine) {
    const Call& call = loaded_anew(arguments);
    const Slots slots = slots_in_rank_order(call, packet_slot(call, 0, turn.parity, 0), call.packets_stride);
    Gathered all;
    all.mine = mine;

    // A round polls all peers at once, so that the loads are in flight together.
    const auto ready = [&] {
        bool here = true;
        loads_begin<world_size - 1>();
#pragma unroll
        for (u32 j = 0; j < world_size - 1; ++j)
            all.others[j] = load_polled_bypass(slots.base, slots.of[j], v);
#pragma unroll
        for (u32 j = 0; j < world_size - 1; ++j) here &= arrived(all.others[j]);
        return here;
    };
    const auto missing = [&] {
        const Call& again = loaded_anew(call);
#pragma unroll 1
        for (u32 j = 0; j < world_size - 1; ++j) {
            const u32 s = other_rank(again, j);
            const Vec16* slot = packet_slot(again, 0, turn.parity, s);
            if (!arrived(load_polled_bypass(slot, 0, v))) return Missing{s, sentinel};
        }
        return Missing{again.rank, sentinel};
    };
    if (!wait_bounded(call, turn, Algorithm::low_latency, Phase::packet, ready, missing)) return false;

    const Vec16 empty = {{sentinel, sentinel, sentinel, sentinel}};
#pragma unroll
    for (u32 j = 0; j < world_size - 1; ++j) store_bypass(slots.base, slots.of[j] + v, empty);
    store_vector<T, Shape>(call.output, whole_message(call), v,
                           sum_in_rank_order<T, R>(call, all, u64(v) * per_vector<T>, turn.epoch));
    return true;
}

template <typename T, Rounding R, typename Shape>
LAB_DEVICE void low_latency_in(const Call& call) {
    const Span message = whole_message(call);
    const u32 vectors = vectors_in<T>(call.count);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;
    const auto give_up = [&](u32 from) {
        for (u32 v = from; v < vectors; v += stride) poison<T>(call.output, message, v);
    };

    // 1. Push the first vector. It is asked for beside the number of the call, so that the latencies overlap.
    const Turn turn = begin_call(call);
    Vec16 mine = {};
    if (first < vectors) mine = load_vector<T, Shape>(call.input, message, first);
    if (turn.dead()) return give_up(first);
    mine = packet_of(mine);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::begin);
    if (first < vectors) push(call, turn, first, mine);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::pushed);
    block_barrier(); // every thread of the block has read the epoch word
    advance_epoch(call, turn);

    // 2. Take vectors as they arrive; the next one is pushed before each wait, to keep the link busy.
    for (u32 v = first; v < vectors; v += stride) {
        Vec16 next = {};
        if (v + stride < vectors) {
            const Call& again = loaded_anew(call);
            next = packet_of(load_vector<T, Shape>(again.input, message, v + stride));
            push(again, turn, v + stride, next);
        }
        if (!receive_and_sum<T, R, Shape>(call, turn, v, mine)) return give_up(v);
        mine = next;
    }
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::end);
    // Threads meet their peers one by one, so only the end of the block says that all have: without
    // lets_at_once nobody lets the successor start before.
}

template <typename T, Rounding R>
LAB_DEVICE void low_latency(const Call& call) {
    in_shape(aligned(call) && call.count % per_vector<T> == 0,
             [&](auto shape) { low_latency_in<T, R, decltype(shape)>(call); });
}

} // namespace lab

LAB_EXPORT(low_latency)
