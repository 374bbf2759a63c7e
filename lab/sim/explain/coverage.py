"""What a verdict rests on, in short lines, and what it does not cover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lab.protocol.program import Program, Wait
from lab.sim.explore.explore import Exploration
from lab.sim.search.search import SearchResult


@dataclass(frozen=True)
class Basis:
    """What a check did.

    Attributes:
        program: What was checked.
        memory: The memory model of exploration and search.
        why_not: Why one execution does not stand for every schedule; None: it does.
        racy: Whether races were found.
        everywhere: Whether the program is free of races by releases and acquires alone.
        raced: Executions that were checked for races.
        asked: Executions that were asked for.
        confirming: Whether fewer were to be explored, since one execution is proved to stand for all.
        found: What was explored.
        searched: The exhaustive search, if any.
        leans: Whether what is race-free is so only because the end of a kernel releases to the whole system.
    """

    program: Program
    memory: str
    why_not: str | None
    racy: bool
    everywhere: bool
    raced: int
    asked: int
    confirming: bool
    found: Exploration
    searched: SearchResult | None
    leans: bool


def proof(basis: Basis) -> str:
    """What was covered and what was not, a line each."""
    return "\n".join((*_covered(basis), *(f"not covered: {limit}" for limit in _limits(basis))))


def _covered(basis: Basis) -> Iterator[str]:
    found, searched = basis.found, basis.searched
    if basis.why_not is None:
        stands = "so its races are those of every schedule" if basis.racy else "so it stands for every schedule"
        strong = ", and for every memory model that keeps release and acquire" if basis.everywhere else " under sc"
        yield f"one execution is enough: the program is determinate, {stands}{strong}"
    else:
        yield f"one execution does not stand for all: {basis.why_not}"
    which = "one execution" if basis.raced == 1 else f"{basis.raced} executions"
    yield f"race check: every pair of conflicting accesses of {which}, by vector clocks"
    if found.by_scheduler:
        schedules = ", ".join(f"{count:,} {name}" for name, count in found.by_scheduler.items())
        stopped = f" (stopped early: {found.stopped})" if found.stopped else ""
        lost = f" (lost: {', '.join(found.lost)})" if found.lost else ""
        yield f"explored: {schedules} executions under {basis.memory}{stopped}{lost}"
    if basis.confirming and found.executions < basis.asked:
        yield (
            f"{found.executions:,} of the {basis.asked:,} executions asked for were run: one is proved to stand for "
            "all, so that more could only confirm it"
        )
    if searched is not None:
        stopped = f"; it ended early: {searched.stopped}" if searched.stopped else ""
        yield f"search: {searched.covered}{stopped}"
    if basis.leans:
        yield (
            "accesses of different ranks are ordered by the end of a kernel, taken as a release to the whole system, "
            "as streams and host synchronisation of HIP and CUDA give it; where a kernel ends with a release to its "
            "device alone (hipEventReleaseToDevice, a dispatch packet of agent scope) it is not enough"
        )


def _limits(basis: Basis) -> Iterator[str]:
    program, searched = basis.program, basis.searched
    if basis.why_not is not None and (searched is None or not searched.complete):
        yield "schedules that were not explored"
    if all(agent.kind != "wave" for agent in program.agents):
        yield "order between the threads of a block (a block is one agent here; --waves splits it)"
    if any(isinstance(op, Wait) and op.bound for agent in program.agents for op in agent.ops):
        yield "waits bounded in polls that give up while others could still move (--early-timeout)"
    yield "other sizes, ranks, grids and numbers of calls than those given"
