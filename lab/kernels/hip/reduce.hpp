#pragma once
// The fp32 sum in rank order, one rounding.
#include "elements.hpp"

#ifndef LAB_ROUND
#define LAB_ROUND 0
#endif

namespace lab {

constexpr Rounding rounding_mode = Rounding(LAB_ROUND);

/// One vector of every rank: those that came, in rising order of their ranks, and the own one.
struct Gathered {
    Vec16 others[world_size - 1];
    Vec16 mine;
};

/// Word w of rank s's vector. The own one is put in its place here, behind the loads: a branch on the rank
/// between them would part them.
LAB_DEVICE u32 term(const Call& call, const Gathered& all, u32 s, u32 w) {
    if (world_size == 2) return s == 0 ? all.mine.word[w] : all.others[0].word[w]; // a + b is b + a
    const u32 below = all.others[s < world_size - 1 ? s : s - 1].word[w];
    const u32 above = all.others[s > 0 ? s - 1 : 0].word[w];
    return s == call.rank ? all.mine.word[w] : s < call.rank ? below : above;
}

/// A vector's elements in fp32.
template <typename T>
struct Values {
    float at[per_vector<T>];
};

/// The sum runs over ranks 0..world_size-1 in fp32 on every rank and in every algorithm, so the bits depend
/// on neither.
template <typename T>
LAB_DEVICE Values<T> fp32_sum_in_rank_order(const Call& call, const Gathered& all) {
    Vec16 terms[world_size];
#pragma unroll
    for (u32 s = 0; s < world_size; ++s)
#pragma unroll
        for (u32 w = 0; w < 4; ++w) terms[s].word[w] = term(call, all, s, w);
    Values<T> sums;
#pragma unroll
    for (u32 i = 0; i < per_vector<T>; ++i) {
        sums.at[i] = T::widen(element<T>(terms[0], i));
#pragma unroll
        for (u32 s = 1; s < world_size; ++s) sums.at[i] += T::widen(element<T>(terms[s], i));
    }
    return sums;
}

/// `place` is the first element's place in the message: it, the epoch and the seed name the random bits of a
/// stochastic rounding.
template <typename T, Rounding R>
LAB_DEVICE Vec16 rounded(const Values<T>& values, u64 place, u64 epoch, u32 seed) {
    Vec16 result = {};
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
        float of_word[per_word<T>];
        u32 random[per_word<T>] = {};
#pragma unroll
        for (u32 j = 0; j < per_word<T>; ++j) {
            const u32 i = w * per_word<T> + j;
            of_word[j] = values.at[i];
            if (R == Rounding::SR) random[j] = random_bits(u32(place) + i, u32(epoch), seed);
        }
        result.word[w] = T::template narrow<R>(of_word, random);
    }
    return result;
}

template <typename T, Rounding R>
LAB_DEVICE Vec16 sum_in_rank_order(const Call& call, const Gathered& all, u64 place, u64 epoch) {
    return rounded<T, R>(fp32_sum_in_rank_order<T>(call, all), place, epoch, call.rounding_seed);
}

} // namespace lab

/// Instantiate a kernel for the three element types as name_fp32, name_fp16, name_bf16.
#define LAB_EXPORT(name)                                                                                     \
    LAB_KERNEL name##_fp32(lab::Call call) { lab::name<lab::Fp32, lab::rounding_mode>(call); }               \
    LAB_KERNEL name##_fp16(lab::Call call) { lab::name<lab::Fp16, lab::rounding_mode>(call); }               \
    LAB_KERNEL name##_bf16(lab::Call call) { lab::name<lab::Bf16, lab::rounding_mode>(call); }
