#pragma once
// fp32 to bf16 and fp16, every mode, once per element and nowhere else.
// A NaN becomes the canonical quiet NaN, so that results do not depend on the target's payload rules.
#include "target.hpp"

namespace lab {

/// IEEE 754 attributes and the extra ones studied here; the numbers are the -DLAB_ROUND values.
enum class Rounding : u32 {
    RNE = 0, ///< nearest, ties to even
    RTZ = 1, ///< toward zero
    RNA = 2, ///< nearest, ties away from zero
    RU = 3,  ///< toward +infinity
    RD = 4,  ///< toward -infinity
    RAZ = 5, ///< away from zero
    RTO = 6, ///< to odd
    SR = 7,  ///< stochastic, 32 counter-based bits
};

/// Philox2x32 with ten rounds (Salmon et al., SC'11): the bits of (counter, key), independent of who asks.
LAB_DEVICE u32 random_bits(u32 counter0, u32 counter1, u32 key) {
    for (u32 round = 0; round < 10; ++round) {
        const u64 product = u64(0xD256D193u) * counter0;
        counter0 = u32(product >> 32) ^ key ^ counter1;
        counter1 = u32(product);
        key += 0x9E3779B9u;
    }
    return counter0;
}

/// magnitude / 2^drop to an integer under R; 1 <= drop <= 31.
template <Rounding R>
LAB_DEVICE u32 shift_rounded(u32 magnitude, u32 drop, bool negative, u32 random) {
    const u32 kept = magnitude >> drop;
    const u32 rest = magnitude & ((1u << drop) - 1);
    const u32 half = 1u << (drop - 1);
    if (R == Rounding::RNE) return (magnitude + (half - 1) + (kept & 1)) >> drop;
    if (R == Rounding::RNA) return kept + (rest >= half);
    if (R == Rounding::RU) return kept + (rest != 0 && !negative);
    if (R == Rounding::RD) return kept + (rest != 0 && negative);
    if (R == Rounding::RAZ) return kept + (rest != 0);
    if (R == Rounding::RTO) return kept | (rest != 0);
    if (R == Rounding::SR) return kept + ((rest + (random >> (32 - drop))) >> drop);
    return kept;
}

template <Rounding R>
LAB_DEVICE u16 float_to_bf16(float value, u32 random) {
    const u32 bits = bits_of(value);
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fc0;
    return u16(bits >> 16 & 0x8000u) | u16(shift_rounded<R>(magnitude, 16, bits >> 31, random));
}

/// Beyond the largest fp16, directed modes stop at 65504 where IEEE 754 says so. SR of a value below 2^-31
/// uses the odds of 31 dropped bits.
template <Rounding R>
LAB_DEVICE u16 float_to_fp16(float value, u32 random) {
    const u32 bits = bits_of(value);
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7e00;
    if (R == Rounding::RNE) return float_to_half_rne(value);
    const bool negative = bits >> 31;
    const u16 sign = u16(bits >> 16 & 0x8000u);
    if (magnitude >= 0x47800000u) { // at or beyond 2^16
        const bool inward = R == Rounding::RTZ || R == Rounding::RTO || (R == Rounding::RU && negative) ||
                            (R == Rounding::RD && !negative);
        return sign | (inward && magnitude != 0x7f800000u ? 0x7bff : 0x7c00);
    }
    const u32 exponent = magnitude >> 23;
    if (exponent >= 113) return sign | u16(shift_rounded<R>(magnitude - (112u << 23), 13, negative, random));
    if (magnitude == 0) return sign;
    const u32 significand = exponent ? (magnitude & 0x7fffffu) | 0x800000u : magnitude;
    const u32 drop = 126 - (exponent ? exponent : 1);
    return sign | u16(shift_rounded<R>(significand, drop < 31 ? drop : 31, negative, random));
}

/// A converted pair with the canonical NaN where an input was one, whatever the conversion made of it.
LAB_DEVICE u32 with_canonical_nans(u32 word, float low, float high) {
    word = low != low ? (word & 0xffff0000u) | 0x7fc0u : word;
    return high != high ? (word & 0xffffu) | 0x7fc00000u : word;
}

/// Two results in a word, `low` in its lower half.
template <Rounding R>
LAB_DEVICE u32 pack_bf16(float low, float high, u32 random_low, u32 random_high) {
#if LAB_HAVE_PACKED_RNE
    if (R == Rounding::RNE) return pack_bf16_rne(low, high);
#elif LAB_HAVE_PACKED_BF16
    if (R == Rounding::RNE) return with_canonical_nans(convert_bf16_rne(low, high), low, high);
#endif
    return float_to_bf16<R>(low, random_low) | u32(float_to_bf16<R>(high, random_high)) << 16;
}

template <Rounding R>
LAB_DEVICE u32 pack_fp16(float low, float high, u32 random_low, u32 random_high) {
#if LAB_HAVE_PACKED_RNE
    if (R == Rounding::RNE) return pack_fp16_rne(low, high);
#endif
    return float_to_fp16<R>(low, random_low) | u32(float_to_fp16<R>(high, random_high)) << 16;
}

} // namespace lab
