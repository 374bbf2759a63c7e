"""Straight form: a determinate program reduced to threads of steps whose only state is how far each thread is.

The log of one execution fixes which operations every agent executes and with which operands
(`lab.sim.order.determinate`). What remains of a program is then an order:

* a *thread* is an agent, or a link that delivers posted stores; its *steps* are visible operations, or deliveries, in
  a fixed order;
* a step has *guards*: it is enabled once other threads are far enough. A wait is met when the write that meets it is
  visible, a release is ready when the stores before it are delivered, a delivery when its store was posted. Words
  need no values any more;
* a step has *checks*: an access to payload that conflicts with accesses of other threads sees what it saw in the
  execution that was recorded when those that came before it have happened. A step whose check fails has *deviated*:
  it raced, and only memory itself can say whether a value is wrong.

Program order and guards generate the *must order*, which every schedule obeys. Two conflicting steps that it leaves
unordered race. Agents that the must order makes take turns (a host and the one kernel it waits for) become one
thread; that changes no schedule.

Whether a program is straight is decided here under the memory model at hand; `NotStraightError` says why it is not.
The conditions, for each word, with writes ordered as they become visible:

* two writes that nothing orders are additions whose results nobody uses;
* a load or read-modify-write whose result is used is ordered with every other write;
* a wait is met in exactly those states in which the writes up to the one that met it are visible: for each set of
  writes that the must order allows when the waiter looks, the value is computed and the condition evaluated.

The stamps of packets are words here, one for all cells that are handled alike; a packet writes several at once.

By induction on the steps, every schedule then executes the same operations with the same operands: Mazurkiewicz,
Trace Theory, 1987.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order import races
from lab.sim.order.events import Events, NotStraightError, events_of, site_of, used_results
from lab.sim.order.fixed_words import why_not
from lab.sim.order.guards import cell_classes, checks_between, guards_between, merge_chains, racing_pairs
from lab.sim.order.must_order import MustOrder, must_order


@dataclass(frozen=True)
class Straight:
    """Threads of steps. The steps of thread `k` are rows `start[k]` to `start[k + 1]` of the step arrays.

    Attributes:
        tables, memory: What it was made from.
        execution: The execution whose log it was made from.
        start: int64 (threads + 1).
        entity: int32, the entity of `interleaved.run` that makes each step.
        op: int32, its row of `Tables.ops` (of a delivery: of the store).
        event: int32, its place in the log.
        kind: int8, one of KINDS.
        wanted: int64, what a wait compares with.
        guard_at: int64 (steps + 1); guard_thread, guard_min: int32. A step needs
            `counter[guard_thread] >= guard_min`, where the counter of a thread is the number of its steps made.
            Guards that the others imply are left out.
        check_at, check_thread, check_min: Likewise, what must have happened for a step to see what the recorded
            execution saw.
        check_races: bool, whether the two steps of a check are unordered.
        clock: int32 (steps, threads), how many steps of each thread precede or are a step, in the must order.
        delivery: int64, of a store that is posted, the row of its delivery; -1: it is none.
        drains: int64 (steps, 3), what must have arrived before each step (`interleaved.drained`).
        handed_by: int64, of a posted store, the row of the step that hands it to the other waves; -1: none.
        wrong: Whether the recorded execution has wrong elements.
    """

    tables: Tables
    memory: str
    execution: Execution
    start: np.ndarray
    entity: np.ndarray
    op: np.ndarray
    event: np.ndarray
    kind: np.ndarray
    wanted: np.ndarray
    guard_at: np.ndarray
    guard_thread: np.ndarray
    guard_min: np.ndarray
    check_at: np.ndarray
    check_thread: np.ndarray
    check_min: np.ndarray
    check_races: np.ndarray
    clock: np.ndarray
    delivery: np.ndarray
    drains: np.ndarray
    handed_by: np.ndarray
    wrong: bool
    _accesses: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self.start) - 1

    @property
    def steps(self) -> int:
        """How many steps every schedule has."""
        return len(self.entity)

    @property
    def racy(self) -> bool:
        """Whether two conflicting steps are unordered. If not, memory is a function of the counters."""
        return bool(self.check_races.any())

    def lengths(self) -> np.ndarray:
        """Steps of each thread."""
        return np.diff(self.start)

    def racing_pairs(self) -> np.ndarray:
        """int64 (pairs, 2): conflicting steps that nothing orders, the earlier one of the recorded execution first."""
        cells, at, writes = self._accesses
        row = np.empty(self.steps, np.int64)
        row[self.event] = np.arange(self.steps)
        number, thread = self._numbers()
        return racing_pairs(cells, row[at], writes, thread, number, self.clock)

    def schedule(self, counters: np.ndarray) -> np.ndarray:
        """Choices (int32 entities of `interleaved.run`) that lead to where each thread has made so many steps.

        The state must be closed under the must order; its steps are made in the order of the recorded execution.
        """
        rows = np.concatenate(
            [np.arange(lo, lo + n) for lo, n in zip(self.start, counters, strict=False)] or [np.zeros(0)]
        )
        rows = rows.astype(np.int64)
        held = self.held_pairs()
        if len(held) and np.any(np.isin(self.delivery[rows[self.delivery[rows] >= 0]], rows, invert=True)):
            return self.entity[self._held_back(counters, held)]
        return self.entity[rows[np.argsort(self.event[rows], kind="stable")]]

    def held_pairs(self) -> np.ndarray:
        """int64 (pairs, 3): a posted store of a wave, what makes it hold others, a step of another wave that it holds.

        A read is held by the store, a release by the step that hands the store over. These are the pairs in which
        nothing orders the two. Where the held step comes first, it does not wait; otherwise it waits for the delivery.
        To all others that is one and the same until the store is delivered.
        """
        s, agents = self.execution.static, len(self.tables.agent_start)
        agent = self.tables.ops[self.op, t.AGENT]
        found = [np.zeros((0, 3), np.int64)]
        for block in np.flatnonzero(s.block_end - s.block_start > 1):
            mine = agent == block
            others = (s.block_start[agent] == s.block_start[block]) & ~mine
            stores = np.flatnonzero(mine & (self.delivery >= 0))
            to = (self.entity[self.delivery[stores]] - agents) % s.world
            for kind, holds in ((2, stores), (1, self.handed_by[stores])):
                steps, known = np.flatnonzero(others & (self.drains[:, kind] > 0)), holds >= 0
                waits = self.drains[steps, kind][None, :] >> to[known][:, None] & 1 > 0
                store, step = np.nonzero(waits & self._unordered(holds[known], steps))
                found.append(np.stack((stores[known][store], holds[known][store], steps[step]), axis=1))
        return np.concatenate(found)

    def _unordered(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Bool (ones, others): whether the must order leaves two steps open."""
        number, thread = self._numbers()
        before = self.clock[others][:, thread[ones]].T > number[ones][:, None]
        after = self.clock[ones][:, thread[others]] > number[others][None, :]
        return ~(before | after)

    def _held_back(self, counters: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Steps of a state as the machine makes them: what holds others back comes after what it would hold."""
        number, thread = self._numbers()
        made = np.zeros(self.threads, np.int64)

        def arrived(stores: np.ndarray, counted: np.ndarray) -> np.ndarray:
            return counted[thread[self.delivery[stores]]] > number[self.delivery[stores]]

        def may(k: int) -> bool:
            row = self.start[k] + made[k]
            needed = self.clock[row].copy()
            needed[k] -= 1
            if np.any(needed > made):
                return False
            holds = held[held[:, 1] == row]
            steps = holds[~arrived(holds[:, 0], counters), 2]
            if np.any((made[thread[steps]] <= number[steps]) & (number[steps] < counters[thread[steps]])):
                return False
            holding = held[held[:, 2] == row]
            open_ = made[thread[holding[:, 1]]] <= number[holding[:, 1]]
            return bool(np.all(open_ | arrived(holding[:, 0], made)))

        rows = []
        for _ in range(int(counters.sum())):
            ready = [k for k in range(self.threads) if made[k] < counters[k] and may(k)]
            k = min(ready, key=lambda k: self.event[self.start[k] + made[k]])
            rows.append(self.start[k] + made[k])
            made[k] += 1
        return np.array(rows, np.int64)

    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """int64, one a step: its number in its thread, and the thread."""
        thread = np.repeat(np.arange(self.threads), self.lengths())
        return np.arange(self.steps) - self.start[thread], thread


def straighten(tables: Tables, memory: str = "sc", execution: Execution | None = None) -> Straight:
    """The straight form of a program.

    Args:
        tables: The program.
        memory: Memory model, "sc" or "posted".
        execution: A complete execution of it under that model; None: one in which each agent runs on until it blocks.

    Raises:
        NotStraightError: It has none; the message is the reason.
    """
    if memory not in ("sc", "posted"):
        raise NotStraightError(f"stores take effect in no fixed steps under {memory}")
    execution = execution or races.execute(tables, memory)
    if execution.memory != memory:
        raise ValueError(f"the execution was made under {execution.memory}, not {memory}")
    if execution.state.counts[m.C_TIMEOUTS]:
        raise NotStraightError("a bounded wait gave up")
    if execution.outcome != m.DONE:
        raise NotStraightError("the execution did not end")
    if execution.steps == 0:
        raise NotStraightError("no operation runs")
    events = events_of(tables, execution)
    order = must_order(tables, execution, events)
    problem = why_not(tables, execution, events, order)
    if problem is not None:
        raise NotStraightError(problem)
    return _assemble(tables, execution, events, order)


def _assemble(tables: Tables, execution: Execution, events: Events, order: MustOrder) -> Straight:
    thread = merge_chains(events.chain, events.chains, order.rows, order.time)
    n, threads = len(thread), int(thread.max(initial=-1)) + 1
    by_thread = np.argsort(thread, kind="stable")
    start = np.concatenate(([0], np.cumsum(np.bincount(thread, minlength=threads)))).astype(np.int64)
    place = np.zeros(n, np.int32)  # a step's number in its thread
    place[by_thread] = np.arange(n) - start[thread[by_thread]]
    clock, guard_event, guard_thread, guard_min = guards_between(
        n, threads, thread, place, order.needed_at, order.needed
    )
    cells, at, writes = _accesses(tables, execution, events)
    checks = checks_between(n, threads, thread, place, clock, cells, at, writes)
    check_event, check_thread, check_min, check_races = checks
    row_of = np.empty(n, np.int64)
    row_of[by_thread] = np.arange(n)
    guard_at, (guard_thread, guard_min) = _by_row(row_of[guard_event], n, guard_thread, guard_min)
    check_at, (check_thread, check_min, check_races) = _by_row(
        row_of[check_event], n, check_thread, check_min, check_races
    )
    straight = Straight(
        tables=tables,
        memory=execution.memory,
        execution=execution,
        start=start,
        entity=events.entity[by_thread],
        op=events.op[by_thread],
        event=by_thread.astype(np.int32),
        kind=events.kind[by_thread],
        wanted=events.wanted[by_thread],
        guard_at=guard_at,
        guard_thread=guard_thread,
        guard_min=guard_min,
        check_at=check_at,
        check_thread=check_thread,
        check_min=check_min,
        check_races=check_races,
        clock=clock[by_thread],
        delivery=np.where(events.visible == np.arange(n), -1, row_of[events.visible])[by_thread],
        drains=events.drains[by_thread],
        handed_by=np.where(order.handed_by < 0, -1, row_of[order.handed_by])[by_thread],
        wrong=bool(execution.state.counts[m.C_WRONG]),
        _accesses=(cells, at, writes),
    )
    decides = (tables.ops[straight.op, t.KIND] == t.EXPECT) & used_results(tables)[straight.op]
    if straight.racy and np.any(decides):
        raise NotStraightError(
            f"an agent decides by a payload that races ({site_of(tables, straight.op[np.argmax(decides)])})"
        )
    return straight


def _by_row(row: np.ndarray, n: int, *columns: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    order = np.argsort(row, kind="stable")
    at = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n)))).astype(np.int64)
    return at, [column[order] for column in columns]


def _accesses(tables: Tables, execution: Execution, events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells, steps, writes = races.accesses(tables, execution)
    return cell_classes(cells, np.where(writes, events.visible[steps], steps).astype(np.int64), writes)
