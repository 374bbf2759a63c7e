"""The gate table: the seed's all-reduce over gate sizes in simulated time, beside what hardware showed.

    for row in gate_rows():            # stop at any time: the rows that were yielded are complete
        print(row.gate_kib, row.mode, row.fail_share, row.mean, row.note)

Three modes. `isolated`: a host barrier before and a device sync after each call, outputs poisoned with zeros: only
what goes wrong inside a call shows. `back_to_back`: calls queued without host synchronisation: what goes wrong
between calls shows too. `self_test`: the seed's boot self-test at the gate.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean, median

from lab.errors import LabError, UnknownNameError
from lab.protocol.seed.seed_rdna_ar import seed_auto
from lab.protocol.tables import compile_tables
from lab.protocol.write import KIB, Protocol
from lab.sim.timing.gate_reference import Reference, reference
from lab.sim.timing.presets import Preset, preset
from lab.sim.timing.timing import Check, Plan, TimedRun, plan, simulate

GATES = (16, 32, 64, 128, 256, 512, 1024, 4096, 20480)
MODES = ("isolated", "back_to_back", "self_test")
PRESETS = ("pcie_v620", "h200")
WORLD = 4
DUE = 30.0  # means are scaled so that this is due: the value of the self-test's third trial
CALLS = {"isolated": 1, "back_to_back": 3, "self_test": 12}
UNITS = {"isolated": "calls", "back_to_back": "rank-calls", "self_test": "self-tests"}
LARGE_KIB = 1024  # above this a run takes long and differs little from the next: a fifth of the runs


@dataclass(frozen=True)
class GateRow:
    """One simulated row of the gate table.

    Attributes:
        preset: Timing preset.
        gate_kib: Gate and message size in KiB.
        mode: `isolated`, `back_to_back` or `self_test`.
        runs: Simulated runs.
        trials, unit: What is counted: `calls` (wrong when any rank is), `rank-calls`, or `self-tests`.
        fail_share: Share of trials with a wrong element or an abort.
        mean: Typical (median) mean of a wrong output where 30.0 is due: what the self-test prints; None when none is
            wrong.
        mean_lowest: The lowest.
        wrong_share: Mean share of wrong elements: of the failing calls over all ranks, else of the wrong outputs; 0
            when none.
        aborts: Abort records of all runs.
        abort: The first one, decoded.
        time_us: Median simulated time of a call (isolated: with its host barrier and sync), in microseconds.
        inexact: Writes that the model could not follow exactly, of all runs.
        reference: What hardware showed, or None.
        note: Where model and hardware differ.
    """

    preset: str
    gate_kib: int
    mode: str
    runs: int
    trials: int
    unit: str
    fail_share: float
    mean: float | None
    mean_lowest: float | None
    wrong_share: float
    aborts: int
    abort: str | None
    time_us: float
    inexact: int
    reference: Reference | None
    note: str

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)


def gate_rows(
    presets: str | Preset | Sequence[str | Preset] = PRESETS,
    gates: Sequence[int] = GATES,
    modes: Sequence[str] = MODES,
    runs: int = 10,
    seed: int = 1,
    protocol: Protocol = seed_auto,
) -> Iterator[GateRow]:
    """Yield the rows one by one, sizes outermost; the program of a row is compiled once for all presets.

    Args:
        presets: One or more timing presets.
        gates: Gates in KiB.
        modes: Some of `MODES`.
        runs: Runs a row; above 1 MiB a fifth of them, at least 3.
        seed: Chooses every random draw.
        protocol: What to run; `self_test` needs one that has it.

    Raises:
        UnknownNameError: No such preset or mode.
        LabError: `runs` or a gate is below 1.
    """
    chosen = [preset(p) for p in ([presets] if isinstance(presets, (str, Preset)) else presets)]
    for mode in modes:
        if mode not in MODES:
            raise UnknownNameError("mode of the gate table", mode, MODES)
    if runs < 1:
        raise LabError("runs is below 1", value=runs)
    for gate_kib in gates:
        if gate_kib < 1:
            raise LabError("a gate is below 1 KiB", value=gate_kib)
    for gate_kib in gates:
        for mode in modes:
            prepared = _prepare(protocol, gate_kib, mode)
            count = runs if gate_kib <= LARGE_KIB else min(runs, max(3, runs // 5))
            for machine in chosen:
                results = [simulate(prepared, machine, seed * 1_000_003 + i) for i in range(count)]
                yield _row(protocol, machine, gate_kib, mode, results)


def gate_table(
    presets: str | Preset | Sequence[str | Preset] = PRESETS,
    gates: Sequence[int] = GATES,
    modes: Sequence[str] = MODES,
    runs: int = 10,
    seed: int = 1,
    progress: Callable[[GateRow], None] | None = None,
) -> list[GateRow]:
    """All rows of `gate_rows`; `progress` is called with each as it is finished.

    Raises:
        UnknownNameError: No such preset or mode.
        LabError: `runs` or a gate is below 1.
    """
    rows = []
    for row in gate_rows(presets, gates, modes, runs, seed):
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


def _prepare(protocol: Protocol, gate_kib: int, mode: str) -> Plan:
    gate = gate_kib * KIB
    calls = 1 if mode == "self_test" else CALLS[mode]
    with _no_collection():
        program = protocol.program(world=WORLD, gate=gate, bytes=(gate,), calls=calls, scenario=mode)
        return plan(compile_tables(program))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Recording makes a million objects that all stay: looking for garbage among them takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _row(protocol: Protocol, machine: Preset, gate_kib: int, mode: str, results: list[TimedRun]) -> GateRow:
    wrong: list[Check] = []
    shares: list[float] = []
    trials = failed = 0
    records: list[str] = []
    for run in results:
        gave_up: dict[int, int] = {}
        for timeout in run.timeouts:
            gave_up.setdefault(timeout.agent.rank, timeout.agent.call)
        for rank in gave_up:
            record = protocol.abort_record(lambda name, index, run=run, rank=rank: run.word(name, rank, index))
            records += [f"rank {rank}: {record}"] if record else []
        # A rank that gave up leaves its output unwritten; what a self-test prints comes from the others.
        finished = [check for check in run.checks if check.call < gave_up.get(check.rank, check.call + 1)]
        bad = [check for check in finished if not check.ok]
        wrong += bad
        if mode == "isolated":
            for call in range(1, CALLS[mode] + 1):
                of_call = [check for check in run.checks if check.call == call]
                trials += 1
                if any(not check.ok for check in of_call):
                    failed += 1
                    shares.append(fmean(check.wrong_share for check in of_call))
        elif mode == "back_to_back":
            trials += len(run.checks)
            failed += sum(not check.ok for check in run.checks)
            shares += [check.wrong_share for check in bad]
        else:
            trials += 1
            failed += not run.ok
            shares += [check.wrong_share for check in bad]
    means = [check.mean * DUE / check.due for check in wrong]
    hardware = reference(machine.name, gate_kib, mode)
    row = GateRow(
        preset=machine.name,
        gate_kib=gate_kib,
        mode=mode,
        runs=len(results),
        trials=trials,
        unit=UNITS[mode],
        fail_share=failed / trials,
        mean=median(means) if means else None,
        mean_lowest=min(means) if means else None,
        wrong_share=fmean(shares) if shares else 0.0,
        aborts=len(records),
        abort=records[0] if records else None,
        time_us=median(run.time_us for run in results) / CALLS[mode],
        inexact=sum(run.inexact for run in results),
        reference=hardware,
        note="",
    )
    return GateRow(**{**row.__dict__, "note": _note(row, hardware)})


def _note(row: GateRow, hardware: Reference | None) -> str:
    """Where a simulated row and the hardware differ; empty when they agree or there is nothing to compare with."""
    parts = []
    if row.inexact:
        parts.append(f"{row.inexact} writes were not followed exactly")
    if hardware is None:
        return "; ".join(parts)
    here, there = row.fail_share, hardware.fail_share
    if abs(here - there) > 0.2:
        parts.append(f"model fails {100 * here:.0f} % of {row.unit}, hardware {100 * there:.0f} %")
    if row.wrong_share and hardware.wrong_share:
        ratio = row.wrong_share / hardware.wrong_share
        if not 0.5 <= ratio <= 2.0:
            parts.append(f"wrong share is {ratio:.2g} times the measured one")
    if hardware.mean_lowest is not None and row.mean_lowest is not None and hardware.mode == "self_test":
        if abs(hardware.mean_lowest - row.mean_lowest) > 1.0:
            parts.append(f"lowest mean {row.mean_lowest:.2f}, hardware {hardware.mean_lowest:.2f}")
    if hardware.aborts is not None and bool(hardware.aborts) != bool(row.aborts):
        parts.append("model aborts, hardware did not" if row.aborts else "hardware aborted, the model does not")
    elif row.aborts and hardware.aborts and "phase 4" in hardware.text and "phase 4" not in (row.abort or ""):
        parts.append("the model's abort is in another phase")
    return "; ".join(parts)
