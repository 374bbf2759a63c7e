#pragma once
// Residual addition and RMSNorm of rows, each row by one block, every addition and rounding at a fixed place.
//
// The bits of a row depend on its elements alone: not on how many rows there are, which block has it, or how
// many threads a block has. Its squares are summed as follows. Each vector of 8 elements is summed from its
// first element on. The vectors' sums are the leaves of a tree, padded with zeros to a power of two: vector v
// is added to v + half of them, until one is left. Adding a zero changes no such sum, so that the size of the
// tree does not matter, and a thread that holds vectors t, t + threads, ... adds those first, if the number
// of threads is a power of two.
//
// lab/kernels/norm_reference.py is the same in numpy.
#include "reduce.hpp"

namespace lab {

/// Where the kernel rounds to the element type, besides the new residual and the output, which it stores.
enum Point : u32 {
    sum_rounded = 1,        ///< the all-reduced sum, before the residual is added: as separate kernels do
    norm_of_stored = 2,     ///< the norm reads the residual as it is stored, and not the fp32 sum behind it
    normalised_rounded = 4, ///< the normalised value, before it is multiplied by the weight
    weight_plus_one = 8,    ///< no rounding: Gemma's weights count from 1
};

constexpr u32 held_vectors = 4;       ///< of a row, by a thread
constexpr u32 most_row_threads = 512; ///< so a row has at most 2048 vectors

/// A call's tensors as rows.
struct Rows {
    u32 count, vectors; ///< vectors of a row, the last one perhaps cut off
    u64 hidden;
    bool whole; ///< every vector of every tensor is aligned and has all its elements

    LAB_DEVICE Span of(u32 row) const { return {row * hidden, row * hidden + hidden, count * hidden}; }
};

template <typename T>
LAB_DEVICE Rows rows_of(const Call& call) {
    const u64 hidden = call.norm.hidden;
    const u64 tensors = reinterpret_cast<u64>(call.norm.residual) |
                        reinterpret_cast<u64>(call.norm.residual_out) |
                        reinterpret_cast<u64>(call.norm.weight);
    const bool whole = aligned(call) && tensors % sizeof(Vec16) == 0 && hidden % per_vector<T> == 0;
    return {u32(call.count / hidden), vectors_in<T>(hidden), hidden, whole};
}

/// each(j, i) for every vector i = j * threads + thread of a row. Not each row needs all that a thread can
/// hold.
template <typename Each>
LAB_DEVICE void for_row(const Call& call, const Rows& rows, const Each& each) {
#pragma unroll
    for (u32 j = 0; j < held_vectors; ++j) {
        const u32 i = j * call.threads + thread_index();
        if (i < rows.vectors) each(j, i);
    }
}

template <typename T>
LAB_DEVICE Values<T> widened(const Vec16& v) {
    Values<T> values;
#pragma unroll
    for (u32 e = 0; e < per_vector<T>; ++e) values.at[e] = T::widen(element<T>(v, e));
    return values;
}

/// The roundings of a call: what each adds to the seed, so that a stochastic one has bits of its own.
enum Step : u32 { of_sum, of_residual, of_normalised, of_output };

/// A row on its way through a block.
template <typename T>
struct Row {
    Values<T> values[held_vectors]; ///< what the norm reads
    float squares[held_vectors];    ///< of each vector, summed

    LAB_DEVICE Row() {
#pragma unroll
        for (u32 j = 0; j < held_vectors; ++j) squares[j] = 0;
    }

    /// Vector i of the row is there: what the norm will need of it.
    LAB_DEVICE void take(const Rows& rows, u32 j, u32 i, const Values<T>& v) {
        values[j] = v;
        float sum = product(v.at[0], v.at[0]);
#pragma unroll
        for (u32 e = 1; e < per_vector<T>; ++e)
            if (rows.whole || u64(i) * per_vector<T> + e < rows.hidden) sum += product(v.at[e], v.at[e]);
        squares[j] = sum;
    }
};

/// The new residual: vector i of the fp32 sums over the ranks plus the residual. Returned as it is stored;
/// the row takes what the norm reads.
template <typename T, Rounding R>
LAB_DEVICE Vec16 add_residual(const Call& arguments, const Rows& rows, const Gathered& all, u32 row, u32 j,
                              u32 i, const Vec16& residual, u64 epoch, Row<T>& held) {
    const Call& call = loaded_anew(arguments);
    const u64 place = rows.of(row).first + u64(i) * per_vector<T>;
    Values<T> sums = fp32_sum_in_rank_order<T>(call, all);
    if (call.norm.points & sum_rounded)
        sums = widened<T>(rounded<T, R>(sums, place, epoch, call.rounding_seed + of_sum));
    const Values<T> base = widened<T>(residual);
#pragma unroll
    for (u32 e = 0; e < per_vector<T>; ++e) sums.at[e] = base.at[e] + sums.at[e];
    const Vec16 stored = rounded<T, R>(sums, place, epoch, call.rounding_seed + of_residual);
    held.take(rows, j, i, call.norm.points & norm_of_stored ? widened<T>(stored) : sums);
    return stored;
}

struct RowSums {
    float of_thread[most_row_threads];
    float of_lane[32];
};

/// The tree over what the threads of a block have, the same in every thread. Threads: a power of two from 32
/// on.
LAB_DEVICE float sum_over_block(const Call& call, RowSums& sums, float own) {
    const u32 t = thread_index();
    sums.of_thread[t] = own;
    block_barrier();
    if (t < 32) {
        float at[most_row_threads / 32];
#pragma unroll
        for (u32 w = 0; w < most_row_threads / 32; ++w)
            at[w] = 32 * w < call.threads ? sums.of_thread[32 * w + t] : 0;
#pragma unroll
        for (u32 half = most_row_threads / 64; half > 0; half /= 2)
#pragma unroll
            for (u32 w = 0; w < half; ++w) at[w] += at[w + half];
        sums.of_lane[t] = at[0];
    }
    block_barrier();
    float at[32];
#pragma unroll
    for (u32 l = 0; l < 32; ++l) at[l] = sums.of_lane[l];
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2)
#pragma unroll
        for (u32 l = 0; l < half; ++l) at[l] += at[l + half];
    return at[0];
}

/// Normalise a row that all threads of the block have taken: done(i, vector) for each of the thread's
/// vectors.
template <typename T, Rounding R, typename Shape, typename Done>
LAB_DEVICE void normalise(const Call& arguments, const Rows& rows, RowSums& sums, u32 row, u64 epoch,
                          const Row<T>& held, const Done& done) {
    const Call& call = loaded_anew(arguments);
    static_assert(held_vectors == 4, "the tree over a thread's own vectors");
    const float own = (held.squares[0] + held.squares[2]) + (held.squares[1] + held.squares[3]);
    const float mean = sum_over_block(call, sums, own) / float(call.norm.hidden);
    const float scale = 1.0f / square_root(mean + call.norm.eps);
    const Span weights = {0, rows.hidden, rows.hidden};
    for_row(call, rows, [&](u32 j, u32 i) {
        const u64 place = rows.of(row).first + u64(i) * per_vector<T>;
        Values<T> y;
#pragma unroll
        for (u32 e = 0; e < per_vector<T>; ++e) y.at[e] = product(held.values[j].at[e], scale);
        if (call.norm.points & normalised_rounded)
            y = widened<T>(rounded<T, R>(y, place, epoch, call.rounding_seed + of_normalised));
        const Values<T> weight = widened<T>(load_vector<T, Shape>(call.norm.weight, weights, i));
        const float offset = call.norm.points & weight_plus_one ? 1.0f : 0.0f;
#pragma unroll
        for (u32 e = 0; e < per_vector<T>; ++e) y.at[e] = product(y.at[e], weight.at[e] + offset);
        done(i, rounded<T, R>(y, place, epoch, call.rounding_seed + of_output));
    });
}

} // namespace lab
