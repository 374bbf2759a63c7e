"""Single changes of a program that may close a defect, made from the mechanism of the defect and nothing else.

A race has two accesses, an order between them that is missing, and the synchronisation around them; each kind of
candidate supplies such an order, or takes the two accesses apart. Whether a candidate closes anything is not decided
here: `lab.sim.change.repair` puts each to the checker.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.protocol.program import Order, Program, Scope
from lab.sim.change.repairs.buffers import buffers, separations
from lab.sim.change.repairs.candidate import Candidate, Pair, payload_lines
from lab.sim.change.repairs.orders import (
    conditions,
    grow_only,
    mappings,
    moves,
    order_is_enough,
    orders,
    patience,
    uncached,
)
from lab.sim.change.repairs.waits import BLOCK_BARRIER, barriers, fence, fences, handshakes, meetings, waits
from lab.sim.order.races import RaceReport
from lab.sim.order.verdict import Race


def for_race(program: Program, race: Race, report: RaceReport) -> Iterator[Candidate]:
    """Candidates for a race, the cheapest kinds first.

    Args:
        program: The program that races.
        race: The race.
        report: The race check that found it; its execution says who reads whose values.
    """
    pair = Pair.of(program, race)
    scope = Scope.SYSTEM if pair.apart else Scope.DEVICE
    by_order = order_is_enough(program, race)
    if by_order:
        yield from orders(program, scope)
    yield from conditions(program)
    yield from grow_only(program)
    yield from mappings(pair)
    if by_order:
        yield from fences(program, pair, scope)
    if any(agent.kind == "wave" for agent in program.agents):
        yield from barriers(program, pair, (BLOCK_BARRIER,))
    yield from waits(program, pair)
    yield from handshakes(program, pair)
    yield from barriers(program, pair, meetings(program, pair))
    for region in pair.regions:
        yield from separations(report, region, pair)
        yield from buffers(program, region)


def for_outcome(program: Program, regions: list[str], cached: bool) -> Iterator[Candidate]:
    """Candidates for wrong values, a hang or an abort that no race explains.

    Args:
        program: The program.
        regions: Regions in which a wrong value was read.
        cached: Also take memory out of the caches (only the memory model `weak` has caches).
    """
    yield from orders(program, Scope.SYSTEM)
    if cached:
        yield from uncached(program)
    yield from conditions(program)
    yield from grow_only(program)
    yield from patience(program)
    yield from moves(program)
    for line in payload_lines(program):
        yield fence(line, False, Order.RELEASE, Scope.SYSTEM)
    for region in regions:
        yield from buffers(program, region)
