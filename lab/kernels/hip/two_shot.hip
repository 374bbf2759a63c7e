// Two-shot all-reduce: push to each rank its part, reduce the own part, push the result to every peer.
// Link traffic per rank: 2 (world_size - 1) / world_size * N bytes out, in two phases.
// Thread t of block b handles the same vectors of a part in every step and on every rank, so meeting the same
// block of the peers is enough: no barrier across the grid.
#include "reduce.hpp"
#include "signal.hpp"
#include "trace.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void two_shot(const Call& call) {
    const Turn turn = begin_call(call);
    if (turn.dead()) return;
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::begin);
    const u32 vectors = vectors_of<T>(call);
    const u32 part =
        (vectors + world_size - 1) / world_size; // rank j owns vectors [j * part, (j + 1) * part)
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;

    // 1. Each peer's part of my input into my scatter slot there.
    for (u32 i = first; i < part; i += stride) {
#pragma unroll
        for (u32 k = 1; k < world_size; ++k) {
            const u32 peer = peer_after(call, k);
            const u32 v = peer * part + i;
            if (v < vectors)
                store_bypass(scatter_slot(call, peer, turn.parity, call.rank), i, load_input<T>(call, v));
        }
    }
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::pushed);
    const bool scattered = exchange_release_acquire(call, turn, Algorithm::two_shot, Phase::scatter);
    advance_epoch(call, turn);
    if (!scattered) return;
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::exchanged);

    // 2. Reduce my part in rank order; the result goes to the output and, from registers, to every peer.
    for (u32 i = first; i < part; i += stride) {
        const u32 v = call.rank * part + i;
        if (v >= vectors) break;
        Vec16 terms[world_size];
#pragma unroll
        for (u32 s = 0; s < world_size; ++s)
            terms[s] = s == call.rank ? load_input<T>(call, v)
                                      : load_bypass(scatter_slot(call, call.rank, turn.parity, s), i);
        const Vec16 sum = sum_in_rank_order<T, R>(call, terms, v, turn.epoch);
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(gather_slot(call, peer_after(call, k), turn.parity, call.rank), i, sum);
        store_output<T>(call, v, sum);
    }
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::reduced);
    if (!exchange_release_acquire(call, turn, Algorithm::two_shot, Phase::gather)) return;
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::gathered);

    // 3. The peers' parts from my gather slots to the output.
    for (u32 i = first; i < part; i += stride) {
#pragma unroll
        for (u32 k = 1; k < world_size; ++k) {
            const u32 peer = peer_after(call, k);
            const u32 v = peer * part + i;
            if (v < vectors)
                store_output<T>(call, v, load_bypass(gather_slot(call, call.rank, turn.parity, peer), i));
        }
    }
    trace(call, u32(Algorithm::two_shot), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(two_shot)
