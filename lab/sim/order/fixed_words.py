"""Whether what words hold when somebody looks is fixed: the conditions of the straight form, held against the order."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Move, Op, WaitStamp
from lab.protocol.tables import Tables
from lab.sim.machine import words
from lab.sim.machine.execution import Execution
from lab.sim.order.events import ADD, LOAD, RMW, WAIT, Events, site_of, used_results
from lab.sim.order.must_order import MustOrder

_FINE, _UNORDERED_WRITES, _READ_VARIES, _WAIT_VARIES = range(4)
_PROBLEMS = {
    _UNORDERED_WRITES: "{word} is written by several agents that nothing orders ({site})",
    _READ_VARIES: "what {word} holds when it is read depends on the schedule ({site})",
    _WAIT_VARIES: "when {word} meets a wait depends on the schedule ({site})",
}


def why_not(tables: Tables, execution: Execution, events: Events, order: MustOrder) -> str | None:
    """Why a program has no straight form, in words; None: it has one."""
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
    used = used_results(tables)[events.op] & np.isin(events.kind, (LOAD, RMW))
    previous = _previous_of_chain(events)
    code, event = _verify_words(
        events.touching[by_word],
        edges,
        events.chain,
        events.kind,
        events.writes,
        used,
        tables.tests,
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


def _may_start(tables: Tables, execution: Execution, events: Events) -> str | None:
    """Why an agent that executed nothing, or not everything, might do more in another schedule."""
    for agent in np.flatnonzero(execution.state.pc < tables.agent_end):
        row = int(execution.state.pc[agent])
        if (
            tables.ops[row, t.KIND] != t.WAIT
            or tables.ops[row, t.SELECT] >= 0
            or np.any(events.touched == tables.ops[row, t.ADDR])
        ):
            return f"an agent may get further in another schedule ({site_of(tables, row)})"
    return None


def _previous_of_chain(events: Events) -> np.ndarray:
    by_chain = np.argsort(events.chain, kind="stable")
    same = np.concatenate(([False], np.diff(events.chain[by_chain]) == 0))
    previous = np.full(len(by_chain), -1, np.int64)
    previous[by_chain[same]] = by_chain[np.flatnonzero(same) - 1]
    return previous


@njit(cache=True)
def _verify_words(
    touching, edges, chain, kind, writing, used, tests, fn, wanted, value, initial, rows, time, met_by, previous
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
                    tests,
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
def _wait_is_fixed(e, writes, chained, chain, kind, tests, fn, wanted, value, initial, rows, time, met_by, previous):
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
            if words.met(tests, fn, now, wanted) != (visible >= needed):
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
