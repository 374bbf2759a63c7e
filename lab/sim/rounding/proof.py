"""Proof over all 2^32 fp32 inputs that the fast loops compute the specification.

The specification picks one of two neighbours from four facts: the lower neighbour's code, on which side of the
midpoint the input lies, the sign, and whether the lower code is odd. So on the line of fp32 words it is constant on
pieces: exactly on a number of the target format, below the midpoint to the next, on the midpoint, above it. Their
ends are computed here from the rational magnitudes of `rounding_spec`, and fp32 words of one sign are in the order of
their values, so the pieces cover every input. The compiled loop then runs over every word and each code that it
writes is compared with the piece's.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count
from threading import Event
from typing import Protocol

import numpy as np
from numba import njit

from lab.sim.rounding import loops, mutants
from lab.sim.rounding.convert import DETERMINISTIC_MODES, lift_and_half, max_random_bits
from lab.sim.rounding.modes import AITER_CODES, CK_CODES, UNGUARDED_MODES, NanRule, RoundMode
from lab.sim.rounding.spec import (
    BF16,
    FP16,
    FP32,
    Format,
    Side,
    magnitudes,
    round_bits,
    round_nan,
    takes_upper,
)

SIDES: tuple[Side, ...] = ("exact", "below", "tie", "above")
CHUNK = 1 << 17  # words at a time: input and output stay in a second-level cache of 1 MiB
ALL_INPUTS = 1 << 32
FORMATS = {"bf16": BF16, "fp16": FP16, "fp16_portable": FP16}

Convert = Callable[[np.ndarray, np.ndarray], None]
"""Rounds words (uint32[n]) into codes (uint16[n])."""

Progress = Callable[[float], None]


class Reference(Protocol):
    """What a conversion is compared with."""

    def mismatches(self, base: int, codes: np.ndarray) -> tuple[int, int]:
        """Count wrong codes among those of the words base, base + 1, ...; the first wrong word, or -1."""

    def expected(self, word: int) -> int:
        """The right code of one word."""


@dataclass(frozen=True)
class Proof:
    """One line of the proof.

    Attributes:
        name: format and conversion, "bf16 RNE".
        inputs: how many inputs were compared.
        mismatches: how many gave another code than the specification.
        first: the first wrong one as (input word, code, right code), or None.
        seconds: processor time of conversion and comparison, summed over threads.
    """

    name: str
    inputs: int
    mismatches: int
    first: tuple[int, int, int] | None
    seconds: float


# ---- references


@njit(nogil=True, cache=True)
def _compare_pieces(base, codes, starts, expected):
    """Walk the pieces that the words base, base + 1, ... fall into."""
    piece, after = 0, starts.size  # bisect for the piece of the first word
    while after - piece > 1:
        middle = (piece + after) // 2
        if np.int64(starts[middle]) <= base:
            piece = middle
        else:
            after = middle
    wrong, first = 0, -1
    position = 0
    while position < codes.size:
        end = codes.size
        if piece + 1 < starts.size:
            end = min(end, np.int64(starts[piece + 1]) - base)
        right = expected[piece]
        run = codes[position:end]
        difference = np.uint16(0)
        for i in range(run.size):
            difference = np.uint16(difference | (run[i] ^ right))
        if difference:
            for i in range(run.size):
                if run[i] != right:
                    if first < 0:
                        first = base + position + i
                    wrong += 1
        position = end
        piece += 1
    return wrong, first


@dataclass(frozen=True)
class Pieces:
    """A conversion as a piecewise constant function of the fp32 word.

    Attributes:
        starts: first word of each piece, increasing, from 0 (uint32).
        codes: its code (uint16).
    """

    starts: np.ndarray
    codes: np.ndarray

    def mismatches(self, base: int, codes: np.ndarray) -> tuple[int, int]:
        """See Reference."""
        return _compare_pieces(base, codes, self.starts, self.codes)

    def expected(self, word: int) -> int:
        """See Reference."""
        return int(self.at(np.array([word], np.uint32))[0])

    def at(self, words: np.ndarray) -> np.ndarray:
        """The codes of any words."""
        return self.codes[np.searchsorted(self.starts, words, side="right") - 1]


@njit(error_model="numpy")
def _low_half(word):
    low = np.uint32(word % np.uint32(65536))
    exponent = np.uint32(np.uint32(word // np.uint32(8388608)) % np.uint32(256))
    even = np.uint32(np.uint32(1) - np.uint32(low % np.uint32(2)))
    return np.uint32(low + (even if exponent == np.uint32(255) and low != np.uint32(0) else np.uint32(0)))


@njit(nogil=True, cache=True, error_model="numpy")
def _compare_low_halves(base, codes):
    difference = np.uint32(0)
    for i in range(codes.size):
        right = _low_half(np.uint32(np.uint32(base) + np.uint32(i)))
        difference = np.uint32(difference | (np.uint32(codes[i]) ^ right))
    wrong, first = 0, -1
    if difference != 0:
        for i in range(codes.size):
            if np.uint32(codes[i]) != _low_half(np.uint32(base + i)):
                if first < 0:
                    first = base + i
                wrong += 1
    return wrong, first


@dataclass(frozen=True)
class LowHalves:
    """The reference of OPUS code 1: the remainder of the word by 2^16, made odd for a NaN that has one."""

    def mismatches(self, base: int, codes: np.ndarray) -> tuple[int, int]:
        """See Reference."""
        return _compare_low_halves(base, codes)

    def expected(self, word: int) -> int:
        """See Reference."""
        return round_bits(word, BF16, RoundMode.LowHalf)


def _word(value: Fraction) -> int:
    """The fp32 word of a non-negative rational that fp32 represents exactly."""
    nearest = np.float32(float(value))
    if Fraction(float(nearest)) != value:
        raise ValueError(f"{value} is not an fp32 number")
    return int(nearest.view(np.uint32))


@cache
def _geometry(fmt: Format) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of the positive words: first word, code of the lower neighbour, index into SIDES."""
    table = magnitudes(fmt)
    starts, lower, side = [], [], []
    for code in range(fmt.infinity):
        start = _word(table[code])
        middle = _word((table[code] + table[code + 1]) / 2)
        starts += [start, start + 1, middle, middle + 1]
        lower += [code] * 4
        side += range(4)
    starts.append(FP32.infinity)
    lower.append(fmt.infinity)
    side.append(SIDES.index("exact"))
    step = 2 ** (FP32.fraction_bits - fmt.fraction_bits)
    for code in range(fmt.infinity, fmt.sign_code):  # NaN: the codes go on, with the same four pieces
        start = FP32.infinity + (code - fmt.infinity) * step
        pieces = [start, start + 1, start + step // 2, start + step // 2 + 1]
        skip = 1 if code == fmt.infinity else 0  # infinity itself
        starts += pieces[skip:]
        lower += [code] * (4 - skip)
        side += range(skip, 4)
    return np.array(starts, np.int64), np.array(lower, np.int64), np.array(side, np.int64)


@cache
def pieces(fmt: Format, mode: RoundMode, nan: NanRule = NanRule.QUIET) -> Pieces:
    """The specification of a deterministic mode as pieces.

    Args:
        fmt: BF16 or FP16.
        mode: a deterministic mode, RNE_VIA_FP16 included.
        nan: NaN rule.
    """
    if mode is RoundMode.TiesToEvenViaFp16:
        half = pieces(FP16, RoundMode.TiesToEven)
        starts, _, side = _geometry(FP16)
        positive = starts[side == SIDES.index("exact")]  # the fp32 words of the codes 0 .. 0x7fff
        words = np.concatenate([positive, positive + FP32.sign_code]).astype(np.uint32)
        return Pieces(half.starts, pieces(BF16, RoundMode.TiesToEven).at(words)[half.codes])
    starts, lower, side = _geometry(fmt)
    halves = []
    for negative in (False, True):
        up = np.array(
            [[takes_upper(mode, name, negative=negative, lower_is_odd=odd) for odd in (False, True)] for name in SIDES]
        )
        codes = lower + up[side, lower % 2] + negative * fmt.sign_code
        first_nan = int(np.searchsorted(starts, FP32.infinity, side="right"))
        for piece in range(first_nan, starts.size):
            codes[piece] = round_nan(int(starts[piece]) + negative * FP32.sign_code, fmt, nan, mode)
        halves.append(codes)
    return Pieces(
        np.concatenate([starts, starts + FP32.sign_code]).astype(np.uint32),
        np.concatenate(halves).astype(np.uint16),
    )


# ---- the run over all inputs


@njit(nogil=True, cache=True)
def _fill(base, words):
    for i in range(words.size):
        words[i] = np.uint32(base) + np.uint32(i)


def compare(
    cases: Sequence[tuple[str, Convert, Reference]],
    *,
    spans: Iterable[tuple[int, int]] = ((0, ALL_INPUTS),),
    threads: int = 2,
    progress: Progress = lambda done: None,
) -> list[Proof]:
    """Run conversions over fp32 words and compare every code.

    Args:
        cases: name, conversion and reference of each.
        spans: ranges of words [start, stop); the default is all of them.
        threads: threads that share the chunks; the conversions must release the interpreter lock to gain.
        progress: called with the share of the work that is done, from any of the threads.

    Returns:
        One Proof a case, in the order of the cases. Ctrl-C ends the threads within the work on one chunk of one case.
    """
    starts = [(start, min(start + CHUNK, stop)) for begin, stop in spans for start in range(begin, stop, CHUNK)]
    groups = [starts[index::threads] for index in range(threads)]
    ended, finished = Event(), count()

    def work(group):
        words, codes = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint16)
        wrong, first, seconds = [0] * len(cases), [-1] * len(cases), [0.0] * len(cases)
        got: list[int] = [-1] * len(cases)
        for start, stop in group:
            size = stop - start
            _fill(start, words[:size])
            for index, (_name, convert, reference) in enumerate(cases):
                if ended.is_set():
                    return wrong, first, got, seconds
                begin = time.perf_counter()
                convert(words[:size], codes[:size])
                differ, where = reference.mismatches(start, codes[:size])
                if differ and first[index] < 0:
                    first[index], got[index] = where, int(codes[where - start])
                wrong[index] += differ
                progress((next(finished) + 1) / (len(starts) * len(cases)))
                seconds[index] += time.perf_counter() - begin
        return wrong, first, got, seconds

    with ThreadPoolExecutor(threads) as pool:
        try:
            parts = [done.result() for done in as_completed([pool.submit(work, group) for group in groups])]
        except BaseException:  # Ctrl-C, or one thread failed: the others need not go on
            ended.set()
            raise
    inputs = sum(stop - start for start, stop in starts)
    proofs = []
    for index, (name, _convert, reference) in enumerate(cases):
        found = [(part[1][index], part[2][index]) for part in parts if part[1][index] >= 0]
        first = (*min(found), reference.expected(min(found)[0])) if found else None
        proofs.append(
            Proof(name, inputs, sum(part[0][index] for part in parts), first, sum(part[3][index] for part in parts))
        )
    return proofs


def loop_converter(fmt: str, mode: RoundMode, make_loop: Callable = loops.loop) -> Convert:
    """The compiled loop of a mode as a Convert."""
    run = make_loop(fmt, mode)
    no_block = np.empty(0, np.uint16)

    def convert(words, codes):
        run(words, codes, no_block, 0, False, *loops.NO_RANDOM)

    return convert


def prove_modes(
    *,
    threads: int = 2,
    spans: Iterable[tuple[int, int]] = ((0, ALL_INPUTS),),
    progress: Progress = lambda done: None,
) -> list[Proof]:
    """Prove every deterministic mode to both formats, and the modes found in kernels."""
    cases: list[tuple[str, Convert, Reference]] = []
    for name, fmt in FORMATS.items():
        for mode in DETERMINISTIC_MODES:
            if (name, mode) in loops.RULES:
                cases.append((f"{name} {mode.value}", loop_converter(name, mode), pieces(fmt, mode)))
    via = RoundMode.TiesToEvenViaFp16
    cases.append((f"bf16 {via.value}", loop_converter("bf16", via), pieces(BF16, via)))
    low = RoundMode.LowHalf
    cases.append((f"bf16 {low.value}", loop_converter("bf16", low), LowHalves()))
    return compare(cases, threads=threads, spans=spans, progress=progress)


def nan_spans() -> list[tuple[int, int]]:
    """The words that are NaN (and the two infinities)."""
    return [(FP32.infinity, FP32.sign_code), (FP32.infinity + FP32.sign_code, ALL_INPUTS)]


def prove_nan_rules(*, threads: int = 2) -> list[Proof]:
    """Prove the NaN rules of bf16 on all NaN inputs, each with a mode that has it."""
    from lab.sim.rounding.convert import to_bf16

    named = {(mode, NanRule.UNGUARDED) for mode in UNGUARDED_MODES} | {(RoundMode.TiesToEven, NanRule.CANONICAL)}
    for code in (*AITER_CODES.values(), *CK_CODES.values()):
        if code.mode is not None and not code.mode.bf16_only:
            named.add((code.mode, code.nan))
    cases: list[tuple[str, Convert, Reference]] = []
    for mode, nan in sorted(named, key=lambda pair: (pair[0].value, pair[1].value)):

        def convert(words, codes, mode=mode, nan=nan):
            to_bf16(words.view(np.float32), mode, out=codes, nan=nan)

        cases.append((f"bf16 {mode.value} NaN {nan.value}", convert, pieces(BF16, mode, nan)))
    return compare(cases, spans=nan_spans(), threads=threads)


def lost_nans(mode: RoundMode) -> int:
    """How many NaN inputs become a number (zero or infinity) where the mode's arithmetic has no NaN guard."""
    table = pieces(BF16, mode, NanRule.UNGUARDED)
    lost = 0
    for start, stop in nan_spans():
        words = np.arange(start + 1, stop, dtype=np.int64).astype(np.uint32)  # without the infinity
        lost += int(np.count_nonzero((table.at(words) & 0x7FFF) <= BF16.infinity))
    return lost


# ---- stochastic rounding: exact counts


@dataclass(frozen=True)
class StochasticProof:
    """Exact count of round-ups over all pairs of cut-off bits and random integer.

    Attributes:
        name: "bf16 SR(8)".
        pairs: how many pairs.
        mismatches: cut-off values for which the number of round-ups differs from the specification.
        mean_bias: mean over all pairs of (rounded - exact), in units of the step.
    """

    name: str
    pairs: int
    mismatches: int
    mean_bias: float


def prove_stochastic(fmt: str, mode: RoundMode, bits: int, *, lower: int | None = None) -> StochasticProof:
    """Count the round-ups of every cut-off value over all 2^bits random integers, and compare exactly.

    Args:
        fmt: "bf16" or "fp16".
        mode: SR or SRC.
        bits: k, 1 to `max_random_bits(fmt, mode)`.
        lower: code of the lower neighbour, a normal number; None: that of 1.0.
    """
    target = FORMATS[fmt]
    cut = FP32.fraction_bits - target.fraction_bits
    code = target.bias * 2**target.fraction_bits if lower is None else lower
    first = _word(magnitudes(target)[code])
    words = (first + np.arange(2**cut)).astype(np.uint32)
    ups = np.empty(2**cut, np.int64)
    lift, half = lift_and_half(fmt, mode, bits)
    loops.stochastic_counter(fmt)(words, np.full(2**cut, code, np.uint32), bits, lift, half, ups)
    right = stochastic_ups(np.arange(2**cut), cut, bits, mode)
    bias = float(np.mean(ups / 2**bits - np.arange(2**cut) / 2**cut))
    return StochasticProof(f"{fmt} {mode.value}({bits})", 2 ** (cut + bits), int(np.count_nonzero(ups != right)), bias)


def stochastic_ups(rest: np.ndarray, cut: int, bits: int, mode: RoundMode) -> np.ndarray:
    """How many of the 2^bits random integers round each rest / 2^cut up.

    `rounding_spec.stochastic_takes_upper` solved for the random integer: it goes up from
    ceil(2^bits (1 - rest / 2^cut) - c) on, with c = 1/2 if centred, else 0.
    """
    centred = mode is RoundMode.StochasticCentred
    numerator = 2 ** (bits + 1) * (2**cut - np.asarray(rest, np.int64)) - centred * 2**cut
    first = -(-numerator // 2 ** (cut + 1))
    return 2**bits - np.clip(first, 0, 2**bits)


def stochastic_cases() -> list[tuple[str, RoundMode, int]]:
    """Every format, stochastic mode and number of bits."""
    return [
        (fmt, mode, bits)
        for fmt in ("bf16", "fp16")
        for mode in (RoundMode.Stochastic, RoundMode.StochasticCentred)
        for bits in range(1, max_random_bits(fmt, mode) + 1)
    ]


# ---- planted faults


def catch_mutants(
    *,
    threads: int = 2,
    spans: Iterable[tuple[int, int]] = ((0, ALL_INPUTS),),
    progress: Progress = lambda done: None,
) -> list[Proof]:
    """Run the proof on loops with a planted fault. Each must have mismatches, or the proof is blind to it."""
    spans = list(spans)
    cases: list[tuple[str, Convert, Reference]] = [
        (mutant.name, loop_converter("", mutant.mode, mutant.make), pieces(FORMATS[mutant.fmt], mutant.mode))
        for mutant in mutants.MUTANTS
    ]
    return compare(cases, threads=threads, spans=spans, progress=progress)
