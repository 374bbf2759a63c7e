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
constexpr u32 batch = world_size == 2 ? 4 : world_size <= 4 ? 2 : 1;

LAB_DEVICE bool arrived(const Vec16& v) {
    return v.word[0] != sentinel && v.word[1] != sentinel && v.word[2] != sentinel && v.word[3] != sentinel;
}

/// N vectors of one thread: v, v + stride, ... all of them inside the message.
template <u32 N>
LAB_DEVICE void push(const Call& call, const Turn& turn, const Vec16 (&mine)[N], u32 v, u32 stride) {
#pragma unroll
    for (u32 b = 0; b < N; ++b) {
        Vec16 packet = mine[b];
#pragma unroll
        for (u32 w = 0; w < 4; ++w) packet.word[w] = packet.word[w] == sentinel ? other_nan : packet.word[w];
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(packet_slot(call, peer_after(call, k), turn.parity, call.rank), v + b * stride,
                         packet);
    }
}

/// Take every peer's N vectors from my slots, give the slots back, sum, store. False when a peer is lost.
template <typename T, Rounding R, u32 N>
LAB_DEVICE bool receive_and_sum(const Call& call, const Turn& turn, const Vec16 (&mine)[N], u32 v,
                                u32 stride) {
    Vec16* slots = packet_slot(call, call.rank, turn.parity, 0);
    const u32 slot = u32(call.packets_stride / sizeof(Vec16));
    Vec16 terms[N][world_size] = {};

    // A round polls everything at once, so that all loads are in flight together.
    const auto ready = [&] {
        bool all = true;
#pragma unroll
        for (u32 b = 0; b < N; ++b)
#pragma unroll
            for (u32 s = 0; s < world_size; ++s)
                if (s != call.rank) terms[b][s] = load_polled_bypass(slots, s * slot + v + b * stride);
#pragma unroll
        for (u32 b = 0; b < N; ++b)
#pragma unroll
            for (u32 s = 0; s < world_size; ++s) all &= arrived(terms[b][s]);
        return all;
    };
    const auto missing = [&] {
#pragma unroll 1
        for (u32 b = 0; b < N; ++b)
#pragma unroll 1
            for (u32 s = 0; s < world_size; ++s)
                if (s != call.rank && !arrived(load_polled_bypass(slots, s * slot + v + b * stride)))
                    return Missing{s, sentinel};
        return Missing{call.rank, sentinel};
    };
    if (!wait_bounded(call, turn, Algorithm::low_latency, Phase::packet, ready, missing)) return false;

#pragma unroll
    for (u32 b = 0; b < N; ++b) {
        const Vec16 empty = {{sentinel, sentinel, sentinel, sentinel}};
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(slots, peer_after(call, k) * slot + v + b * stride, empty);
        Vec16 row[world_size];
#pragma unroll
        for (u32 s = 0; s < world_size; ++s) row[s] = s == call.rank ? mine[b] : terms[b][s];
        const Vec16 sum = sum_in_rank_order<T, R>(call, row, v + b * stride, turn.epoch);
        store_output<T>(call, v + b * stride, sum);
    }
    return true;
}

template <typename T, Rounding R, u32 N>
LAB_DEVICE bool push_receive_and_sum(const Call& call, const Turn& turn, u32 v, u32 stride) {
    Vec16 mine[N];
#pragma unroll
    for (u32 b = 0; b < N; ++b) mine[b] = load_input<T>(call, v + b * stride);
    push(call, turn, mine, v, stride);
    return receive_and_sum<T, R>(call, turn, mine, v, stride);
}

template <typename T, Rounding R>
LAB_DEVICE void low_latency(const Call& call) {
    const u32 vectors = vectors_of<T>(call);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;

    // 1. The first vector. The input is asked for before the epoch, so that the two latencies overlap.
    Vec16 head[1] = {};
    if (first < vectors) head[0] = load_input<T>(call, first);
    const Turn turn = begin_call(call);
    if (turn.dead) return;
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::begin);
    if (first < vectors) push(call, turn, head, first, stride);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::pushed);
    block_barrier(); // every thread of the block has read the epoch word
    advance_epoch(call, turn);
    if (first < vectors && !receive_and_sum<T, R>(call, turn, head, first, stride)) return;

    // 2. The others, a batch at a time. Other waves keep the link busy while one waits.
    u32 v = first + stride;
    if constexpr (batch > 1)
        for (; v + (batch - 1) * stride < vectors; v += batch * stride)
            if (!push_receive_and_sum<T, R, batch>(call, turn, v, stride)) return;
    for (; v < vectors; v += stride)
        if (!push_receive_and_sum<T, R, 1>(call, turn, v, stride)) return;
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(low_latency)
