"""Payload in time: cells with values under way, and their stamps."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.sim.timing.agenda import push
from lab.sim.timing.columns import (
    BASE,
    CELL_COLUMNS,
    INEXACT,
    INF,
    KEY,
    NEXT,
    NOT_WAITING,
    PLACE,
    S1,
    S2,
    STAMP,
    T1,
    T2,
    V1,
    V2,
    W1,
    W2,
)
from lab.sim.timing.waiting import met, next_poll


@njit(cache=True, _nrt=False)
def _settle_first(cells, c):
    """Settle the first value under way of cell `c`, and its stamp."""
    cells[c, BASE] = cells[c, V1]
    cells[c, V1], cells[c, T1], cells[c, W1], cells[c, T2] = cells[c, V2], cells[c, T2], cells[c, W2], INF
    if cells.shape[1] > CELL_COLUMNS:
        cells[c, STAMP], cells[c, S1] = cells[c, S1], cells[c, S2]


@njit(cache=True, _nrt=False)
def cell_seen(cells, c, now, a):
    """The value of cell `c` that agent `a` reads at `now`."""
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T1] != INF:
        if cells[c, T2] != INF and cells[c, W2] == a:
            return cells[c, V2]
        if cells[c, W1] == a:
            return cells[c, V1]
    return cells[c, BASE]


@njit(cache=True, _nrt=False)
def write_cell(cells, count, c, value, now, time, a):
    """Cell `c` will hold `value` from `time` on."""
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T2] != INF:
        count[INEXACT] += 1
        _settle_first(cells, c)
    if cells[c, T1] == INF:
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, a
    elif time >= cells[c, T1]:
        cells[c, V2], cells[c, T2], cells[c, W2] = value, time, a
    else:
        cells[c, V2], cells[c, T2], cells[c, W2] = cells[c, V1], cells[c, T1], cells[c, W1]
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, a


@njit(cache=True, _nrt=False)
def write_stamp(cells, c, time, stamp, stamped):
    """The stamp of what `write_cell` just wrote at `time`: `stamp`, or (a plain store) the stamp before it."""
    if cells[c, T2] != INF and cells[c, T2] == time:
        cells[c, S2] = stamp if stamped else cells[c, S1]
        return
    if cells[c, T2] != INF:
        cells[c, S2] = cells[c, S1]
    cells[c, S1] = stamp if stamped else cells[c, STAMP]


@njit(cache=True, _nrt=False)
def wake_cell(agent, clock, cell_waiter, heap, count, c, time):
    """A stamp of cell `c` changes at `time`: all who sleep on it look again."""
    a = cell_waiter[c]
    cell_waiter[c] = -1
    while a >= 0:
        following = agent[a, NEXT]
        agent[a, NEXT] = NOT_WAITING
        poll = next_poll(clock, a, time)
        if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
            push(heap, agent, clock, count, a, poll)
        a = following


@njit(cache=True, _nrt=False)
def stamps_met(tests, cells, items, lo, hi, cond, value, now, a):
    """(when all stamps are met as far as is known, the first cell of which that is not known or -1)."""
    time = now
    for i in range(lo, hi):
        c = items[i]
        cell_seen(cells, c, now, a)
        if met(tests, cond, np.int64(cells[c, STAMP]), value):
            continue
        if cells[c, T1] != INF and met(tests, cond, np.int64(cells[c, S1]), value):
            time = max(time, cells[c, T1])
        elif cells[c, T2] != INF and met(tests, cond, np.int64(cells[c, S2]), value):
            time = max(time, cells[c, T2])
        else:
            return time, c
    return time, -1
