"""What a verdict covers, in words, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator

from lab.protocol.program import Program, Wait
from lab.sim.explore.directed import DIRECTED
from lab.sim.explore.explore import Exploration
from lab.sim.search.search import SearchResult


def proof(
    program: Program,
    memory: str,
    why_not: str | None,
    racy: bool,
    everywhere: bool,
    raced: int,
    found: Exploration,
    searched: SearchResult | None,
) -> str:
    """Say what was covered.

    Args:
        program: What was checked.
        memory: The memory model of exploration and search.
        why_not: Why one execution does not stand for every schedule; None: it does.
        racy: Whether races were found.
        everywhere: Whether the program is free of races by releases and acquires alone.
        raced: Executions that were checked for races.
        found: What was explored.
        searched: The exhaustive search, if any.
    """
    which = "one execution" if raced == 1 else f"{raced} executions"
    covered = [f"race check: every pair of conflicting accesses of {which}, by vector clocks"]
    if found.by_scheduler:
        schedules = ", ".join(f"{count} {name}{_turned(found, name)}" for name, count in found.by_scheduler.items())
        stopped = f" (stopped early: {found.stopped})" if found.stopped else ""
        lost = f" (lost: {', '.join(found.lost)})" if found.lost else ""
        covered.append(f"explored: {schedules} executions under {memory}{stopped}{lost}")
    if searched is not None:
        covered.append(f"search: {searched.covered}")
    if why_not is None:
        stands = "so its races are those of every schedule" if racy else "so it stands for every schedule"
        strong = ", and for every memory model that keeps release and acquire" if everywhere else " under sc"
        covered.append(f"the program is determinate, {stands}{strong}")
    else:
        covered.append(f"one execution does not stand for all: {why_not}")
    return f"{'; '.join(covered)}; not covered: {'; '.join(_limits(program, why_not, searched))}"


def _turned(found: Exploration, name: str) -> str:
    """How many directed executions turned each race round; empty for other schedulers."""
    if name != DIRECTED or not found.tried:
        return ""
    return f" ({', '.join(f'{count} for race {number}' for number, count in enumerate(found.tried.values(), 1))})"


def _limits(program: Program, why_not: str | None, searched: SearchResult | None) -> Iterator[str]:
    if why_not is not None and (searched is None or not searched.complete):
        yield "schedules that were not explored"
    if all(agent.kind != "wave" for agent in program.agents):
        yield "order between the threads of a block (a block is one agent here; --waves splits it)"
    if any(isinstance(op, Wait) and op.bound for agent in program.agents for op in agent.ops):
        yield "waits bounded in polls that give up while others could still move (--early-timeout)"
    yield "other sizes, ranks, grids and numbers of calls than those given"
