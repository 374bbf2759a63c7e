#pragma once
// Elements in 16-byte vectors: load, fp32 sum in rank order, one rounding, store.
#include "rounding.hpp"
#include "staging.hpp"

#ifndef LAB_ROUND
#define LAB_ROUND 0
#endif

namespace lab {

constexpr Rounding rounding_mode = Rounding(LAB_ROUND);

struct Fp32 {
    using Bits = u32;
    static LAB_DEVICE float widen(Bits bits) { return float_of(bits); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[1], const u32 (&)[1]) {
        const u32 bits = bits_of(values[0]);
        return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    }
};

struct Fp16 {
    using Bits = u16;
    static LAB_DEVICE float widen(Bits bits) { return half_to_float(bits); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[2], const u32 (&random)[2]) {
        return pack_fp16<R>(values[0], values[1], random[0], random[1]);
    }
};

struct Bf16 {
    using Bits = u16;
    static LAB_DEVICE float widen(Bits bits) { return float_of(u32(bits) << 16); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[2], const u32 (&random)[2]) {
        return pack_bf16<R>(values[0], values[1], random[0], random[1]);
    }
};

template <typename T>
constexpr u32 per_vector = 16 / sizeof(typename T::Bits);
template <typename T>
constexpr u32 per_word = per_vector<T> / 4;

template <typename T>
LAB_DEVICE u32 vectors_of(const Call& call) {
    return u32((call.count + per_vector<T> - 1) / per_vector<T>);
}

template <typename T>
LAB_DEVICE typename T::Bits element(const Vec16& v, u32 i) {
    if (sizeof(typename T::Bits) == 4) return typename T::Bits(v.word[i]);
    return typename T::Bits(v.word[i / 2] >> (16 * (i % 2)));
}

/// An edge or unaligned vector, element by element, zero beyond the end. Elements are shifted in from the
/// top, so that no register is indexed at run time.
template <typename T>
LAB_DEVICE Vec16 load_elements(const Call& call, u64 first) {
    constexpr u32 width = 8 * sizeof(typename T::Bits);
    const auto* input = static_cast<const typename T::Bits*>(call.input);
    Vec16 v = {};
#pragma unroll 1
    for (u32 i = per_vector<T>; i-- > 0;) {
        const u32 bits = first + i < call.count ? input[first + i] : 0;
        if (width == 32) {
            v = Vec16{{bits, v.word[0], v.word[1], v.word[2]}};
        } else {
            v.word[3] = v.word[3] << 16 | v.word[2] >> 16;
            v.word[2] = v.word[2] << 16 | v.word[1] >> 16;
            v.word[1] = v.word[1] << 16 | v.word[0] >> 16;
            v.word[0] = v.word[0] << 16 | bits;
        }
    }
    return v;
}

template <typename T>
LAB_DEVICE void store_elements(const Call& call, u64 first, Vec16 v) {
    constexpr u32 width = 8 * sizeof(typename T::Bits);
    auto* output = static_cast<typename T::Bits*>(call.output);
#pragma unroll 1
    for (u32 i = 0; i < per_vector<T> && first + i < call.count; ++i) {
        output[first + i] = typename T::Bits(v.word[0]);
        if (width == 32) {
            v = Vec16{{v.word[1], v.word[2], v.word[3], 0}};
        } else {
            v.word[0] = v.word[0] >> 16 | v.word[1] << 16;
            v.word[1] = v.word[1] >> 16 | v.word[2] << 16;
            v.word[2] = v.word[2] >> 16 | v.word[3] << 16;
            v.word[3] = v.word[3] >> 16;
        }
    }
}

/// Vector `index` of the input: one 16-byte load when aligned and whole.
template <typename T>
LAB_DEVICE Vec16 load_input(const Call& call, u32 index) {
    const u64 first = u64(index) * per_vector<T>;
    if (call.aligned && first + per_vector<T> <= call.count)
        return static_cast<const Vec16*>(call.input)[index];
    return load_elements<T>(call, first);
}

template <typename T>
LAB_DEVICE void store_output(const Call& call, u32 index, const Vec16& v) {
    const u64 first = u64(index) * per_vector<T>;
    if (call.aligned && first + per_vector<T> <= call.count)
        static_cast<Vec16*>(call.output)[index] = v;
    else
        store_elements<T>(call, first, v);
}

/// terms[s] is rank s's vector. The sum runs 0..world_size-1 in fp32 on every rank and in every algorithm, so
/// the bits depend on neither. `index` and `epoch` name the random bits of a stochastic rounding.
template <typename T, Rounding R>
LAB_DEVICE Vec16 sum_in_rank_order(const Call& call, const Vec16 (&terms)[world_size], u32 index, u64 epoch) {
    Vec16 result = {};
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
        float sums[per_word<T>];
        u32 random[per_word<T>] = {};
#pragma unroll
        for (u32 j = 0; j < per_word<T>; ++j) {
            const u32 i = w * per_word<T> + j;
            sums[j] = T::widen(element<T>(terms[0], i));
#pragma unroll
            for (u32 s = 1; s < world_size; ++s) sums[j] += T::widen(element<T>(terms[s], i));
            if (R == Rounding::SR)
                random[j] = random_bits(index * per_vector<T> + i, u32(epoch), call.rounding_seed);
        }
        result.word[w] = T::template narrow<R>(sums, random); // the only rounding of the call
    }
    return result;
}

} // namespace lab

/// Instantiate a kernel for the three element types as name_fp32, name_fp16, name_bf16.
#define LAB_EXPORT(name)                                                                                     \
    LAB_KERNEL name##_fp32(lab::Call call) { lab::name<lab::Fp32, lab::rounding_mode>(call); }               \
    LAB_KERNEL name##_fp16(lab::Call call) { lab::name<lab::Fp16, lab::rounding_mode>(call); }               \
    LAB_KERNEL name##_bf16(lab::Call call) { lab::name<lab::Bf16, lab::rounding_mode>(call); }
