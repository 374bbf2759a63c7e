"""What happened to the words and packets of an execution: who wrote them, and what each step read and wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.protocol import tables as t
from lab.protocol.expr import Binary, Expr, Reg
from lab.protocol.program import Agent, Cond, Load, Op, Rmw, Set, Store, Wait
from lab.sim.machine import weak_history
from lab.sim.machine.execution import Execution
from lab.sim.machine.scheduler import C_WRONG
from lab.sim.order.clocks import Clocks, clocks
from lab.sim.order.kinds import agent_of


@dataclass(frozen=True)
class Touch:
    """One operation on a word.

    Attributes:
        step: When it was made.
        agent, op: Whose it is, and what.
        value: What it read or, if `writes`, what it left behind.
        writes: Whether it wrote.
    """

    step: int
    agent: Agent
    op: Op
    value: int
    writes: bool


class History:
    """The words and packets of one execution, recorded in full."""

    def __init__(self, execution: Execution) -> None:
        self.execution, self.tables, self.log = execution, execution.tables, execution.log

    @cached_property
    def clocks(self) -> Clocks:
        """Which stamps were written, and which packets were joined."""
        return clocks(self.execution)

    def touches(self, word: int) -> list[Touch]:
        """All that was done to a word: writes in the order in which memory has them, reads behind what they saw."""
        steps = np.flatnonzero(
            (self.log.op[: self.execution.steps] >= 0) & (self.log.row[: self.execution.steps] == word)
        )
        touching = [self._touch(int(step)) for step in steps if self._is_of_word(int(step))]
        place = self._modification_order(word, [touch.step for touch in touching if touch.writes])
        if place is None:
            return sorted(touching, key=lambda touch: self._arrived.get(touch.step, touch.step))
        seen = {touch.step: place.get(int(self.log.seen[touch.step]), -1) for touch in touching if not touch.writes}
        return sorted(touching, key=lambda t: (place[t.step], 0, t.step) if t.writes else (seen[t.step], 1, t.step))

    def _is_of_word(self, step: int) -> bool:
        return int(self.tables.ops[int(self.log.op[step]), t.KIND]) in (t.LOAD, t.STORE, t.RMW, t.WAIT)

    def _touch(self, step: int) -> Touch:
        op = self.tables.op(int(self.log.op[step]))
        writes = isinstance(op, Store) or (isinstance(op, Rmw) and not self.failed(step))
        return Touch(step, agent_of(self.execution, step), op, int(self.log.value[step]), writes)

    @cached_property
    def _arrived(self) -> dict[int, int]:
        """The step at which each posted store reached memory."""
        arrivals = np.flatnonzero(self.log.op[: self.execution.steps] == -1)
        return {int(self.log.row[step]): int(step) for step in arrivals}

    def _modification_order(self, word: int, writes: list[int]) -> dict[int, int] | None:
        """Under `weak`, the place of each write among those of its word; None: they came in the order of the steps."""
        if self.execution.memory != "weak":
            return None
        state = self.execution.state
        message, order = int(state.word_head[word]), []
        while message >= 0:
            order.append(int(state.words[message, weak_history.STEP]))
            message = int(state.words[message, weak_history.OLDER])
        places = {step: place for place, step in enumerate(reversed(order))}
        return {step: places.get(step, -1) for step in writes}

    def failed(self, step: int) -> bool:
        """Whether a step is a compare-and-swap that left the word as it was."""
        op = self.tables.op(int(self.log.op[step]))
        return isinstance(op, Rmw) and op.fn == "cas" and int(self.log.value[step]) == self.before(step)

    def before(self, step: int) -> int:
        """What a word held for a step that read it."""
        seen = int(self.log.seen[step])
        return int(self.log.value[seen]) if seen >= 0 else int(self.tables.word_initial[int(self.log.row[step])])

    def register(self, agent: Agent, register: int) -> int | None:
        """The step at which an agent last loaded a register; None: it computed it."""
        for step in np.flatnonzero(self.log.op[: self.execution.steps] >= 0)[::-1].tolist():
            row = int(self.log.op[step])
            if int(self.tables.ops[row, t.AGENT]) == agent.id and int(self.tables.ops[row, t.DST]) == register:
                return step if isinstance(self.tables.op(row), (Load, Rmw)) else None
        return None

    def registers(self, agent: Agent, expr: Expr) -> Iterator[str]:
        """What the registers of an expression hold, and which store gave it."""
        for reg in dict.fromkeys(self._loaded(agent, expr)):
            step = self.register(agent, reg.index)
            held = int(self.execution.state.registers[agent.id, reg.index])
            yield f"{reg.name} = {held}" + ("" if step is None else f", read at step {step}{self._given(step)}")

    def _loaded(self, agent: Agent, expr: Expr) -> Iterator[Reg]:
        """The registers of an expression, and of what those were computed from."""
        if isinstance(expr, Binary):
            yield from self._loaded(agent, expr.left)
            yield from self._loaded(agent, expr.right)
        elif isinstance(expr, Reg):
            made = next((op for op in agent.ops if isinstance(op, Set) and op.dst == expr.index), None)
            yield expr
            if made is not None:
                yield from (reg for reg in self._loaded(agent, made.value) if reg.index != expr.index)

    def _given(self, step: int) -> str:
        seen = int(self.log.seen[step])
        if seen < 0:
            return ", what the word holds at first"
        return f", which {agent_of(self.execution, seen).name} wrote at step {seen}"

    # ---- one step

    def told(self, step: int) -> str:
        """What a step read and wrote, in words; empty: nothing that is a word, a stamp or payload."""
        row = int(self.log.op[step])
        op, kind = self.tables.op(row), int(self.tables.ops[row, t.KIND])
        value, seen = int(self.log.value[step]), int(self.log.seen[step])
        of = f"written at step {seen}" if seen >= 0 else "what it holds at first"
        if isinstance(op, Wait) and op.cond is Cond.SUM_LE:
            return ""
        if isinstance(op, (Load, Wait)):
            return f"sees {value}, {of}"
        if isinstance(op, Store):
            return f"writes {value}"
        if isinstance(op, Rmw):
            old = self.before(step)
            return f"finds {old}, {of}; " + ("leaves it" if self.failed(step) else f"makes it {value}")
        if kind == t.MOVE:
            stamp = int(self.clocks.stamp[step]) if self.tables.ops[row, t.STAMP] >= 0 else -1
            told = (self._sources(step), f"stamps {stamp}" if stamp >= 0 else "")
            return "; ".join(filter(None, told))
        if kind == t.EXPECT:
            count = int(self.execution.state.counts[C_WRONG])
            wrong = bool(np.any(self.log.wrong[:count, 0] == row))
            return f"{self._sources(step)}; {'not what is due' if wrong else 'as is due'}"
        return ""

    def _sources(self, step: int) -> str:
        """Which steps wrote what a step read."""
        row = int(self.log.row[step])
        move = self.tables.moves[row]
        first, count = int(self.execution.static.reads_at[row]), int(move[t.M_COUNT]) * max(0, int(move[t.M_N_SOURCES]))
        seen = np.unique(self.log.reads[first : first + count]).tolist()
        if not seen:
            return ""
        steps = [str(each) for each in seen if each >= 0]
        shown = f"{', '.join(steps[:6])}{f' and {len(steps) - 6} more' if len(steps) > 6 else ''}"
        parts = [f"step{'s' if len(steps) > 1 else ''} {shown}"] if steps else []
        wrote = f"step{'s' if len(steps) > 1 else ''} {shown} wrote"
        parts = [f"what {wrote}"] if steps else []
        return "reads " + " and ".join([*parts, *(["what was there at first"] if -1 in seen else [])])
