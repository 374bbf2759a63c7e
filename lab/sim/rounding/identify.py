"""Name the rounding mode of a black box.

    verdict = identify(my_conversion)        # a function float32[n] -> bf16 or fp16 [n]
    verdict = identify_file("pairs.npz")     # arrays `inputs` (float32) and `outputs`

The box is shown `probe_inputs()`: 4 KiB of numbers on, beside and between the numbers of the format, where the modes
part, and some of them many times over. The first 16 KiB of normal random numbers would do worse: a missing tie bit
shows in one of 131,586 inputs.
"""

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import LabError
from lab.sim.rounding.arrays import existing_file, native, read_npz
from lab.sim.rounding.convert import DETERMINISTIC_MODES, max_random_bits, to_bf16, to_fp16
from lab.sim.rounding.loops import CUT_BITS
from lab.sim.rounding.modes import AITER_CODES, CK_CODES, UNGUARDED_MODES, Conversion, NanRule, RoundMode
from lab.sim.rounding.proof import stochastic_ups

ABS, INF = 0x7FFFFFFF, 0x7F800000
FP16_INF = {"bf16": 0x7F80, "fp16": 0x7C00}
CANDIDATES = {
    "bf16": (*DETERMINISTIC_MODES, RoundMode.TiesToEvenViaFp16, RoundMode.LowHalf),
    "fp16": DETERMINISTIC_MODES,
}
#: NaN results of libraries that are not a rule of the lab: positive code, negative code.
NAN_CONSTANTS = {
    "sign_canonical": (0x7FC0, 0xFFC0),  # ml_dtypes
    "all_ones_negative": (0xFFFF, 0xFFFF),  # torch, vectorised
}
#: Two stochastic models are told apart if the data are this many times likelier under one of them.
LIKELIHOOD_RATIO = 1000.0


@dataclass(frozen=True)
class Evidence:
    """An input that excludes a mode: the words as hexadecimal, the value as Python prints it."""

    excludes: str
    input: str
    value: float
    output: str
    expected: str


@dataclass(frozen=True)
class Verdict:
    """What the box does.

    Attributes:
        mode: short name of the mode; None if none of the known fits, or several do.
        description: one sentence.
        format: "bf16" or "fp16".
        candidates: every mode that fits all finite inputs.
        nan: NaN rule, "none seen" without NaN inputs, "kept, other bits", or "lost" (a NaN became a number).
        subnormals: "kept", "flushed" (they become zero), "other", "not judged", or "none seen".
        codes: names of library codes that behave like this ("aiter-2", "ck-1").
        random_bits: for stochastic modes, the k that fit (a range: [low, high]).
        samples: how many pairs were looked at.
        mismatches: for each mode considered, on how many finite inputs it differs.
        evidence: for each excluded mode one input that excludes it.
    """

    mode: str | None
    description: str
    format: str
    candidates: list[str]
    nan: str
    subnormals: str
    codes: list[str]
    random_bits: list[int] | None
    samples: int
    mismatches: dict[str, int]
    evidence: list[Evidence] = field(default_factory=list)

    def why_not(self, wanted: Conversion) -> str | None:
        """Why this is not what is `wanted`, in words; None: it is.

        A mode is wanted for every finite input: one that flushes or bends subnormals is another conversion. A code of a
        library is wanted with its treatment of NaN as well.
        """
        if self.mode != wanted.mode.value:
            return "it is " + (self.mode or "none of the known modes or several")
        if self.subnormals == "flushed":
            return "subnormals become zero"
        if self.subnormals == "other":
            return "subnormals follow another rule"
        if "-" in wanted.name and wanted.name not in self.codes:
            return f"its rule for NaN is another: {self.nan}"
        return None


def probe_inputs(repeats: int = 60) -> np.ndarray:
    """The chosen inputs.

    Args:
        repeats: how often each of the numbers for stochastic modes appears. With the default all inputs take
            4 KiB; 4096 tell 12 random bits from 16.

    Returns:
        float32[n].
    """
    # around 1 first: the first input that excludes a mode is shown as evidence
    upper = [0x3F80, 0x3F81, 0x4049, 0x477F, 0x4780, 0x387F, 0x3380, 0x0000, 0x0001, 0x007F, 0x0080, 0x0081]
    words = [
        (half << 16) + rest
        for half in (*upper, 0x7F7E, 0x7F7F)
        for rest in (0x0000, 0x0001, 0x1000, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    ]
    for base in (0x33000000, 0x33800000, 0x38000000, 0x387FE000, 0x38800000, 0x3F802000, 0x477FE000):
        words += [base + rest for rest in (0x0001, 0x0FFF, 0x1000, 0x1001, 0x1FFF)]
    words += [INF, 0x7F800001, 0x7F80FFFF, 0x7F810000, 0x7FA00001, 0x7FC00000, 0x7FC00001, 0x7FFF7FFF]
    words += [0x7FFF8000, 0x7FFFFFFF]
    both = np.array(words + [word | 0x80000000 for word in words], np.uint32)
    if repeats < 1:
        raise LabError("repeats must be at least 1", value=repeats)
    powers = np.array([0x3F800000 + (1 << bit) for bit in range(9, 16)] + [0x3F80C000, 0x3F80F000], np.uint32)
    if repeats > 256:
        powers = np.concatenate([powers, np.array([0x3F800000 + (1 << bit) for bit in range(9)], np.uint32)])
    return np.concatenate([both, np.tile(powers, repeats)]).view(np.float32)


def identify(box: Callable[[np.ndarray], Any]) -> Verdict:
    """Name the mode of a function float32[n] -> n values or codes of bf16, or fp16.

    The function may return uint16 or int16 (bf16 codes), float32 (bf16 values), float16, ml_dtypes.bfloat16, or a torch
    tensor of any of these. A box that turns out stochastic is asked again with more repetitions.

    Raises:
        LabError: the box fails, or returns something else.
    """
    x = probe_inputs()
    codes, fmt = _ask(box, x)
    verdict = identify_pairs(x, codes, fmt)
    if verdict.candidates:
        by_chance = RoundMode.parse(verdict.candidates[0]).is_stochastic
    else:
        by_chance = not np.array_equal(_ask(box, x)[0], codes)
    if by_chance:
        long = probe_inputs(4096)
        codes, fmt = _ask(box, long)
        verdict = identify_pairs(long, codes, fmt)
    return verdict


def identify_file(path: str | Path) -> Verdict:
    """Name the mode from a .npz with `inputs` (float32) and `outputs` (as `identify` takes them).

    Raises:
        LabError: no such file, not a .npz, arrays missing, of different length, or of a type that holds neither format.
    """
    path = existing_file(path)
    arrays = read_npz(path)
    names = [("inputs", "x"), ("outputs", "y")]
    found = []
    for wanted in names:
        present = [name for name in wanted if name in arrays]
        if not present:
            have = ", ".join(sorted(arrays)) or "nothing"
            raise LabError(f"the file has no array `{wanted[0]}`", value=str(path), hint=f"it has: {have}")
        found.append(arrays[present[0]])
    x, y = found
    if x.dtype != np.float32:
        raise LabError("`inputs` must be float32", value=str(x.dtype))
    codes, fmt = _codes(y, x.size)
    return identify_pairs(x.reshape(-1), codes, fmt)


def load_callable(name: str) -> Callable[[np.ndarray], Any]:
    """Import "module:function" or "file.py:function".

    Raises:
        LabError: there is no such module, file or function, or importing it fails.
    """
    source, _, function = name.rpartition(":")
    if not source or not function:
        raise LabError("this is neither a .npz file nor FILE.py:FUNCTION nor MODULE:FUNCTION", value=name)
    try:
        if source.endswith(".py"):
            existing_file(source)
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except LabError:
        raise
    except (Exception, SystemExit) as error:
        raise LabError(f"importing {source} failed", hint=f"{type(error).__name__}: {error}") from error
    box = getattr(module, function, None)
    if not callable(box):
        raise LabError(f"{source} has no function of that name", value=function)
    return box


def identify_pairs(x: np.ndarray, codes: np.ndarray, fmt: str = "bf16") -> Verdict:
    """Name the mode from inputs and the codes they became.

    Args:
        x: float32[n].
        codes: uint16[n].
        fmt: "bf16" or "fp16".

    Raises:
        LabError: there are no finite inputs.
    """
    words = np.ascontiguousarray(x).view(np.uint32)
    finite = (words & ABS) < INF
    if not finite.any():
        raise LabError("there is no finite input to judge by", value=f"{words.size} inputs")
    subnormal = finite & ((words & ABS) < 0x00800000) & ((words & ABS) > 0)
    judged = finite & ~subnormal if fmt == "bf16" and (finite & ~subnormal).any() else finite

    expected = {mode: _expected(x, fmt, mode) for mode in CANDIDATES[fmt]}
    wrong = {mode: judged & (codes != right) for mode, right in expected.items()}
    mismatches = {mode.value: int(np.count_nonzero(bad)) for mode, bad in wrong.items()}
    fitting = [mode for mode in CANDIDATES[fmt] if not wrong[mode].any()]
    evidence = [_evidence(mode, words, codes, expected[mode], bad) for mode, bad in wrong.items() if bad.any()]
    random_bits = None
    chance = _stochastic(words[judged], codes[judged], fmt) if not fitting else None
    if chance is not None:
        fitting, random_bits = chance
    mode = fitting[0] if len(fitting) == 1 else None
    nan = _nan_rule(words, codes, fmt, mode)
    denormals = _subnormals(words, codes, fmt, mode, subnormal, expected) if judged is not finite else "kept"
    if not subnormal.any():
        denormals = "none seen"
    return Verdict(
        mode=mode.value if mode else None,
        description=_describe(mode, fitting, mismatches, random_bits, nan, denormals, int(finite.sum())),
        format=fmt,
        candidates=[each.value for each in fitting],
        nan=nan,
        subnormals=denormals,
        codes=_library_codes(mode, nan) if fmt == "bf16" and denormals != "flushed" else [],
        random_bits=random_bits,
        samples=words.size,
        mismatches=mismatches,
        evidence=evidence,
    )


# ---- the box


def _ask(box, x) -> tuple[np.ndarray, str]:
    try:
        answer = box(x.copy())
    except (Exception, SystemExit) as error:
        raise LabError("the function failed on the probe inputs", hint=f"{type(error).__name__}: {error}") from error
    return _codes(answer, x.size)


def _codes(answer, size) -> tuple[np.ndarray, str]:
    """Codes and format of whatever a box or a file gave."""
    if type(answer).__module__.split(".")[0] == "torch":
        answer = answer.detach().cpu()
        kind = str(answer.dtype).removeprefix("torch.")
        if kind == "bfloat16":
            answer = answer.view(_torch_int16(answer))
        answer = answer.numpy()
    answer = native(np.asarray(answer))
    if answer.size != size:
        raise LabError("outputs and inputs differ in number", value=answer.size, hint=f"inputs: {size}")
    flat = np.ascontiguousarray(answer).reshape(-1)
    kind = flat.dtype.name
    if kind == "float16":
        return flat.view(np.uint16), "fp16"
    if kind in ("uint16", "int16", "bfloat16") or flat.dtype == np.dtype("V2"):
        return flat.view(np.uint16), "bf16"
    if kind == "float32":
        words = flat.view(np.uint32)
        if np.count_nonzero(words & 0xFFFF):
            where = int(np.flatnonzero(words & 0xFFFF)[0])
            raise LabError(
                "an output is not a bf16 value", value=float(flat[where]), hint="fp16 results: return float16"
            )
        return (words >> 16).astype(np.uint16), "bf16"
    raise LabError(
        "outputs of this type hold neither bf16 nor fp16",
        value=str(answer.dtype),
        hint="uint16 codes, float32 bf16 values, or float16",
    )


def _torch_int16(tensor):
    import sys

    return sys.modules["torch"].int16


def _expected(x, fmt, mode):
    if fmt == "bf16":
        return to_bf16(x, mode)
    return to_fp16(x, mode).view(np.uint16)


def _evidence(mode, words, codes, expected, bad) -> Evidence:
    where = int(np.flatnonzero(bad)[0])
    return Evidence(
        excludes=mode.value,
        input=f"0x{words[where]:08x}",
        value=float(words[where : where + 1].view(np.float32)[0]),
        output=f"0x{codes[where]:04x}",
        expected=f"0x{expected[where]:04x}",
    )


# ---- stochastic boxes


def _stochastic(words, codes, fmt) -> tuple[list[RoundMode], list[int]] | None:
    """Fit SR and SRC with every k to the counts of round-ups; None if the box is not stochastic.

    A stochastic box gives one of the two neighbours, exact numbers unchanged, and rounds up as often as the
    cut-off part says. In fp16 only normal results are used, where the cut-off part is the last 13 bits.
    """
    cut = CUT_BITS[fmt]
    magnitude = (words & ABS).astype(np.int64)
    if fmt == "fp16":
        normal = (magnitude >= 0x38800000) & (magnitude < 0x477FE000)
        words, codes, magnitude = words[normal], codes[normal], magnitude[normal]
        lower = (magnitude >> cut) - (112 << 10)
    else:
        lower = magnitude >> cut
    if not words.size:
        return None
    rest = magnitude & ((1 << cut) - 1)
    sign = (words >> 31).astype(np.int64) << 15
    up = codes.astype(np.int64) - (sign + lower)
    if np.any((up != 0) & (up != 1)) or np.any(up[rest == 0] != 0):
        return None
    rests, index, tried = np.unique(rest, return_inverse=True, return_counts=True)
    ups = np.bincount(index, weights=up, minlength=rests.size)
    scores = {}
    for mode in (RoundMode.Stochastic, RoundMode.StochasticCentred):
        for bits in range(1, max_random_bits(fmt, mode) + 1):
            chance = stochastic_ups(rests, cut, bits, mode) / 2**bits
            scores[mode, bits] = _log_likelihood(ups, tried, chance)
    best = max(scores.values())
    if not math.isfinite(best) or not _plausible(ups, tried, scores, rests, cut):
        return None
    close = {key for key, score in scores.items() if score > best - math.log(LIKELIHOOD_RATIO)}
    modes = [mode for mode in (RoundMode.Stochastic, RoundMode.StochasticCentred) if any(m is mode for m, _ in close)]
    # With many bits plain and centred hardly differ: SR is what can be said, with the k of both.
    if len(modes) == 2 and all(bits >= 6 for _, bits in close):
        modes = [RoundMode.Stochastic]
    bits = [bits for _, bits in close]
    return modes, [min(bits), max(bits)]


def _log_likelihood(ups, tried, chance) -> float:
    impossible = ((ups > 0) & (chance == 0)) | ((ups < tried) & (chance == 1))
    if impossible.any():
        return -math.inf
    inner = np.clip(chance, 1e-300, 1 - 1e-16)
    return float(np.sum(ups * np.log(inner) + (tried - ups) * np.log1p(-inner)))


def _plausible(ups, tried, scores, rests, cut) -> bool:
    """Under the best fit, the counts are not further off than chance allows (5 sigma on their squared deviations)."""
    (mode, bits), _ = max(scores.items(), key=lambda item: item[1])
    chance = stochastic_ups(rests, cut, bits, mode) / 2**bits
    spread = tried * chance * (1 - chance)
    free = spread > 0
    if not free.any():
        return False
    square = float(np.sum((ups - tried * chance)[free] ** 2 / spread[free]))
    count = int(free.sum())
    tails = 1 / np.maximum(spread[free], 1e-9)
    return square < count + 5 * math.sqrt(2 * count + float(tails.sum()))


# ---- NaN, subnormals, names


def _nan_rule(words, codes, fmt, mode) -> str:
    nan = (words & ABS) > INF
    if not nan.any():
        return "none seen"
    if mode is RoundMode.LowHalf:
        return "its own"
    x, got = words[nan].view(np.float32), codes[nan]
    rules = [NanRule.QUIET, NanRule.CANONICAL]
    if fmt == "bf16":
        rules += [NanRule.KEEP_SIGNALLING, NanRule.ALL_ONES]
    carrier = RoundMode.TiesToEven
    for rule in rules:
        convert = to_bf16 if fmt == "bf16" else to_fp16
        if np.array_equal(convert(x, carrier, nan=rule).view(np.uint16), got):
            return rule.value
    if fmt == "bf16":
        if mode in UNGUARDED_MODES and np.array_equal(to_bf16(x, mode, nan=NanRule.UNGUARDED), got):
            return NanRule.UNGUARDED.value
        for name, (positive, negative) in NAN_CONSTANTS.items():
            if np.array_equal(got, np.where(words[nan] >> 31, negative, positive)):
                return name
    still = (got & 0x7FFF) > FP16_INF[fmt]
    return "kept, other bits" if still.all() else f"lost: {np.count_nonzero(~still)} of {got.size} became numbers"


def _subnormals(words, codes, fmt, mode, subnormal, expected) -> str:
    if mode is None or mode.is_stochastic:
        return "not judged"
    got, right = codes[subnormal], expected[mode][subnormal]
    if np.array_equal(got, right):
        return "kept"
    zero = ((words[subnormal] >> 16) & 0x8000).astype(np.uint16)
    return "flushed" if np.array_equal(got, zero) else "other"


def _library_codes(mode, nan) -> list[str]:
    tables = {"aiter": AITER_CODES, "ck": CK_CODES}
    return [
        f"{family}-{number}"
        for family, table in tables.items()
        for number, code in table.items()
        if code.mode is not None and code.mode is mode and (mode.bf16_only or code.nan.value == nan)
    ]


def _describe(mode, fitting, mismatches, random_bits, nan, denormals, finite) -> str:
    if mode is None and fitting:
        names = " or ".join(each.value for each in fitting)
        return f"{names}: these inputs do not tell them apart; `lab rounding probe` writes inputs that do"
    if mode is None:
        nearest = min(mismatches, key=lambda name: mismatches[name])
        return (
            f"none of the known modes; the nearest is {nearest}, which differs on {mismatches[nearest]} of "
            f"{finite} finite inputs"
        )
    text = f"{mode.value} ({mode.name})"
    if mode.is_stochastic and random_bits:
        low, high = random_bits
        text += f", {low} random bits" if low == high else f", {low} to {high} random bits"
    if nan in (NanRule.UNGUARDED.value,) or nan.startswith("lost"):
        text += "; a NaN can become a number"
    if denormals == "flushed":
        text += "; subnormals become zero"
    if denormals == "other":
        text += "; subnormals follow another rule"
    return text
