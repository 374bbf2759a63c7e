"""Changing a program line by line, on all ranks, blocks and calls alike, as an edit of the protocol's text would.

A *line* is the operations of one kind at one place of the text, in one phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lab.protocol.program import (
    Agent,
    Barrier,
    Fence,
    Load,
    Memory,
    Move,
    Op,
    Program,
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
