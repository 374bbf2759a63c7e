"""The gate table for people: which rows are run, on how many processes, and how they stand beside the hardware."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from lab.sim.explore.orphans import begin_worker
from lab.sim.timing.gate_reference import REPORTED, reference
from lab.sim.timing.gates import GATES, MODES, GateRow, gate_rows

V620, H200, H200_ONE_GPU = "pcie_v620", "h200", "h200_one_gpu"
MEASURED_GATES = (64, 128, 256, 512, 1024, 4096)  # those that the H200 measurements have
RUNS = 10
Task = tuple[int, str, tuple[str, ...]]  # gate in KiB, mode, presets


@dataclass(frozen=True)
class Cell:
    """One cell: its text, `good`, `bad` or nothing, and whether it holds words and not a number."""

    text: str
    kind: str = ""
    words: bool = False


@dataclass(frozen=True)
class Table:
    """A table for people: `groups` are (name, columns) above `header`; `short` is the header of a narrow terminal."""

    title: str
    groups: tuple[tuple[str, int], ...]
    header: tuple[str, ...]
    short: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


# ---- the rows


def tasks() -> list[Task]:
    """What is run: every gate and mode for the PCIe box, for the H200 what was measured there.

    The 64 KiB self-test comes first, so that whoever stops early has seen it; then the longest.
    """
    found: list[Task] = []
    for gate in reversed(GATES):
        for mode in reversed(MODES):
            measured = gate in MEASURED_GATES and mode != "self_test"
            found.append((gate, mode, (V620, H200, H200_ONE_GPU) if measured else (V620,)))
    return sorted(found, key=lambda task: task[:2] != (64, "self_test"))


class Rows:
    """Rows of the gate table as they are finished. With several processes the work begins at once.

        with Rows(seed=0, processes=2) as rows:
            for row in rows: ...

    The rows do not depend on the number of processes. Leaving the block ends the work.
    """

    def __init__(self, seed: int, runs: int = RUNS, processes: int = 1) -> None:
        self._seed, self._runs = seed, runs
        self._before = set(multiprocessing.active_children())
        self._waiting: set[Future[list[GateRow]]] = set()
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
            self._pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_worker)
            self._waiting = {self._pool.submit(_run, task, seed, runs) for task in tasks()}

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - self._before:
                child.terminate()

    def __iter__(self) -> Iterator[GateRow]:
        if self._pool is None:
            for task in tasks():
                yield from _run(task, self._seed, self._runs)
        while self._waiting:
            wait(self._waiting, return_when=FIRST_COMPLETED)
            yield from self.finished()

    def finished(self) -> list[GateRow]:
        """Rows that are finished and were not given out yet, without waiting."""
        done = {future for future in self._waiting if future.done() and not future.cancelled()}
        self._waiting -= done
        return [row for future in done for row in future.result()]


def in_order(rows: list[GateRow]) -> list[GateRow]:
    """Rows by preset, mode and gate, in whatever order they were finished."""
    presets = (V620, H200, H200_ONE_GPU)
    modes = ("self_test", "isolated", "back_to_back")
    return sorted(rows, key=lambda row: (presets.index(row.preset), modes.index(row.mode), row.gate_kib))


def _run(task: Task, seed: int, runs: int) -> list[GateRow]:
    gate, mode, presets = task
    return list(gate_rows(presets, (gate,), (mode,), runs, seed))


def _worker() -> None:
    """Collecting garbage takes a third of the time and frees nothing."""
    begin_worker()
    gc.disable()


# ---- the tables


def gate_tables(rows: list[GateRow]) -> list[Table]:
    """The rows laid out: the self-test, both kinds of calls, and the H200's measurements beside their simulation."""
    found = [_self_test(rows), _calls(rows)]
    for preset, name in ((H200, "two H200, two ranks each"), (H200_ONE_GPU, "one H200 that four ranks share")):
        found.append(_measured(rows, preset, name))
    return [table for table in found if table.rows]


def _self_test(rows: list[GateRow]) -> Table:
    body = []
    for row in _those(rows, V620, "self_test"):
        there = row.reference
        shown = Cell(there.text, "bad" if there.fail_share else "good", words=True) if there else Cell("")
        body.append((Cell(gate_name(row.gate_kib)), *_simulated(row), Cell(str(row.aborts or "")), shown))
    return Table(
        "The boot self-test at the gate, 4 ranks: simulated for a box with 4 GPUs on PCIe, reported by the maintainers",
        (("", 1), ("simulated", 4), ("reported", 1)),
        ("gate", "fails", "mean, 30.0 due", "wrong elements", "aborts", "4x Radeon PRO V620"),
        ("gate", "fails", "mean", "wrong", "aborts", "reported, 4x Radeon PRO V620"),
        tuple(body),
        (*_differences(rows, V620, "self_test"), REPORTED[0].upper() + REPORTED[1:] + "."),
    )


def _calls(rows: list[GateRow]) -> Table:
    isolated = {row.gate_kib: row for row in _those(rows, V620, "isolated")}
    queued = {row.gate_kib: row for row in _those(rows, V620, "back_to_back")}
    empty = (Cell("not run"), Cell(""), Cell(""))
    body = [
        (
            Cell(gate_name(gate)),
            *(_simulated(isolated[gate]) if gate in isolated else empty),
            *(_simulated(queued[gate]) if gate in queued else empty),
        )
        for gate in sorted(isolated.keys() | queued.keys())
    ]
    return Table(
        "The same box, simulated: calls that the host waits for one by one (isolated), and queued calls (back to back)",
        (
            ("", 1),
            ("isolated calls", 3),
            ("back to back", 3),
        ),
        ("gate", "fail", "mean, 30.0 due", "wrong elements", "fail", "mean, 30.0 due", "wrong elements"),
        ("gate", "isolated\nfail", "\nmean", "\nwrong", "back to back\nfail", "\nmean", "\nwrong"),
        tuple(body),
    )


def _measured(rows: list[GateRow], preset: str, name: str) -> Table:
    isolated, queued = _those(rows, preset, "isolated"), _those(rows, preset, "back_to_back")
    body = []
    for gate in sorted({row.gate_kib for row in (*isolated, *queued)}):
        one = next((row for row in isolated if row.gate_kib == gate), None)
        many = next((row for row in queued if row.gate_kib == gate), None)
        body.append((Cell(gate_name(gate)), *_beside(one), *_shares(many, preset, gate)))
    return Table(
        f"The same protocol on NVIDIA H200: {name}; simulated and measured",
        (("", 1), ("isolated calls that fail", 2), ("wrong elements", 2), ("lowest mean", 2), ("back to back", 2)),
        ("gate", *("simulated", "measured") * 4),
        (
            "gate",
            *(f"{name}\nsim" if i == 0 else "\nH200" for name in ("fail", "wrong", "lowest", "queued") for i in (0, 1)),
        ),
        tuple(body),
        tuple(_differences(rows, preset, "isolated") + _differences(rows, preset, "back_to_back")),
    )


def _those(rows: list[GateRow], preset: str, mode: str) -> list[GateRow]:
    return [row for row in in_order(rows) if (row.preset, row.mode) == (preset, mode)]


def _simulated(row: GateRow) -> tuple[Cell, Cell, Cell]:
    mean = "" if row.mean is None else f"{row.mean:.2f}"
    return Cell(percent(row.fail_share), "bad" if row.fail_share else "good"), Cell(mean), Cell(share(row.wrong_share))


def _beside(row: GateRow | None) -> tuple[Cell, ...]:
    if row is None:
        return (Cell("not run"), *[Cell("")] * 5)
    there = row.reference
    return (
        Cell(percent(row.fail_share)),
        Cell("" if there is None else percent(there.fail_share)),
        Cell(share(row.wrong_share)),
        Cell("" if there is None else share(there.wrong_share or 0)),
        Cell("" if row.mean_lowest is None else f"{row.mean_lowest:.2f}"),
        Cell("" if there is None or there.mean_lowest is None else f"{there.mean_lowest:.2f}"),
    )


def _shares(row: GateRow | None, preset: str, gate: int) -> tuple[Cell, Cell]:
    there = reference(preset, gate, "back_to_back")
    least = there is not None and " to " in there.text
    measured = "" if there is None else ("≥ " if least else "") + percent(there.fail_share)
    return Cell("not run" if row is None else percent(row.fail_share)), Cell(measured)


def _differences(rows: list[GateRow], preset: str, mode: str) -> list[str]:
    words = {"self_test": "self-test", "isolated": "isolated", "back_to_back": "back to back"}[mode]
    return [
        f"Model and hardware differ at {gate_name(row.gate_kib)}, {words}: {row.note}."
        for row in _those(rows, preset, mode)
        if row.note
    ]


def gate_name(kib: int) -> str:
    """`64 KiB` or `20 MiB`."""
    return f"{kib // 1024} MiB" if kib >= 1024 and kib % 1024 == 0 else f"{kib} KiB"


def percent(value: float) -> str:
    """A share of trials: `0 %`, `7 %`, `100 %`."""
    return f"{100 * value:.0f} %" if value in (0, 1) or 0.01 <= value <= 0.99 else f"{100 * value:.1f} %"


def share(value: float) -> str:
    """A share of elements, two digits; nothing for 0."""
    return f"{float(f'{100 * value:.2g}'):g} %" if value else ""
