"""Exploration: many executions of one program under seeded schedulers, until the budget ends, by one worker or many.

The workers take ranges of seeds. What is found depends neither on who ran which nor on where the ranges are cut: counts
are sums over the seeds, and the failing execution that is shown is the one of the lowest seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lab.errors import UnknownNameError
from lab.protocol.tables import Tables
from lab.sim.explore.directed import DIRECTED, Plan, plan_of
from lab.sim.explore.executor import Executor, InProcess
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import SCHEDULERS, Engine
from lab.sim.order.verdict import Key

NAMES = (DIRECTED, *SCHEDULERS)
INTERRUPTED = "Ctrl-C"
_ITEM_SECONDS = 0.1  # that a range of seeds should take: the longest wait for a deadline or Ctrl-C
_FIRST_ITEM, _LARGEST_ITEM = 4, 1 << 14  # seeds of a range before its speed is known, and at most


@dataclass
class Exploration:
    """What was explored so far.

    Attributes:
        executions, wrong, hangs, aborts: Executions in all, with a wrong element, without an end, with an agent that
            gave up waiting and returned (one that goes on is no abort).
        failure: (scheduler, seed, choices) of the failing execution with the lowest seed; where several schedulers
            fail at that seed, of the one named first.
        stopped: Why it ended early (Ctrl-C, deadline); None when the budget was used up.
        tried: For each kind of race that `directed` turns round, the executions that did.
        lost: The executions that are missing because their workers died, and why.
        ops: Operations executed.
        seconds: Time spent.
    """

    executions: int = 0
    wrong: int = 0
    hangs: int = 0
    aborts: int = 0
    failure: tuple[str, int, np.ndarray] | None = None
    stopped: str | None = None
    tried: dict[Key, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    ops: int = 0
    seconds: float = 0.0
    by_scheduler: dict[str, int] = field(default_factory=dict)

    @property
    def failing(self) -> int:
        """Executions that failed in any way (an execution may be wrong and abort)."""
        return max(self.wrong, self.hangs, self.aborts)


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
        """An engine that runs ranges of seeds: the totals, and the seconds that it took."""
        engine = Engine(self.tables, self.memory)
        engine.batch("random", 0, 0, 0, self.pct_depth)  # compiles, so that no range of seeds is timed with that

        def run(seeds: Seeds) -> tuple[np.ndarray, float]:
            started = time.perf_counter()
            if seeds.scheduler == DIRECTED:
                totals = self.plan.batch(engine, seeds.first, seeds.count)
            else:
                totals = engine.batch(seeds.scheduler, seeds.first, seeds.count, self.early_timeout, self.pct_depth)
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
    found = Exploration(by_scheduler=dict.fromkeys(schedulers, 0), tried=plan.tried(0))
    pace = _Pace()
    first: tuple[int, int] | None = None
    try:
        with closing((executor or InProcess()).unordered(task, _ranges(shares, seed, pace))) as results:
            for done in results:
                if done.result is None:
                    found.lost += (f"{done.item.scheduler} seeds {_span(done.item)}: {done.lost}",)
                    continue
                totals, took = done.result
                pace.learn(done.item.count, took)
                _add(found, done.item.scheduler, totals)
                if totals[m.T_FIRST] >= 0:
                    offset = 0 if done.item.scheduler == DIRECTED else seed
                    failing = int(totals[m.T_FIRST]) - offset, schedulers.index(done.item.scheduler)
                    first = failing if first is None else min(first, failing)
                found.seconds = time.perf_counter() - started
                if progress:
                    progress(found)
                if deadline is not None and found.seconds > deadline:
                    found.stopped = f"deadline of {deadline:g} s"
                    break
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
    if first is not None:
        found.failure = _failure(task, schedulers[first[1]], first[0], seed)
    found.tried = plan.tried(found.by_scheduler.get(DIRECTED, 0))
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


def _failure(task: _Batches, scheduler: str, number: int, seed: int) -> tuple[str, int, np.ndarray]:
    """The execution `number` of a scheduler, counted from 0, as `Exploration.failure`."""
    engine = Engine(task.tables, task.memory)
    if scheduler == DIRECTED:
        return scheduler, number, engine.follow(task.plan.choices(number))[1]
    choices = engine.choices(scheduler, seed + number, task.early_timeout, task.pct_depth)
    return scheduler, seed + number, choices


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


def _add(found: Exploration, name: str, totals: np.ndarray) -> None:
    found.executions += int(totals[m.T_RUNS])
    found.by_scheduler[name] += int(totals[m.T_RUNS])
    found.wrong += int(totals[m.T_WRONG])
    found.hangs += int(totals[m.T_HANGS])
    found.aborts += int(totals[m.T_ABORTS])
    found.ops += int(totals[m.T_OPS])


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
