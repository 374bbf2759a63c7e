"""What hardware showed for the seed's two-shot kernel over gate sizes: the reference beside the simulated gate table.

Nothing here was computed by the lab's models. Shares and means that were not given are None.
"""

from __future__ import annotations

from dataclasses import dataclass

REPORTED = "reported by the kernel's maintainers, 4x Radeon PRO V620, 4 ranks, boot self-test at the gate"
MEASURED = "measured for this project on NVIDIA H200, 4 ranks, fp16, outputs poisoned with zeros"


@dataclass(frozen=True)
class Reference:
    """One row of hardware results.

    Attributes:
        preset: The timing preset that it belongs to.
        gate_kib: The gate in KiB; every message is of that size, in a self-test that of the third trial.
        mode: `isolated`, `back_to_back` or `self_test`.
        trials, unit: What was counted: `calls` (wrong when any rank is), `rank-calls` or `self-tests`; 0: not said
            how many.
        fail_share: Share of trials that failed.
        wrong_share: Mean share of wrong elements of the trials that failed.
        mean_lowest: Lowest mean of an output, scaled so that 30.0 is due.
        aborts: Abort records seen, or None when not said.
        text: The result in words.
        source: Where it comes from.
    """

    preset: str
    gate_kib: int
    mode: str
    trials: int
    unit: str
    fail_share: float
    wrong_share: float | None = None
    mean_lowest: float | None = None
    aborts: int | None = None
    text: str = ""
    source: str = MEASURED


def _isolated(preset: str, gate_kib: int, wrong: int, share: float, lowest: float) -> Reference:
    text = f"{wrong} of 200 calls, {100 * share:.2g} % of elements, lowest mean {lowest}"
    return Reference(preset, gate_kib, "isolated", 200, "calls", wrong / 200, share, lowest, 0, text)


def _back_to_back(preset: str, gate_kib: int, least: int, text: str) -> Reference:
    return Reference(preset, gate_kib, "back_to_back", 2560, "rank-calls", least / 2560, aborts=0, text=text)


def _self_test(gate_kib: int, trials: int, fail: float, text: str, lowest: float | None, aborts: int) -> Reference:
    return Reference(
        "pcie_v620", gate_kib, "self_test", trials, "self-tests", fail, None, lowest, aborts, text, REPORTED
    )


REFERENCES: tuple[Reference, ...] = (
    _self_test(64, 3, 1.0, "fails 3 of 3 boots, means 26.60, 27.01, 28.59", 26.60, 0),
    _self_test(128, 0, 1.0, "fails: abort in phase 4 (peer 1, collective #10) and mean 29.88", 29.88, 1),
    _self_test(1024, 0, 0.0, "passes (boots not said)", None, 0),
    _self_test(20480, 3, 0.0, "passes 3 boots", None, 0),
    _isolated("h200_one_gpu", 64, 68, 0.078, 21.56),
    _isolated("h200_one_gpu", 128, 200, 0.0087, 27.19),
    _isolated("h200_one_gpu", 256, 200, 0.010, 28.51),
    _isolated("h200_one_gpu", 512, 200, 0.0071, 29.23),
    _isolated("h200_one_gpu", 1024, 200, 0.0029, 29.73),
    _isolated("h200_one_gpu", 4096, 200, 0.0003, 29.94),
    _isolated("h200", 64, 50, 0.059, 22.97),
    _isolated("h200", 128, 200, 0.013, 26.40),
    _isolated("h200", 256, 200, 0.0085, 28.07),
    _isolated("h200", 512, 200, 0.0091, 28.80),
    _isolated("h200", 1024, 200, 0.0035, 29.71),
    _isolated("h200", 4096, 77, 0.0001, 29.99),
    _back_to_back("h200_one_gpu", 64, 1376, "1376 of 2560 rank-calls"),
    _back_to_back("h200", 64, 771, "771 of 2560 rank-calls"),
    *(
        _back_to_back(preset, gate_kib, 2500, "2500 to 2560 of 2560 rank-calls")
        for preset in ("h200_one_gpu", "h200")
        for gate_kib in (128, 256, 512, 1024)
    ),
)


def reference(preset: str, gate_kib: int, mode: str) -> Reference | None:
    """The hardware result beside a simulated row, or None when there is none."""
    for row in REFERENCES:
        if (row.preset, row.gate_kib, row.mode) == (preset, gate_kib, mode):
            return row
    return None
