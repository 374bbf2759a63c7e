// One-shot all-reduce: push the whole input to every peer, meet, reduce everything locally.
// Link traffic per rank: (world_size - 1) * N bytes out, in one phase.
#include "reduce.hpp"
#include "signal.hpp"
#include "trace.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void one_shot(const Call& call) {
    const Turn turn = begin_call(call);
    if (turn.dead()) return;
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::begin);
    const u32 vectors = vectors_of<T>(call);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;

    // 1. My vectors of the input into my slot on every peer. The peer's same thread reads them in step 3.
    for (u32 v = first; v < vectors; v += stride) {
        const Vec16 mine = load_input<T>(call, v);
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(scatter_slot(call, peer_after(call, k), turn.parity, call.rank), v, mine);
    }
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::pushed);

    // 2. Meet the same block of every peer.
    const bool met = exchange_release_acquire(call, turn, Algorithm::one_shot, Phase::scatter);
    advance_epoch(call, turn);
    if (!met) return;
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::exchanged);

    // 3. Sum in rank order, own term from the input.
    for (u32 v = first; v < vectors; v += stride) {
        Vec16 terms[world_size];
#pragma unroll
        for (u32 s = 0; s < world_size; ++s)
            terms[s] = s == call.rank ? load_input<T>(call, v)
                                      : load_bypass(scatter_slot(call, call.rank, turn.parity, s), v);
        store_output<T>(call, v, sum_in_rank_order<T, R>(call, terms, v, turn.epoch));
    }
    trace(call, u32(Algorithm::one_shot), turn.epoch, Event::end);
}

} // namespace lab

LAB_EXPORT(one_shot)
