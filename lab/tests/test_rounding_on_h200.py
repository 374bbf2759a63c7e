"""The bits that kernels gave on an H200 (and on the CPU host) are the simulator's, in every mode.

The recorded results are those of experiments/do_the_rounding_modes_agree; its script also says what the inputs are.
"""

import copy
import functools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from lab.sim.rounding import drift
from lab.sim.rounding.arithmetic import Arithmetic, all_reduce, narrow, widen
from lab.sim.rounding.convert import to_bf16, to_fp16
from lab.sim.rounding.modes import DETERMINISTIC_MODES, NanRule, RoundMode

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "do_the_rounding_modes_agree"
DTYPES = ("bf16", "fp16")
KERNELS = ("one_shot", "two_shot", "low_latency")
MODES = tuple(mode.value for mode in DETERMINISTIC_MODES)
TARGETS = ("sm_90", "host")

pytestmark = pytest.mark.skipif(not EXPERIMENT.exists(), reason="not a source tree: experiments are not installed")


@functools.cache
def script() -> dict:
    return runpy.run_path(str(EXPERIMENT / "run.py"))


@functools.cache
def recorded(target: str) -> dict:
    return json.loads((EXPERIMENT / "results" / f"{target}.json").read_text())


@functools.cache
def inputs(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contributions, first residual, adversarial rows."""
    return *script()["stream"](dtype), script()["adversarial"](dtype)


def philox(count: int, epoch: int, key: int) -> np.ndarray:
    """Philox2x32-10 (Salmon et al. 2011), from its definition; the kernels' random bits of call `epoch`."""
    low, high = np.arange(count, dtype=np.uint64), np.full(count, epoch, np.uint64)
    for turn in range(10):
        product = np.uint64(0xD256D193) * low
        low = (product >> np.uint64(32)) ^ np.uint64((key + turn * 0x9E3779B9) % 2**32) ^ high
        high = product & np.uint64(0xFFFFFFFF)
    return low


def rounder(dtype: str, mode: str, epoch: int):
    """Rounds float32 to bits as the kernels' call `epoch` does; NaN becomes the canonical one."""
    if mode != "SR":
        return lambda values: narrow(values, dtype, RoundMode.parse(mode))
    convert, bits = (to_bf16, 16) if dtype == "bf16" else (to_fp16, 13)

    def stochastic(values):
        random = philox(values.size, epoch, script()["KEY"]) >> np.uint64(32 - bits)
        out = np.empty(values.shape, np.uint16)
        return convert(values, "SR", out=out, random_bits=bits, random=random, nan=NanRule.CANONICAL)

    return stochastic


@functools.cache
def simulated(dtype: str, mode: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Sums and residuals of every step, adversarial sums."""
    x, residual, hard = inputs(dtype)
    sums, residuals = [], []
    for step, rows in enumerate(x):
        sums.append(all_reduce(rows, dtype, Arithmetic(), rounder=rounder(dtype, mode, 2 * step + 1))[0])
        total = widen(residual, dtype) + widen(sums[-1], dtype)
        residual = rounder(dtype, mode, 2 * step + 2)(total)
        residuals.append(residual)
    rolled = [all_reduce(rows, dtype, rounder=rounder(dtype, mode, 1 + roll))[0] for roll, rows in enumerate(hard)]
    return sums, residuals, rolled


def digests(sums, residuals, rolled) -> dict[str, list[str]]:
    digest = script()["digest"]
    pairs = zip(sums, residuals, strict=True)
    return {"stream": [digest(*pair) for pair in pairs], "adversarial": [digest(bits) for bits in rolled]}


@functools.cache
def expected(dtype: str, mode: str) -> dict[str, list[str]]:
    return digests(*simulated(dtype, mode))


def complaints(report: dict, dtype: str, mode: str, wanted: dict[str, list[str]]) -> list[str]:
    """What a report has that was not expected for this type and mode; empty when the bits are the same."""
    found = []
    rows = [row for row in report["rows"] if (row["dtype"], row["mode"]) == (dtype, mode)]
    if [row["kernel"] for row in rows] != list(KERNELS):
        found.append(f"kernels: {[row['kernel'] for row in rows]}")
    for row in rows:
        found += row["problems"]
        for part, right in wanted.items():
            wrong = [step for step, pair in enumerate(zip(row[part], right, strict=True)) if len({*pair}) > 1]
            found += [f"{row['kernel']} {part} step {step}" for step in wrong]
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_the_inputs_are_the_recorded_ones(target):
    digest = script()["digest"]
    for dtype in DTYPES:
        x, start, hard = inputs(dtype)
        assert recorded(target)["inputs"][dtype] == {"stream": digest(x, start), "adversarial": digest(hard)}
    assert len(recorded(target)["rows"]) == len(KERNELS) * len(DTYPES) * (len(MODES) + 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [*MODES, "SR"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_mode_gives_the_simulators_bits(target, mode, dtype):
    assert complaints(recorded(target), dtype, mode, expected(dtype, mode)) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_run_is_the_one_of_lab_drift(mode):
    """`lab drift`'s own path over the same contributions: the same residuals, and the recorded percentages."""
    x, start, _ = inputs("bf16")
    steps = iter(simulated("bf16", mode)[1])
    replay = drift.Path("recorded", step=lambda rows, residual: next(steps))
    mine, theirs = drift.measure_tensors(widen(x, "bf16"), widen(start, "bf16"), [drift.fused(mode), replay])
    for name in drift.METRICS:
        assert np.array_equal(getattr(mine, name), getattr(theirs, name))
        for target in TARGETS:
            for row in recorded(target)["rows"]:
                if (row["dtype"], row["mode"]) == ("bf16", mode):
                    assert row["percent"][name] == pytest.approx(mine.row()[name], abs=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_comparison_is_not_blind(dtype):
    """One bit of one element, one flipped digit of a record, or another mode: each is seen."""
    sums, residuals, rolled = simulated(dtype, "RNE")
    report = recorded("sm_90")
    for number, part in enumerate((sums, residuals, rolled)):
        changed = [list(sums), list(residuals), list(rolled)]
        changed[number][2] = part[2].copy()
        changed[number][2][-1] ^= 1
        name = "adversarial" if number == 2 else "stream"
        assert complaints(report, dtype, "RNE", digests(*changed)) == [f"{kernel} {name} step 2" for kernel in KERNELS]
    planted = copy.deepcopy(report)
    row = next(
        row for row in planted["rows"] if (row["dtype"], row["mode"], row["kernel"]) == (dtype, "RU", "two_shot")
    )
    row["stream"][7] = row["stream"][7][:-1] + f"{int(row['stream'][7][-1], 16) ^ 1:x}"
    assert complaints(planted, dtype, "RU", expected(dtype, "RU")) == ["two_shot stream step 7"]
    for part in ("stream", "adversarial"):
        for step in range(4):
            every = {expected(dtype, mode)[part][step] for mode in (*MODES, "SR")}
            assert len(every) == len(MODES) + 1, "the inputs do not tell the modes apart"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_adversarial_rows_hold_what_they_should(dtype):
    _, _, hard = inputs(dtype)
    fraction = 16 if dtype == "bf16" else 13
    with np.errstate(over="ignore", invalid="ignore"):
        terms = widen(hard[0], dtype)
        total = functools.reduce(np.add, terms)
        lowest = total.view(np.uint32) & (2**fraction - 1)
        largest = widen(np.array([0x7F7F if dtype == "bf16" else 0x7BFF], np.uint16), dtype)[0]
        finite = np.isfinite(terms).all(axis=0)
        smallest_normal = 2.0**-126 if dtype == "bf16" else 2.0**-14
        counts = {
            "ties": np.count_nonzero(finite & (lowest == 2 ** (fraction - 1))),
            "nearly ties": np.count_nonzero(finite & (abs(lowest.astype(int) - 2 ** (fraction - 1)) <= 2**12)),
            "cancellation": np.count_nonzero(finite & (total == 0) & (terms != 0).any(axis=0)),
            "subnormal": np.count_nonzero((total != 0) & (abs(total) < smallest_normal)),
            "overflow": np.count_nonzero(finite & (abs(total) > largest)),
            "just overflow": np.count_nonzero(finite & (abs(total) > largest) & (abs(total) < 1.004 * largest)),
            "infinite input": np.count_nonzero(np.isinf(terms).any(axis=0) & ~np.isnan(total)),
            "opposite infinities": np.count_nonzero(~np.isnan(terms).any(axis=0) & np.isnan(total)),
            "NaN input": np.count_nonzero(np.isnan(terms).any(axis=0)),
        }
    assert min(counts.values()) > 100, counts
