"""The specification of rounding, one number at a time, in exact rational arithmetic.

Nothing here is a bit trick: a code is decoded to a `Fraction`, its two neighbours in the target format are looked
up in the sorted list of all representable magnitudes, and the mode picks one of the two by its definition. It is
slow and meant to be read. `lab.sim.rounding.loops` is its fast twin; `lab.sim.rounding.proof` compares the two
on all 2^32 inputs.

Sources: IEEE 754-2019, 4.3 (rounding directions), 7.4 (overflow), 6.2.3 (NaN); "round to odd" as in Boldo and
Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
"""

from bisect import bisect_right
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

from lab.sim.rounding.modes import NanRule, RoundMode

Side = Literal["exact", "below", "tie", "above"]
"""Where a magnitude lies between its neighbours: on the lower one, or below, at, above the midpoint."""


class Format(NamedTuple):
    """A binary interchange format: 1 sign bit, then exponent, then fraction."""

    name: str
    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        """Exponent bias."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def sign_code(self) -> int:
        """Code of -0; codes from here on are negative."""
        return 2 ** (self.exponent_bits + self.fraction_bits)

    @property
    def infinity(self) -> int:
        """Code of +infinity; positive codes below it are finite, above it NaN."""
        return (2**self.exponent_bits - 1) * 2**self.fraction_bits


FP32 = Format("fp32", 8, 23)
BF16 = Format("bf16", 8, 7)
FP16 = Format("fp16", 5, 10)


def magnitude(code: int, fmt: Format) -> Fraction:
    """Value of a positive, finite code; for the code of infinity, the power of two that it stands for."""
    exponent, fraction = divmod(code, 2**fmt.fraction_bits)
    if exponent == 0:
        return Fraction(fraction, 2**fmt.fraction_bits) * Fraction(2) ** (1 - fmt.bias)
    return (1 + Fraction(fraction, 2**fmt.fraction_bits)) * Fraction(2) ** (exponent - fmt.bias)


@cache
def magnitudes(fmt: Format) -> list[Fraction]:
    """All representable magnitudes in increasing order; the index is the code, infinity's stand-in the last."""
    return [magnitude(code, fmt) for code in range(fmt.infinity + 1)]


def locate(value: Fraction, fmt: Format) -> tuple[int, Side]:
    """Return the code of the largest magnitude <= value below infinity, and where value lies above it."""
    table = magnitudes(fmt)
    lower = min(bisect_right(table, value) - 1, fmt.infinity - 1)
    below, above = value - table[lower], table[lower + 1] - value
    if below == 0:
        return lower, "exact"
    return lower, "below" if below < above else "tie" if below == above else "above"


def takes_upper(mode: RoundMode, side: Side, *, negative: bool, lower_is_odd: bool) -> bool:
    """Say whether a deterministic mode picks the neighbour of larger magnitude."""
    if side == "exact":
        return False
    match mode:
        case RoundMode.TowardZero:
            return False
        case RoundMode.AwayFromZero:
            return True
        case RoundMode.TowardPositive:
            return not negative
        case RoundMode.TowardNegative:
            return negative
        case RoundMode.ToOdd:
            return not lower_is_odd
        case RoundMode.TiesToAway:
            return side in ("tie", "above")
        case RoundMode.TiesToEven:
            return side == "above" or (side == "tie" and lower_is_odd)
    raise ValueError(f"{mode} is not a deterministic choice between neighbours")


def stochastic_takes_upper(fraction: Fraction, random: int, bits: int, *, centred: bool) -> bool:
    """Say whether stochastic rounding goes up.

    Args:
        fraction: position between the neighbours, 0 <= fraction < 1.
        random: a random integer, 0 <= random < 2^bits.
        bits: how many random bits there are.
        centred: add half a random step.
    """
    return fraction + (random + (Fraction(1, 2) if centred else 0)) / Fraction(2**bits) >= 1


def round_nan(bits: int, fmt: Format, rule: NanRule, mode: RoundMode = RoundMode.TiesToEven) -> int:
    """Code that an fp32 NaN becomes.

    Args:
        bits: the fp32 word, a NaN.
        fmt: target format; every rule but QUIET and CANONICAL is for BF16.
        rule: the NaN rule.
        mode: only for UNGUARDED: whose arithmetic runs over the NaN.
    """
    negative, rest = divmod(bits, FP32.sign_code)
    payload = rest - FP32.infinity
    kept, cut = divmod(payload, 2 ** (FP32.fraction_bits - fmt.fraction_bits))
    sign = negative * fmt.sign_code
    if rule is NanRule.QUIET:
        quiet = 2 ** (fmt.fraction_bits - 1)
        return sign + fmt.infinity + (kept if kept >= quiet else kept + quiet)
    if rule is NanRule.CANONICAL:
        return fmt.infinity + 2 ** (fmt.fraction_bits - 1)
    if rule is NanRule.ALL_ONES:
        return fmt.sign_code - 1
    code = sign + fmt.infinity + kept
    if rule is NanRule.KEEP_SIGNALLING:
        return code + 1 if cut > 0 and code % 2 == 0 else code
    # Unguarded: the codes go on above infinity as if they were numbers, and wrap at 2^16.
    half = 2 ** (FP32.fraction_bits - fmt.fraction_bits - 1)
    side: Side = "exact" if cut == 0 else "below" if cut < half else "tie" if cut == half else "above"
    up = takes_upper(mode, side, negative=bool(negative), lower_is_odd=code % 2 == 1)
    return (code + up) % (2 * fmt.sign_code)


def round_bits(
    bits: int,
    fmt: Format,
    mode: RoundMode,
    *,
    nan: NanRule = NanRule.QUIET,
    random: int = 0,
    random_bits: int = 16,
) -> int:
    """Round one fp32 word to a code of `fmt`: the specification.

    Args:
        bits: fp32 word, 0 <= bits < 2^32.
        fmt: BF16 or FP16.
        mode: any RoundMode.
        nan: NaN rule.
        random: for SR and SRC: the random integer of this element, 0 <= random < 2^random_bits.
        random_bits: for SR and SRC: k.

    Returns:
        The code, 0 <= code < 2^16.
    """
    negative, rest = divmod(bits, FP32.sign_code)
    if mode is RoundMode.LowHalf:
        low = bits % 2**16
        cut_nan = rest >= FP32.infinity and low > 0  # the guard of the source, which acts on the wrong half
        return low + 1 if cut_nan and low % 2 == 0 else low
    if mode is RoundMode.TiesToEvenViaFp16:
        half = round_bits(bits, FP16, RoundMode.TiesToEven, nan=nan)
        return round_bits(widen(half, FP16), BF16, RoundMode.TiesToEven, nan=nan)
    if rest > FP32.infinity:
        return round_nan(bits, fmt, nan, mode)
    sign = negative * fmt.sign_code
    if rest == FP32.infinity:
        return sign + fmt.infinity
    value = magnitude(rest, FP32)
    lower, side = locate(value, fmt)
    if mode.is_stochastic:
        table = magnitudes(fmt)
        fraction = (value - table[lower]) / (table[lower + 1] - table[lower])
        up = stochastic_takes_upper(fraction, random, random_bits, centred=mode is RoundMode.StochasticCentred)
    else:
        up = takes_upper(mode, side, negative=bool(negative), lower_is_odd=lower % 2 == 1)
    return sign + lower + up


def widen(code: int, fmt: Format) -> int:
    """The fp32 word of a code: the same value, infinity or NaN (sign and payload kept)."""
    negative, rest = divmod(code, fmt.sign_code)
    sign = negative * FP32.sign_code
    if rest >= fmt.infinity:
        return sign + FP32.infinity + (rest - fmt.infinity) * 2 ** (FP32.fraction_bits - fmt.fraction_bits)
    return sign + fp32_code(magnitude(rest, fmt))


def fp32_code(value: Fraction) -> int:
    """The fp32 word of a non-negative value that fp32 represents exactly.

    Raises:
        ValueError: fp32 does not have this value.
    """
    if value == 0:
        return 0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()  # floor(log2), or one above it
    exponent -= Fraction(2) ** exponent > value
    exponent = max(exponent, 1 - FP32.bias)
    steps = value / Fraction(2) ** (exponent - FP32.fraction_bits)
    if steps.denominator != 1 or steps >= 2 ** (FP32.fraction_bits + 1):
        raise ValueError(f"{value} is not an fp32 number")
    return (exponent + FP32.bias - 1) * 2**FP32.fraction_bits + steps.numerator


def random_word(index: int, seed: int) -> int:
    """The 32 random bits of element `index` under `seed`: the definition of the counter generator.

    The key is two words of SplitMix64 (Steele, Lea, Flood 2014) seeded with the seed and the upper half of
    the index; the mixer is lowbias32 (Wellons, "Prospecting for hash functions", 2018) with the second key word
    added between its two multiplications.
    """
    key0, key1 = counter_key(index // 2**32, seed)
    h = (index % 2**32) ^ key0
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = (h + key1) % 2**32
    h = h * 0x846CA68B % 2**32
    return h ^ h >> 16


def counter_key(upper_index: int, seed: int) -> tuple[int, int]:
    """Two 32-bit key words for a seed and the upper 32 bits of the element index."""
    state = (seed + upper_index * 0xD1342543DE82EF95) % 2**64
    word = _splitmix64(_splitmix64(state) ^ upper_index)
    return word % 2**32, word >> 32


def _splitmix64(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31
