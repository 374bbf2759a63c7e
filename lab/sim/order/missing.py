"""Which order a race lacks, in words: what each side does, and where the chain from one to the other breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Agent, Cond, Fence, Load, Op, Rmw, Scope, Store, Wait
from lab.sim.machine.execution import Execution
from lab.sim.order.clocks import Clocks
from lab.sim.order.kinds import agent_of


@dataclass(frozen=True)
class Missing:
    """An order that is missing.

    Attributes:
        text: What each side does, and why that does not connect them.
        release, acquire: The lines between which it is missing (see `Race`).
    """

    text: str
    release: str
    acquire: str


def missing_order(execution: Execution, clocks: Clocks, first: int, second: int) -> Missing:
    """What the agent of step `first` does after it, that of `second` before it, and why that does not connect them."""
    one, two = agent_of(execution, first), agent_of(execution, second)
    release = next((step for step in _steps_after(execution, first) if _releases(_op(execution, step))), None)
    acquire = next((step for step in _steps_before(execution, second) if _acquires(_op(execution, step))), None)
    after = (
        f"{one.name} releases nothing after it"
        if release is None
        else f"after it, {one.name} next releases at {_named(execution, release)}"
    )
    b = _position(execution, second)
    before = (
        f"{two.name} acquires nothing before its op {b}"
        if acquire is None
        else f"{two.name} last acquires at {_named(execution, acquire)}, before its op {b}"
    )
    text = (
        f"nothing makes {two.name}, op {b}, wait until {one.name} is done with op {_position(execution, first)}: "
        f"{after}; {before}; and {_broken_link(execution, clocks, first, second)}"
    )
    lines = ("" if step is None else str(_op(execution, step).site) for step in (release, acquire))
    return Missing(text, *lines)


def _broken_link(execution: Execution, clocks: Clocks, first: int, second: int) -> str:
    """Why the word that the one side writes after its access and the other reads before its own gives no order."""
    two = agent_of(execution, second)
    for read in _steps_before(execution, second):
        op = _op(execution, read)
        if not isinstance(op, (Wait, Load, Rmw)) or (isinstance(op, Wait) and op.cond is Cond.SUM_LE):
            continue
        write = next((step for step in _steps_after(execution, first) if _writes_word_of(execution, step, read)), None)
        if write is None:
            continue
        seen = int(clocks.joined[read])
        where = f"{two.name}, {_named(execution, read)}"
        if seen < 0:
            return f"{where}, is met by what the word holds at first, before {_named(execution, write)} writes it"
        if seen < write:
            return f"{where}, is met by {agent_of(execution, seen).name}, {_named(execution, seen)}, without that"
        reason = _no_order(execution, first, write, read, second)
        if reason is not None:
            return f"{_named(execution, write)} reaches {where}, but {reason}"
    return "no path of releases and acquires leads from there to here"


def _no_order(execution: Execution, first: int, write: int, read: int, second: int) -> str | None:
    """Why a read that sees a write gives no order; None: the two do, so the chain breaks elsewhere."""
    stored, loaded = _op(execution, write), _op(execution, read)
    assert isinstance(stored, (Store, Rmw)) and isinstance(loaded, (Wait, Load, Rmw))
    if not stored.order.releases and not _fence(execution, first, write, lambda fence: fence.order.releases):
        return "the write is relaxed and no release fence stands between"
    if not loaded.order.acquires and not _fence(execution, read, second, lambda fence: fence.order.acquires):
        return "the read is relaxed and no acquire fence stands between"
    needed = _needed(agent_of(execution, write), agent_of(execution, read))
    for side, op in (("write", stored), ("read", loaded)):
        if op.scope < needed:
            return f"the {side} is at {op.scope.name.lower()} scope, which does not include the other side"
    return None


def _needed(one: Agent, two: Agent) -> Scope:
    if "host" in (one.kind, two.kind) or one.rank != two.rank:
        return Scope.SYSTEM
    return Scope.BLOCK if (one.sequence, one.block) == (two.sequence, two.block) else Scope.DEVICE


def _fence(execution: Execution, after: int, before: int, wanted: Callable[[Fence], bool]) -> bool:
    """Whether the agent of `after` executes a fence, or crosses a kernel boundary, between two of its steps."""
    for step in _steps_after(execution, after):
        op = _op(execution, step)
        if step >= before:
            return False
        if (isinstance(op, Fence) and wanted(op)) or getattr(op, "boundary", False):
            return True
    return False


def _writes_word_of(execution: Execution, step: int, read: int) -> bool:
    return isinstance(_op(execution, step), (Store, Rmw)) and execution.log.row[step] == execution.log.row[read]


def _op(execution: Execution, step: int) -> Op:
    return execution.tables.op(int(execution.log.op[step]))


def _position(execution: Execution, step: int) -> int:
    return int(execution.tables.ops[execution.log.op[step], t.POSITION])


def _named(execution: Execution, step: int) -> str:
    return f"op {_position(execution, step)} ({_op(execution, step).describe()})"


def _steps_after(execution: Execution, step: int) -> Iterator[int]:
    """Later steps of the agent of `step`."""
    steps = _steps_of_agent(execution, step)
    return iter(steps[steps > step].tolist())


def _steps_before(execution: Execution, step: int) -> Iterator[int]:
    """Earlier steps of the agent of `step`, the last first."""
    steps = _steps_of_agent(execution, step)
    return iter(steps[steps < step][::-1].tolist())


def _steps_of_agent(execution: Execution, step: int) -> np.ndarray:
    rows = execution.log.op[: execution.steps]
    agents = execution.tables.ops[:, t.AGENT]
    return np.flatnonzero((rows >= 0) & (agents[rows] == agents[rows[step]]))


def _releases(op: Op) -> bool:
    return isinstance(op, (Store, Rmw, Fence)) and op.order.releases


def _acquires(op: Op) -> bool:
    return isinstance(op, (Wait, Load, Rmw, Fence)) and op.order.acquires
