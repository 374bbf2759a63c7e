"""Whether a changed program still holds: found wrong, proved right, or neither, as cheaply as the program allows.

One execution decides a determinate program. For any other, the races of some executions, exploration under every memory
model, and then a search of all schedules under each. What a judgement rests on is part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.sim.explore.explore import INTERRUPTED, explore
from lab.sim.explore.recorded import RECORDED, races_of_all, recorded
from lab.sim.machine import interleaved as m
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.races import RaceReport, find_races
from lab.sim.order.verdict import Race
from lab.sim.search.search import INTERLEAVED, search


class Basis(Enum):
    """What a judgement rests on."""

    DEFECT = "a defect"
    ONE_EXECUTION = "one execution that stands for every schedule"
    EVERY_SCHEDULE = "a search of every schedule"
    EXPLORATION = "exploration"


@dataclass(frozen=True)
class Limits:
    """How much work one judgement may take.

    Attributes:
        executions: Executions explored under each memory model.
        states: States of the search under each memory model, at most.
        seconds: Seconds of each exploration, and of each search, at most.
        memory: Bytes that the states of a search may take.
        seed: Of the schedulers.
        models: Memory models under which a program is explored that one execution does not decide under all of them.
        early_timeout: Probability, at each step, that a bounded wait gives up although others could move. Above 0, the
            search lets bounded waits give up at any time.
    """

    executions: int = 200
    states: int = 1_000_000
    seconds: float = 20.0
    memory: int = 1 << 30
    seed: int = 0
    models: tuple[str, ...] = m.MEMORY_MODELS
    early_timeout: float = 0.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Judgement:
    """What was found out about a program.

    Attributes:
        verdict: ok, race, wrong, hang or abort, with the memory model where only some show it.
        basis: What it rests on.
        covered: The same in words, with the counts.
        races: The races found, one of each kind.
        orders: Whether what it rests on sees memory orders: a search of `sc` and `posted` alone does not.
        models: The memory models under which it is proved right; under the others it was explored.
    """

    verdict: str
    basis: Basis
    covered: str
    races: tuple[Race, ...] = ()
    orders: bool = True
    models: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        """Whether a defect was found."""
        return self.basis is Basis.DEFECT

    @property
    def proved(self) -> bool:
        """Whether the program is proved right at its configuration."""
        return self.basis in (Basis.ONE_EXECUTION, Basis.EVERY_SCHEDULE)


def judge_program(program: Program, limits: Limits = DEFAULT_LIMITS) -> Judgement:
    """Judge a program.

    Raises:
        KeyboardInterrupt: Ctrl-C; nothing can be said of a judgement that was not finished.
        LabError: The program cannot be compiled.
    """
    return judge_report(find_races(compile_tables(program)), limits)


def judge_report(report: RaceReport, limits: Limits = DEFAULT_LIMITS) -> Judgement:
    """Judge a program whose first execution has been checked for races.

    Raises:
        KeyboardInterrupt: As in `judge_program`.
    """
    tables = report.execution.tables
    why_not = why_not_determinate(report.execution, bool(report.races))
    races = report.races if why_not is None else races_of_all(recorded(tables, "sc", limits.seed, report))
    if races:
        return Judgement("race", Basis.DEFECT, "by vector clocks", races)
    if report.execution.outcome == m.HANG:
        return Judgement("hang", Basis.DEFECT, "the first execution")
    if report.execution.state.counts[m.C_WRONG]:
        return Judgement("wrong", Basis.DEFECT, "the first execution")
    if why_not is not None or (limits.early_timeout and _bounded(tables)):
        return _explored(tables, limits, limits.models) or _searched(tables, limits)
    covered = "one execution stands for every schedule"
    if holds_under_every_model(report.execution):
        covered += ", and for every memory model that keeps release and acquire"
        return Judgement("ok", Basis.ONE_EXECUTION, covered, models=m.MEMORY_MODELS)
    weaker = tuple(name for name in limits.models if name != "sc")
    covered += f" under sc; {_count(limits, weaker)} found nothing"
    return _explored(tables, limits, weaker) or Judgement("ok", Basis.ONE_EXECUTION, covered, models=("sc",))


def _bounded(tables: Tables) -> bool:
    """Whether some wait may give up."""
    return bool(np.any((tables.ops[:, t.TARGET] >= 0) & np.isin(tables.ops[:, t.KIND], (t.WAIT, t.WAIT_STAMP))))


def _count(limits: Limits, models: tuple[str, ...]) -> str:
    return f"{limits.executions} executions under {' and under '.join(models)}"


def _defect(wrong: int, hang: int, memory: str, covered: str) -> Judgement:
    """What fails under a memory model: a wrong value before a hang before an abort."""
    kind = "wrong" if wrong else "hang" if hang else "abort"
    return Judgement(f"{kind} ({memory})", Basis.DEFECT, covered)


def _explored(tables: Tables, limits: Limits, models: tuple[str, ...]) -> Judgement | None:
    """The defect that exploration finds under some memory model; None: it finds none."""
    for memory in models:
        found = explore(
            tables,
            memory,
            executions=limits.executions,
            seed=limits.seed,
            deadline=limits.seconds,
            early_timeout=limits.early_timeout,
        )
        if found.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        if found.failing:
            return _defect(found.wrong, found.hangs, memory, f"{found.executions} executions under {memory}")
    return None


def _searched(tables: Tables, limits: Limits) -> Judgement:
    """What all schedules say of a program that exploration finds no fault with: under `sc`, `posted` and what is asked.

    The first two have to be covered for a proof; `weak`, which is larger, adds what memory orders do.
    """
    complete: set[str] = set()
    covered = []
    for memory in dict.fromkeys((*INTERLEAVED, *limits.models)):
        found = search(
            tables,
            memory,
            limit_states=limits.states,
            deadline=limits.seconds,
            memory_limit=limits.memory,
            early_timeouts=limits.early_timeout > 0,
        )
        if found.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        if found.failed:
            return _defect(found.wrong, found.hang, memory, found.covered)
        if found.complete:
            complete.add(memory)
        covered.append(found.covered if found.complete else f"{found.covered} ({found.stopped})")
    covered.append(f"races of {RECORDED + 1} executions, and {_count(limits, limits.models)}")
    basis = Basis.EVERY_SCHEDULE if complete.issuperset(INTERLEAVED) else Basis.EXPLORATION
    return Judgement("ok", basis, "; ".join(covered), orders="weak" in complete, models=tuple(sorted(complete)))
