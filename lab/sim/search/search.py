"""Exhaustive search: every schedule of a program, until one fails, all are covered, or a limit is reached.

What searches is chosen by what the memory model and the program allow; the result says what covered what.

Under sc and posted:

* A straight program without a race (`lab.sim.order.straight`): its states are its counters. Unreduced, all of them are
  visited by reverse search (`lab.sim.search.walks`); reduced, every step commutes with whatever may run beside it,
  so one schedule stands for all.
* A straight program with races: first each racing pair is turned round once on the machine; then full states are
  searched (`lab.sim.search.rows`), reduced to the orders of racing steps.
* Any other program: full states, reduced where the text shows that steps cannot conflict.

Under weak:

* A determinate program without races by releases and acquires alone: one schedule stands for all.
* Any other program: canonical states (`lab.sim.search.canonical`), reduced to what each read may read and where each
  store may stand.

Nothing is approximated: keys are exact, and a search that ends early says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.errors import UnknownNameError
from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.explore.directed import plan_for
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.weak_history import MAX_CHOICES
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.events import NotStraightError
from lab.sim.order.races import find_races
from lab.sim.order.straight import Straight, straighten
from lab.sim.search import states as states_of
from lab.sim.search import walks
from lab.sim.search.canonical import WeakSearch
from lab.sim.search.checkpoint import Checkpoint, checkpoint_path
from lab.sim.search.room import share_of_memory
from lab.sim.search.rows import RowSearch

INTERLEAVED = ("sc", "posted")
"""Memory models in which every execution is an order of steps; under `weak` steps choose what they read, too."""
INTERRUPTED = "Ctrl-C"
_WALK_CHUNK, _ROWS_CHUNK = 1 << 20, 1 << 13  # states between looks at the clock
_DIRECTED = 512  # schedules that turn racing pairs round before the states are searched


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        states, transitions: Distinct states visited, and steps examined from them.
        complete: Whether every schedule is covered. False also after a failure, when the search stopped there.
        wrong, hang, abort: Whether a schedule with a wrong element, without an end, with a timeout was found.
        choices: int32 entities of the first failing schedule, for `interleaved.run` (REPLAY); None: none fails.
        covered: What was covered, and what was not.
        seconds: Time spent in this call.
        bytes_per_state: Memory that grows with the search, over its states.
        engine: "counters", "one schedule", "rows" (full states) or "canonical rows" (of weak).
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
        memory: One of `machine.MEMORY_MODELS`.
        reduce: Leave out orders of steps that commute. The verdict is the same; states and transitions are fewer.
        limit_states: Stop after about so many states.
        deadline: Stop after so many seconds.
        memory_limit: Stop before the states take more than so many bytes; None: a quarter of the memory that
            machine, shell (ulimit) and container (cgroup) allow.
        checkpoint: A file. If it exists, the search goes on from it; it is written every minute or so and when the
            search ends early, and counts and verdict of the continued search are those of an uninterrupted one. Where
            it cannot be written, the result says so.
        progress: Called every now and then with what was found so far.
        stop: Stop at the first failing schedule.
        early_timeouts: A wait with a bound on its polls may give up although others could move. If not, bounded waits
            give up only when nothing else can happen.

    Returns:
        The result; Ctrl-C ends the search and keeps what was found.

    Raises:
        LabError: There is no such memory model, the program is too large for it, or the checkpoint belongs to another
            search, cannot be read or could never be written.
    """
    if memory not in m.MEMORY_MODELS:
        raise UnknownNameError("memory model", memory, m.MEMORY_MODELS)
    memory_limit = share_of_memory() if memory_limit is None else memory_limit
    limits = _Limits(time.perf_counter(), limit_states, deadline, memory_limit, progress)
    path = checkpoint_path(checkpoint)
    identity = f"{tables.program.fingerprint()} {memory} {'reduced' if reduce else 'full'} {'first' if stop else 'all'}"
    bounded = (tables.ops[:, t.TARGET] >= 0) & np.isin(tables.ops[:, t.KIND], (t.WAIT, t.WAIT_STAMP))
    early = early_timeouts and bool(np.any(bounded & (tables.ops[:, t.CLOCK] <= 0)))
    identity += " early" if early else ""
    patient = "" if early or not np.any(bounded) else "; bounded waits give up only when nothing else can move"
    kept = Checkpoint(path, identity)
    run = _Run(tables, memory, reduce, stop, early, limits, kept, kept.read())
    found = _interleaved(run) if memory in INTERLEAVED else _weak(run)
    return replace(found, covered=found.covered + patient + kept.said)


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


@dataclass(frozen=True)
class _Run:
    """What was asked for, and the checkpoint to go on from, if any; `early` where early timeouts make a difference."""

    tables: Tables
    memory: str
    reduce: bool
    stop: bool
    early: bool
    limits: _Limits
    kept: Checkpoint
    parts: dict[str, np.ndarray] | None


def _interleaved(run: _Run) -> SearchResult:
    """Search under sc or posted."""
    try:
        straight = None if run.early else straighten(run.tables, run.memory)
    except NotStraightError:
        straight = None
    found = None
    if straight is not None and run.parts is None:
        found = _before_the_states(straight, run)
    if (
        found is None
        and straight is not None
        and not straight.racy
        and not run.reduce
        and straight.threads <= walks.MAX_THREADS
    ):
        return _walk(straight, run)
    if found is not None:
        return found
    search_of_rows = RowSearch(run.tables, run.memory, straight, run.reduce, run.stop, run.parts, run.early)
    return _rows(search_of_rows, run, "rows", ", one order for steps that cannot conflict" if run.reduce else "")


def _weak(run: _Run) -> SearchResult:
    """Search under weak."""
    if run.reduce and not run.early and run.parts is None:
        execution = execute(run.tables)
        racy = bool(find_races(run.tables, execution).races)
        if not racy and why_not_determinate(execution, racy) is None and holds_under_every_model(execution):
            return _one_for_all(execution, run)
    search_of_rows = WeakSearch(run.tables, run.reduce, run.stop, run.parts, run.early)
    how = ", one order for steps that cannot conflict, what has no alternative not counted" if run.reduce else ""
    if search_of_rows.most_written > MAX_CHOICES - 1:
        how += (
            f"; of a word that is written {search_of_rows.most_written} times, an operation chooses among the newest "
            f"{MAX_CHOICES - 1} messages and the oldest"
        )
    return _rows(search_of_rows, run, "canonical rows", how)


def _one_for_all(execution: Execution, run: _Run) -> SearchResult:
    """A determinate program whose order rests on releases and acquires alone: any schedule is every schedule."""
    wrong = bool(execution.state.counts[m.C_WRONG])
    return SearchResult(
        states=execution.steps + 1,
        transitions=execution.steps,
        complete=not (wrong and run.stop),
        wrong=wrong,
        hang=False,
        choices=execution.log.choice[: execution.steps].copy() if wrong else None,
        covered=(
            "every execution under weak: the program is determinate and free of races by releases and acquires alone, "
            "so nobody can read anything stale and one schedule stands for all"
        ),
        seconds=run.limits.seconds,
        bytes_per_state=0.0,
        engine="one schedule",
    )


# ---- without a search


def _before_the_states(straight: Straight, run: _Run) -> SearchResult | None:
    """Verdicts that need no search: the recorded execution fails, nothing races, or a race turned round fails."""
    steps, limits = straight.steps, run.limits
    one = SearchResult(steps + 1, steps, False, False, False, None, "", limits.seconds, 0.0, engine="one schedule")
    if straight.wrong and run.stop:
        choices = straight.schedule(straight.lengths())
        return replace(one, wrong=True, choices=choices, covered="one schedule, which fails")
    if not straight.racy and run.reduce:
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
    if not run.stop:
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


def _walk(straight: Straight, run: _Run) -> SearchResult:
    walk, limits = walks.begin(straight, run.parts), run.limits

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
            if run.kept.due:
                run.kept.write(walk.parts())
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped:
        run.kept.write(walk.parts(), last=True)
    return result(stopped)


# ---- rows


def _rows(found: RowSearch | WeakSearch, run: _Run, engine: str, how: str) -> SearchResult:
    limits = run.limits

    def result(stopped: str | None) -> SearchResult:
        counts = found.rows.counts
        states, expanded = int(counts[states_of.N_STATES]), int(counts[states_of.N_HEAD])
        wrong, hang, abort = (bool(counts[k]) for k in (states_of.N_WRONG, states_of.N_HANGS, states_of.N_ABORTS))
        choices = found.failing()
        complete = found.done and stopped is None and not (choices is not None and run.stop)
        if complete:
            covered = f"all {states} states under {run.memory}{how}"
        else:
            covered = (
                f"{expanded} of {states} states found under {run.memory}, breadth first{how}; not covered: schedules "
                "through the others"
            )
        return SearchResult(
            states,
            int(counts[states_of.N_TRANSITIONS]),
            complete,
            wrong,
            hang,
            choices,
            covered,
            limits.seconds,
            found.rows.bytes / states,
            abort,
            engine,
            stopped,
        )

    stopped = None
    try:
        while not found.done and stopped is None:
            states = int(found.rows.counts[states_of.N_STATES])
            left = _ROWS_CHUNK if limits.states is None else min(_ROWS_CHUNK, max(1, (limits.states - states) // 2))
            why = found.advance(left, limits.memory)
            if why == states_of.FAILED:
                break
            if why == states_of.FULL:
                stopped = f"memory limit of {limits.memory} bytes"
            elif not found.done:
                stopped = limits.reached(int(found.rows.counts[states_of.N_STATES]))
            if limits.progress:
                limits.progress(result(stopped))
            if run.kept.due:
                run.kept.write(found.rows.parts())
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped:
        run.kept.write(found.rows.parts(), last=True)
    return result(stopped)
