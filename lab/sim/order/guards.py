"""Threads of steps, what each step waits for, and what it must have seen: who needs how many steps of whom."""

from __future__ import annotations

import numpy as np
from numba import njit


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
def checks_between(n, threads, thread, place, clock, cells, at, writes):
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
def racing_pairs(cells, rows, writes, thread, number, clock):
    """Rows of conflicting accesses that the clocks leave unordered, the earlier one first: int64 (pairs, 2)."""
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
