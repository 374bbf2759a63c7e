"""The kernels' arithmetic against an exact reference that adds and rounds one rational number at a time."""

from fractions import Fraction

import numpy as np
import pytest

from lab.errors import LabError
from lab.sim.rounding import spec
from lab.sim.rounding.arithmetic import BITS, Arithmetic, all_reduce, all_reduce_add, narrow, parts, rms_norm, widen
from lab.sim.rounding.modes import NanRule, RoundMode

FORMATS = {"bf16": spec.BF16, "fp16": spec.FP16, "fp32": spec.FP32}
NAN = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": 0x7FC00000}
MODES = [RoundMode.TiesToEven, RoundMode.TowardZero, RoundMode.TiesToAway, RoundMode.TowardPositive, RoundMode.ToOdd]


# ---- the reference: exact sums, rounded to fp32 and to the element type by the specification


def exact(word: int) -> Fraction | str:
    negative, rest = divmod(word, 1 << 31)
    if rest > spec.FP32.infinity:
        return "nan"
    if rest == spec.FP32.infinity:
        return "-inf" if negative else "inf"
    return -spec.magnitude(rest, spec.FP32) if negative else spec.magnitude(rest, spec.FP32)


def add_words(a: int, b: int) -> int:
    """fp32 addition, nearest even."""
    x, y = exact(a), exact(b)
    if "nan" in (x, y) or {x, y} == {"inf", "-inf"}:
        return NAN["fp32"]
    if isinstance(x, str) or isinstance(y, str):
        return a if isinstance(x, str) else b
    total = x + y
    if total == 0:
        return a if a == b else 0  # -0 only from -0 + -0
    sign, size = int(total < 0), abs(total)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -126)
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    step = Fraction(2) ** (exponent - 23)
    steps = round(size / step)  # Python rounds a Fraction half to even
    if steps * step >= Fraction(2) ** 128:
        return (sign << 31) + spec.FP32.infinity
    return (sign << 31) + spec.fp32_code(steps * step)


def to_word(code: int, dtype: str) -> int:
    return code if dtype == "fp32" else spec.widen(code, FORMATS[dtype])


def from_word(word: int, dtype: str, mode: RoundMode = RoundMode.TiesToEven) -> int:
    if word & 0x7FFFFFFF > 0x7F800000:
        return NAN[dtype]
    return word if dtype == "fp32" else spec.round_bits(word, FORMATS[dtype], mode, nan=NanRule.CANONICAL)


def ordered_sum(codes, dtype: str, mode: RoundMode, *, round_each: bool = False) -> int:
    total = to_word(int(codes[0]), dtype)
    for code in codes[1:]:
        total = add_words(total, to_word(int(code), dtype))
        if round_each:
            total = to_word(from_word(total, dtype, mode), dtype)
    return from_word(total, dtype, mode)


def adversarial(world: int, dtype: str, count: int = 24, seed: int = 0) -> np.ndarray:
    """Ties, cancellation, subnormals, overflow, zeros of both signs, infinities and NaN beside random numbers."""
    rng = np.random.default_rng([seed, world, count])
    values = rng.standard_normal((world, count)) * np.exp2(rng.integers(-3, 4, (world, count)))
    values[:, 0] = [(-1) ** rank * 3.0 for rank in range(world)]  # cancels
    values[:, 1] = [1.0] + [2.0**-8 if dtype == "bf16" else 2.0**-11] * (world - 1)  # a tie, then above it
    values[:, 2] = [1.0] + [2.0**-24] * (world - 1)  # ties of the fp32 sum
    values[:, 3] = [1e8] + [-1e8] + [1.0] * (world - 2) if world > 2 else [1e8, 1.0]  # absorbed or not, by order
    values[:, 4] = -0.0
    values[:, 5] = [0.0] + [-0.0] * (world - 1)
    largest = {"bf16": 3.3895e38, "fp16": 65504.0, "fp32": 3.4028e38}[dtype]
    values[:, 6] = [largest] * world
    values[:, 7] = [largest, -largest] + [1.0] * (world - 2)
    values[:, 8] = {"bf16": 9.2e-41, "fp16": 6e-8, "fp32": 1.4e-45}[dtype]
    values[:, 9] = [np.inf] + [1.0] * (world - 1)
    values[:, 10] = [np.inf, -np.inf] + [1.0] * (world - 2)
    values[:, 11] = [1.0] * (world - 1) + [np.nan]
    with np.errstate(over="ignore"):
        return narrow(values.astype(np.float32), dtype)


CASES = [(world, dtype) for world in (2, 3, 4, 8) for dtype in BITS]


@pytest.mark.parametrize(("world", "dtype"), CASES)
def test_one_shot_is_the_rank_order_sum_rounded_once(world, dtype):
    inputs = adversarial(world, dtype)
    for mode in MODES if dtype != "fp32" else MODES[:1]:
        right = [ordered_sum(column, dtype, mode) for column in inputs.T]
        for algorithm in ("one_shot", "two_shot"):
            outputs = all_reduce(inputs, dtype, Arithmetic(algorithm, mode=mode))
            assert outputs.shape == inputs.shape and outputs.dtype == inputs.dtype
            assert all(row.tolist() == right for row in outputs), (algorithm, mode)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rounding_after_each_addition(dtype):
    inputs = adversarial(4, dtype)
    for mode in MODES:
        outputs = all_reduce(inputs, dtype, Arithmetic(accumulate="element", mode=mode))
        assert outputs[0].tolist() == [ordered_sum(column, dtype, mode, round_each=True) for column in inputs.T]


def test_tree():
    inputs = adversarial(5, "bf16")
    tree = all_reduce(inputs, "bf16", Arithmetic(order="tree"))[0]
    for column, got in zip(inputs.T, tree, strict=True):
        a, b, c, d, e = (to_word(int(code), "bf16") for code in column)
        right = add_words(add_words(add_words(a, b), add_words(c, d)), e)
        assert got == from_word(right, "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_ring_starts_after_the_owner(dtype):
    world = 4
    inputs = adversarial(world, dtype, count=26)
    outputs = all_reduce(inputs, dtype, Arithmetic("ring", accumulate="element"))
    for last, part in enumerate(parts(26, world)):
        order = [(last + hop) % world for hop in range(1, world + 1)]
        right = [ordered_sum(column[order], dtype, RoundMode.TiesToEven, round_each=True) for column in inputs.T[part]]
        assert all(row[part].tolist() == right for row in outputs)
    alone = inputs[:1]
    assert np.array_equal(all_reduce(alone, dtype, Arithmetic("ring", accumulate="element")), alone)


def test_own_first_makes_ranks_and_algorithms_disagree():
    """vllm#57042: bits depend on which algorithm the message size selects."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4, 40_000), np.float32).view(np.uint32)
    rank_order = all_reduce(inputs, "fp32", Arithmetic("one_shot"))
    assert np.array_equal(rank_order, all_reduce(inputs, "fp32", Arithmetic("two_shot")))
    owner_first = all_reduce(inputs, "fp32", Arithmetic("two_shot", order="own_first"))
    assert (owner_first == owner_first[0]).all()  # ranks agree, sizes do not
    assert 0.1 < np.mean(owner_first[0] != rank_order[0]) < 0.4
    own_first = all_reduce(inputs, "fp32", Arithmetic("one_shot", order="own_first"))
    assert (own_first != own_first[0]).any()
    for rank in range(4):
        order = [(rank + k) % 4 for k in range(4)]
        right = [ordered_sum(column[order], "fp32", RoundMode.TiesToEven) for column in inputs.T[:200]]
        assert own_first[rank, :200].tolist() == right


def test_an_fp16_wire_overflows_and_spares_the_own_term():
    """vllm#55345."""
    values = np.array([[70000.0, 2.0**-26, 1.0], [1.0, 0.0, 2.0]], np.float32)
    inputs = narrow(values, "bf16")
    plain = widen(all_reduce(inputs, "bf16"), "bf16")
    assert plain[0, 0] == 70144 and (plain[0] == plain[1]).all()
    mixed = widen(all_reduce(inputs, "bf16", Arithmetic(wire="fp16")), "bf16")
    assert mixed[0, 0] == 70144 and mixed[1, 0] == np.inf  # the ranks disagree
    assert mixed[0, 1] == 2.0**-26 and mixed[1, 1] == 0
    staged = widen(all_reduce(inputs, "bf16", Arithmetic(wire="fp16", own="staging")), "bf16")
    assert np.array_equal(staged[0], staged[1]) and staged[0, 0] == np.inf
    two = widen(all_reduce(inputs, "bf16", Arithmetic("two_shot", wire="fp16")), "bf16")
    assert two.shape == (2, 3) and two[1, 0] == np.inf
    same = Arithmetic(own="staging", wire="bf16")
    assert np.array_equal(all_reduce(inputs, "bf16", same), all_reduce(inputs, "bf16"))


def test_sum_that_starts_with_zero_loses_the_negative_zero():
    inputs = np.full((2, 1), 0x8000, np.uint16)
    assert all_reduce(inputs, "bf16")[0, 0] == 0x8000
    assert all_reduce(inputs, "bf16", Arithmetic(start="zero"))[0, 0] == 0x0000


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_fused_addition(dtype, mode):
    inputs, residual = adversarial(3, dtype), adversarial(2, dtype, seed=9)[0]
    how = Arithmetic(mode=mode)
    sums = [ordered_sum(column, dtype, mode) for column in inputs.T]
    two = [
        from_word(add_words(to_word(int(r), dtype), to_word(s, dtype)), dtype, mode)
        for r, s in zip(residual, sums, strict=True)
    ]
    assert all_reduce_add(inputs, residual, dtype, how)[1].tolist() == two
    one, first = [], []
    for column, r in zip(inputs.T, residual, strict=True):
        words = [to_word(int(code), dtype) for code in column]
        total = add_words(add_words(words[0], words[1]), words[2])
        one.append(from_word(add_words(to_word(int(r), dtype), total), dtype, mode))
        first.append(ordered_sum([r, *column], dtype, mode))
    for algorithm in ("one_shot", "two_shot"):
        how = Arithmetic(algorithm, mode=mode)
        assert all_reduce_add(inputs, residual, dtype, how, roundings=1)[2].tolist() == one
        got = all_reduce_add(inputs, residual, dtype, how, roundings=1, residual_term="first")
        assert got[0].tolist() == first


def test_one_and_two_roundings_differ_in_a_quarter_of_the_elements():
    """aiter#2586: about 25 % of elements differ by a step or more."""
    rng = np.random.default_rng(0)
    inputs = narrow(rng.standard_normal((4, 50_000), np.float32), "bf16")
    residual = narrow(3 * rng.standard_normal(50_000, np.float32), "bf16")
    one = all_reduce_add(inputs, residual, "bf16", roundings=1)[0]
    two = all_reduce_add(inputs, residual, "bf16", roundings=2)[0]
    assert 0.15 < np.mean(one != two) < 0.35


def test_a_device_function_can_take_the_place_of_the_rounding():
    inputs = adversarial(4, "bf16")

    def truncating(values):
        return narrow(values, "bf16", RoundMode.TowardZero)

    assert np.array_equal(
        all_reduce(inputs, "bf16", rounder=truncating),
        all_reduce(inputs, "bf16", Arithmetic(mode=RoundMode.TowardZero)),
    )
    assert not np.array_equal(all_reduce(inputs, "bf16", rounder=truncating), all_reduce(inputs, "bf16"))


def test_stochastic_sums_are_reproducible_and_need_a_seed():
    inputs = narrow(np.random.default_rng(0).standard_normal((4, 1000), np.float32), "bf16")
    how = Arithmetic("two_shot", mode=RoundMode.Stochastic, random_bits=8, seed=3)
    outputs = all_reduce(inputs, "bf16", how)
    assert np.array_equal(outputs, all_reduce(inputs, "bf16", how))
    assert (outputs == outputs[0]).all()  # one rank rounds, all copy
    with pytest.raises(LabError, match="needs a seed"):
        all_reduce(inputs, "bf16", Arithmetic(mode=RoundMode.Stochastic))


def test_rms_norm():
    x = np.array([[3.0, 4.0]], np.float32)
    assert rms_norm(x, np.array([1.0, 2.0]), eps=0.0) == pytest.approx(np.array([[3.0, 8.0]]) / 12.5**0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: all_reduce(np.zeros((2, 3)), "bf16"), "carried as bit patterns: 'float64'"),
        (lambda: all_reduce(np.zeros(3, np.uint16), "bf16"), "must be .world_size, elements."),
        (lambda: all_reduce(np.zeros((2, 3), np.uint16), "bf61"), "did you mean bf16"),
        (lambda: Arithmetic("ring"), "rounds at each hop"),
        (lambda: Arithmetic("oneshot"), "did you mean one_shot"),
        (lambda: all_reduce_add(np.zeros((2, 3), np.uint16), np.zeros(4, np.uint16), "bf16"), "another shape"),
        (
            lambda: all_reduce_add(
                np.zeros((2, 3), np.uint16), np.zeros(3, np.uint16), "bf16",
                Arithmetic("ring", accumulate="element"), roundings=1,
            ),
            "needs an fp32 sum",
        ),
    ],
)  # fmt: skip
def test_errors(call, message):
    with pytest.raises(LabError, match=message):
        call()
