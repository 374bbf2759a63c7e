"""Single changes of a text that may close a defect, made from the mechanism of the defect and nothing else.

A race has two accesses, an order between them that is missing, and the synchronisation around them; each kind of
candidate supplies such an order, or takes the two accesses apart. Whether a candidate closes anything is not decided
here: `lab.sim.change.repair` puts each to the checker, as it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lab.protocol.program import Order, Scope
from lab.sim.change.repairs.buffers import buffers, separations
from lab.sim.change.repairs.candidate import Candidate
from lab.sim.change.repairs.hosts import events, host_waits
from lab.sim.change.repairs.meetings import block_barriers, handshakes, meetings
from lab.sim.change.repairs.moves import phases, tell_first
from lab.sim.change.repairs.orders import caches, every_order, fence, fences, mappings, orders
from lab.sim.change.repairs.scene import Scene
from lab.sim.change.repairs.waits import conditions, copied, for_stored, grow_only, patience, thresholds
from lab.sim.change.text.source import Splice


def for_race(scene: Scene, closed_by: Callable[[tuple[Splice, ...]], bool]) -> Iterator[Candidate]:
    """Candidates for a race, the cheapest kinds first.

    Args:
        scene: The text, and the race.
        closed_by: Whether the race is gone with some changes, whatever else they do.
    """
    scope = Scope.SYSTEM if scene.apart else Scope.DEVICE
    ways = [scene, replace(scene, swapped=True)] if scene.distance == 0 else [scene]
    by_order = closed_by(every_order(scene))
    if by_order:
        yield from orders(scene, scope)
    yield from conditions(scene)
    yield from grow_only(scene)
    yield from thresholds(scene)
    yield from mappings(scene)
    for way in ways:
        if by_order:
            yield from fences(way, scope)
        yield from block_barriers(way)
    yield from phases(scene)
    yield from events(scene)
    for way in ways:
        yield from copied(way)
        yield from for_stored(way)
        yield from handshakes(way)
    for way in ways:
        yield from meetings(way)
    for region in scene.regions:
        yield from separations(scene, region)
        yield from buffers(scene, region)
    yield from host_waits(scene)


def for_outcome(scene: Scene, regions: list[str], cached: bool) -> Iterator[Candidate]:
    """Candidates for wrong values, a hang or an abort that no race explains.

    Args:
        scene: The text.
        regions: Regions in which a wrong value was read.
        cached: Also take memory out of the caches (only the memory model `weak` has caches).
    """
    yield from orders(scene, Scope.SYSTEM)
    if cached:
        yield from caches(scene)
    yield from conditions(scene)
    yield from grow_only(scene)
    yield from thresholds(scene)
    yield from patience(scene)
    yield from tell_first(scene)
    for line in scene.payload:
        for place in scene.around(line.source, line.statement, False)[:1]:
            yield fence(place, Order.RELEASE, Scope.SYSTEM)
    yield from events(scene)
    for region in dict.fromkeys((*regions, *_rings(scene))):
        yield from buffers(scene, region)
    yield from host_waits(scene)


def _rings(scene: Scene) -> list[str]:
    """Payload regions of several buffers that take turns: a hang may be for want of one more."""
    return [r.name for r in scene.program.regions if r.kind == "payload" and r.source is None and r.shape]
