"""Exhaustive search: every schedule of a program, until one fails, all are covered, or a limit is reached.

Three engines, chosen by what the program allows; the result says which one covered what.

* A straight program without a race (`lab.sim.straight`): its states are its counters. Unreduced, all of them are
  visited by reverse search (`lab.sim.search_straight`); reduced, every step commutes with whatever may run beside it,
  so one schedule stands for all.
* A straight program with races: first each racing pair is turned round once on the machine; then full states are
  searched (`lab.sim.search_rows`), reduced to the orders of racing steps.
* Any other program: full states, reduced where the text shows that steps cannot conflict.

Nothing is approximated: keys are exact, and a search that ends early says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.errors import LabError, UnknownNameError
from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim import search_rows as rows
from lab.sim import search_straight as walks
from lab.sim.directed import plan_for
from lab.sim.explore import Engine
from lab.sim.straight import NotStraightError, Straight, straighten

MEMORY_MODELS = ("sc", "posted")
INTERRUPTED = "Ctrl-C"
_WALK_CHUNK, _ROWS_CHUNK = 1 << 20, 1 << 13  # states between looks at the clock
_DIRECTED = 512  # schedules that turn racing pairs round before the states are searched
_ENGINES = ("counters", "one schedule", "rows")


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        states, transitions: Distinct states visited, and steps examined from them.
        complete: Whether every schedule is covered. False also after a failure, when the search stopped there.
        wrong, hang, abort: Whether a schedule with a wrong element, without an end, with a timeout was found.
        choices: int32 entities of the first failing schedule, for `machine.run` (REPLAY); None: none fails.
        covered: What was covered, and what was not.
        seconds: Time spent in this call.
        bytes_per_state: Memory that grows with the search, over its states.
        engine: "counters", "one schedule" or "rows".
        stopped: Why it ended early, None: it did not.
    """

    states: int
    transitions: int
    complete: bool
    wrong: bool
    hang: bool
    choices: np.ndarray | None
    covered: str
    seconds: float
    bytes_per_state: float
    abort: bool = False
    engine: str = "rows"
    stopped: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a failing schedule was found."""
        return self.wrong or self.hang or self.abort


def search(
    tables: Tables,
    memory: str = "sc",
    *,
    reduce: bool = True,
    limit_states: int | None = None,
    deadline: float | None = None,
    memory_limit: int | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[SearchResult], None] | None = None,
    stop: bool = True,
    early_timeouts: bool = False,
) -> SearchResult:
    """Search all schedules of a program under a memory model.

    Args:
        tables: The program.
        memory: "sc" or "posted".
        reduce: Leave out orders of steps that commute. The verdict is the same; states and transitions are fewer.
        limit_states: Stop after about so many states.
        deadline: Stop after so many seconds.
        memory_limit: Stop before the states take more than so many bytes.
        checkpoint: A file. If it exists, the search goes on from it; if the search ends early, it is written, and
            counts and verdict of the continued search are those of an uninterrupted one.
        progress: Called every now and then with what was found so far.
        stop: Stop at the first failing schedule.
        early_timeouts: A wait with a bound on its polls may give up although others could move. If not, bounded waits
            give up only when nothing else can happen.

    Returns:
        The result; Ctrl-C ends the search and keeps what was found.

    Raises:
        LabError: The memory model is not one of MEMORY_MODELS, or the checkpoint belongs to another search.
    """
    if memory not in MEMORY_MODELS:
        raise UnknownNameError("memory model of the exhaustive search", memory, MEMORY_MODELS)
    limits = _Limits(time.perf_counter(), limit_states, deadline, memory_limit, progress)
    path = None if checkpoint is None else Path(checkpoint)
    identity = f"{tables.program.fingerprint()} {memory} {'reduced' if reduce else 'full'} {'first' if stop else 'all'}"
    bounded = (tables.ops[:, t.TARGET] >= 0) & np.isin(tables.ops[:, t.KIND], (t.WAIT, t.WAIT_STAMP))
    early = early_timeouts and bool(np.any(bounded & (tables.ops[:, t.CLOCK] <= 0)))
    identity += " early" if early else ""
    patient = "" if early or not np.any(bounded) else "; bounded waits give up only when nothing else can move"
    parts = None if path is None or not path.exists() else _read(path, identity)
    try:
        straight = None if early else straighten(tables, memory)
    except NotStraightError:
        straight = None
    found = _before_the_states(straight, reduce, stop, limits) if parts is None else None
    if (
        found is None
        and straight is not None
        and not straight.racy
        and not reduce
        and straight.threads <= walks.MAX_THREADS
    ):
        found = _walk(straight, limits, path, identity, parts)
    if found is None:
        search_of_rows = rows.RowSearch(tables, memory, straight, reduce, stop, parts, early)
        found = _rows(search_of_rows, memory, reduce, stop, limits, path, identity)
    return replace(found, covered=found.covered + patient)


@dataclass(frozen=True)
class _Limits:
    started: float
    states: int | None
    deadline: float | None
    memory: int | None
    progress: Callable[[SearchResult], None] | None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def reached(self, states: int) -> str | None:
        """Why the search has to end now."""
        if self.states is not None and states >= self.states:
            return f"limit of {self.states} states"
        if self.deadline is not None and self.seconds >= self.deadline:
            return f"deadline of {self.deadline:g} s"
        return None


# ---- without a search


def _before_the_states(straight: Straight | None, reduce: bool, stop: bool, limits: _Limits) -> SearchResult | None:
    """Verdicts that need no search: the recorded execution fails, nothing races, or a race turned round fails."""
    if straight is None:
        return None
    steps = straight.steps
    one = SearchResult(steps + 1, steps, False, False, False, None, "", limits.seconds, 0.0, engine="one schedule")
    if straight.wrong and stop:
        choices = straight.schedule(straight.lengths())
        return replace(one, wrong=True, choices=choices, covered="one schedule, which fails")
    if not straight.racy and reduce:
        return replace(
            one,
            complete=True,
            wrong=straight.wrong,
            choices=straight.schedule(straight.lengths()) if straight.wrong else None,
            covered=(
                f"every schedule under {straight.memory}: the program is straight and nothing races, so each step "
                "commutes with all that may run beside it and one schedule stands for all"
            ),
            seconds=limits.seconds,
        )
    if not stop:
        return None
    choices = _turned_round(straight)
    if choices is None:
        return None
    return replace(
        one,
        wrong=True,
        choices=choices,
        covered="one schedule, in which a racing pair is turned round",
        seconds=limits.seconds,
    )


def _turned_round(straight: Straight) -> np.ndarray | None:
    """A failing schedule that turns a racing pair round; None: none of those tried fails."""
    event = straight.event
    plan = plan_for(straight.execution, event[straight.racing_pairs()], _DIRECTED)
    engine = Engine(straight.tables, straight.memory)
    for number in range(len(plan)):
        _, choices = engine.follow(plan.choices(number))
        if engine.wrong:
            return choices
    return None


# ---- counters


def _walk(
    straight: Straight, limits: _Limits, path: Path | None, identity: str, parts: dict[str, np.ndarray] | None
) -> SearchResult:
    walk = walks.begin(straight, parts)

    def result(stopped: str | None) -> SearchResult:
        states, transitions = int(walk.counts[walks.W_STATES]), int(walk.counts[walks.W_TRANSITIONS])
        hang, broken = bool(walk.counts[walks.W_HANGS]), bool(walk.counts[walks.W_DEVIATED])
        if broken or hang:
            raise RuntimeError("internal: a straight program left its must order; please report the program")
        complete = walk.done and stopped is None
        choices = straight.schedule(straight.lengths()) if straight.wrong else None
        covered = f"{'all' if complete else 'the first'} {states} states under {straight.memory}"
        if not complete:
            covered += ", depth first; not covered: schedules through the others"
        return SearchResult(
            states,
            transitions,
            complete,
            straight.wrong,
            False,
            choices,
            covered,
            limits.seconds,
            walk.bytes / states,
            engine="counters",
            stopped=stopped,
        )

    stopped = None
    try:
        while not walk.done and stopped is None:
            left = _WALK_CHUNK
            if limits.states is not None:
                left = min(left, limits.states - int(walk.counts[walks.W_STATES]))
            walk.advance(max(left, 0))
            stopped = None if walk.done else limits.reached(int(walk.counts[walks.W_STATES]))
            if limits.progress:
                limits.progress(result(stopped))
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped and path is not None:
        _write(path, identity, walk.parts())
    return result(stopped)


# ---- rows


def _rows(
    found: rows.RowSearch, memory: str, reduce: bool, stop: bool, limits: _Limits, path: Path | None, identity: str
) -> SearchResult:

    def result(stopped: str | None) -> SearchResult:
        counts = found.rows.counts
        states, expanded = int(counts[rows.N_STATES]), int(counts[rows.N_HEAD])
        failed = int(counts[rows.N_FAILED])
        wrong, hang, abort = (bool(counts[k]) for k in (rows.N_WRONG, rows.N_HANGS, rows.N_ABORTS))
        choices = None
        if failed >= 0:
            last = found.rows.failed_choice
            choices = np.concatenate((found.rows.schedule(failed), last[last >= 0])).astype(np.int32)
        complete = found.done and stopped is None and not (failed >= 0 and stop)
        reduced = ", one order for steps that cannot conflict" if reduce else ""
        if complete:
            covered = f"all {states} states under {memory}{reduced}"
        else:
            covered = (
                f"{expanded} of {states} states found under {memory}, breadth first{reduced}; not covered: schedules "
                "through the others"
            )
        return SearchResult(
            states,
            int(counts[rows.N_TRANSITIONS]),
            complete,
            wrong,
            hang,
            choices,
            covered,
            limits.seconds,
            found.rows.bytes / states,
            abort,
            "rows",
            stopped,
        )

    stopped = None
    try:
        while not found.done and stopped is None:
            left = _ROWS_CHUNK
            if limits.states is not None:
                left = min(left, max(1, (limits.states - int(found.rows.counts[rows.N_STATES])) // 2))
            why = found.advance(left, limits.memory)
            if why == rows.FAILED:
                break
            if why == rows.FULL:
                stopped = f"memory limit of {limits.memory} bytes"
            elif not found.done:
                stopped = limits.reached(int(found.rows.counts[rows.N_STATES]))
            if limits.progress:
                limits.progress(result(stopped))
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped and path is not None:
        _write(path, identity, found.rows.parts())
    return result(stopped)


# ---- checkpoints


def _write(path: Path, identity: str, parts: dict[str, np.ndarray]) -> None:
    """Write a checkpoint whole or not at all."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        np.savez(file, identity=np.array(identity), **parts)
    os.replace(beside, path)


def _read(path: Path, identity: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as stored:
            parts = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as problem:
        raise LabError("the checkpoint cannot be read", value=str(path), hint=str(problem)) from problem
    if str(parts.pop("identity", "")) != identity:
        raise LabError(
            "the checkpoint belongs to another search",
            value=str(path),
            hint="same program, memory model and reduction, or give another file",
        )
    return parts
