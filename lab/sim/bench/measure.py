"""Speed of the engines on one core, each with its peer in the same run.

Rows are Programs from the language (`lab.sim.bench.models`, and the seed for the general machine). Time is processor
time of this thread (of SPIN: of its process), the best of several slices, so that a busy machine does not count
against either side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.protocol import tables as t
from lab.protocol.library import load
from lab.protocol.tables import Tables, compile_tables
from lab.sim.bench.first_failure import LAGGING, RANDOM_SCHEDULERS, SEEDS, first_failures
from lab.sim.bench.models import tables_of
from lab.sim.bench.promela import missing_tools, promela, run_spin
from lab.sim.explore.directed import DIRECTED
from lab.sim.explore.executor import executor
from lab.sim.explore.explore import explore
from lab.sim.explore.straight_run import Runner, rows_of
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.order.straight import straighten
from lab.sim.search import one_schedule as search_verdict
from lab.sim.search import rows as search_rows
from lab.sim.search import walks as search_straight

_SLICES = 8
_PCT_DEPTH = 2
# (name, protocol, world, calls, options)
_SCHEDULED = (
    ("two-phase W2 C2", "two_phase", 2, 2, {}),
    ("two-phase W3 C4", "two_phase", 3, 4, {}),
    ("two-phase W8 C4", "two_phase", 8, 4, {}),
    ("two-phase shared slots W3 C4", "two_phase", 3, 4, {"gather": "shared"}),
    ("lagging rank W3 C8", "lagging", 3, 8, {}),
)
# The two models of the comparison: one posted, one sequentially consistent. Relaxed flags keep the links busy.
_SEARCHED = (
    ("two-phase W3 C4", "two_phase", 3, 4, {"order": "relaxed"}, "posted"),
    ("two-phase W5 C2", "two_phase", 5, 2, {}, "sc"),
)
_ROWS_STATES = 60_000  # states after which the general search is measured, not finished
_MACHINE = (
    ("seed two-shot W2, 1 block, 2 KiB", "seed_two_shot", {"world": 2, "blocks": 1, "calls": 1, "bytes": (2048,)}),
    ("seed two-shot W2, 1 block, 64 KiB", "seed_two_shot", {"world": 2, "blocks": 1, "calls": 1}),
    ("seed two-shot W4, 32 blocks, 64 KiB", "seed_two_shot", {"world": 4, "calls": 1}),
)
TARGETS = {
    "random sc, M ops/s": 100,
    "pct2 sc, M ops/s": 250,
    "search, x SPIN": 12,
    "verdict, us": 25,
    "bytes a state": 24,
}


@dataclass(frozen=True)
class Row:
    """One measurement; what does not apply is None.

    Attributes:
        engine, model, memory: What ran on what, under which memory model.
        ops_per_s: Operations of the program (and deliveries) a second.
        schedules_per_s, states_per_s: Whole schedules, distinct states a second.
        us: Microseconds, of a verdict.
        executions: Executions until the first failing one, the mean over several defects.
        states: States in all.
        bytes_per_state: Memory that grows with a search, over its states.
        limit: What most of the time goes into.
    """

    engine: str
    model: str
    memory: str
    ops_per_s: float | None = None
    schedules_per_s: float | None = None
    states_per_s: float | None = None
    us: float | None = None
    executions: float | None = None
    states: int | None = None
    bytes_per_state: float | None = None
    limit: str = ""

    @property
    def key(self) -> str:
        """Model and memory model, as the keys of the JSON document."""
        return f"{self.model} {self.memory}"


@dataclass
class Report:
    """All rows, and for each searched model how many times faster the exact search is than SPIN."""

    rows: list[Row] = field(default_factory=list)
    times_spin: dict[str, float] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False  # Ctrl-C ended it; the rows are those that were finished

    def document(self) -> dict[str, object]:
        """For JSON: values by engine and model."""
        out: dict[str, object] = {
            "clock": "processor time, best of slices, one core",
            "peers": self.peers,
            "interrupted": self.interrupted,
        }
        for name in ("ops_per_s", "schedules_per_s", "states_per_s", "bytes_per_state", "states", "us", "executions"):
            table: dict[str, dict[str, float]] = {}
            for row in self.rows:
                value = getattr(row, name)
                if value is not None:
                    table.setdefault(row.engine, {})[row.key] = value
            out[name] = table
        return out | {
            "times_spin": self.times_spin,
            "targets": TARGETS,
            "limits": {r.engine: r.limit for r in self.rows},
        }


def measure(
    seconds: float = 1.0,
    peers: bool = False,
    defects: Mapping[str, Tables] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Measure every engine, after compilation; Ctrl-C keeps the rows that are finished.

    Args:
        seconds: About so long for each row.
        peers: SPIN too, if it is installed.
        defects: Programs by name, for which to count the executions until the first failing one.
        progress: Called with what is measured next.
    """
    report = Report()
    try:
        _measure_into(report, seconds, peers, defects or {}, progress)
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def _measure_into(
    report: Report, seconds: float, peers: bool, defects: Mapping[str, Tables], progress: Callable[[str], None]
) -> None:
    for name, protocol, world, calls, options in _SCHEDULED:
        tables = tables_of(protocol, world, calls, **options)
        for memory in ("sc", "posted"):
            progress(f"schedules of {name}, {memory}")
            report.rows += _scheduled(name, tables, memory, seconds)
    progress("the general machine")
    report.rows += _machine(seconds)
    report.rows.append(_verdict())
    progress("exploration by threads")
    report.rows += _explored_by(seconds)
    for memory in m.MEMORY_MODELS if defects else ():
        progress(f"executions to the first failure, {memory}")
        report.rows += _to_the_first_failure(defects, memory)
    missing = missing_tools()
    if peers and missing:
        report.peers["spin"] = missing
    for name, protocol, world, calls, options, memory in _SEARCHED:
        progress(f"exact search of {name}, {memory}")
        tables = tables_of(protocol, world, calls, **options)
        report.rows += _searched(name, tables, memory)
        if peers and not missing:
            _beside_spin(report, name, tables, memory)


# ---- schedules


def _scheduled(name: str, tables: Tables, memory: str, seconds: float) -> list[Row]:
    straight = straighten(tables, memory)
    rows = []
    for engine, fuse, checks in (("straight", False, True), ("straight, fused", True, False)):
        runner = Runner(rows_of(straight, fuse, checks))
        for scheduler, limit in (
            ("random", "instructions: four walks in lockstep, no branch to mispredict"),
            ("pct", "mispredicted branches where threads change"),
        ):
            shown = scheduler if scheduler == "random" else f"pct{_PCT_DEPTH}"
            rate = _schedule_rate(
                lambda k, n, r=runner, s=scheduler: r.batch(s, k, n, _PCT_DEPTH), straight.steps, seconds
            )
            rows.append(Row(f"{engine} {shown}", name, memory, rate * straight.steps, rate, limit=limit))
    engine = Engine(tables, memory)
    for scheduler in ("random", "pct"):
        rate = _schedule_rate(
            lambda k, n, s=scheduler: engine.batch(s, k, n, pct_depth=_PCT_DEPTH), 16 * straight.steps, seconds / 4
        )
        shown = scheduler if scheduler == "random" else f"pct{_PCT_DEPTH}"
        rows.append(
            Row(f"machine {shown}", name, memory, rate * straight.steps, rate, limit="one choice, one dispatch a step")
        )
    return rows


def _schedule_rate(batch: Callable[[int, int], object], steps: int, seconds: float) -> float:
    """Schedules a second: the best of slices of processor time."""
    count = max(4, 1_000_000 // steps // 4 * 4)
    batch(0, 8)
    best, spent, k = float("inf"), 0.0, 0
    while k < _SLICES or spent < seconds:
        started = time.thread_time()
        batch(k * count, count)
        took = time.thread_time() - started
        best, spent, k = min(best, took), spent + took, k + 1
        if spent > 4 * seconds:
            break
    return count / best


def _machine(seconds: float) -> list[Row]:
    rows = []
    for name, protocol, changes in _MACHINE:
        made = load(protocol)
        tables = compile_tables(made.program(made.config(**changes)))
        for memory in ("sc", "posted"):
            for scheduler in ("random", "pct"):
                rows.append(_machine_row(name, tables, memory, scheduler, seconds))
    return rows


def _machine_row(name: str, tables: Tables, memory: str, scheduler: str, seconds: float) -> Row:
    engine = Engine(tables, memory)
    engine.batch(scheduler, 0, 1)
    runs, ops = 0, 0
    started = time.thread_time()
    while (spent := time.thread_time() - started) < seconds / 2:
        totals = engine.batch(scheduler, runs, 16, pct_depth=_PCT_DEPTH)
        runs += int(totals[m.T_RUNS])
        ops += int(totals[m.T_OPS])
    shown = scheduler if scheduler == "random" else f"pct{_PCT_DEPTH}"
    limit = _limit(ops / spent, _cells(tables) * runs / spent, len(tables.cell_start) * runs / spent)
    return Row(f"machine {shown}", name, memory, ops / spent, runs / spent, limit=limit)


def _cells(tables: Tables) -> int:
    """Cells that one execution reads and writes, when every payload operation runs once in one variant."""
    total = 0
    for op in tables.ops[tables.ops[:, t.KIND] >= t.MOVE]:
        if op[t.KIND] in (t.MOVE, t.FILL, t.EXPECT):
            move = tables.moves[op[t.ADDR]]
            total += int(move[t.M_COUNT]) * (int(move[t.M_N_SOURCES]) + (move[t.M_DST] >= 0))
    return total


def _limit(ops: float, moved: float, reset: float) -> str:
    """Which count is largest per second: a machine step costs tens of nanoseconds, a cell one or two."""
    if moved + reset < 4 * ops:
        return "one scheduling choice and one dispatch a step"
    return "moving payload cells" if moved > reset else "resetting memory between executions"


def _verdict() -> Row:
    tables = tables_of("two_phase", 8, 4)
    verdict = search_verdict.one_schedule(tables)
    verdict.races()
    best = float("inf")
    for _ in range(400):
        started = time.perf_counter()
        verdict.races()
        best = min(best, time.perf_counter() - started)
    limit = f"{len(verdict.joins)} joins of {verdict.rows.shape[1]} integers, {len(verdict.pairs)} pairs"
    return Row("one-schedule verdict", "two-phase W8 C4", "sc", us=best * 1e6, limit=limit)


# ---- exploration


def _explored_by(seconds: float) -> list[Row]:
    """Schedules a second by one thread and by as many as there are cores: wall clock, the best of several slices."""
    name, protocol, changes = _MACHINE[-1]
    made = load(protocol)
    tables = compile_tables(made.program(made.config(**changes)))
    engine = Engine(tables)
    count = max(64, int(seconds / _SLICES * _schedule_rate(lambda k, n: engine.batch("random", k, n), 10**6, 0)))
    rows = []
    for workers in sorted({1, os.cpu_count() or 1}):
        with executor(workers=workers) as threads:
            best = min(
                explore(tables, schedulers=("random",), executions=workers * count, executor=threads).seconds
                for _ in range(_SLICES)
            )
        rate = workers * count / best
        rows.append(
            Row(
                f"exploration, {workers} worker{'s' if workers > 1 else ''}",
                name,
                "sc",
                schedules_per_s=rate,
                limit="cores; wall clock",
            )
        )
    return rows


def _to_the_first_failure(defects: Mapping[str, Tables], memory: str) -> list[Row]:
    """How soon each scheduler meets the races that make a value wrong."""
    found = list(first_failures(defects, memory))
    rows = []
    for scheduler in (DIRECTED, *RANDOM_SCHEDULERS):
        counts = [one.executions[scheduler] for one in found if one.defect != LAGGING]
        lagging = next(one.executions[scheduler] for one in found if one.defect == LAGGING)
        said = f"{lagging:.0f}" if lagging <= SEEDS else f"none in {SEEDS}"
        rows.append(
            Row(
                f"{scheduler}, first failure",
                f"{len(counts)} races",
                memory,
                executions=sum(counts) / len(counts),
                limit=f"most {max(counts):.0f}; lagging rank {said}",
            )
        )
    return rows


# ---- searches


def _searched(name: str, tables: Tables, memory: str) -> list[Row]:
    straight = straighten(tables, memory)
    best, states, grown = float("inf"), 0, 0.0
    search_straight.begin(straight).advance(8)
    for _ in range(_SLICES):
        walk = search_straight.begin(straight)
        started = time.thread_time()
        walk.advance(1 << 62)
        best = min(best, time.thread_time() - started)
        states = int(walk.counts[search_straight.W_STATES])
        grown = walk.bytes / states
    counters = Row(
        "exact search, counters",
        name,
        memory,
        states_per_s=states / best,
        states=states,
        bytes_per_state=grown,
        limit="mispredicting whether a step leads to a child",
    )
    search_rows.RowSearch(tables, memory, None, False, False).advance(8, None)
    full = search_rows.RowSearch(tables, memory, None, False, False)
    started = time.thread_time()
    full.advance(_ROWS_STATES, None)
    spent = time.thread_time() - started
    found = int(full.rows.counts[search_rows.N_STATES])
    general = Row(
        "exact search, full rows",
        name,
        memory,
        states_per_s=found / spent,
        bytes_per_state=full.rows.bytes / found,
        limit="setting the machine up for each transition",
    )
    return [counters, general]


def _beside_spin(report: Report, name: str, tables: Tables, memory: str) -> None:
    model = promela(straighten(tables, memory))
    found = run_spin(model, repeat=3)
    report.peers["spin"] = f"{found.version}, exact, -O3 -DSAFETY -DNOREDUCE"
    rate = found.states / found.seconds
    spin = Row(
        "SPIN", name, memory, states_per_s=rate, states=found.states, limit="storing and comparing state vectors"
    )
    report.rows.append(spin)
    own = next(r for r in report.rows if r.engine == "exact search, counters" and r.key == spin.key)
    if own.states != found.states or found.errors:
        raise RuntimeError(
            f"SPIN finds {found.states} states and {found.errors} errors in {name}, the search {own.states}"
        )
    assert own.states_per_s is not None
    report.times_spin[spin.key] = own.states_per_s / rate
