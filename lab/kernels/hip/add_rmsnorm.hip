// All-reduce + residual addition + RMSNorm in one launch, for few tokens: packets, as in low_latency.
// Link traffic per rank: (world_size - 1) * N bytes out. A block does whole rows: see norm.hpp.
#include "norm.hpp"
#include "packets.hpp"
#include "trace.hpp"

namespace lab {

/// So many vectors of every peer are polled at once: as many as registers allow.
constexpr u32 polled_vectors = world_size <= 3 ? held_vectors : world_size <= 5 ? 2 : 1;

template <typename T, typename Shape>
LAB_DEVICE void push_row(const Call& arguments, const Turn& turn, const Rows& rows, u32 row) {
    const Call& call = loaded_anew(arguments);
    Vec16 held[held_vectors];
    for_row(call, rows,
            [&](u32 j, u32 i) { held[j] = packet_of(load_vector<T, Shape>(call.input, rows.of(row), i)); });
    for_row(call, rows, [&](u32 j, u32 i) { push(call, turn, row * rows.vectors + i, held[j]); });
}

/// The sums of a row's vectors as they arrive, plus the residual, to residual_out and to `held`. False when a
/// peer is lost.
template <typename T, Rounding R, typename Shape>
LAB_DEVICE bool receive_row(const Call& arguments, const Turn& turn, const Rows& rows, u32 row,
                            Row<T>& held) {
    bool met = true;
#pragma unroll
    for (u32 j = 0; j < held_vectors; j += polled_vectors) {
        const Call& call = loaded_anew(arguments);
        const u32 i = j * call.threads + thread_index();
        if (i >= rows.vectors) break;
        const u32 count = (rows.vectors - 1 - i) / call.threads + 1;
        const Expected expected = {row * rows.vectors + i, call.threads,
                                   count < polled_vectors ? count : polled_vectors};
        Gathered all[polled_vectors];
        Vec16 residual[polled_vectors]; // asked for before the wait, as the own terms are
#pragma unroll
        for (u32 n = 0; n < polled_vectors; ++n) {
            const u32 v = n < expected.count ? i + n * call.threads : i;
            all[n].mine = load_vector<T, Shape>(call.input, rows.of(row), v);
            residual[n] = load_vector<T, Shape>(call.norm.residual, rows.of(row), v);
        }
        met &= receive(call, turn, Algorithm::add_rmsnorm, expected, all);
#pragma unroll
        for (u32 n = 0; n < polled_vectors; ++n) {
            if (n >= expected.count) break;
            const u32 v = i + n * call.threads;
            const Vec16 stored =
                add_residual<T, R>(call, rows, all[n], row, j + n, v, residual[n], turn.epoch, held);
            store_vector<T, Shape>(call.norm.residual_out, rows.of(row), v, stored);
        }
    }
    return met;
}

template <typename T, Rounding R, typename Shape>
LAB_DEVICE void add_rmsnorm_in(const Call& call, const Rows& rows) {
    LAB_SHARED(RowSums, sums);
    LAB_SHARED(u32, lost);
    const u32 first = block_index();
    const auto give_up = [&](u32 from) {
        for (u32 row = from; row < rows.count; row += call.blocks)
            for_row(call, rows, [&](u32, u32 i) {
                poison<T>(call.norm.residual_out, rows.of(row), i);
                poison<T>(call.output, rows.of(row), i);
            });
    };

    // 1. Push the first row.
    const Turn turn = begin_call(call);
    if (turn.dead()) return give_up(first);
    trace(call, u32(Algorithm::add_rmsnorm), turn.epoch, Event::begin);
    if (first < rows.count) push_row<T, Shape>(call, turn, rows, first);
    trace(call, u32(Algorithm::add_rmsnorm), turn.epoch, Event::pushed);
    if (thread_index() == 0) lost = 0;
    block_barrier(); // every thread of the block has read the epoch word
    advance_epoch(call, turn);

    // 2. Take rows as they arrive; the next one is pushed before each wait, to keep the link busy.
    for (u32 row = first; row < rows.count; row += call.blocks) {
        if (row + call.blocks < rows.count) push_row<T, Shape>(call, turn, rows, row + call.blocks);
        Row<T> held;
        if (!receive_row<T, R, Shape>(call, turn, rows, row, held)) lost = 1;
        normalise<T, R, Shape>(call, rows, sums, row, turn.epoch, held, [&](u32 i, const Vec16& y) {
            store_vector<T, Shape>(call.output, rows.of(row), i, y);
        });
        if (lost)
            return give_up(row); // the same in all threads: the sum met at two barriers behind the waits
    }
    trace(call, u32(Algorithm::add_rmsnorm), turn.epoch, Event::end);
}

template <typename T, Rounding R>
LAB_DEVICE void add_rmsnorm(const Call& call) {
    const Rows rows = rows_of<T>(call);
    in_shape(rows.whole, [&](auto shape) { add_rmsnorm_in<T, R, decltype(shape)>(call, rows); });
}

} // namespace lab

LAB_EXPORT(add_rmsnorm)
