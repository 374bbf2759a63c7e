"""The fast twin of `lab.sim.rounding.spec`: one short rule a mode and format, in one loop that Numba vectorises.

A rule maps an fp32 word and a random integer (zero for deterministic modes) to a 16-bit code. The loop writes
the code, into uint32 shifted by 16, which gives bf16 values carried as fp32. It works in blocks that fit the
first-level cache; a block of a large output then leaves the core by non-temporal stores, which do not read the
output before writing it, while the input some way ahead is fetched. That is what brings it to the speed of a copy:
6 bytes an element cross the bus, not 8, and reading does not wait for writing.

Arithmetic is kept at 32 bits with `U32(...)`: Numba would widen to 64, and a vector would hold half as many lanes.
"""

from collections.abc import Callable
from functools import cache
from platform import machine

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.extending import intrinsic, overload

from lab.sim.rounding.modes import RoundMode

U32 = np.uint32
I32 = np.int32
F32 = np.float32

ABS = U32(0x7FFFFFFF)
INF = U32(0x7F800000)
ONE = U32(1)

BLOCK = 1024  # elements, where the output stays in the caches
STREAM_BLOCK = 256  # bytes of output, where it does not: longer bursts of stores make reading wait
STREAM_BLOCK_RANDOM = 512  # the same for SR, whose constants take longer to load at each block
AHEAD = 10 << 10  # bytes of input to fetch ahead when streaming; without, it is some 20 % slower
CUT_BITS = {
    "bf16": 16,
    "fp16": 13,
    "fp16_portable": 13,
}  # bits below a code that a rule sees: the place of the random bits
LINE = 64  # bytes of one non-temporal store


# ---- bf16: the upper half of the fp32 word, plus a carry that the mode decides


@njit
def _carried(u, carry):
    """The upper half of u + carry: the magnitude goes up where low half and carry overflow. NaN: the quiet bit."""
    return U32((U32(u | U32(0x400000)) if U32(u & ABS) > INF else U32(u + carry)) >> U32(16))


@njit
def _to_even(u):
    """The carry of RNE: half a step, less one unless the code is odd."""
    return U32(U32(0x7FFF) + U32(U32(u >> U32(16)) & ONE))


@njit
def _sign_mask(u):
    """All ones for a negative word, else zero."""
    return U32(I32(u) >> I32(31))


def _bf16_ties_to_even(u, random):
    return _carried(u, _to_even(u))


def _bf16_toward_zero(u, random):
    return _carried(u, U32(0))


def _bf16_ties_to_away(u, random):
    return _carried(u, U32(0x8000))


def _bf16_toward_positive(u, random):
    return _carried(u, U32(U32(~_sign_mask(u)) >> U32(16)))


def _bf16_toward_negative(u, random):
    return _carried(u, U32(_sign_mask(u) >> U32(16)))


def _bf16_away_from_zero(u, random):
    return _carried(u, U32(0xFFFF))


def _bf16_to_odd(u, random):
    cut = U32(0x10000) if U32(u & U32(0xFFFF)) != U32(0) else U32(0)
    return _carried(U32(u | cut) if U32(u & ABS) < INF else u, U32(0))


def _bf16_stochastic(u, random):
    # `random` is already at the top of the cut-off half
    return _carried(u, random)


def _bf16_low_half(u, random):
    low = U32(u & U32(0xFFFF))
    guard = ONE if U32(u & INF) == INF and low != U32(0) else U32(0)
    return U32(low | guard)


# ---- fp32 <-> fp16 to nearest even: by the processor where it can, else by the fp32 adder


@njit
def _as_float(word):
    return np.uint32(word).view(np.float32)


@njit
def _as_word(value):
    return np.float32(value).view(np.uint32)


HALF_INF = U32(0x7C00)
HALF_STEP_FLOOR = U32(113 << 23)  # exponent of 2^-14: below it the fp16 step no longer shrinks
HALF_BEYOND = U32(0x48000000)  # 2^17: larger magnitudes need not be told apart, and the sum must not overflow


@njit
def _to_half_portable(u):
    """fp32 word -> fp16 code.

    The magnitude is added to C, a power of two whose fp32 step is the fp16 step at u; the adder rounds.
    """
    a = U32(u & ABS)
    magnitude = HALF_BEYOND if a > HALF_BEYOND else a
    exponent = U32(magnitude & INF)
    adder = U32((HALF_STEP_FLOOR if exponent < HALF_STEP_FLOOR else exponent) + U32(13 << 23))
    steps = U32(_as_word(F32(_as_float(magnitude) + _as_float(adder))) - adder)
    code = U32(U32(U32(adder >> U32(13)) - U32(126 << 10)) + steps)
    code = HALF_INF if code > HALF_INF else code
    nan = U32(U32(0x7E00) | U32(U32(a >> U32(13)) & U32(0x3FF)))
    return U32((nan if a > INF else code) | U32(U32(u >> U32(16)) & U32(0x8000)))


@njit
def _from_half_portable(h):
    """fp16 code -> fp32 word."""
    m = U32(h & U32(0x7FFF))
    small = _as_word(F32(F32(I32(m)) * F32(2.0**-24)))
    large = U32(U32(m << U32(13)) + U32(112 << 23))
    large = U32(large + U32(112 << 23)) if m >= HALF_INF else large
    return U32((small if m < U32(0x400) else large) | U32(U32(h & U32(0x8000)) << U32(16)))


@intrinsic
def _to_half_hardware(typing, word):
    """fp32 word -> fp16 code; x86 with F16C, Arm."""

    def generate(context, builder, signature, args):
        half = builder.fptrunc(builder.bitcast(args[0], ir.FloatType()), ir.HalfType())
        return builder.zext(builder.bitcast(half, ir.IntType(16)), ir.IntType(32))

    return types.uint32(types.uint32), generate


@intrinsic
def _from_half_hardware(typing, code):
    """fp16 code -> fp32 word."""

    def generate(context, builder, signature, args):
        half = builder.bitcast(builder.trunc(args[0], ir.IntType(16)), ir.HalfType())
        return builder.bitcast(builder.fpext(half, ir.FloatType()), ir.IntType(32))

    return types.uint32(types.uint32), generate


#: Without such instructions LLVM would call a library function that is not there.
HALF_IN_HARDWARE = get_host_cpu_features().get("f16c", False) or machine() in ("aarch64", "arm64")
_to_half = _to_half_hardware if HALF_IN_HARDWARE else _to_half_portable
_from_half = _from_half_hardware if HALF_IN_HARDWARE else _from_half_portable


# ---- fp16 in the other modes: nearest even, then one code up or down if that went the wrong way


@njit
def _magnitudes(u):
    """Nearest fp16 code of u, |u|, and the magnitude of that code. NaN compares false with itself."""
    code = _to_half(u)
    return code, _as_float(U32(u & ABS)), _as_float(U32(_from_half(code) & ABS))


def _fp16_ties_to_even(u, random):
    return _to_half(u)


def _fp16_ties_to_even_portable(u, random):
    return _to_half_portable(u)


def _fp16_toward_zero(u, random):
    code, exact, rounded = _magnitudes(u)
    return U32(code - ONE) if rounded > exact else code


def _fp16_away_from_zero(u, random):
    code, exact, rounded = _magnitudes(u)
    return U32(code + ONE) if rounded < exact else code


def _fp16_toward_positive(u, random):
    code = _to_half(u)
    up = U32(_sign_mask(u) | ONE)  # one code up is +1 for positive numbers, -1 for negative
    return U32(code + up) if _as_float(_from_half(code)) < _as_float(u) else code


def _fp16_toward_negative(u, random):
    code = _to_half(u)
    up = U32(_sign_mask(u) | ONE)
    return U32(code - up) if _as_float(_from_half(code)) > _as_float(u) else code


def _fp16_to_odd(u, random):
    code, exact, rounded = _magnitudes(u)
    code = U32(U32(code - ONE) | ONE) if rounded > exact else code
    return U32(code | ONE) if rounded < exact else code


def _fp16_ties_to_away(u, random):
    # a tie has zeros at the end of the fp32 word: setting the last bit puts it above the midpoint and moves
    # no other number across one; infinity must stay
    return _to_half(U32(u | (ONE if U32(u & ABS) < INF else U32(0))))


def _fp16_stochastic(u, random):
    # `random` has 13 bits here; what is cut off below them is forgotten, and 2^16 and more is infinity
    a = U32(u & ABS)
    below_normal = U32(I32(F32(_as_float(a) * F32(2.0**37))))  # units of 2^-13 of the subnormal step
    normal = U32(a - U32(112 << 23))
    normal = U32(HALF_INF << U32(13)) if normal > U32(HALF_INF << U32(13)) else normal
    t = U32((below_normal if a < U32(0x38800000) else normal) + random)
    t = U32(U32(a | U32(0x400000)) & U32(0x0FFFFFFF)) if a > INF else t
    return U32(U32(t >> U32(13)) | U32(U32(u >> U32(16)) & U32(0x8000)))


def _bf16_via_fp16(u, random):
    w = _from_half(_to_half(u))
    return _carried(w, _to_even(w))


#: (format, mode) -> rule. SRC shares the rule of SR: half a random step is added to the random integer beforehand.
RULES: dict[tuple[str, RoundMode], Callable] = {
    ("bf16", RoundMode.TiesToEven): _bf16_ties_to_even,
    ("bf16", RoundMode.TowardZero): _bf16_toward_zero,
    ("bf16", RoundMode.TiesToAway): _bf16_ties_to_away,
    ("bf16", RoundMode.TowardPositive): _bf16_toward_positive,
    ("bf16", RoundMode.TowardNegative): _bf16_toward_negative,
    ("bf16", RoundMode.AwayFromZero): _bf16_away_from_zero,
    ("bf16", RoundMode.ToOdd): _bf16_to_odd,
    ("bf16", RoundMode.Stochastic): _bf16_stochastic,
    ("bf16", RoundMode.TiesToEvenViaFp16): _bf16_via_fp16,
    ("bf16", RoundMode.LowHalf): _bf16_low_half,
    ("fp16", RoundMode.TiesToEven): _fp16_ties_to_even,
    ("fp16", RoundMode.TowardZero): _fp16_toward_zero,
    ("fp16", RoundMode.TiesToAway): _fp16_ties_to_away,
    ("fp16", RoundMode.TowardPositive): _fp16_toward_positive,
    ("fp16", RoundMode.TowardNegative): _fp16_toward_negative,
    ("fp16", RoundMode.AwayFromZero): _fp16_away_from_zero,
    ("fp16", RoundMode.ToOdd): _fp16_to_odd,
    ("fp16", RoundMode.Stochastic): _fp16_stochastic,
    ("fp16_portable", RoundMode.TiesToEven): _fp16_ties_to_even_portable,
}
_ORDER = list(RULES)


def _apply(rule, u, random):
    """Stand-in for the overload below: apply rule number `rule`, a constant of the compiled loop."""
    raise NotImplementedError("only in compiled code")


@overload(_apply)
def _apply_rule(rule, u, random):
    if isinstance(rule, types.IntegerLiteral):
        chosen = njit(RULES[_ORDER[rule.literal_value]])
        return lambda rule, u, random: chosen(u, random)
    return None


# ---- random bits: a function of element index and key, so that the order of work does not matter


@njit
def random_word(index, key0, key1):
    """See rounding_spec.random_word; `index` is its lower half, the keys hold the rest."""
    h = U32(index ^ key0)
    h = U32(h ^ U32(h >> U32(16)))
    h = U32(h * U32(0x7FEB352D))
    h = U32(h ^ U32(h >> U32(15)))
    h = U32(h + key1)
    h = U32(h * U32(0x846CA68B))
    return U32(h ^ U32(h >> U32(16)))


@njit(nogil=True, cache=True)
def random_words(first, key0, key1, out):
    """Write the random words of elements first, first + 1, ... to a uint32 array."""
    for i in range(out.size):
        out[i] = random_word(U32(U32(i) + first), key0, key1)


# ---- the loop


def _placed(code, array):
    """Stand-in for the overload below: the code as an element of the array, shifted by 16 in a uint32 array."""
    raise NotImplementedError("only in compiled code")


@overload(_placed)
def _placed_for_type(code, array):
    # a shift known to the compiler: a variable one would widen each lane to 64 bits
    if array.dtype == types.uint32:
        return lambda code, array: U32(code << U32(16))
    return lambda code, array: np.uint16(code)


@intrinsic
def _store_line(typing, to, to_byte, source, source_byte):
    """Copy one line with a non-temporal store; both addresses are multiples of LINE."""

    def generate(context, builder, signature, args):
        byte = ir.IntType(8)
        line = ir.VectorType(ir.IntType(32), LINE // 4)

        def pointer(array_type, array, offset):
            data = context.make_array(array_type)(context, builder, array).data
            start = builder.gep(builder.bitcast(data, byte.as_pointer()), [offset])
            return builder.bitcast(start, line.as_pointer())

        value = builder.load(pointer(signature.args[2], args[2], args[3]), align=LINE)
        store = builder.store(value, pointer(signature.args[0], args[0], args[1]), align=LINE)
        one = ir.Constant(ir.IntType(32), 1)
        store.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return context.get_dummy_value()

    return types.void(to, to_byte, source, source_byte), generate


@intrinsic
def _fetch_line(typing, source, byte):
    """Ask for a line of memory; one beyond the end of the array does no harm."""

    def generate(context, builder, signature, args):
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.gep(builder.bitcast(data, byte_pointer), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        read, keep, data_cache = (ir.Constant(i32, value) for value in (0, 3, 1))
        builder.call(fetch, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(source, byte), generate


@cache
def loop(fmt: str, mode: RoundMode) -> Callable:
    """The compiled loop of a mode; SRC has that of SR.

    Its arguments: x (uint32[n], fp32 words), out (uint16[n], or uint32[n] for codes shifted by 16), block (scratch
    of out's type: BLOCK elements; or STREAM_BLOCK bytes, 64-byte aligned; or none, to write to out at once), lead
    (elements before out is aligned; else 0), streaming (bool); and for SR: first (uint32, index of the first
    element), key0, key1 (uint32), mask (uint32: the top k of the cut-off bits), half (uint32: half a random step
    there, or zero). See NO_RANDOM.
    """
    rule = _ORDER.index((fmt, mode))
    by_chance = mode.is_stochastic
    drop = U32(32 - CUT_BITS[fmt])

    # One function on purpose: handing the arrays to another one would count references at every block.
    @njit(nogil=True, cache=True)
    def convert(x, out, block, lead, streaming, first, key0, key1, mask, half):
        start = 0
        staged = block.size > 0
        stage = block if staged else out
        usual = block.size if staged else x.size
        while start < x.size:
            size = min(lead if start < lead else usual, x.size - start)
            source = x[start : start + size]
            index = U32(first + U32(start))
            for i in range(source.size):
                random = U32(0)
                if by_chance:
                    word = random_word(U32(index + U32(i)), key0, key1)
                    random = U32(U32(U32(word >> drop) & mask) + half)
                stage[i] = _placed(_apply(rule, source[i], random), stage)
            if streaming and size == block.size:
                for byte in range(0, block.size * 4, LINE):
                    _fetch_line(x, start * 4 + byte + AHEAD)
                for byte in range(0, block.nbytes, LINE):
                    _store_line(out, start * out.itemsize + byte, block, byte)
            elif staged:
                target = out[start : start + size]
                for i in range(target.size):
                    target[i] = block[i]
            start += size

    return convert


#: The last arguments of a loop whose mode takes no random bits.
NO_RANDOM = (U32(0),) * 5


@cache
def stochastic_given_loop(fmt: str) -> Callable:
    """The compiled loop of SR and SRC with the caller's random integers: x, out, random[n], lift, half."""
    rule = _ORDER.index((fmt, RoundMode.Stochastic))

    @njit(nogil=True, cache=True)
    def convert(x, out, random, lift, half):
        for i in range(x.size):
            out[i] = _placed(_apply(rule, x[i], U32(U32(U32(random[i]) << lift) + half)), out)

    return convert


@cache
def stochastic_counter(fmt: str) -> Callable:
    """Compiled count of round-ups: for each word of x, over all 2^k random integers, into ups (int64).

    It runs the same rule as the two loops above.
    """
    rule = _ORDER.index((fmt, RoundMode.Stochastic))

    @njit(nogil=True, cache=True)
    def count(x, lower, bits, lift, half, ups):
        for i in range(x.size):
            u, down, up = x[i], lower[i], U32(0)
            for random in range(1 << bits):
                code = _apply(rule, u, U32(U32(U32(random) << lift) + half))
                up = U32(up + (ONE if code != down else U32(0)))
            ups[i] = up

    return count


# ---- other NaN rules: a second pass that visits NaN inputs only


@njit(nogil=True, cache=True)
def bf16_nan_unguarded(x, out, shift, carry, odd):
    """Codes of NaN inputs as the carry arithmetic without a guard makes them; `odd` is added for odd codes."""
    for i in range(x.size):
        u = x[i]
        if U32(u & ABS) > INF:
            raised = U32(u + U32(carry + U32(odd * U32(U32(u >> U32(16)) & ONE))))
            out[i] = U32(U32(raised >> U32(16)) << shift)


@njit(nogil=True, cache=True)
def bf16_nan_keep_signalling(x, out, shift):
    """Codes of NaN inputs: the upper half, its last bit set if the low half is not zero."""
    for i in range(x.size):
        u = x[i]
        if U32(u & ABS) > INF:
            cut = ONE if U32(u & U32(0xFFFF)) != U32(0) else U32(0)
            out[i] = U32(U32(U32(u >> U32(16)) | cut) << shift)


@njit(nogil=True, cache=True)
def nan_constant(x, out, shift, code):
    """The same code for every NaN input."""
    for i in range(x.size):
        if U32(x[i] & ABS) > INF:
            out[i] = U32(code << shift)
