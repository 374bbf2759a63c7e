// The two-shot protocol that this folder replaces, with its two defects, for the self-test to refuse. Never
// used otherwise. Takes aligned messages whose parts are whole vectors: count divisible by world_size *
// per_vector.
//
// D1: step 5 pushes vectors whose elements OTHER blocks reduced in step 4; only a block barrier lies between.
// D2: the gather slots of call n are the scatter slots of call n+1; nothing proves that they have been read.
#include "../reduce.hpp"
#include "../signal.hpp"

namespace lab {

/// Thread 0 of block 0 sends `epoch` to every peer once all blocks have arrived; thread 0 of every block
/// waits.
LAB_DEVICE bool seed_meet(const Call& call, const Turn& turn, Phase phase, u64* arrive) {
    LAB_SHARED(u32, lost);
    const u32 row = phase == Phase::gather ? 1 : 0;
    block_barrier_draining();
    if (thread_index() == 0) {
        lost = 0;
        add_release_device(arrive, 1);
        if (block_index() == 0) {
            const auto all_here = [&] { return load_relaxed_system(arrive) >= call.blocks; };
            const auto own = [&] { return Missing{call.rank, load_relaxed_system(arrive)}; };
            if (!wait_bounded(call, turn, Algorithm::seed_two_shot, Phase::own_grid, all_here, own)) lost = 1;
            for (u32 k = 1; k < world_size; ++k)
                store_release_system(flag_word(call, k, row, 0, call.rank), turn.epoch);
        }
        for (u32 k = 1; k < world_size; ++k) {
            const u32 peer = peer_after(call, k);
            const u64* mine = flag_word(call, 0, row, 0, peer);
            const auto arrived = [&] { return load_polled_system(mine) >= turn.epoch; };
            const auto missing = [&] { return Missing{peer, load_relaxed_system(mine)}; };
            if (!wait_bounded(call, turn, Algorithm::seed_two_shot, phase, arrived, missing)) lost = 1;
        }
    }
    block_barrier();
    acquire_behind_barrier();
    return lost == 0;
}

template <typename T, Rounding R>
LAB_DEVICE void seed_two_shot(const Call& call) {
    const Turn turn = begin_call(call);
    if (turn.dead()) return;
    u64* arrive = call.control->seed_words;
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;
    const Span message = whole_message(call);
    const u32 part = vectors_in<T>(call.count) / world_size;
    auto* output = static_cast<typename T::Bits*>(call.output);

    for (u32 k = 1; k < world_size; ++k) { // step 2
        const u32 peer = peer_after(call, k);
        for (u32 i = first; i < part; i += stride)
            store_bypass(scatter_slot(call, k, turn.parity, call.rank), i,
                         load_vector<T, Whole>(call.input, message, peer * part + i));
    }
    const bool scattered = seed_meet(call, turn, Phase::scatter, arrive + turn.parity);
    advance_epoch(call, turn);
    if (!scattered) return;

    for (u32 e = first; e < part * per_vector<T>; e += stride) { // step 4: one element a thread
        const u32 i = e / per_vector<T>;
        Gathered all;
        for (u32 j = 0; j < world_size - 1; ++j)
            all.others[j] = load_bypass(scatter_slot(call, 0, turn.parity, other_rank(call, j)), 0, i);
        all.mine = load_vector<T, Whole>(call.input, message, call.rank * part + i);
        const u64 place = u64(call.rank * part + i) * per_vector<T>;
        const Vec16 sum = sum_in_rank_order<T, R>(call, all, place, turn.epoch);
#pragma unroll
        for (u32 j = 0; j < per_vector<T>; ++j)
            if (j == e % per_vector<T>) output[call.rank * part * per_vector<T> + e] = element<T>(sum, j);
    }
    block_barrier(); // D1: other blocks may still be in step 4

    for (u32 k = 1; k < world_size; ++k) // step 5: one vector a thread
        for (u32 i = first; i < part; i += stride)
            store_bypass(scatter_slot(call, k, 1 - turn.parity, call.rank), i, // D2
                         load_bypass(static_cast<const Vec16*>(call.output), 0, call.rank * part + i));
    if (!seed_meet(call, turn, Phase::gather, arrive + 2 + turn.parity)) return;
    if (first == 0) arrive[1 - turn.parity] = arrive[2 + 1 - turn.parity] = 0;

    for (u32 k = 1; k < world_size; ++k) { // step 7
        const u32 peer = peer_after(call, k);
        for (u32 i = first; i < part; i += stride)
            store_vector<T, Whole>(call.output, message, peer * part + i,
                                   load_bypass(scatter_slot(call, 0, 1 - turn.parity, peer), 0, i));
    }
}

} // namespace lab

LAB_EXPORT(seed_two_shot)
