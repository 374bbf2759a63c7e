// All-reduce + residual addition + RMSNorm in one launch, for many tokens: in two stages, as in two_shot.
// Each rank owns rows: it sums them and adds the residual, and sends the new residual; every rank normalises.
// Link traffic per rank: 2 (world_size - 1) / world_size * N bytes out, in two phases.
//
// A block does whole rows, the same ones of every part on every rank, so meeting the same block of the peers
// is enough. Where the norm reads what is not stored, only the owner can: it sends the normalised rows, too.
#include "norm.hpp"
#include "signal.hpp"
#include "trace.hpp"

namespace lab {

/// Rank j owns rows [j * each, (j + 1) * each).
struct RowParts {
    u32 each;

    LAB_DEVICE u32 row(u32 rank, u32 i) const { return rank * each + i; }
};

/// My rows of the peers' parts, each into my scatter slot there.
template <typename T, typename Shape>
LAB_DEVICE void scatter_rows(const Call& arguments, const Turn& turn, const Rows& rows,
                             const RowParts& parts) {
    const Call& call = loaded_anew(arguments);
    for (u32 i = block_index(); i < parts.each; i += call.blocks)
#pragma unroll
        for (u32 k = 1; k < world_size; ++k) {
            const u32 row = parts.row(peer_after(call, k), i);
            if (row >= rows.count) continue;
            Vec16 held[held_vectors];
            for_row(call, rows,
                    [&](u32 j, u32 v) { held[j] = load_vector<T, Shape>(call.input, rows.of(row), v); });
            for_row(call, rows, [&](u32 j, u32 v) {
                store_bypass(scatter_slot(call, k, turn.parity, call.rank), i * rows.vectors + v, held[j]);
            });
        }
}

/// Row i of my part: the sum plus the residual, to residual_out and to the peers; its norm to the output.
template <typename T, Rounding R, typename Shape>
LAB_DEVICE void reduce_row(const Call& arguments, const Turn& turn, const Rows& rows, const RowParts& parts,
                           RowSums& sums, u32 i) {
    const Call& call = loaded_anew(arguments);
    const u32 row = parts.row(call.rank, i);
    const Slots slots = slots_in_rank_order(call, scatter_slot(call, 0, turn.parity, 0), call.scatter_stride);
    const bool both = !(call.norm.points & norm_of_stored);
    Row<T> held;
    for_row(call, rows, [&](u32 j, u32 v) {
        Gathered all;
        if constexpr (Shape::always) loads_begin<world_size - 1>();
#pragma unroll
        for (u32 s = 0; s < world_size - 1; ++s)
            all.others[s] = load_bypass(slots.base, slots.of[s], i * rows.vectors + v);
        all.mine = load_vector<T, Shape>(call.input, rows.of(row), v);
        const Vec16 residual = load_vector<T, Shape>(call.norm.residual, rows.of(row), v);
        if constexpr (Shape::always) loads_end();
        const Vec16 stored = add_residual<T, R>(call, rows, all, row, j, v, residual, turn.epoch, held);
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(gather_slot(call, k, turn.parity, call.rank), i * rows.vectors + v, stored);
        store_vector<T, Shape>(call.norm.residual_out, rows.of(row), v, stored);
    });
    normalise<T, R, Shape>(call, rows, sums, row, turn.epoch, held, [&](u32 v, const Vec16& y) {
        store_vector<T, Shape>(call.output, rows.of(row), v, y);
        if (!both) return;
#pragma unroll
        for (u32 k = 1; k < world_size; ++k)
            store_bypass(gather_slot(call, k, turn.parity, call.rank), (parts.each + i) * rows.vectors + v,
                         y);
    });
}

/// Row i of the part of peer_after(k), from my gather slot.
template <typename T, Rounding R, typename Shape>
LAB_DEVICE void take_row(const Call& arguments, const Turn& turn, const Rows& rows, const RowParts& parts,
                         RowSums& sums, u32 k, u32 i) {
    const Call& call = loaded_anew(arguments);
    const u32 row = parts.row(peer_after(call, k), i);
    const Vec16* slot = gather_slot(call, 0, turn.parity, peer_after(call, k));
    Row<T> held;
    for_row(call, rows, [&](u32 j, u32 v) {
        const Vec16 stored = load_bypass(slot, 0, i * rows.vectors + v);
        store_vector<T, Shape>(call.norm.residual_out, rows.of(row), v, stored);
        held.take(rows, j, v, widened<T>(stored));
    });
    if (call.norm.points & norm_of_stored)
        normalise<T, R, Shape>(call, rows, sums, row, turn.epoch, held, [&](u32 v, const Vec16& y) {
            store_vector<T, Shape>(call.output, rows.of(row), v, y);
        });
    else
        for_row(call, rows, [&](u32, u32 v) {
            const Vec16 y = load_bypass(slot, 0, (parts.each + i) * rows.vectors + v);
            store_vector<T, Shape>(call.output, rows.of(row), v, y);
        });
}

template <typename T, Rounding R, typename Shape>
LAB_DEVICE void add_rmsnorm_two_stage_in(const Call& call, const Rows& rows) {
    LAB_SHARED(RowSums, sums);
    const Turn turn = begin_call(call);
    const RowParts parts = {(rows.count + world_size - 1) / world_size};
    const auto give_up = [&](u32 from) {
        for (u32 k = from; k < world_size; ++k)
            for (u32 i = block_index(); i < parts.each; i += call.blocks) {
                const u32 row = parts.row(peer_after(call, k), i);
                if (row >= rows.count) break;
                for_row(call, rows, [&](u32, u32 v) {
                    poison<T>(call.norm.residual_out, rows.of(row), v);
                    poison<T>(call.output, rows.of(row), v);
                });
            }
    };
    if (turn.dead()) return give_up(0);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::begin);

    // 1. Each peer's rows of my input into my scatter slot there.
    scatter_rows<T, Shape>(call, turn, rows, parts);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::pushed);
    const bool scattered =
        exchange_release_acquire(call, turn, Algorithm::add_rmsnorm_two_stage, Phase::scatter);
    advance_epoch(call, turn);
    if (!scattered) return give_up(0);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::exchanged);

    // 2. My rows: sum in rank order, add, norm.
    for (u32 i = block_index(); i < parts.each && parts.row(call.rank, i) < rows.count; i += call.blocks)
        reduce_row<T, R, Shape>(call, turn, rows, parts, sums, i);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::reduced);
    const bool gathered =
        exchange_release_acquire(call, turn, Algorithm::add_rmsnorm_two_stage, Phase::gather);
    if (!gathered) return give_up(1); // the own rows are right
    let_successor_when_met(call);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::gathered);

    // 3. The peers' rows.
    for (u32 i = block_index(); i < parts.each; i += call.blocks)
#pragma unroll 1
        for (u32 k = 1; k < world_size; ++k)
            if (parts.row(peer_after(call, k), i) < rows.count)
                take_row<T, R, Shape>(call, turn, rows, parts, sums, k, i);
    trace(call, u32(Algorithm::add_rmsnorm_two_stage), turn.epoch, Event::end);
}

template <typename T, Rounding R>
LAB_DEVICE void add_rmsnorm_two_stage(const Call& call) {
    const Rows rows = rows_of<T>(call);
    in_shape(rows.whole, [&](auto shape) { add_rmsnorm_two_stage_in<T, R, decltype(shape)>(call, rows); });
}

} // namespace lab

LAB_EXPORT(add_rmsnorm_two_stage)
