"""Speed of rounding beside copies and other libraries, in one run, so that machine and noise are the same for all."""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.sim.rounding.convert import DETERMINISTIC_MODES, RoundMode, to_bf16, to_fp16

#: What each kind of row is limited by, for the reader of the table.
LIMITS = {
    "copy": "memory: 4 bytes read, 4 written an element, past the caches",
    "lab": "memory: 4 bytes read, 2 written an element, past the caches",
    "stochastic": "memory, and the arithmetic of the counter hash",
    "library": "its own loop",
}


@dataclass(frozen=True)
class Row:
    """One line of the bench.

    Attributes:
        implementation: who rounds.
        mode: which mode, or "copy".
        format: "bf16", "fp16" or "fp32" (copies).
        elements: how many fp32 elements were rounded.
        ms: best time.
        gb_per_s: bytes read and written, by that time.
        ratio_to_copy: gb_per_s over that of numpy's copy, as many copies having run in between.
        limit: what limits it.
    """

    implementation: str
    mode: str
    format: str
    elements: int
    ms: float
    gb_per_s: float
    ratio_to_copy: float
    limit: str


@dataclass
class _Case:
    implementation: str
    mode: str
    format: str
    run: Callable[[], object]
    elements: int
    written: int  # bytes an element
    limit: str
    best: float = float("inf")
    copy_best: float = float("inf")  # of the copies that ran right before it


def measure(
    mebibytes: int = 64, rounds: int = 15, *, peers: bool = True, progress: Callable[[int], None] = lambda rounds: None
) -> list[Row]:
    """Time every mode, the copies and the peers, interleaved; the best of `rounds` counts. Ctrl-C keeps whole rounds.

    Args:
        mebibytes: size of the fp32 input.
        rounds: how often each case runs. gfloat, which is some 200 times slower, runs once on 1/64 of the input.
        peers: also time torch, ml_dtypes and gfloat where they are installed.
        progress: called with the rounds that are finished.

    Returns:
        The rows, numpy's copy first.
    """
    size = (mebibytes << 20) // 4
    x = np.random.default_rng(0).standard_normal(size, np.float32)
    copy = np.zeros_like(x)
    codes = np.zeros(size, np.uint16)
    half = np.zeros(size, np.float16)
    values = np.zeros_like(x)
    cases = [_Case("numpy copyto", "copy", "fp32", lambda: np.copyto(copy, x), size, 4, LIMITS["copy"])]
    for mode in DETERMINISTIC_MODES:
        cases.append(_lab_case("bf16", mode, x, codes))
    for mode, bits in ((RoundMode.Stochastic, 16), (RoundMode.Stochastic, 8), (RoundMode.StochasticCentred, 4)):
        cases.append(_lab_case("bf16", mode, x, codes, bits))
    cases.append(_lab_case("bf16", RoundMode.TiesToEvenViaFp16, x, codes))
    cases.append(_Case("lab, into float32", "RNE", "bf16", lambda: to_bf16(x, out=values), size, 4, LIMITS["lab"]))
    for mode in DETERMINISTIC_MODES:
        cases.append(_lab_case("fp16", mode, x, half))
    cases.append(_lab_case("fp16", RoundMode.Stochastic, x, half, 13))
    if peers:
        cases += _peers(x)
    for case in cases:
        case.run()
    finished = 0
    try:
        for finished in range(1, rounds + 1):
            _one_round(cases, first=finished == 1)
            progress(finished)
    except KeyboardInterrupt:
        if finished < 2:
            raise
    rows = []
    for case in cases:
        rate = case.elements * (4 + case.written) / case.best
        floor = size * 8 / case.copy_best
        rows.append(
            Row(
                case.implementation, case.mode, case.format, case.elements,
                1e3 * case.best, rate / 1e9, rate / floor, case.limit,
            )
        )  # fmt: skip
    return rows


def _one_round(cases: list[_Case], first: bool) -> None:
    for case in cases:
        if case.implementation.startswith("gfloat") and not first:
            continue
        # the copy runs right before each case, so that a noisy moment meets both
        case.copy_best = min(case.copy_best, _seconds(cases[0].run))
        case.best = min(case.best, _seconds(case.run) if case is not cases[0] else case.copy_best)


def _seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _lab_case(fmt, mode, x, out, bits=None) -> _Case:
    convert = to_bf16 if fmt == "bf16" else to_fp16
    how = {"random_bits": bits, "seed": 0} if mode.is_stochastic else {}
    name = mode.value + (f"({bits})" if bits else "")
    limit = LIMITS["stochastic" if bits else "lab"]
    return _Case("lab", name, fmt, lambda: convert(x, mode, out=out, **how), x.size, 2, limit)


def _peers(x) -> list[_Case]:
    cases = []
    size = x.size
    if importlib.util.find_spec("torch"):
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        source = torch.from_numpy(x)
        for name, dtype, fmt, written in (
            ("copy", torch.float32, "fp32", 4),
            ("RNE", torch.bfloat16, "bf16", 2),
            ("RNE", torch.float16, "fp16", 2),
        ):
            target = torch.zeros(size, dtype=dtype)
            run = _on_one_thread(torch, threads, lambda target=target: target.copy_(source))
            cases.append(_Case("torch copy_", name, fmt, run, size, written, LIMITS["library"]))
        torch.set_num_threads(threads)
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes

        target = np.zeros(size, ml_dtypes.bfloat16)

        def to_ml_dtypes():
            np.copyto(target, x, casting="unsafe")

        cases.append(_Case("ml_dtypes copyto", "RNE", "bf16", to_ml_dtypes, size, 2, LIMITS["library"]))
    half = np.zeros(size, np.float16)

    def to_half():
        np.copyto(half, x, casting="same_kind")

    cases.append(_Case("numpy copyto", "RNE", "fp16", to_half, size, 2, LIMITS["library"]))
    if importlib.util.find_spec("gfloat"):
        import gfloat
        from gfloat.formats import format_info_bfloat16

        small = x[: max(1, size // 64)].astype(np.float64)
        for name, mode in (("RNE", gfloat.RoundMode.TiesToEven), ("RTZ", gfloat.RoundMode.TowardZero)):
            cases.append(
                _Case(
                    "gfloat round_ndarray", name, "bf16",
                    lambda mode=mode: gfloat.round_ndarray(format_info_bfloat16, small, mode),
                    small.size, 2, LIMITS["library"],
                )
            )  # fmt: skip
    return cases


def _on_one_thread(torch, threads, run):
    def one():
        torch.set_num_threads(1)
        try:
            return run()
        finally:
            torch.set_num_threads(threads)

    return one
