"""The order that every schedule obeys: program order, what met each wait, and what each release and read waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import words
from lab.sim.machine.execution import Execution
from lab.sim.order.events import ADD, WAIT, Events


@dataclass(frozen=True)
class MustOrder:
    """Clocks and what they come from, one row an event.

    rows: int32 (events, chains); time: int32; needed: for each event the events that it waits for, as `needed_at` says;
    met_by: of each word that a wait touches, the write event that first meets it, -1: the initial value;
    handed_by: of each posted store, the event that hands it to the other waves of its block, -1: none.
    """

    rows: np.ndarray
    time: np.ndarray
    needed_at: np.ndarray
    needed: np.ndarray
    met_by: np.ndarray
    handed_by: np.ndarray


def must_order(tables: Tables, execution: Execution, events: Events) -> MustOrder:
    """The must order of the events of an execution."""
    n = len(events.op)
    return MustOrder(
        *_must_order_loop(
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
            tables.tests,
            tables.ops[events.op, t.FN],
            events.wanted,
            events.value,
            events.hands,
        )
    )


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
    tests,
    fn,
    wanted,
    value,
    hands,
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
    handed_by = np.full(n, -1, np.int64)
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
                for other in range(block_start[a], block_end[a]) if drains[e, 0] >> rank & 1 else range(0):
                    store, whole = posted[other, rank], other == a or drains[e, 2] >> rank & 1
                    while store >= 0:
                        by = store if whole else handed_by[store]
                        if by >= 0 and (whole or drains[e, 1] >> rank & 1) and rows[e, chain[by]] >= time[by]:
                            break
                        store = posted_before[store]  # no order with this one: see `Straight.held_pairs`
                    if store >= 0:
                        needed[count] = visible[store]
                        count += 1
            for rank in range(world) if hands[e] else range(0):
                store = posted[a, rank]
                while store >= 0 and handed_by[store] < 0:
                    handed_by[store] = e
                    store = posted_before[store]
            if visible[e] != e:
                rank = (entity[visible[e]] - agents) % world
                posted_before[e] = posted[a, rank]
                posted[a, rank] = e
            for k in range(touched_at[e], touched_at[e + 1] if kind[e] == WAIT else touched_at[e]):
                w = last[touched[k]]
                best = w
                while w >= 0:
                    write = touching[w]
                    if words.met(tests, fn[e], value[write], wanted[e]):
                        best = w
                    if rows[e, chain[write]] >= time[write]:
                        break
                    w = before[w]
                if w < 0 and words.met(tests, fn[e], initial[touched[k]], wanted[e]):
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
    return rows, time, needed_at, needed[:count].copy(), met_by, handed_by
