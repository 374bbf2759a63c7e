"""Exploration: many executions of one program under seeded schedulers, until one fails or the budget ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lab.errors import UnknownNameError
from lab.protocol.tables import Tables
from lab.sim import machine as m
from lab.sim.engines import engine_of

SCHEDULERS = {"random": m.RANDOM, "pct": m.PCT, "run_on": m.RUN_ON}
INTERRUPTED = "Ctrl-C"
_BATCH = 64


@dataclass
class Exploration:
    """What was explored so far.

    Attributes:
        executions, wrong, hangs, aborts: Executions in all, with a wrong element, without an end, with a timeout.
        failure: (scheduler, seed, choices) of the first failing execution.
        stopped: Why it ended early (Ctrl-C, deadline); None when the budget was used up.
        ops: Operations executed.
        seconds: Time spent.
    """

    executions: int = 0
    wrong: int = 0
    hangs: int = 0
    aborts: int = 0
    failure: tuple[str, int, np.ndarray] | None = None
    stopped: str | None = None
    ops: int = 0
    seconds: float = 0.0
    by_scheduler: dict[str, int] = field(default_factory=dict)

    @property
    def failing(self) -> int:
        """Executions that failed in any way (an execution may be wrong and abort)."""
        return max(self.wrong, self.hangs, self.aborts)


class Engine:
    """One program under one memory model, ready to run; keeps its state between runs."""

    def __init__(self, tables: Tables, memory: str = "sc") -> None:
        self.tables, self.memory, self._runner = tables, memory, engine_of(memory)
        self.static = self._runner.static(tables, memory)
        self.state = self._runner.new_state(self.static, tables.registers)
        self._silent, self._choices = m.new_log(self.static, m.LEVEL_NONE), m.new_log(self.static, m.LEVEL_CHOICES)

    def batch(
        self, scheduler: str, seed: int, count: int, early_timeout: int = 0, pct_depth: int = m.PCT_DEPTH
    ) -> np.ndarray:
        """Run seeds `seed`, `seed + 1`, ...; returns totals, indexed by `machine.T_*`."""
        return self._run(self._silent, scheduler, seed, count, early_timeout, pct_depth)

    def choices(self, scheduler: str, seed: int, early_timeout: int = 0, pct_depth: int = m.PCT_DEPTH) -> np.ndarray:
        """The choices that a scheduler made under a seed."""
        self._run(self._choices, scheduler, seed, 1, early_timeout, pct_depth)
        return self._choices.choice[: self.state.counts[m.C_STEPS]].copy()

    def _run(self, log: m.Log, scheduler: str, seed: int, count: int, early_timeout: int, pct_depth: int) -> np.ndarray:
        policy = SCHEDULERS[scheduler]
        return self._runner.batch(self.static, self.state, log, policy, seed, count, early_timeout, False, pct_depth)

    def follow(
        self, choices: np.ndarray, policy: int = m.TOLERANT, max_steps: int | None = None
    ) -> tuple[int, np.ndarray]:
        """Run along `choices`, then on; returns the outcome and the choices that were really made."""
        outcome = self._runner.run(self.static, self.state, self._choices, policy, choices=choices, max_steps=max_steps)
        return outcome, self._choices.choice[: self.state.counts[m.C_STEPS]].copy()

    def movable(self) -> list[int]:
        """The entities that can be chosen next, in order, after a run that its `max_steps` ended."""
        return self._runner.movable(self.static, self.state)

    @property
    def wrong(self) -> int:
        """Wrong cells of the last run."""
        return int(self.state.counts[m.C_WRONG])

    @property
    def timeouts(self) -> int:
        """Timeouts of the last run."""
        return int(self.state.counts[m.C_TIMEOUTS])


def explore(
    engine: Engine,
    schedulers: tuple[str, ...] = ("random", "pct"),
    executions: int = 1000,
    seed: int = 0,
    deadline: float | None = None,
    early_timeout: float = 0.0,
    progress: Callable[[Exploration], None] | None = None,
    pct_depth: int = m.PCT_DEPTH,
) -> Exploration:
    """Run `executions` executions, shared evenly between `schedulers`; Ctrl-C ends it and keeps what was found.

    Args:
        engine: The program to run.
        schedulers: Names of SCHEDULERS.
        executions: Executions in all.
        seed: First seed.
        deadline: Seconds after which it stops; None: no limit.
        early_timeout: Probability, at each step, that a bounded wait gives up although others could move.
        progress: Called after each batch.
        pct_depth: Of PCT, one more than its changes of priority (see `machine.run`).

    Raises:
        LabError: There is no such scheduler or depth.
    """
    for name in schedulers:
        if name not in SCHEDULERS:
            raise UnknownNameError("scheduler", name, SCHEDULERS)
    found = Exploration(by_scheduler=dict.fromkeys(schedulers, 0))
    started = time.perf_counter()
    share = -(-executions // len(schedulers))
    threshold = int(early_timeout * 2**32)
    try:
        for first in range(0, share, _BATCH):
            for name in schedulers:
                count = min(_BATCH, share - first, executions - found.executions)
                if count > 0:
                    _add(engine, found, name, seed + first, count, threshold, pct_depth)
            found.seconds = time.perf_counter() - started
            if progress:
                progress(found)
            if deadline is not None and found.seconds > deadline:
                found.stopped = f"deadline of {deadline:g} s"
                break
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
    found.seconds = time.perf_counter() - started
    return found


def _add(engine: Engine, found: Exploration, name: str, seed: int, count: int, threshold: int, pct_depth: int) -> None:
    totals = engine.batch(name, seed, count, threshold, pct_depth)
    failing = int(totals[m.T_FIRST])
    found.executions += int(totals[m.T_RUNS])
    found.by_scheduler[name] += int(totals[m.T_RUNS])
    found.wrong += int(totals[m.T_WRONG])
    found.hangs += int(totals[m.T_HANGS])
    found.aborts += int(totals[m.T_ABORTS])
    found.ops += int(totals[m.T_OPS])
    if failing >= 0 and found.failure is None:
        found.failure = (name, failing, engine.choices(name, failing, threshold, pct_depth))


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
