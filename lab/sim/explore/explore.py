"""Exploration: many executions of one program under seeded schedulers, until the budget ends, by one worker or many.

The workers take ranges of seeds. What is found depends neither on who ran which nor on where the ranges are cut: counts
are sums over the seeds, and the failing execution that is shown is the one of the lowest seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import numpy as np

from lab.errors import UnknownNameError
from lab.protocol.tables import Tables
from lab.sim.explore.directed import DIRECTED, Plan, plan_of
from lab.sim.explore.executor import Executor, InProcess
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import SCHEDULERS, Engine
from lab.sim.order.kinds import Key

NAMES = (DIRECTED, *SCHEDULERS)
INTERRUPTED = "Ctrl-C"
_ITEM_SECONDS = 0.1  # that a range of seeds should take: the longest wait for a deadline or Ctrl-C
_FIRST_ITEM, _LARGEST_ITEM = 4, 1 << 14  # seeds of a range before its speed is known, and at most


KINDS = {"wrong": m.T_FIRST_WRONG, "hang": m.T_FIRST_HANG, "abort": m.T_FIRST_ABORT}
"""How an execution fails, the worst first: silently, for ever, saying so; and where totals keep the first seed."""


@dataclass(frozen=True)
class Outcomes:
    """How executions ended.

    Attributes:
        executions, failing: Of all, and those that failed in any way; one may hang and be wrong.
        wrong: With a wrong element and no abort that may explain it.
        hangs, aborts: Without an end; with an agent that gave up waiting and returned (one that goes on is no abort).
    """

    executions: int = 0
    failing: int = 0
    wrong: int = 0
    hangs: int = 0
    aborts: int = 0

    @classmethod
    def of(cls, totals: np.ndarray) -> Outcomes:
        """From totals, indexed by `machine.T_*`."""
        columns = m.T_RUNS, m.T_FAILING, m.T_SILENT, m.T_HANGS, m.T_ABORTS
        return cls(*(int(totals[column]) for column in columns))

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def count(self, kind: str) -> int:
        """Executions that failed in one of `KINDS`."""
        return {"wrong": self.wrong, "hang": self.hangs, "abort": self.aborts}[kind]


class Failing(NamedTuple):
    """An execution that fails: the scheduler and seed (of `directed`, the schedule) that gave it, and its choices."""

    scheduler: str
    seed: int
    choices: np.ndarray


@dataclass
class Exploration:
    """What was explored so far.

    Attributes:
        outcomes: How the executions ended.
        failures: For each kind of failure that was met, the execution with the lowest seed that fails so; where several
            schedulers do at that seed, of the one named first. The kind with the lowest seed comes first.
        stopped: Why it ended early (Ctrl-C, deadline); None when the budget was used up.
        turned: For each kind of race that `directed` turns round, how the executions that did ended.
        lost: The executions that are missing because their workers died, and why.
        ops: Operations executed.
        seconds: Time spent.
    """

    outcomes: Outcomes = Outcomes()
    failures: dict[str, Failing] = field(default_factory=dict)
    stopped: str | None = None
    turned: dict[Key, Outcomes] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    ops: int = 0
    seconds: float = 0.0
    by_scheduler: dict[str, int] = field(default_factory=dict)

    @property
    def failure(self) -> Failing | None:
        """The failing execution with the lowest seed."""
        return next(iter(self.failures.values()), None)

    @property
    def executions(self) -> int:
        """Executions in all."""
        return self.outcomes.executions

    @property
    def failing(self) -> int:
        """Executions that failed in any way."""
        return self.outcomes.failing

    @property
    def wrong(self) -> int:
        """See `Outcomes`."""
        return self.outcomes.wrong

    @property
    def hangs(self) -> int:
        """See `Outcomes`."""
        return self.outcomes.hangs

    @property
    def aborts(self) -> int:
        """See `Outcomes`."""
        return self.outcomes.aborts


class Seeds(NamedTuple):
    """Executions to run: `count` seeds of one scheduler from `first` on; of `directed`, schedules of the plan."""

    scheduler: str
    first: int
    count: int


@dataclass(frozen=True)
class _Batches:
    """What all ranges of seeds share; see `executor.Task`."""

    tables: Tables
    memory: str
    early_timeout: int
    pct_depth: int
    plan: Plan

    def start(self) -> Callable[[Seeds], tuple[np.ndarray, float]]:
        """An engine that runs ranges of seeds: the totals, a row a kind of race for `directed`, and the seconds."""
        engine = Engine(self.tables, self.memory)
        engine.batch("random", 0, 0, 0, self.pct_depth)  # compiles, so that no range of seeds is timed with that

        def run(seeds: Seeds) -> tuple[np.ndarray, float]:
            started = time.perf_counter()
            if seeds.scheduler == DIRECTED:
                totals = self.plan.batch(engine, seeds.first, seeds.count)
            else:
                totals = engine.batch(seeds.scheduler, seeds.first, seeds.count, self.early_timeout, self.pct_depth)[
                    None
                ]
            return totals, time.perf_counter() - started

        return run


def explore(
    tables: Tables,
    memory: str = "sc",
    schedulers: tuple[str, ...] = ("random", "pct"),
    executions: int = 1000,
    seed: int = 0,
    deadline: float | None = None,
    early_timeout: float = 0.0,
    progress: Callable[[Exploration], None] | None = None,
    pct_depth: int = m.PCT_DEPTH,
    executor: Executor | None = None,
    plan: Plan | None = None,
) -> Exploration:
    """Run `executions` executions, shared evenly between `schedulers`; Ctrl-C ends it and keeps what was found.

    `directed` turns races round (see `directed.py`). It takes no more than its plan has; the others share the rest.

    Args:
        tables: The program to run.
        memory: Memory model.
        schedulers: Names of SCHEDULERS, and `directed`.
        executions: Executions in all.
        seed: First seed.
        deadline: Seconds after which it stops; None: no limit.
        early_timeout: Probability, at each step, that a bounded wait gives up although others could move.
        progress: Called after each range of seeds.
        pct_depth: Of PCT, one more than its changes of priority (see `machine.run`).
        executor: Who runs them; None: this thread. The result is the same.
        plan: Of `directed`; None: one for all races that show in some executions.

    Raises:
        LabError: There is no such scheduler or depth.
    """
    for name in schedulers:
        if name not in NAMES:
            raise UnknownNameError("scheduler", name, NAMES)
    started = time.perf_counter()
    if DIRECTED not in schedulers:
        plan = Plan()
    elif plan is None:
        plan = plan_of(tables, memory, seed=seed, limit=executions)
    shares = _shares(schedulers, executions, len(plan))
    task = _Batches(tables, memory, int(early_timeout * 2**32), pct_depth, plan)
    found = Exploration(by_scheduler=dict.fromkeys(schedulers, 0), turned=dict.fromkeys(plan.races, Outcomes()))
    pace = _Pace()
    first: dict[str, tuple[int, int]] = {}
    try:
        with closing((executor or InProcess()).unordered(task, _ranges(shares, seed, pace))) as results:
            for done in results:
                if done.result is None:
                    found.lost += (f"{done.item.scheduler} seeds {_span(done.item)}: {done.lost}",)
                    continue
                totals, took = done.result
                pace.learn(done.item.count, took)
                _add(found, done.item.scheduler, totals, plan.races)
                offset = 0 if done.item.scheduler == DIRECTED else seed
                for kind, number in _first_of_each(totals).items():
                    failing = number - offset, schedulers.index(done.item.scheduler)
                    first[kind] = min(first.get(kind, failing), failing)
                found.seconds = time.perf_counter() - started
                if progress:
                    progress(found)
                if deadline is not None and found.seconds > deadline:
                    found.stopped = f"deadline of {deadline:g} s"
                    break
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
    for kind in sorted(first, key=lambda kind: first[kind]):
        number, place = first[kind]
        found.failures[kind] = _failure(task, schedulers[place], number, seed)
    found.seconds = time.perf_counter() - started
    return found


def _shares(schedulers: tuple[str, ...], executions: int, planned: int) -> dict[str, int]:
    """Executions of each scheduler: as even as the plan of `directed` allows."""
    shares = {name: executions // len(schedulers) for name in schedulers}
    for name in schedulers[: executions % len(schedulers)]:
        shares[name] += 1
    others = [name for name in schedulers if name != DIRECTED]
    spare = max(0, shares.get(DIRECTED, 0) - planned)
    if spare:
        shares[DIRECTED] = planned
    for number, name in enumerate(others):
        shares[name] += spare // len(others) + (number < spare % len(others))
    return shares


def _first_of_each(totals: np.ndarray) -> dict[str, int]:
    """The first seed of each kind of failure, of totals with a row for each kind of race."""
    total = m.sum_of_totals(totals)
    return {kind: int(total[column]) for kind, column in KINDS.items() if total[column] >= 0}


def _failure(task: _Batches, scheduler: str, number: int, seed: int) -> Failing:
    """The execution `number` of a scheduler, counted from 0."""
    engine = Engine(task.tables, task.memory)
    if scheduler == DIRECTED:
        return Failing(scheduler, number, engine.follow(task.plan.choices(number))[1])
    choices = engine.choices(scheduler, seed + number, task.early_timeout, task.pct_depth)
    return Failing(scheduler, seed + number, choices)


class _Pace:
    """How many seeds make a range: as many as take about `_ITEM_SECONDS`, by the last range."""

    def __init__(self) -> None:
        self.count = _FIRST_ITEM

    def learn(self, count: int, seconds: float) -> None:
        wanted = int(_ITEM_SECONDS * count / max(seconds, 1e-9))
        self.count = max(1, min(wanted, 8 * count, _LARGEST_ITEM))


def _ranges(shares: dict[str, int], seed: int, pace: _Pace) -> Iterator[Seeds]:
    """The seeds of each scheduler in ranges, the schedulers in turn."""
    given = dict.fromkeys(shares, 0)
    while given != shares:
        for name, share in shares.items():
            count = min(pace.count, share - given[name])
            if count:
                yield Seeds(name, given[name] + (0 if name == DIRECTED else seed), count)
                given[name] += count


def _span(seeds: Seeds) -> str:
    return f"{seeds.first} to {seeds.first + seeds.count - 1}"


def _add(found: Exploration, name: str, totals: np.ndarray, races: tuple[Key, ...]) -> None:
    for key, row in zip(races, totals, strict=False) if name == DIRECTED else ():
        found.turned[key] += Outcomes.of(row)
    total = m.sum_of_totals(totals)
    found.outcomes += Outcomes.of(total)
    found.by_scheduler[name] += int(total[m.T_RUNS])
    found.ops += int(total[m.T_OPS])


def every_schedule(engine: Engine, limit: int = 1_000_000) -> tuple[list[np.ndarray], bool]:
    """All schedules of a small program (a litmus test), by depth-first replay.

    Args:
        engine: The program.
        limit: Most schedules to visit.

    Returns:
        The schedules (int32 entities), and whether these are all.
    """
    done: list[np.ndarray] = []
    stack: list[list[int]] = [[]]
    while stack:
        prefix = stack.pop()
        steps = np.array(prefix, np.int32)
        engine.follow(steps, m.REPLAY, len(prefix))
        movable = engine.movable()
        if not movable:
            done.append(steps)
            if len(done) >= limit:
                return done, not stack
            continue
        stack.extend([*prefix, entity] for entity in reversed(movable))
    return done, True
