"""What a candidate for a repair is, and what a race offers to make one of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from lab.protocol.program import Agent, Move, Op, Program
from lab.sim.change.edit import Line, is_own, line_of
from lab.sim.change.slots import spans_of
from lab.sim.order.verdict import Access, Race

Change = Callable[[Program], "Program | None"]


class Cost(IntEnum):
    """What a change costs at run time, the cheapest first."""

    ORDER = 0
    MAPPING = 1
    FENCE = 2
    BLOCK_BARRIER = 3
    WAIT = 4
    HANDSHAKE = 5
    BARRIER = 6
    BUFFER = 7
    BUFFERS = 8


@dataclass(frozen=True)
class Candidate:
    """One change of a protocol's text.

    Attributes:
        cost: What it costs.
        what: The change in words, with the lines it is about.
        write: What to write where, in the words of the protocol language, one line each.
        change: Makes it; None: it cannot be made in that program.
        unless: Weaker candidates, by `what`: if one of them is enough, this one says nothing new.
    """

    cost: Cost
    what: str
    write: tuple[str, ...]
    change: Change
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The two accesses of a race in the program: agents, operations, lines."""

    agents: tuple[Agent, Agent]
    positions: tuple[int, int]
    lines: tuple[Line, Line]
    regions: tuple[str, ...]

    @staticmethod
    def of(program: Program, race: Race) -> Pair:
        """The two accesses of `race`, which was found in `program`."""
        found = [_found(program, access) for access in (race.first, race.second)]
        ops = [agent.ops[position] for agent, position in found]
        names = [{span.region.name for _, _, span in spans_of(op)} for op in ops]
        declared = [r.name for r in program.regions if r.source is None]
        return Pair(
            (found[0][0], found[1][0]),
            (found[0][1], found[1][1]),
            (line_of(ops[0]), line_of(ops[1])),
            tuple(sorted(name for name in names[0] & names[1] if name in declared)),
        )

    @property
    def apart(self) -> bool:
        """Whether the accesses belong to different ranks."""
        return self.agents[0].rank != self.agents[1].rank

    @property
    def own(self) -> tuple[bool, bool]:
        """Whether each access stands in the protocol's own text."""
        return is_own(self.agents[0]), is_own(self.agents[1])


def _found(program: Program, access: Access) -> tuple[Agent, int]:
    return next(agent for agent in program.agents if agent.name == access.agent), access.op


def payload_lines(program: Program) -> dict[Line, Op]:
    """One example for each line of the protocol's own text that copies or reduces."""
    return {line_of(op): op for agent in program.agents if is_own(agent) for op in agent.ops if isinstance(op, Move)}


def fresh_name(program: Program, name: str) -> str:
    """`name`, with a number behind it if a region of the program is called so."""
    taken = {region.name for region in program.regions}
    return next(n for n in (name, *(f"{name} {k}" for k in range(2, len(taken) + 3))) if n not in taken)
