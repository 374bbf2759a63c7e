"""Rounding rules with one planted fault each: what the proof must be able to see."""

from collections.abc import Callable
from dataclasses import dataclass

from numba import njit

from lab.sim.rounding.loops import (
    ABS,
    INF,
    ONE,
    U32,
    _as_float,
    _carried,
    _from_half,
    _sign_mask,
    _to_even,
    _to_half,
)
from lab.sim.rounding.modes import RoundMode


def _bias_one_short(u):
    return _carried(u, U32(U32(0x7FFE) + U32(U32(u >> U32(16)) & ONE)))


def _no_tie_bit(u):
    return _carried(u, U32(0x8000))


def _no_nan_guard(u):
    return U32(U32(u + _to_even(u)) >> U32(16))


def _truncates(u):
    return _carried(u, U32(0))


def _sign_ignored(u):
    return _carried(u, U32(0xFFFF))


def _sign_swapped(u):
    return _carried(u, U32(_sign_mask(u) >> U32(16)))


def _sticky_short(u):
    cut = U32(0x10000) if U32(u & U32(0xFFFE)) != U32(0) else U32(0)  # the last bit is not looked at
    return _carried(U32(u | cut) if U32(u & ABS) < INF else u, U32(0))


def _half_step_short(u):
    return _carried(u, U32(0x7FFF))


def _subnormals_flushed(u):
    code = _to_half(u)
    return code if U32(code & U32(0x7C00)) != U32(0) else U32(code & U32(0x8000))


def _overflow_to_infinity(u):
    code = _to_half(u)
    rounded, exact = _as_float(U32(_from_half(code) & ABS)), _as_float(U32(u & ABS))
    away = rounded > exact and U32(code & U32(0x7FFF)) != U32(0x7C00)
    return U32(code - ONE) if away else code


@dataclass(frozen=True)
class Mutant:
    """A loop that claims to be a mode and is not.

    Attributes:
        name: format, mode and fault.
        fmt: "bf16" or "fp16".
        mode: the mode it claims to be.
        rule: the faulty rule.
    """

    name: str
    fmt: str
    mode: RoundMode
    rule: Callable

    def make(self, fmt: str, mode: RoundMode) -> Callable:
        """The compiled loop, with the arguments of `rounding_loops.loop`."""
        rule = njit(self.rule)

        @njit(nogil=True)
        def convert(x, out, block, lead, streaming, first, key0, key1, mask, half):
            for i in range(x.size):
                out[i] = rule(x[i])

        return convert


MUTANTS = (
    Mutant("bf16 RNE, bias 0x7ffe", "bf16", RoundMode.TiesToEven, _bias_one_short),
    Mutant("bf16 RNE, no tie bit (half away)", "bf16", RoundMode.TiesToEven, _no_tie_bit),
    Mutant("bf16 RNE, no NaN guard", "bf16", RoundMode.TiesToEven, _no_nan_guard),
    Mutant("bf16 RNE, truncates", "bf16", RoundMode.TiesToEven, _truncates),
    Mutant("bf16 RNA, half a step short", "bf16", RoundMode.TiesToAway, _half_step_short),
    Mutant("bf16 RU, sign ignored", "bf16", RoundMode.TowardPositive, _sign_ignored),
    Mutant("bf16 RU, sign swapped", "bf16", RoundMode.TowardPositive, _sign_swapped),
    Mutant("bf16 RTO, last bit not looked at", "bf16", RoundMode.ToOdd, _sticky_short),
    Mutant("fp16 RNE, subnormals flushed", "fp16", RoundMode.TiesToEven, _subnormals_flushed),
    Mutant("fp16 RTZ, overflow to infinity", "fp16", RoundMode.TowardZero, _overflow_to_infinity),
)
