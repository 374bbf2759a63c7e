"""Changing a program line by line, on all ranks, blocks and calls alike, as an edit of the protocol's text would.

A *line* is the operations of one kind at one place of the text, in one phase. A *visit* is one turn of an agent at a
line: what a loop over peers records there is one visit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lab.protocol.program import (
    Agent,
    Barrier,
    Branch,
    Fence,
    Load,
    Memory,
    Move,
    Op,
    Program,
    Region,
    Rmw,
    Site,
    Store,
    Wait,
    WaitStamp,
)

SYNCHRONISING = (Load, Store, Rmw, Wait, Fence)
_RUNTIME = ("launch", "kernel end", "host", "timeout", "produce", "consume")


@dataclass(frozen=True)
class Line:
    """Operations of one kind at one line and phase, of all agents."""

    site: Site
    phase: str
    kind: type[Op]

    def holds(self, op: Op) -> bool:
        """Whether `op` is one of them."""
        return type(op) is self.kind and op.site == self.site and op.phase == self.phase

    def change(self, change: Callable[[Op], Op], program: Program) -> Program:
        """The program with each of them changed."""
        return changed(program, lambda op: change(op) if self.holds(op) else op)

    def __str__(self) -> str:
        return str(self.site)


def line_of(op: Op) -> Line:
    """The line that an operation stands at."""
    return Line(op.site, op.phase, type(op))


def changed(program: Program, change: Callable[[Op], Op]) -> Program:
    """The program with every operation changed."""
    agents = tuple(replace(agent, ops=tuple(map(change, agent.ops))) for agent in program.agents)
    return replace(program, agents=agents)


def own_lines(program: Program, kinds: tuple[type[Op], ...] = SYNCHRONISING) -> dict[Line, Op]:
    """One example for each line of some kinds in the protocol's own text; what the runtime adds is left out."""
    found: dict[Line, Op] = {}
    for agent in program.agents:
        if is_own(agent):
            for op in agent.ops:
                if op.phase not in _RUNTIME and isinstance(op, kinds) and not _inside_a_barrier(op):
                    found.setdefault(line_of(op), op)
    return found


def packet_lines(program: Program) -> dict[Line, Op]:
    """As `own_lines`, of packets and the waits for them."""
    found: dict[Line, Op] = {}
    for agent in program.agents:
        if is_own(agent):
            for op in agent.ops:
                if isinstance(op, WaitStamp) or (isinstance(op, Move) and op.stamp is not None):
                    found.setdefault(line_of(op), op)
    return found


def is_own(agent: Agent) -> bool:
    """Whether an agent runs the protocol's text: hosts and other kernels on the stream do not."""
    return agent.kind in ("block", "wave")


def is_barrier(op: Op) -> bool:
    """Whether the operation is the wait of a block barrier of waves."""
    return isinstance(op, Wait) and op.word.region.memory is Memory.BLOCK_SHARED


def _inside_a_barrier(op: Op) -> bool:
    """Whether the operation only counts in a block barrier of waves: the barrier is its wait."""
    words = getattr(op, "word", None)
    return words is not None and words.region.memory is Memory.BLOCK_SHARED and not isinstance(op, Wait)


def dropped(op: Op) -> Op:
    """An operation that does nothing, in the place of `op`."""
    return Barrier(site=op.site, phase=op.phase)


# ---- adding operations


@dataclass
class Additions:
    """Operations to add to a program: (agent, position) -> operations before, or after, the one that stands there."""

    before: dict[tuple[int, int], list[Op]] = field(default_factory=lambda: defaultdict(list))
    after: dict[tuple[int, int], list[Op]] = field(default_factory=lambda: defaultdict(list))

    def into(self, program: Program, regions: Sequence[Region] = ()) -> Program:
        """The program with the operations, and `regions` appended. Jumps lead where they led, additions before."""
        agents = tuple(self._agent(agent) for agent in program.agents)
        return replace(program, agents=agents, regions=(*program.regions, *regions))

    def _agent(self, agent: Agent) -> Agent:
        ops: list[Op] = []
        place: list[int] = []
        for position, op in enumerate(agent.ops):
            place.append(len(ops))
            ops += [*self.before.get((agent.id, position), ()), op, *self.after.get((agent.id, position), ())]
        place.append(len(ops))
        if len(ops) == len(agent.ops):
            return agent
        added = {id(op) for table in (self.before, self.after) for new in table.values() for op in new}
        return replace(agent, ops=tuple(op if id(op) in added else _led(op, place) for op in ops))


def _led(op: Op, place: list[int]) -> Op:
    if isinstance(op, Branch):
        return replace(op, target=place[op.target])
    if isinstance(op, (Wait, WaitStamp)) and op.on_timeout is not None:
        return replace(op, on_timeout=place[op.on_timeout])
    return op


# ---- visits


@dataclass(frozen=True)
class Visit:
    """One turn of one agent at a line: operations `first` to `last`; turns of a rank's block count from 1."""

    agent: Agent
    first: int
    last: int
    turn: int


def visits(program: Program, line: Line) -> list[Visit]:
    """All visits of a line: one a launch, or, where one launch does all calls, one for each run of its operations."""
    runs: dict[tuple[int, int, int], list[tuple[Agent, int, int]]] = defaultdict(list)
    for agent in sorted(program.agents, key=lambda agent: (agent.sequence, agent.id)):
        found = list(_runs(agent, line))
        if found:
            runs[agent.rank, agent.block, agent.wave] += [(agent, first, last) for first, last in found]
    made = []
    for own in runs.values():
        agents = {agent.id for agent, _, _ in own}
        if len(agents) > 1:
            own = [_whole([run for run in own if run[0].id == id]) for id in dict.fromkeys(run[0].id for run in own)]
        made += [Visit(agent, first, last, turn) for turn, (agent, first, last) in enumerate(own, 1)]
    return made


def _whole(runs: list[tuple[Agent, int, int]]) -> tuple[Agent, int, int]:
    return runs[0][0], runs[0][1], runs[-1][2]


def _runs(agent: Agent, line: Line) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of neighbouring operations of the line."""
    first = last = -1
    for position, op in enumerate(agent.ops):
        if not line.holds(op):
            continue
        if first >= 0 and position != last + 1:
            yield first, last
            first = position
        first = position if first < 0 else first
        last = position
    if first >= 0:
        yield first, last


def beside(added: Additions, visit: Visit, before: bool, ops: list[Op]) -> None:
    """Add operations before the first or after the last of a visit."""
    table, position = (added.before, visit.first) if before else (added.after, visit.last)
    table[visit.agent.id, position] += ops
