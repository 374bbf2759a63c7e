"""The kernels' arithmetic, bit for bit: which order they add in, and where they round.

Tensors are carried as bit patterns: uint16 for "bf16" and "fp16", uint32 for "fp32". Sums are made in fp32, one IEEE
addition after another (numpy does not reorder them), so the only freedom is what `Arithmetic` states. NaN results
are the canonical quiet NaN unless `Arithmetic.nan` says otherwise: hardware keeps different payloads.

    one_shot = Arithmetic()                                       # fp32 in rank order, rounded once
    wheel = Arithmetic(mode=RoundMode.TowardZero)                 # ... toward zero
    rccl = Arithmetic("ring", accumulate="element")               # rounded at each hop
    all_reduce(inputs, "bf16", rccl)                              # (W, n) bits of every rank's output
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.errors import LabError, UnknownNameError
from lab.sim.rounding.convert import bf16_to_fp32, to_bf16, to_fp16
from lab.sim.rounding.modes import NanRule, RoundMode

Dtype = Literal["bf16", "fp16", "fp32"]
BITS: dict[str, type] = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32}

Rounder = Callable[[np.ndarray], np.ndarray]
"""float32[n] -> bits[n]: the place where a device function or another library can be put in."""


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bit patterns as float32, exactly, in an array of their own."""
    _check_dtype(dtype)
    if dtype == "fp32":
        return bits.view(np.float32).copy()
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return bf16_to_fp32(bits)


def narrow(
    values: np.ndarray,
    dtype: str,
    mode: RoundMode = RoundMode.TiesToEven,
    *,
    nan: NanRule = NanRule.CANONICAL,
    random_bits: int | None = None,
    seed: int | None = None,
) -> np.ndarray:
    """Round float32 to bit patterns of `dtype`.

    Args:
        values: float32, any shape.
        dtype: "bf16", "fp16" or "fp32" (nothing is rounded; NaN becomes canonical).
        mode: rounding mode.
        nan: NaN rule; CANONICAL or QUIET for fp16, CANONICAL or none for fp32.
        random_bits: for stochastic modes.
        seed: for stochastic modes.

    Returns:
        uint16 or uint32 of the shape of `values`.
    """
    _check_dtype(dtype)
    if dtype == "fp32":
        bits = values.view(np.uint32).copy()
        if nan is NanRule.CANONICAL:
            bits[np.isnan(values)] = 0x7FC00000
        return bits
    convert = to_bf16 if dtype == "bf16" else to_fp16
    out = np.empty(values.shape, np.uint16)
    return convert(values, mode, out=out, nan=nan, random_bits=random_bits, seed=seed)


@dataclass(frozen=True)
class Arithmetic:
    """Where an all-reduce adds and rounds.

    Attributes:
        algorithm: "one_shot": every rank reduces everything. "two_shot": the owner of a part reduces it and all
            ranks copy its rounded result. "ring": RCCL's ring; the chunk that ends at rank c starts at rank
            c + 1 and grows by one rank a hop.
        order: of the terms in one_shot and two_shot. "rank": 0, 1, ..., the same bits everywhere.
            "own_first": the reducing rank's own term, then its successors (vllm#57042). "tree": neighbours
            pairwise, then pairs of pairs.
        accumulate: "fp32": rounded once at the end. "element": rounded to the element type after each addition.
        mode: rounding mode, of every rounding.
        own: "input": the reducing rank's own term comes from its input. "staging": it too went through the wire.
        wire: element type on the wire; None: that of the tensor. With bf16 tensors on an fp16 wire, magnitudes
            above 65504 become infinite (vllm#55345).
        wire_mode: rounding mode of the narrowing to the wire.
        start: "first": the sum starts with the first term. "zero": it starts with +0, which turns a sum of
            negative zeros into +0.
        nan: NaN rule of every rounding.
        random_bits: for stochastic modes.
        seed: for stochastic modes.
    """

    algorithm: Literal["one_shot", "two_shot", "ring"] = "one_shot"
    order: Literal["rank", "own_first", "tree"] = "rank"
    accumulate: Literal["fp32", "element"] = "fp32"
    mode: RoundMode = RoundMode.TiesToEven
    own: Literal["input", "staging"] = "input"
    wire: Dtype | None = None
    wire_mode: RoundMode = RoundMode.TiesToEven
    start: Literal["first", "zero"] = "first"
    nan: NanRule = NanRule.CANONICAL
    random_bits: int | None = None
    seed: int | None = None

    def __post_init__(self):
        """Refuse words that mean nothing, and combinations that no kernel has."""
        for field, words in (
            ("algorithm", ("one_shot", "two_shot", "ring")),
            ("order", ("rank", "own_first", "tree")),
            ("accumulate", ("fp32", "element")),
            ("own", ("input", "staging")),
            ("start", ("first", "zero")),
        ):
            if getattr(self, field) not in words:
                raise UnknownNameError(
                    f"{field} of an Arithmetic", str(getattr(self, field)), words, hint=f"one of {words}"
                )
        if self.algorithm == "ring" and (self.order != "rank" or self.accumulate != "element"):
            raise LabError(
                "a ring has its own order and rounds at each hop",
                hint='say Arithmetic("ring", accumulate="element")',
            )


def parts(size: int, world: int) -> list[slice]:
    """How two_shot cuts n elements: n // W each, the last rank takes the rest."""
    part = size // world
    return [slice(rank * part, size if rank == world - 1 else (rank + 1) * part) for rank in range(world)]


def all_reduce(
    inputs: np.ndarray, dtype: str, arithmetic: Arithmetic | None = None, *, rounder: Rounder | None = None
) -> np.ndarray:
    """Sum the ranks' tensors as the kernel would.

    Args:
        inputs: (W, n) bit patterns, row w is rank w's input.
        dtype: "bf16", "fp16" or "fp32".
        arithmetic: order and rounding; None: fp32 in rank order, rounded once to nearest even.
        rounder: rounds float32[n] to bits[n] instead of `arithmetic.mode`.

    Returns:
        (W, n) bit patterns: row w is what rank w has in its output. Rows differ where the arithmetic lets them.
    """
    arithmetic = arithmetic or Arithmetic()
    inputs = _check_inputs(inputs, dtype)
    world, size = inputs.shape
    round_ = rounder or _rounder(dtype, arithmetic)
    terms = [widen(row, dtype) for row in inputs]
    wired = [_through_wire(term, dtype, arithmetic) for term in terms]
    outputs = np.empty_like(inputs)
    if arithmetic.algorithm == "one_shot":
        if _same_everywhere(arithmetic, dtype):
            outputs[:] = round_(_sum(terms, arithmetic.order, 0, arithmetic, round_, dtype))
        else:
            for rank in range(world):
                total = _sum(_seen(rank, terms, wired, arithmetic), arithmetic.order, rank, arithmetic, round_, dtype)
                outputs[rank] = round_(total)
    elif arithmetic.algorithm == "two_shot":
        for owner, part in enumerate(parts(size, world)):
            seen = [term[part] for term in _seen(owner, terms, wired, arithmetic)]
            reduced = round_(_sum(seen, arithmetic.order, owner, arithmetic, round_, dtype))
            sent = _through_wire(widen(reduced, dtype), dtype, arithmetic)
            outputs[:, part] = narrow(sent, dtype, arithmetic.wire_mode, nan=_plain_nan(arithmetic.nan))
            outputs[owner, part] = reduced
    else:
        for last, part in enumerate(parts(size, world)):
            partial = wired[(last + 1) % world][part]
            for hop in range(2, world + 1):
                bits = round_(_add(partial, terms[(last + hop) % world][part]))
                partial = widen(bits, dtype)
                if hop < world:
                    partial = _through_wire(partial, dtype, arithmetic)
            outputs[:, part] = round_(partial) if world == 1 else bits
    return outputs


def all_reduce_add(
    inputs: np.ndarray,
    residual: np.ndarray,
    dtype: str,
    arithmetic: Arithmetic | None = None,
    *,
    roundings: Literal[1, 2] = 2,
    residual_term: Literal["last", "first"] = "last",
    rounder: Rounder | None = None,
) -> np.ndarray:
    """The fused kernel's residual: all-reduce, then residual + sum.

    Args:
        inputs: (W, n) bit patterns.
        residual: (n,) bit patterns, the same on every rank.
        dtype: element type.
        arithmetic: as in `all_reduce`.
        roundings: 2: the sum is rounded, then the residual added and rounded again, as when the all-reduce and
            the addition are two kernels. 1: the residual is added to the fp32 sum and the result rounded once
            (aiter#2586: about 25 % of elements differ by a step or more).
        residual_term: for one rounding: whether the residual is the last or the first term of the fp32 sum.
        rounder: as in `all_reduce`.

    Returns:
        (W, n) bit patterns of the new residual.
    """
    arithmetic = arithmetic or Arithmetic()
    inputs = _check_inputs(inputs, dtype)
    round_ = rounder or _rounder(dtype, arithmetic)
    base = widen(np.asarray(residual), dtype)
    if base.shape != inputs.shape[1:]:
        raise LabError("the residual has another shape than a rank's input", value=base.shape)
    if roundings == 2:
        reduced = all_reduce(inputs, dtype, arithmetic, rounder=rounder)
        return np.stack([round_(_add(base, widen(row, dtype))) for row in reduced])
    if roundings != 1:
        raise LabError("roundings must be 1 or 2", value=roundings)
    if arithmetic.accumulate != "fp32" or arithmetic.algorithm == "ring":
        raise LabError("one rounding needs an fp32 sum", hint='use accumulate="fp32" and one_shot or two_shot')
    terms = [widen(row, dtype) for row in inputs]
    wired = [_through_wire(term, dtype, arithmetic) for term in terms]

    def fused(rank, part):
        seen = [term[part] for term in _seen(rank, terms, wired, arithmetic)]
        if residual_term == "first":
            ordered = _ordered(seen, arithmetic.order, rank)
            return round_(_sum([base[part], *ordered], "rank", 0, arithmetic, round_, dtype))
        return round_(_add(base[part], _sum(seen, arithmetic.order, rank, arithmetic, round_, dtype)))

    outputs = np.empty_like(inputs)
    if arithmetic.algorithm == "two_shot":
        for owner, part in enumerate(parts(inputs.shape[1], len(terms))):
            outputs[:, part] = fused(owner, part)
    else:
        for rank in range(len(terms)):
            outputs[rank] = fused(rank, slice(None))
    return outputs


def rms_norm(residual: np.ndarray, weight: np.ndarray | float = 1.0, *, eps: float = 1e-6) -> np.ndarray:
    """RMSNorm over the last axis in double precision: a reference, not any kernel's order of summation.

    Args:
        residual: float32 or float64, (..., hidden).
        weight: (hidden,) or a number.
        eps: added to the mean square.

    Returns:
        float64 of the shape of `residual`.
    """
    wide = residual.astype(np.float64, copy=False)
    return wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * weight


# ---- the pieces


def _check_dtype(dtype: str) -> None:
    if dtype not in BITS:
        raise UnknownNameError("element type", dtype, BITS, hint=f"one of {', '.join(BITS)}")


def _check_inputs(inputs, dtype) -> np.ndarray:
    _check_dtype(dtype)
    inputs = np.asarray(inputs)
    if inputs.ndim != 2 or inputs.shape[0] < 1:
        raise LabError("inputs must be (world_size, elements)", value=inputs.shape)
    if inputs.dtype != BITS[dtype]:
        raise LabError(
            f"{dtype} is carried as bit patterns", value=str(inputs.dtype), hint=f"use {BITS[dtype].__name__}"
        )
    return inputs


def _plain_nan(nan: NanRule) -> NanRule:
    return nan if nan in (NanRule.CANONICAL, NanRule.QUIET) else NanRule.QUIET


def _rounder(dtype: str, arithmetic: Arithmetic) -> Rounder:
    calls = 0

    def round_(values):
        nonlocal calls
        seed = arithmetic.seed
        if seed is not None and arithmetic.mode.is_stochastic:
            seed += calls << 32  # each rounding of a call draws its own bits
            calls += 1
        return narrow(values, dtype, arithmetic.mode, nan=arithmetic.nan, random_bits=arithmetic.random_bits, seed=seed)

    return round_


def _through_wire(values, dtype, arithmetic):
    wire = arithmetic.wire
    if wire is None or wire == dtype:
        return values
    return widen(narrow(values, wire, arithmetic.wire_mode, nan=_plain_nan(arithmetic.nan)), wire)


def _same_everywhere(arithmetic, dtype) -> bool:
    """True if every rank of a one-shot adds the same terms in the same order with the same random bits."""
    wired = arithmetic.wire not in (None, dtype)
    return arithmetic.order != "own_first" and not wired and not arithmetic.mode.is_stochastic


def _seen(rank, terms, wired, arithmetic):
    """The terms as the reducing rank sees them: the peers' from the wire, its own from where it says."""
    own = terms if arithmetic.own == "input" else wired
    return [own[peer] if peer == rank else wired[peer] for peer in range(len(terms))]


def _ordered(terms, order, rank):
    return terms if order != "own_first" else terms[rank:] + terms[:rank]


def _sum(terms, order, rank, arithmetic, round_, dtype):
    """The fp32 sum before the last rounding."""
    step_rounds = arithmetic.accumulate == "element"

    def settle(total):
        return widen(round_(total), dtype) if step_rounds else total

    if order == "tree":
        level = list(terms)
        while len(level) > 1:
            pairs = [settle(_add(level[i], level[i + 1])) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(level) & ~1 :]
        return level[0]
    ordered = _ordered(list(terms), order, rank)
    if arithmetic.start == "zero":
        ordered = [np.zeros_like(ordered[0]), *ordered]
    total = ordered[0]
    for term in ordered[1:]:
        total = settle(_add(total, term))
    return total


def _add(a, b):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add(a, b, dtype=np.float32)
