"""What an execution did, as events: one row a step of its log, with what it touches and what it writes.

An event is a visible operation of an agent, or the delivery of a posted store. The stamps of packets are words here,
one for all cells that are handled alike; a packet writes several at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.errors import LabError
from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.machine.execution import Execution
from lab.sim.order import races
from lab.sim.order.guards import cell_classes

# Kinds of events, for listings, Promela and the verification of words.
WAIT, STORE, ADD, RMW, LOAD, FENCE, PAYLOAD, DELIVER_WORD, DELIVER_DATA = range(9)
KINDS = ("wait", "store", "add", "rmw", "load", "fence", "payload", "deliver word", "deliver data")


class NotStraightError(LabError):
    """The program has no straight form under this memory model; the message says why."""


@dataclass(frozen=True)
class Events:
    """One row an event of the log.

    entity: who makes it; chain: its clock component; op: its row of the tables; kind;
    visible: of a store, the event that makes it visible (itself, or its delivery); posted_by: of a delivery, its
        store's event; drains: int64 (events, 3), what must have arrived before it (see `interleaved.drained`);
    hands: whether it hands what its wave stored to the other waves of its block;
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
    hands: np.ndarray
    touched_at: np.ndarray
    touched: np.ndarray
    touching: np.ndarray
    initial: np.ndarray
    writes: np.ndarray
    value: np.ndarray
    wanted: np.ndarray


def events_of(tables: Tables, execution: Execution) -> Events:
    """The events of an execution under sc or posted.

    Raises:
        NotStraightError: A wait reads several words at once.
    """
    log, n = execution.log, execution.steps
    entity = log.choice[:n].astype(np.int32)
    delivery = log.op[:n] == -1
    posted_by = np.where(delivery, log.row[:n], -1).astype(np.int32)
    visible = np.arange(n, dtype=np.int32)
    visible[posted_by[delivery]] = np.flatnonzero(delivery)
    op = np.where(delivery, log.op[np.maximum(posted_by, 0)], log.op[:n]).astype(np.int32)
    table_kind = tables.ops[op, t.KIND]
    waits = np.isin(table_kind, (t.WAIT, t.WAIT_STAMP))
    fn = tables.ops[op[waits], t.FN]
    if np.any((fn == words.SUM_LE) | ((table_kind[waits] == t.WAIT) & (fn & t.ANY_OF > 0))):
        raise NotStraightError("a wait reads several words at once")
    used = used_results(tables)
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
    drains, hands = _drains(execution.static, op, log.row[:n], delivery, entity)
    return Events(
        entity=entity,
        chain=chain,
        chains=tables.program.chains + len(links),
        op=op,
        kind=kind.astype(np.int8),
        visible=visible,
        posted_by=posted_by,
        drains=drains,
        hands=hands,
        touched_at=np.searchsorted(touching, np.arange(n + 1)),
        touched=touched,
        touching=touching,
        initial=np.concatenate((tables.word_initial, np.zeros(word - len(tables.word_initial), np.int64))),
        writes=shown & (np.isin(table_kind, (t.STORE, t.RMW)) | stamped),
        value=np.where(stamped, found.stamp[stored_by], log.value[stored_by]),
        wanted=found.wanted,
    )


@njit(cache=True)
def _drains(s, op, row, delivery, entity):
    """`interleaved.drained` and `hands_over` of each event; a delivery waits for nothing."""
    found, hands = np.zeros((len(op), 3), np.int64), np.zeros(len(op), np.bool_)
    if s.model == m.POSTED:
        for e in range(len(op)):
            if not delivery[e]:
                found[e, 0], found[e, 1], found[e, 2] = m.drained(s, op[e], np.int64(row[e]))
                agent = entity[e]
                hands[e] = s.block_end[agent] - s.block_start[agent] > 1 and m.hands_over(s, op[e])
    return found, hands


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


def site_of(tables: Tables, row: int) -> str:
    """Where in the user's source the operation at a row was written."""
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


def used_results(tables: Tables) -> np.ndarray:
    """bool, one a row of ops: its DST register is read by an operation of the same agent."""
    dst = tables.ops[:, t.DST]
    return (dst >= 0) & used_registers(tables)[tables.ops[:, t.AGENT], np.maximum(dst, 0)]
