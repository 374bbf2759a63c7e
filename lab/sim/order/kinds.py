"""When two races are the same: the lines of both accesses, which comes after which, and how far apart they are.

A race of another execution, of a smaller configuration, or of a changed program is the same one if its key is. What
reads after a write and what writes after a read between the same two lines are two races with two remedies; so are a
race with the next call and one with the call after that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Agent, Site
from lab.protocol.tables import Tables
from lab.sim.machine.execution import Execution
from lab.sim.order.verdict import Race

READ, WRITE, WAIT = range(3)
"""What an access does to a cell."""
ACCESS_KINDS = ("read", "write", "wait")


class Place(NamedTuple):
    """A line of the protocol, in one of its phases."""

    line: str
    phase: str


class Key(NamedTuple):
    """What makes two races of different executions or configurations the same.

    Attributes:
        first, second: Where the access that should come first is written, and the other.
        direction: What the second does after what: "read after write", "write after read", ...
        across: Whether they are of different ranks.
        calls, launches: How many launches of the protocol, and kernels of any kind, lie from the first to the second;
            0 where one of them is of a host.
    """

    first: Place
    second: Place
    direction: str
    across: bool
    calls: int
    launches: int

    @property
    def lines(self) -> tuple[Place, Place, str, bool]:
        """The same without the distance."""
        return self.first, self.second, self.direction, self.across


def key_of(race: Race) -> Key:
    """The key of a race."""
    one, two = race.first, race.second
    calls, launches = race.distance
    return Key(
        Place(one.line, one.phase), Place(two.line, two.phase), race.direction, one.rank != two.rank, calls, launches
    )


def direction(first: str, second: str) -> str:
    """What the second of two accesses does after the first, such as "read after write"."""
    return f"{second} after {first}"


def distance(one: Agent, two: Agent) -> tuple[int, int]:
    """Launches of the protocol, and kernels of any kind, from one agent to another; (0, 0) if one is a host."""
    if "host" in (one.kind, two.kind):
        return 0, 0
    return two.call - one.call, two.sequence - one.sequence


def key_of_steps(execution: Execution, a: int, b: int, kinds: tuple[int, int]) -> Key:
    """The key of a race between steps `a` and `b`, which do `kinds` (READ, WRITE, WAIT)."""
    first, second = in_order(execution, a, b, kinds)
    ops = [execution.tables.op(int(execution.log.op[step])) for step in (first, second)]
    one, two = agent_of(execution, first), agent_of(execution, second)
    done = dict(zip((a, b), (ACCESS_KINDS[kind] for kind in kinds), strict=True))
    places = (Place(str(op.site), op.phase) for op in ops)
    return Key(*places, direction(done[first], done[second]), one.rank != two.rank, *distance(one, two))


def in_order(execution: Execution, a: int, b: int, kinds: tuple[int, int]) -> tuple[int, int]:
    """Two steps, the one that should come first first, whichever did in this execution.

    The earlier launch; within a launch, where both agents run both lines, the one that comes first in the text, else
    the write; of two alike, the one whose line or agent stands first.
    """
    one, two = agent_of(execution, a), agent_of(execution, b)
    if one.sequence != two.sequence and "host" not in (one.kind, two.kind):
        return (a, b) if one.sequence < two.sequence else (b, a)
    rows = execution.log.op[[a, b]]
    positions = execution.tables.ops[rows, t.POSITION].tolist()
    sites = [execution.tables.op(int(row)).site for row in rows]
    if (kinds[0] == WRITE) != (kinds[1] == WRITE):
        # An operation's number means nothing to another agent, whose text may be longer; its line does.
        places = _places(one, sites) if _runs(two, sites[0]) and _runs(two, sites[1]) else None
        if places is not None and sites[0] == sites[1]:
            places = positions
        if places is not None and places[0] != places[1]:
            return (a, b) if places[0] < places[1] else (b, a)
        return (a, b) if kinds[0] == WRITE else (b, a)
    lines = [site.line for site in sites]
    return (a, b) if (lines[0], positions[0], one.id) <= (lines[1], positions[1], two.id) else (b, a)


def _places(agent: Agent, sites: list[Site]) -> list[int] | None:
    """Where an agent of a kernel first runs each of some lines; None: not all of them."""
    if not all(_runs(agent, site) for site in sites):
        return None
    return [next(place for place, op in enumerate(agent.ops) if op.site == site) for site in sites]


def _runs(agent: Agent, site: Site) -> bool:
    """Whether an agent of a kernel runs a line."""
    return agent.kind in ("block", "wave") and any(op.site == site for op in agent.ops)


def agent_of(execution: Execution, step: int) -> Agent:
    """Whose step it is."""
    tables: Tables = execution.tables
    return tables.program.agents[int(tables.ops[execution.log.op[step], t.AGENT])]


def pair_kinds(pair: np.ndarray) -> tuple[int, int]:
    """What the two steps of a row of `races.conflicts` do."""
    return int(pair[4]), int(pair[5])
