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
from numba import njit

from lab.errors import LabError
from lab.protocol import tables as t
from lab.protocol.program import Move, Op, WaitStamp
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.machine.execution import Execution
from lab.sim.order import races

# Kinds of events, for listings, Promela and the verification of words.
WAIT, STORE, ADD, RMW, LOAD, FENCE, PAYLOAD, DELIVER_WORD, DELIVER_DATA = range(9)
KINDS = ("wait", "store", "add", "rmw", "load", "fence", "payload", "deliver word", "deliver data")


class NotStraightError(LabError):
    """The program has no straight form under this memory model; the message says why."""


@dataclass(frozen=True)
class Straight:
    """Threads of steps. The steps of thread `k` are rows `start[k]` to `start[k + 1]` of the step arrays.

    Attributes:
        tables, memory: What it was made from.
        execution: The execution whose log it was made from.
        start: int64 (threads + 1).
        entity: int32, the entity of `machine.run` that makes each step.
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
        drains: int64, the ranks, as bits, that must have received what the step's block stored (`machine.drained`).
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
        return _racing_pairs(cells, row[at], writes, thread, number, self.clock)

    def schedule(self, counters: np.ndarray) -> np.ndarray:
        """Choices (int32 entities of `machine.run`) that lead to the state in which each thread has made so many steps.

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
        """int64 (pairs, 2): a posted store of one wave, and a step of another wave of its block that waits for it.

        These are the pairs that nothing orders. Where the step comes first, it does not wait; where the store comes
        first, the step waits for its delivery. To all others that is one and the same until the store is delivered.
        """
        s, agents = self.execution.static, len(self.tables.agent_start)
        agent = self.tables.ops[self.op, t.AGENT]
        number, thread = self._numbers()
        found = [np.zeros((0, 2), np.int64)]
        for block in np.flatnonzero(s.block_end - s.block_start > 1):
            mine = agent == block
            others = (s.block_start[agent] == s.block_start[block]) & ~mine
            stores, steps = np.flatnonzero(mine & (self.delivery >= 0)), np.flatnonzero(others & (self.drains > 0))
            to = (self.entity[self.delivery[stores]] - agents) % s.world
            waits = self.drains[steps][None, :] >> to[:, None] & 1 > 0
            waits &= self.clock[steps][:, thread[stores]].T <= number[stores][:, None]
            waits &= self.clock[stores][:, thread[steps]] <= number[steps][None, :]
            store, step = np.nonzero(waits)
            found.append(np.stack((stores[store], steps[step]), axis=1))
        return np.concatenate(found)

    def _held_back(self, counters: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Steps of a state as the machine makes them: stores that stay on their way come after what they would hold."""
        number, thread = self._numbers()
        made = np.zeros(self.threads, np.int64)

        def may(k: int) -> bool:
            row = self.start[k] + made[k]
            needed = self.clock[row].copy()
            needed[k] -= 1
            if np.any(needed > made):
                return False
            stays = self.delivery[row] >= 0 and number[self.delivery[row]] >= counters[thread[self.delivery[row]]]
            for step in held[held[:, 0] == row, 1] if stays else ():
                if made[thread[step]] <= number[step] < counters[thread[step]]:
                    return False
            under_way = held[held[:, 1] == row, 0]
            arrived = made[thread[self.delivery[under_way]]] > number[self.delivery[under_way]]
            return bool(np.all(arrived | (made[thread[under_way]] <= number[under_way])))

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
    events = _events(tables, execution)
    order = _must_order(tables, execution, events)
    problem = _why_not(tables, execution, events, order)
    if problem is not None:
        raise NotStraightError(problem)
    return _assemble(tables, execution, events, order)


# ---- events


@dataclass(frozen=True)
class _Events:
    """One row an event of the log.

    entity: who makes it; chain: its clock component; op: its row of the tables; kind;
    visible: of a store, the event that makes it visible (itself, or its delivery); posted_by: of a delivery, its
        store's event; drains: the ranks, as bits, that must have received what its block stored (`machine.drained`);
    touched_at, touched: the words that it reads or writes visibly, which come before stamps of cells handled alike;
    touching: the event of each entry of `touched`; initial: what each word holds at first;
    writes: whether it writes what it touches; value: what; wanted: what a wait compares with.
    """

    entity: np.ndarray
    chain: np.ndarray
    chains: int
    op: np.ndarray
    kind: np.ndarray
    visible: np.ndarray
    posted_by: np.ndarray
    drains: np.ndarray
    touched_at: np.ndarray
    touched: np.ndarray
    touching: np.ndarray
    initial: np.ndarray
    writes: np.ndarray
    value: np.ndarray
    wanted: np.ndarray


def _events(tables: Tables, execution: Execution) -> _Events:
    log, n = execution.log, execution.steps
    entity = log.choice[:n].astype(np.int32)
    delivery = log.op[:n] == -1
    posted_by = np.where(delivery, log.row[:n], -1).astype(np.int32)
    visible = np.arange(n, dtype=np.int32)
    visible[posted_by[delivery]] = np.flatnonzero(delivery)
    op = np.where(delivery, log.op[np.maximum(posted_by, 0)], log.op[:n]).astype(np.int32)
    table_kind = tables.ops[op, t.KIND]
    waits = np.isin(table_kind, (t.WAIT, t.WAIT_STAMP))
    if np.any(tables.ops[op[waits], t.FN] == words.SUM_LE):
        raise NotStraightError("a wait reads several words at once")
    used = _used_results(tables)
    adds = (table_kind == t.RMW) & (tables.ops[op, t.FN] == t.ADD) & ~used[op]
    kind = np.select(
        [delivery & (table_kind == t.STORE), delivery, waits, table_kind == t.STORE, adds],
        [DELIVER_WORD, DELIVER_DATA, WAIT, STORE, ADD],
        default=PAYLOAD,
    )
    kind[(table_kind == t.RMW) & ~adds] = RMW
    kind[table_kind == t.LOAD] = LOAD
    kind[table_kind == t.FENCE] = FENCE
    on_word = np.isin(table_kind, (t.LOAD, t.STORE, t.RMW, t.WAIT))
    stored_by = np.where(delivery, np.maximum(posted_by, 0), np.arange(n))
    found = races.clocks(execution, guards_only=True)
    shown = np.arange(n) == visible
    on_word &= shown | (table_kind != t.STORE)
    word, touching, touched = _touches(tables, execution, found, on_word, log.row[stored_by], visible)
    stamped = tables.ops[op, t.STAMP] >= 0
    agents = len(tables.agent_start)
    # Agents of one chain never run at the same time; links in use are chains too.
    number = np.concatenate((tables.agent_chain, np.full(tables.program.world**2, -1)))
    links = np.unique(entity[entity >= agents])
    number[links] = tables.program.chains + np.arange(len(links))
    chain = number[entity].astype(np.int32)
    return _Events(
        entity=entity,
        chain=chain,
        chains=tables.program.chains + len(links),
        op=op,
        kind=kind.astype(np.int8),
        visible=visible,
        posted_by=posted_by,
        drains=_drains(execution.static, op, log.row[:n], delivery),
        touched_at=np.searchsorted(touching, np.arange(n + 1)),
        touched=touched,
        touching=touching,
        initial=np.concatenate((tables.word_initial, np.zeros(word - len(tables.word_initial), np.int64))),
        writes=shown & (np.isin(table_kind, (t.STORE, t.RMW)) | stamped),
        value=np.where(stamped, found.stamp[stored_by], log.value[stored_by]),
        wanted=found.wanted,
    )


@njit(cache=True)
def _drains(s, op, row, delivery):
    """`machine.drained` of each event; a delivery waits for nothing."""
    found = np.zeros(len(op), np.int64)
    if s.model == m.POSTED:
        for e in range(len(op)):
            if not delivery[e]:
                found[e] = m.drained(s, op[e], np.int64(row[e]))
    return found


def _touches(
    tables: Tables, execution: Execution, found: races.Clocks, on_word: np.ndarray, row: np.ndarray, visible: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """(number of words, event, word) of each word that an event touches, in the order of events."""
    sends = np.flatnonzero(found.stamp >= 0)
    moves = tables.moves[execution.log.row[sends]]
    cells = [tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]] for move in moves]
    at = np.concatenate((np.repeat(visible[sends], moves[:, t.M_COUNT]), found.polls[:, 0]))
    sent = np.arange(len(at)) < len(at) - len(found.polls)
    number, at, _ = cell_classes(np.concatenate((*cells, found.polls[:, 1])), at, sent)
    event = np.concatenate((np.flatnonzero(on_word), at))
    word = np.concatenate((row[on_word], len(tables.word_initial) + number))
    order = np.lexsort((word, event))
    return len(tables.word_initial) + int(number.max(initial=-1)) + 1, event[order], word[order].astype(np.int64)


def _site(tables: Tables, row: int) -> str:
    return str(tables.op(int(row)).site)


def registers_read(tables: Tables) -> np.ndarray:
    """int64 (k, 2): rows of ops and the registers that their operands read."""
    ops, found = tables.ops, []
    for column in (t.SELECT, t.VALUE, t.EXPECTED, t.STAMP):
        rows = np.flatnonzero(ops[:, column] >= 0)
        mode, a, b = (tables.exprs[ops[rows, column], k] for k in (t.E_MODE, t.E_A, t.E_B))
        simple = (mode == t.REGISTER) | (mode == t.REGISTER_PLUS)
        found.append(np.stack((rows[simple], a[simple]), axis=1))
        for k in np.flatnonzero(mode == t.POSTFIX):
            part = tables.postfix[a[k] : a[k] + b[k]]
            read = part[part[:, 0] == t.PUSH_REG, 1]
            found.append(np.stack((np.full(len(read), rows[k]), read), axis=1))
    return np.concatenate(found)


def used_registers(tables: Tables) -> np.ndarray:
    """Bool (agents, registers): an operation of the agent reads the register."""
    reads = np.zeros((len(tables.agent_start), tables.registers), bool)
    rows, registers = registers_read(tables).T
    reads[tables.ops[rows, t.AGENT], registers] = True
    return reads


def _used_results(tables: Tables) -> np.ndarray:
    """bool, one a row of ops: its DST register is read by an operation of the same agent."""
    dst = tables.ops[:, t.DST]
    return (dst >= 0) & used_registers(tables)[tables.ops[:, t.AGENT], np.maximum(dst, 0)]


# ---- the must order


@dataclass(frozen=True)
class _Order:
    """Clocks and what they come from, one row an event.

    rows: int32 (events, chains); time: int32; needed: for each event the events that it waits for, as `needed_at` says;
    met_by: of each word that a wait touches, the write event that first meets it, -1: the initial value.
    """

    rows: np.ndarray
    time: np.ndarray
    needed_at: np.ndarray
    needed: np.ndarray
    met_by: np.ndarray


def _must_order(tables: Tables, execution: Execution, events: _Events) -> _Order:
    n = len(events.op)
    rows, time, needed_at, needed, met_by = _must_order_loop(
        n,
        events.chain,
        events.chains,
        tables.ops[events.op, t.AGENT].astype(np.int32),
        (execution.static.block_start, execution.static.block_end),
        tables.program.world,
        events.entity,
        events.kind,
        (events.touched_at, events.touched, events.touching, events.initial),
        events.writes,
        events.posted_by,
        events.visible,
        events.drains,
        tables.ops[events.op, t.FN],
        events.wanted,
        events.value,
    )
    return _Order(rows, time, needed_at, needed, met_by)


@njit(cache=True)
def _must_order_loop(
    n,
    chain,
    chains,
    agent,
    blocks,
    world,
    entity,
    kind,
    touches,
    writes,
    posted_by,
    visible,
    drains,
    fn,
    wanted,
    value,
):
    touched_at, touched, touching, initial = touches
    block_start, block_end = blocks
    agents = len(block_start)
    rows = np.zeros((n, chains), np.int32)
    time = np.zeros(n, np.int32)
    latest = np.full(chains, -1, np.int64)
    last = np.full(len(initial), -1, np.int64)  # last visible write of each word, as a place in `touched`
    before = np.full(len(touched), -1, np.int64)
    posted = np.full((agents, world), -1, np.int64)  # last store of each agent on its way to each rank
    posted_before = np.full(n, -1, np.int64)
    needed_at = np.zeros(n + 1, np.int64)
    needed = np.zeros(4 * n + 64, np.int64)
    met_by = np.full(len(touched), -1, np.int64)
    count = 0
    for e in range(n):
        c = chain[e]
        if latest[c] >= 0:
            rows[e] = rows[latest[c]]
        latest[c] = e
        time[e] = rows[e, c] + 1
        a = agent[e]
        first = count
        if count + n + len(touched) + agents * world > len(needed):
            bigger = np.zeros(2 * len(needed) + n + len(touched) + agents * world, np.int64)
            bigger[:count] = needed[:count]
            needed = bigger
        if posted_by[e] >= 0:
            needed[count] = posted_by[e]
            count += 1
        else:
            for rank in range(world):
                for other in range(block_start[a], block_end[a]) if drains[e] >> rank & 1 else range(0):
                    store = posted[other, rank]
                    while store >= 0 and rows[e, chain[store]] < time[store]:
                        store = posted_before[store]  # no order with this one: see `Straight.held_pairs`
                    if store >= 0:
                        needed[count] = visible[store]
                        count += 1
            if visible[e] != e:
                rank = (entity[visible[e]] - agents) % world
                posted_before[e] = posted[a, rank]
                posted[a, rank] = e
            for k in range(touched_at[e], touched_at[e + 1] if kind[e] == WAIT else touched_at[e]):
                w = last[touched[k]]
                best = w
                while w >= 0:
                    write = touching[w]
                    if words.met(fn[e], value[write], wanted[e]):
                        best = w
                    if rows[e, chain[write]] >= time[write]:
                        break
                    w = before[w]
                if w < 0 and words.met(fn[e], initial[touched[k]], wanted[e]):
                    best = np.int64(-1)
                w = best
                while w >= 0:
                    write = touching[w]
                    if w == best:
                        met_by[k] = write
                    if rows[e, chain[write]] < time[write]:
                        needed[count] = write
                        count += 1
                    if kind[write] != ADD:
                        break
                    w = before[w]
        for k in range(first, count):
            other = needed[k]
            for q in range(chains):
                if rows[other, q] > rows[e, q]:
                    rows[e, q] = rows[other, q]
        rows[e, c] = time[e]
        needed_at[e + 1] = count
        for k in range(touched_at[e], touched_at[e + 1] if writes[e] else touched_at[e]):
            before[k] = last[touched[k]]
            last[touched[k]] = k
    return rows, time, needed_at, needed[:count].copy(), met_by


# ---- is it straight?

_FINE, _UNORDERED_WRITES, _READ_VARIES, _WAIT_VARIES = range(4)
_PROBLEMS = {
    _UNORDERED_WRITES: "{word} is written by several agents that nothing orders ({site})",
    _READ_VARIES: "what {word} holds when it is read depends on the schedule ({site})",
    _WAIT_VARIES: "when {word} meets a wait depends on the schedule ({site})",
}


def _why_not(tables: Tables, execution: Execution, events: _Events, order: _Order) -> str | None:
    stuck = _may_start(tables, execution, events)
    if stuck is not None:
        return stuck
    agents = len(tables.agent_start)
    posts = np.flatnonzero(events.posted_by >= 0)
    for link in np.unique(events.entity[posts]):
        stores = events.posted_by[posts[events.entity[posts] == link]]
        if not np.all(order.rows[stores[1:], events.chain[stores[:-1]]] >= order.time[stores[:-1]]):
            source, to = divmod(int(link) - agents, tables.program.world)
            return (
                f"several agents post to the link from rank {source} to rank {to} in an order that the schedule decides"
            )
    by_word = np.argsort(events.touched, kind="stable")
    edges = np.flatnonzero(np.diff(events.touched[by_word], prepend=-1, append=-1))
    used = _used_results(tables)[events.op] & np.isin(events.kind, (LOAD, RMW))
    previous = _previous_of_chain(events)
    code, event = _verify_words(
        events.touching[by_word],
        edges,
        events.chain,
        events.kind,
        events.writes,
        used,
        tables.ops[events.op, t.FN],
        events.wanted,
        events.value,
        events.initial[events.touched[by_word]],
        order.rows,
        order.time,
        order.met_by[by_word],
        previous,
    )
    if code != _FINE:
        op = tables.op(int(events.op[event]))
        return _PROBLEMS[code].format(word=touched(op), site=op.site)
    return None


def touched(op: Op) -> str:
    """The word, or the stamps, that an operation reads or writes."""
    span = op.dst if isinstance(op, Move) else op.span if isinstance(op, WaitStamp) else None
    return str(op.word) if span is None else f"a stamp of {span}"  # type: ignore[attr-defined]


def _may_start(tables: Tables, execution: Execution, events: _Events) -> str | None:
    """Why an agent that executed nothing, or not everything, might do more in another schedule."""
    for agent in np.flatnonzero(execution.state.pc < tables.agent_end):
        row = int(execution.state.pc[agent])
        if (
            tables.ops[row, t.KIND] != t.WAIT
            or tables.ops[row, t.SELECT] >= 0
            or np.any(events.touched == tables.ops[row, t.ADDR])
        ):
            return f"an agent may get further in another schedule ({_site(tables, row)})"
    return None


def _previous_of_chain(events: _Events) -> np.ndarray:
    by_chain = np.argsort(events.chain, kind="stable")
    same = np.concatenate(([False], np.diff(events.chain[by_chain]) == 0))
    previous = np.full(len(by_chain), -1, np.int64)
    previous[by_chain[same]] = by_chain[np.flatnonzero(same) - 1]
    return previous


@njit(cache=True)
def _verify_words(
    touching, edges, chain, kind, writing, used, fn, wanted, value, initial, rows, time, met_by, previous
):
    """Hold the conditions of the module's docstring; returns (problem, event)."""
    writes = np.zeros(len(touching), np.int64)
    for g in range(len(edges) - 1):
        lo, hi = edges[g], edges[g + 1]
        n = 0
        chained = True
        for k in range(lo, hi):
            e = touching[k]
            if writing[e]:
                if n and rows[e, chain[writes[n - 1]]] < time[writes[n - 1]]:
                    chained = False
                writes[n] = e
                n += 1
        if not chained:
            for i in range(n):
                for j in range(i):
                    a, b = writes[j], writes[i]
                    if rows[b, chain[a]] < time[a] and (kind[a] != ADD or kind[b] != ADD):
                        return _UNORDERED_WRITES, b
        for k in range(lo, hi):
            e = touching[k]
            if used[e]:
                for j in range(n):
                    w = writes[j]
                    if w != e and rows[e, chain[w]] < time[w] and rows[w, chain[e]] < time[e]:
                        return _READ_VARIES, e
            if kind[e] == WAIT:
                if not _wait_is_fixed(
                    e,
                    writes[:n],
                    chained,
                    chain,
                    kind,
                    fn[e],
                    wanted[e],
                    value,
                    initial[k],
                    rows,
                    time,
                    met_by[k],
                    previous[e],
                ):
                    return _WAIT_VARIES, e
    return _FINE, np.int64(-1)


@njit(cache=True)
def _wait_is_fixed(e, writes, chained, chain, kind, fn, wanted, value, initial, rows, time, met_by, previous):
    n = len(writes)
    needed = 0  # writes up to the one that meets it
    while needed < n and (needed == 0 or writes[needed - 1] != met_by) and met_by >= 0:
        needed += 1
    if chained:
        known = 0  # visible in every state in which the waiter may look
        while known < n and previous >= 0 and rows[previous, chain[writes[known]]] >= time[writes[known]]:
            known += 1
        for visible in range(known, n + 1):
            if visible > 0 and rows[writes[visible - 1], chain[e]] >= time[e]:
                break  # comes after the wait
            now = initial if visible == 0 else value[writes[visible - 1]]
            if words.met(fn, now, wanted) != (visible >= needed):
                return False
        return True
    # Additions that nothing orders: they only grow, so a state meets the wait if it has all that are needed, and no
    # other does if without any one of them the sum falls short and those beyond come after all of them.
    if fn != words.GE:
        return False
    segment = needed
    while segment > 0 and kind[writes[segment - 1]] == ADD:
        segment -= 1
    base = initial
    if segment > 0:
        store = writes[segment - 1]
        base = value[store]
        if previous < 0 or rows[previous, chain[store]] < time[store]:
            return False
    total = base
    for k in range(segment, n):
        w = writes[k]
        after_wait = rows[w, chain[e]] >= time[e]
        if kind[w] != ADD:
            if not after_wait:
                return False
            continue
        old = base if k == segment else value[writes[k - 1]]
        amount = value[w] - old
        if amount <= 0:
            return False  # wraps, or does nothing
        if k < needed:
            total = value[w]
        elif not after_wait:
            for j in range(segment, needed):
                if rows[w, chain[writes[j]]] < time[writes[j]]:
                    return False
    if total < wanted:
        return False
    for k in range(segment, needed):
        w = writes[k]
        if previous >= 0 and rows[previous, chain[w]] >= time[w]:
            continue
        old = base if k == segment else value[writes[k - 1]]
        maximal = True
        for j in range(segment, needed):
            if writes[j] != w and rows[writes[j], chain[w]] >= time[w]:
                maximal = False
        if maximal and total - (value[w] - old) >= wanted:
            return False
    return True


# ---- assembly


def _assemble(tables: Tables, execution: Execution, events: _Events, order: _Order) -> Straight:
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
    checks = _checks(n, threads, thread, place, clock, cells, at, writes)
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
        wrong=bool(execution.state.counts[m.C_WRONG]),
        _accesses=(cells, at, writes),
    )
    decides = (tables.ops[straight.op, t.KIND] == t.EXPECT) & _used_results(tables)[straight.op]
    if straight.racy and np.any(decides):
        raise NotStraightError(
            f"an agent decides by a payload that races ({_site(tables, straight.op[np.argmax(decides)])})"
        )
    return straight


def _by_row(row: np.ndarray, n: int, *columns: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    order = np.argsort(row, kind="stable")
    at = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n)))).astype(np.int64)
    return at, [column[order] for column in columns]


@njit(cache=True)
def merge_chains(chain, chains, rows, time):
    """The thread of each event: chains that the must order makes take turns share one.

    At any time at most one of them can be enabled, so one counter says what their counters say.
    """
    n = len(chain)
    group = np.full(chains, -1, np.int64)
    groups = 0
    for c in range(chains):
        found = -1
        for g in range(groups):
            last = -1
            fits = True
            for e in range(n):
                if chain[e] == c or group[chain[e]] == g:
                    if last >= 0 and rows[e, chain[last]] < time[last]:
                        fits = False
                        break
                    last = e
            if fits:
                found = g
                break
        if found < 0:
            found = groups
            groups += 1
        group[c] = found
    used = np.full(groups, -1, np.int64)
    count = 0
    thread = np.zeros(n, np.int64)
    for e in range(n):
        g = group[chain[e]]
        if used[g] < 0:
            used[g] = count
            count += 1
        thread[e] = used[g]
    return thread


@njit(cache=True)
def guards_between(n, threads, thread, place, needed_at, needed):
    """Clocks over threads, and the guards that neither program order nor other guards imply."""
    clock = np.zeros((n, threads), np.int32)
    latest = np.full(threads, -1, np.int64)
    event = np.zeros(len(needed), np.int64)
    of_thread = np.zeros(len(needed), np.int32)
    minimum = np.zeros(len(needed), np.int32)
    count = 0
    for e in range(n):
        k = thread[e]
        if latest[k] >= 0:
            clock[e] = clock[latest[k]]
        latest[k] = e
        # Later events first: they may imply earlier ones.
        wanted = np.sort(needed[needed_at[e] : needed_at[e + 1]])[::-1]
        for other in wanted:
            u = thread[other]
            if clock[e, u] > place[other]:
                continue
            for q in range(threads):
                if clock[other, q] > clock[e, q]:
                    clock[e, q] = clock[other, q]
            event[count], of_thread[count], minimum[count] = e, u, place[other] + 1
            count += 1
        clock[e, k] = place[e] + 1
    return clock, event[:count].copy(), of_thread[:count].copy(), minimum[:count].copy()


def _accesses(tables: Tables, execution: Execution, events: _Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells, steps, writes = races.accesses(tables, execution)
    return cell_classes(cells, np.where(writes, events.visible[steps], steps).astype(np.int64), writes)


def cell_classes(cells: np.ndarray, at: np.ndarray, writes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accesses (class of cells, event, is a write), sorted by class and event.

    Cells that the same events access in the same way are one class.
    """
    at = at.astype(np.int64)
    order = np.lexsort((writes, at, cells))
    cells, at, writes = cells[order], at[order], writes[order]
    edges = np.flatnonzero(np.diff(cells, prepend=-1))
    ends = np.append(edges[1:], len(cells))[: len(edges)]
    seen: dict[bytes, int] = {}
    keep = []
    signature = at * 2 + writes
    for lo, hi in zip(edges.tolist(), ends.tolist(), strict=True):
        key = signature[lo:hi].tobytes()
        if key not in seen:
            seen[key] = len(seen)
            keep.append(slice(lo, hi))
    number = np.repeat(np.arange(len(keep)), [part.stop - part.start for part in keep])
    joined = [np.concatenate([a[part] for part in keep]) if keep else a[:0] for a in (at, writes)]
    return number.astype(np.int64), joined[0], joined[1]


@njit(cache=True)
def _checks(n, threads, thread, place, clock, cells, at, writes):
    """For each event, per other thread, the last earlier event that conflicts with it: the earlier ones are implied."""
    last = np.full((n, threads), -1, np.int32)
    lo = 0
    while lo < len(cells):
        hi = lo
        while hi < len(cells) and cells[hi] == cells[lo]:
            hi += 1
        for j in range(lo, hi):
            for i in range(lo, j):
                a, b = at[i], at[j]
                if a != b and (writes[i] or writes[j]) and thread[a] != thread[b]:
                    last[b, thread[a]] = max(last[b, thread[a]], place[a])
        lo = hi
    count = 0
    for e in range(n):
        for k in range(threads):
            count += last[e, k] >= 0
    event = np.zeros(count, np.int64)
    of_thread = np.zeros(count, np.int32)
    minimum = np.zeros(count, np.int32)
    racing = np.zeros(count, np.bool_)
    count = 0
    for e in range(n):
        for k in range(threads):
            if last[e, k] >= 0:
                event[count], of_thread[count], minimum[count] = e, k, last[e, k] + 1
                racing[count] = clock[e, k] < last[e, k] + 1
                count += 1
    return event, of_thread, minimum, racing


@njit(cache=True)
def _racing_pairs(cells, rows, writes, thread, number, clock):
    found = set()
    lo = 0
    while lo < len(cells):
        hi = lo
        while hi < len(cells) and cells[hi] == cells[lo]:
            hi += 1
        for j in range(lo, hi):
            for i in range(lo, j):
                a, b = rows[i], rows[j]
                if (writes[i] or writes[j]) and thread[a] != thread[b] and clock[b, thread[a]] <= number[a]:
                    found.add((a, b))
        lo = hi
    pairs = np.zeros((len(found), 2), np.int64)
    k = 0
    for a, b in found:
        pairs[k, 0], pairs[k, 1] = a, b
        k += 1
    return pairs
