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
constexpr u32 ahead = 1; // vectors that a thread pushes before it waits for one: keeps the link busy

LAB_DEVICE bool arrived(const Vec16& v) {
    return v.word[0] != sentinel && v.word[1] != sentinel && v.word[2] != sentinel && v.word[3] != sentinel;
}

/// Vector v of my input to my slot on every peer.
template <typename T>
LAB_DEVICE void push(const Call& call, const Turn& turn, u32 v, Vec16 packet) {
#pragma unroll
    for (u32 w = 0; w < 4; ++w) packet.word[w] = packet.word[w] == sentinel ? other_nan : packet.word[w];
#pragma unroll
    for (u32 k = 1; k < world_size; ++k)
        store_bypass(packet_slot(call, peer_after(call, k), turn.parity, call.rank), v, packet);
}

/// Take every peer's vector v from my slots, give the slots back, sum, store. False when a peer is lost.
template <typename T, Rounding R>
LAB_DEVICE bool receive_and_sum(const Call& call, const Turn& turn, u32 v) {
    Vec16* slots = packet_slot(call, call.rank, turn.parity, 0);
    const u32 slot = u32(call.packets_stride / sizeof(Vec16));
    const Vec16 mine = load_input<T>(call, v);
    Vec16 terms[world_size] = {};

    // A round polls all peers at once, so that the loads are in flight together.
    const auto ready = [&] {
        bool all = true;
#pragma unroll
        for (u32 s = 0; s < world_size; ++s)
            if (s != call.rank) terms[s] = load_polled_bypass(slots, s * slot + v);
#pragma unroll
        for (u32 s = 0; s < world_size; ++s) all &= arrived(terms[s]);
        return all;
    };
    const auto missing = [&] {
#pragma unroll 1
        for (u32 s = 0; s < world_size; ++s)
            if (s != call.rank && !arrived(load_polled_bypass(slots, s * slot + v)))
                return Missing{s, sentinel};
        return Missing{call.rank, sentinel};
    };
    if (!wait_bounded(call, turn, Algorithm::low_latency, Phase::packet, ready, missing)) return false;

    const Vec16 empty = {{sentinel, sentinel, sentinel, sentinel}};
#pragma unroll
    for (u32 k = 1; k < world_size; ++k) store_bypass(slots, peer_after(call, k) * slot + v, empty);
    Vec16 row[world_size];
#pragma unroll
    for (u32 s = 0; s < world_size; ++s) row[s] = s == call.rank ? mine : terms[s];
    store_output<T>(call, v, sum_in_rank_order<T, R>(call, row, v, turn.epoch));
    return true;
}

template <typename T, Rounding R>
LAB_DEVICE void low_latency(const Call& call) {
    const u32 vectors = vectors_of<T>(call);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;

    // 1. Push the first vector. The input is asked for before the epoch, so that the two latencies overlap.
    start_after_predecessor();
    Vec16 head = {};
    if (first < vectors) head = load_input<T>(call, first);
    const Turn turn = begin_call(call);
    if (turn.dead) return;
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::begin);
    if (first < vectors) push<T>(call, turn, first, head);
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::pushed);
    block_barrier(); // every thread of the block has read the epoch word
    advance_epoch(call, turn);

    // 2. Take vectors as they arrive, `ahead` pushes before each.
    u32 pushed = first + stride;
    for (u32 k = 1; k < ahead; ++k, pushed += stride)
        if (pushed < vectors) push<T>(call, turn, pushed, load_input<T>(call, pushed));
    for (u32 v = first; v < vectors; v += stride, pushed += stride) {
        if (ahead > 0 && pushed < vectors) push<T>(call, turn, pushed, load_input<T>(call, pushed));
        if (!receive_and_sum<T, R>(call, turn, v)) return;
        if (ahead == 0 && pushed < vectors) push<T>(call, turn, pushed, load_input<T>(call, pushed));
    }
    trace(call, u32(Algorithm::low_latency), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(low_latency)
