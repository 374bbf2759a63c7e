#pragma once
// What a call is given, and where things lie in a rank's workspace.
//
// Workspace of a rank (one uncached allocation, mapped by every rank; offsets and strides come from
// staging.py):
//
//   flags    u64 [2 rows][max_blocks][max_ranks]   word `s` of a row is written by rank s alone
//   scatter  [2 parities][world_size] slots        inputs: whole (one-shot) or my part of them (the others)
//   gather   [2 parities][world_size] slots        reduced parts, and all_gather's: a region of their own
//   packets  [2 parities][world_size] slots        low-latency: every word is `sentinel` between calls
//
// Why two parities are enough: a slot of call e is written again in call e+2. Its writer has then finished
// e+1, in which it received something from every peer, so every peer had started e+1 and, kernels of a stream
// running one after the other, had finished e. This holds for any mix of algorithms, sizes and grids, because
// every call of every algorithm hears from every peer.
#include "target.hpp"

namespace lab {

constexpr u32 max_blocks = 512;

/// Words of this GPU alone. Between launches all `epoch` words are equal: see advance_epoch.
struct Control {
    u64 epoch[max_blocks];
    u64 aborted_at;    ///< epoch of the first lost wait, 0 while there is none
    u64 claimed_late;  ///< 1 once a late wait has been recorded
    u64 seed_words[8]; ///< counters of tests/seed_two_shot.hip; no other kernel reads them
};

/// Host-mapped; the host reads it without a device synchronisation. `kind` is written last.
struct WaitRecord {
    u64 kind; ///< 0 none, 1 late (it came, after the bound), 2 lost
    u64 algorithm, phase, peer, epoch;
    u64 block, thread, blocks, threads, count;
    u64 waited; ///< ticks
    u64 seen;   ///< the flag's value at the end of the wait
};

struct TraceEvent {
    u64 ticks;
    u64 what; ///< epoch << 32 | block << 16 | algorithm << 8 | event
};

/// What add_rmsnorm does besides the all-reduce. Tensors have the call's element type.
struct Norm {
    const void* residual; ///< [tokens][hidden], the same on every rank
    void* residual_out;   ///< may be `residual`; otherwise disjoint from all others
    const void* weight;   ///< [hidden]
    u32 hidden;           ///< elements of a row, at most 16384; Call::count is a multiple of it
    u32 points;           ///< where it rounds, and Gemma's weights: Point in norm.hpp
    float eps;
};

/// Kernel argument, by value. Identical on all ranks but for rank, the pointers and nothing else.
struct Call {
    /// Workspaces as this rank maps them, in the order of peer_after: [0] is its own. No rank is an index at
    /// run time, so all of them come with one wide scalar load.
    char* workspace[max_ranks];
    const void* input; ///< of reduce_scatter: world_size parts, one behind the other
    void* output;      ///< of all_gather: the same. Otherwise it may be `input`; else disjoint from it
    Control* control;
    WaitRecord* records; ///< [0] first late, [1] first lost
    TraceEvent* trace;   ///< [blocks][trace_events], read only in a build with -DLAB_TRACE=1
    u64 count;           ///< elements, 0 < count < 2^32; of reduce_scatter and all_gather, those of a part
    u64 timeout, grace;  ///< ticks of wall_clock: late after timeout, lost after timeout + grace
    u64 scatter_offset, scatter_stride, gather_offset, gather_stride, packets_offset,
        packets_stride; ///< bytes
    u32 rank, blocks, threads, trace_events;
    u32 rounding_seed;
    u32 lets_at_once; ///< when the successor in the stream may be placed: see begin_call
    /// [world_size] in rank order: every rank's input as this rank maps it. In device memory, so that a
    /// captured launch finds there what was registered after the capture. Read by the pull kernels alone.
    const void* const* registered;
    Norm norm; ///< read by add_rmsnorm alone
};

/// The k-th peer after this rank, k = 1..world_size-1: ranks start on different links. k = 0 is this rank.
LAB_DEVICE u32 peer_after(const Call& call, u32 k) {
    const u32 peer = call.rank + k;
    return peer < world_size ? peer : peer - world_size;
}

/// The j-th of the other ranks in rising order, j = 0..world_size-2.
LAB_DEVICE u32 other_rank(const Call& call, u32 j) { return j < call.rank ? j : j + 1; }

// `k` names the owner of what follows: it is peer_after(k).

LAB_DEVICE u64* flag_word(const Call& call, u32 k, u32 row, u32 block, u32 writer) {
    return reinterpret_cast<u64*>(call.workspace[k]) + (row * max_blocks + block) * max_ranks + writer;
}

LAB_DEVICE Vec16* scatter_slot(const Call& call, u32 k, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[k] + call.scatter_offset +
                                    (parity * world_size + writer) * call.scatter_stride);
}

LAB_DEVICE Vec16* gather_slot(const Call& call, u32 k, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[k] + call.gather_offset +
                                    (parity * world_size + writer) * call.gather_stride);
}

LAB_DEVICE Vec16* packet_slot(const Call& call, u32 k, u32 parity, u32 writer) {
    return reinterpret_cast<Vec16*>(call.workspace[k] + call.packets_offset +
                                    (parity * world_size + writer) * call.packets_stride);
}

/// This rank's slots of a region, for each of the others: where slot [j] starts behind `base`, in vectors.
struct Slots {
    Vec16* base;
    u32 of[world_size - 1];
};

/// The slots for other_rank(j), where `first` is the one for rank 0.
LAB_DEVICE Slots slots_in_rank_order(const Call& call, Vec16* first, u64 stride) {
    Slots slots = {first, {}};
#pragma unroll
    for (u32 j = 0; j < world_size - 1; ++j)
        slots.of[j] = uniform(other_rank(call, j)) * u32(stride / sizeof(Vec16));
    return slots;
}

/// The slots for peer_after(j + 1).
LAB_DEVICE Slots slots_in_peer_order(const Call& call, Vec16* first, u64 stride) {
    Slots slots = {first, {}};
#pragma unroll
    for (u32 j = 0; j < world_size - 1; ++j)
        slots.of[j] = uniform(peer_after(call, j + 1)) * u32(stride / sizeof(Vec16));
    return slots;
}

} // namespace lab
