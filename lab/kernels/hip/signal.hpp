#pragma once
// Turns, bounded waits and the flag exchange between the same block of all ranks.
#include "staging.hpp"

namespace lab {

enum class Algorithm : u32 {
    one_shot,
    two_shot,
    low_latency,
    seed_two_shot,
    reduce_scatter,
    all_gather,
    pull,
    pull_two_stage,
    add_rmsnorm,
    add_rmsnorm_two_stage
};
enum class Phase : u32 { scatter, gather, packet, own_grid, enter, leave };
enum class Kind : u64 { none, late, lost };

/// This block's view of the call it takes part in.
struct Turn {
    u64 epoch;      ///< number of this call, the same on every rank
    u32 parity;     ///< epoch & 1: which half of the staging
    u64 aborted_at; ///< as Control's, when this call began

    /// An earlier call of this rank lost a peer; nothing may be touched until all ranks reset. The same in
    /// every thread: aborted_at of the running launch equals its epoch, which is not below it.
    LAB_DEVICE bool dead() const { return aborted_at != 0 && aborted_at < epoch; }
};

/// Wait for the launch ahead, then look at the number of this call. It lives in device memory, so a replayed
/// graph advances it. A launch may be placed beside its predecessor's end, but touches nothing before that.
///
/// When the successor may be placed is for the host to say, call by call: it touches nothing either before
/// this launch has ended, but holds room on the GPU from then on.
///   lets_at_once: from here on. Soonest; it holds room while this launch still waits for its peers, so room
///   for both of them must be certain, beside all else that waits for a peer (docs/residency.md).
///   otherwise: from let_successor_when_met on, behind the last wait for a peer. What is left of this launch
///   ends by itself, so an early successor takes no room that a peer needs in order to come.
///
/// No third launch is placed beside the first: this one lets nobody start before its predecessor has ended.
LAB_DEVICE Turn begin_call(const Call& call) {
    start_after_predecessor();
    if (call.lets_at_once) let_successor_start();
    const u64 epoch = load_of_predecessor(&call.control->epoch[block_index()]) + 1;
    return Turn{epoch, u32(epoch & 1), load_of_predecessor(&call.control->aborted_at)};
}

/// After a block barrier behind begin_call: all max_blocks words, whatever the grid of this call is. Block b
/// writes the words congruent to b, once all its threads have read word b; no block reads a word that another
/// one writes.
LAB_DEVICE void advance_epoch(const Call& call, const Turn& turn) {
    const u32 step = call.threads * call.blocks;
    for (u32 word = block_index() + thread_index() * call.blocks; word < max_blocks; word += step)
        call.control->epoch[word] = turn.epoch;
}

/// Behind the last wait for a peer and a block barrier: one thread of a block is enough to let the successor
/// start, so all of them must have met.
LAB_DEVICE void let_successor_when_met(const Call& call) {
    if (!call.lets_at_once) let_successor_start();
}

/// What a wait that is not over lacks.
struct Missing {
    u32 peer;
    u64 seen;
};

LAB_DEVICE void write_record(const Call& call, const Turn& turn, Kind kind, Algorithm algorithm, Phase phase,
                             const Missing& missing, u64 waited) {
    WaitRecord* record = call.records + (kind == Kind::late ? 0 : 1);
    store_relaxed_system(&record->algorithm, u64(algorithm));
    store_relaxed_system(&record->phase, u64(phase));
    store_relaxed_system(&record->peer, u64(missing.peer));
    store_relaxed_system(&record->epoch, turn.epoch);
    store_relaxed_system(&record->block, u64(block_index()));
    store_relaxed_system(&record->thread, u64(thread_index()));
    store_relaxed_system(&record->blocks, u64(call.blocks));
    store_relaxed_system(&record->threads, u64(call.threads));
    store_relaxed_system(&record->count, call.count);
    store_relaxed_system(&record->waited, waited);
    store_relaxed_system(&record->seen, missing.seen);
    store_release_system(&record->kind, u64(kind));
}

/// Poll `ready` until it holds. False once a peer is lost, or another thread of this rank has lost one.
/// Bounded by wall clock: a slow poll loop does not make a peer late. `missing` is asked before a record is
/// written.
template <typename Ready, typename Lacking>
LAB_DEVICE bool wait_bounded(const Call& call, const Turn& turn, Algorithm algorithm, Phase phase,
                             const Ready& ready, const Lacking& missing) {
    constexpr u32 polls_per_clock = 64;
#pragma unroll 1
    for (u32 polls = 0; polls < polls_of_a_short_wait; ++polls) {
        if (ready()) return true;
        pause();
    }
    u64 start = 0;
    Missing last = {};
    for (u32 polls = 0; !ready(); ++polls) {
        pause();
        if (polls % polls_per_clock != polls_per_clock - 1) continue;
        const Call& again = loaded_anew(call);
        const u64 now = wall_clock();
        if (start == 0) start = now;
        last = missing();
        if (load_relaxed_system(&again.control->aborted_at) != 0) return false;
        if (now - start <= again.timeout + again.grace) continue;
        if (compare_exchange_device(&again.control->aborted_at, 0, turn.epoch))
            write_record(again, turn, Kind::lost, algorithm, phase, last, now - start);
        return false;
    }
    if (start == 0) return true;
    const Call& again = loaded_anew(call);
    const u64 waited = wall_clock() - start;
    if (waited > again.timeout && compare_exchange_device(&again.control->claimed_late, 0, 1))
        write_record(again, turn, Kind::late, algorithm, phase, last, waited);
    return true;
}

struct LostByRow {
    u32 row[2];
};

/// What a block makes visible when it meets its peers, and whether it will read what they made visible.
enum class Publishes { drained, everything };
enum class Reads { what_peers_published, nothing };

/// Block b of this rank meets block b of every peer. False when a peer is lost, in all threads of the block.
template <Publishes P, Reads A>
LAB_DEVICE bool meet(const Call& call, const Turn& turn, Algorithm algorithm, Phase phase) {
    LAB_SHARED(LostByRow, lost);
    const u32 row = phase == Phase::gather || phase == Phase::leave ? 1 : 0;
    const u32 k = thread_index();
    const bool meets = k > 0 && k < world_size;
    // Looked up in front of the barrier: its wait is long enough for that.
    u64* theirs = flag_word(call, meets ? k : 0, row, block_index(), call.rank);
    if (k == 0) lost.row[row] = 0; // a word per row: slow threads may still read the other one
    block_barrier_draining();      // every wave's payload is out before any thread below publishes it
    if (meets) {
        const u32 peer = peer_after(call, k);
        // Pairs with load_polled_system of the peer's same block.
        if (P == Publishes::everything)
            store_release_system(theirs, turn.epoch);
        else
            store_drained_system(theirs, turn.epoch);
        const u64* mine = flag_word(call, 0, row, block_index(), peer);
        // Pairs with the store above of the peer's same block. Flags only grow; 64 bits do not wrap.
        const auto arrived = [&] { return load_polled_system(mine) >= turn.epoch; };
        const auto missing = [&] { return Missing{peer, load_relaxed_system(mine)}; };
        if (!wait_bounded(call, turn, algorithm, phase, arrived, missing)) lost.row[row] = 1;
        if (A == Reads::nothing) reads_nothing();
        if (A != Reads::nothing) {
            acquire_polled_system(); // by the wave that polled; the barrier passes the order on
        }
    }
    block_barrier();
    if (A != Reads::nothing) acquire_behind_barrier();
    return lost.row[row] == 0;
}

/// What the block pushed before is visible to its peers after, and the other way round.
LAB_DEVICE bool exchange_release_acquire(const Call& call, const Turn& turn, Algorithm algorithm,
                                         Phase phase) {
    return meet<Publishes::drained, Reads::what_peers_published>(call, turn, algorithm, phase);
}

} // namespace lab
