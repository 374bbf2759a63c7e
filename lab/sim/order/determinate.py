"""When one execution stands for every schedule.

A program is *determinate* when no choice of the scheduler can change what any operation reads from a word. Then every
schedule executes the same operations, the races of one execution are the races of all, and without races the outcome of
one is the outcome of all. It is enough that, by the clocks of one execution under `sc`,

* a load or read-modify-write whose result is used (by a branch, an address, a value or a wait) is ordered with every
  other write of its word;
* writes of one word that are not ordered are additions whose results nobody uses, or stores of one value;
* every wait is *stable*: no write that the order allows between the one that met it and the waiter's look unmeets it,
  and no addition beyond the one that met it could have met it instead;
* no bounded wait gave up.

A wait that only counts is left out before (`_without_counting`): it chooses when its agent goes on, never with what.
The stamps of packets are words here, one a cell.

Steps that nothing orders then commute, so any schedule can be turned into the one executed by swapping neighbours
(Mazurkiewicz 1987). Tested against all schedules of random programs; not machine-proved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lab.protocol import tables as t
from lab.protocol.expr import MASK, Const
from lab.protocol.program import (
    Cond,
    Expect,
    Load,
    Move,
    Op,
    Order,
    Rmw,
    Scope,
    Store,
    Wait,
    WaitStamp,
)
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.machine.execution import Execution, execute
from lab.sim.order.clocks import Clocks, clocks
from lab.sim.order.events import NotStraightError, used_registers
from lab.sim.order.fixed_words import touched
from lab.sim.order.races import find_races
from lab.sim.order.straight import straighten
from lab.sim.order.visibility import every_poll_sees


def why_not_determinate(execution: Execution, racy: bool) -> str | None:
    """The first reason why one execution does not stand for every schedule; None: it does.

    Args:
        execution: Recorded under `sc`.
        racy: Whether it has payload races.
    """
    if execution.state.counts[m.C_TIMEOUTS]:
        return "a bounded wait gave up"
    if execution.outcome != m.DONE:
        return "the execution did not end"
    execution = _without_counting(execution)
    reason = next(_reasons(execution, clocks(execution, guards_only=True), racy), None)
    return reason or _not_straight(execution, racy)


def _not_straight(execution: Execution, racy: bool) -> str | None:
    """Why the program has no straight form, or races in another schedule alone; None: neither.

    The clocks of one execution say what happened to order it. The straight form is stricter: it holds each wait against
    every set of writes that could meet it, such as two equal stores of which either lets the waiter go. And it knows no
    order by additions that happened to follow each other.
    """
    try:
        straight = straighten(execution.tables, "sc", execution)
    except NotStraightError as problem:
        return problem.what
    if straight.racy and not racy:
        return "payload that this execution orders, by additions that happened to follow each other, races in another"
    return None


def holds_under_every_model(execution: Execution) -> bool:
    """Whether a race-free, determinate execution is so by releases and acquires alone.

    Then it does the same under every memory model that keeps them (`posted`, `weak`). What a load or read-modify-write
    acquires does not count: it is there only if the value is, which is the question. Sufficient, not necessary: order
    that rests on the coherence of one word is not seen. What waits poll must become visible without help, too.
    """
    if not every_poll_sees(execution.tables):
        return False
    execution = _without_counting(execution)
    found = find_races(execution.tables, execution, waits_only=True)
    return not found.races and next(_reasons(execution, found.clocks, False), None) is None


def _without_counting(execution: Execution) -> Execution:
    """The program without its waits that only count, executed; `execution` itself if it has none.

    Such a wait is relaxed, for a word to be at least so much, and all writes of the word are relaxed additions at the
    scope of a wave whose results nobody uses. It gives no order to any access, a write never unmeets it, and which of
    the additions met it makes no difference. So each schedule of the program is one of the program without the wait.
    If that is determinate, no step ever disables another, with the wait as without: all schedules end if one does.
    """
    tables = execution.tables
    counters = _counters(tables)
    ops = tables.ops.copy()
    row = 0
    for agent in tables.program.agents:
        for op in agent.ops:
            if isinstance(op, Wait) and op.word.region.id in counters and _only_counts(op):
                ops[row, t.KIND] = t.NOP
            row += 1
    return execute(replace(tables, ops=ops)) if np.any(ops != tables.ops) else execution


def _counters(tables: Tables) -> set[int]:
    """Ids of the regions that nobody writes but by additions which release nothing and do not wrap."""
    regions = tables.program.regions
    total: dict[int, int] = {region.id: region.initial for region in regions if region.kind == "words"}
    other, used = set(), used_registers(tables)
    for agent in tables.program.agents:
        for op in agent.ops:
            if isinstance(op, (Store, Rmw)):
                total[op.word.region.id] += op.value.value if isinstance(op.value, Const) else MASK
                counts = isinstance(op, Rmw) and op.fn == "add" and _releases_nothing(op)
                if not counts or (op.dst is not None and used[agent.id, op.dst]):  # type: ignore[union-attr]
                    other.add(op.word.region.id)
    return {region for region, most in total.items() if most <= MASK} - other


def _releases_nothing(op: Rmw) -> bool:
    return op.order is Order.RELAXED and op.scope is Scope.WAVE


def _only_counts(op: Wait) -> bool:
    return (
        op.order is Order.RELAXED
        and op.cond is Cond.GE
        and op.of is None
        and not op.others
        and op.bound is op.seconds is None
    )


def _reasons(execution: Execution, guards: Clocks, racy: bool) -> Iterator[str]:
    agents = execution.tables.program.agents
    used = used_registers(execution.tables)
    for agent in agents:
        for op in agent.ops:
            if isinstance(op, Wait) and op.others:
                yield f"{agent.name} waits for any of several words ({op.site}), and which of them comes first is open"
            if isinstance(op, Wait) and op.cond is Cond.SUM_LE:
                yield f"{agent.name} waits for a sum of words ({op.site}), which several orders of writes can meet"
            if isinstance(op, Expect) and racy and op.dst is not None and used[agent.id, op.dst]:
                yield f"{agent.name} decides by a payload that races ({op.site})"
    values = np.where(guards.stamp >= 0, guards.stamp, execution.log.value[: execution.steps])
    for steps in _word_accesses(execution).values():
        yield from _Word(execution, guards, used, values, steps, guards.joined[steps]).reasons()
    for steps, joined in _stamp_accesses(execution, guards):
        yield from _Word(execution, guards, used, values, steps, joined).reasons()


class _Word:
    """The accesses of one word, or of the stamp of a cell, in one execution, in the order they happened.

    values: what each step of the execution writes; steps, joined: the accesses, and of each wait the write that met it.
    """

    def __init__(
        self,
        execution: Execution,
        guards: Clocks,
        used: np.ndarray,
        values: np.ndarray,
        steps: np.ndarray,
        joined: np.ndarray,
    ) -> None:
        self._clocks, self._log, self._used = guards, execution.log, used
        self._tables, self._values = execution.tables, values
        self._steps, self._joined = steps, dict(zip(steps.tolist(), joined.tolist(), strict=True))
        self._writes = np.array([s for s in steps if isinstance(self._op(s), (Store, Rmw, Move))], np.int64)
        self._waited_for = self._packets()

    def _packets(self) -> dict[int, int]:
        """Of each packet that an agent writes after it has waited for another in the same cell, that other one."""
        found, last = {}, {}
        for step in self._steps.tolist():
            agent = int(self._tables.ops[self._log.op[step], t.AGENT])
            if isinstance(self._op(step), WaitStamp):
                last[agent] = self._joined[step]
            elif last.get(agent, -1) >= 0:
                found[step] = last[agent]
        return found

    def reasons(self) -> Iterator[str]:
        for step in self._steps:
            op = self._op(step)
            loose = self._loose(step)
            if isinstance(op, (Load, Rmw)) and len(loose) and self._is_used(step, op):
                yield f"what {op.word} holds when it is read depends on the schedule ({op.site})"
            if isinstance(op, (Store, Rmw, Move)) and not all(self._commute(step, op, w) for w in loose):
                yield f"{touched(op)} is written by several agents that nothing orders ({op.site})"
            if isinstance(op, (Wait, WaitStamp)) and self._unstable(step, op, loose):
                yield f"which writes of {touched(op)} meet a wait, and still do when it looks, is open ({op.site})"

    def _op(self, step: int) -> Op:
        return self._tables.op(int(self._log.op[step]))

    def _loose(self, step: int) -> np.ndarray:
        """Writes that are not ordered with `step`."""
        c, w = self._clocks, self._writes
        before = c.rows[step, c.chain[w]] >= c.time[w]
        after = c.rows[w, c.chain[step]] >= c.time[step]
        if self._waited_for:
            packet = self._waited_for.get(step, step)
            before |= (w == packet) | (c.rows[packet, c.chain[w]] >= c.time[w])
            packets = np.array([self._waited_for.get(write, write) for write in w.tolist()], np.int64)
            after |= (packets == step) | (c.rows[packets, c.chain[step]] >= c.time[step])
        return w[~(before | after)]

    def _is_used(self, step: int, op: Load | Rmw) -> bool:
        return op.dst is not None and bool(self._used[self._tables.ops[self._log.op[step], t.AGENT], op.dst])

    def _commute(self, step: int, op: Store | Rmw | Move, other: int) -> bool:
        second = self._op(other)
        if isinstance(op, Rmw) and isinstance(second, Rmw):
            return op.fn == second.fn == "add" and not self._is_used(step, op) and not self._is_used(other, second)
        return type(op) is type(second) and int(self._values[step]) == int(self._values[other])

    def _unstable(self, step: int, op: Wait | WaitStamp, loose: np.ndarray) -> bool:
        """Whether a write that may come before the waiter's look unmeets the wait, or could have met it instead.

        An addition that itself comes after all writes up to the one that met the wait finds it met already.
        """
        joined, wanted = self._joined[step], int(self._clocks.wanted[step])
        needed = self._writes[self._writes <= joined]
        for write in loose[loose > joined].tolist():
            fn = int(self._tables.ops[self._log.op[step], t.FN])
            if not words.met.py_func(self._tables.tests, fn, int(self._values[write]), wanted):
                return True
            c = self._clocks
            if isinstance(self._op(write), Rmw) and not np.all(c.rows[write, c.chain[needed]] >= c.time[needed]):
                return True
        return False


def _word_accesses(execution: Execution) -> dict[int, np.ndarray]:
    log, ops = execution.log, execution.tables.ops
    rows = log.op[: execution.steps]
    steps = np.flatnonzero(rows >= 0)
    kinds = ops[rows[steps], t.KIND]
    found: dict[int, list[int]] = defaultdict(list)
    for step in steps[(kinds == t.LOAD) | (kinds == t.STORE) | (kinds == t.RMW) | (kinds == t.WAIT)].tolist():
        found[int(log.row[step])].append(step)
    return {word: np.array(touching, np.int64) for word, touching in found.items()}


def _stamp_accesses(execution: Execution, found: Clocks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The packets and waits of each cell (steps, and of each wait the packet that met it), alike cells only once."""
    tables, log = execution.tables, execution.log
    cells, steps, joined = [found.polls[:, 1]], [found.polls[:, 0]], [found.polls[:, 2]]
    for step in np.flatnonzero(found.stamp >= 0).tolist():
        move = tables.moves[log.row[step]]
        cells.append(tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]])
        steps.append(np.full(move[t.M_COUNT], step))
        joined.append(np.full(move[t.M_COUNT], -1))
    cell, step_of, join_of = np.concatenate(cells), np.concatenate(steps), np.concatenate(joined)
    order = np.lexsort((step_of, cell))
    edges = np.flatnonzero(np.diff(cell[order], prepend=-1, append=-1))
    seen: set[bytes] = set()
    for lo, hi in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        alike = np.stack((step_of[order[lo:hi]], join_of[order[lo:hi]])).astype(np.int64)
        if alike.tobytes() not in seen:
            seen.add(alike.tobytes())
            yield alike[0], alike[1]
