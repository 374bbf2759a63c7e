// Low-latency all-reduce: the data is its own flag. One phase, no fence, no flag, no meeting of blocks.
// Link traffic per rank: (world_size - 1) * N bytes out.
#include "packets.hpp"
#include "trace.hpp"

namespace lab {

/// Take every peer's packet v from my slots, sum, store. False when a peer is lost.
template <typename T, Rounding R, typename Shape>
LAB_DEVICE bool receive_and_sum(const Call& call, const Turn& turn, u32 v, const Vec16& mine) {
    Gathered all[1];
    all[0].mine = mine;
    if (!receive(call, turn, Algorithm::low_latency, {v, 0, 1}, all)) return false;
    store_vector<T, Shape>(call.output, whole_message(call), v,
                           sum_in_rank_order<T, R>(call, all[0], u64(v) * per_vector<T>, turn.epoch));
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
