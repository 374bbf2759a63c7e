"""The race verdict of one execution in microseconds, once the execution has been specialised.

`lab.sim.order.races` finds out which write each read joins; that depends on orders, scopes, fences and registers, and
is done once. What remains is kept as two flat lists: the joins that change a clock, in the order of the execution, and
the pairs of conflicting accesses. A verdict computes all clocks from the joins and compares every pair.

What limits it: one row of a few integers to copy and join for each synchronisation, one comparison for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol.tables import Tables
from lab.sim.machine import completion
from lab.sim.machine.execution import Execution
from lab.sim.order import races
from lab.sim.order.guards import guards_between, merge_chains


@dataclass(frozen=True)
class OneSchedule:
    """An execution, specialised.

    Attributes:
        joins: int32 (n, 5): row written, row it continues, row joined, thread joined, steps of that thread known by it.
        pairs: int32 (m, 3): row of the later access, thread of the earlier one, its number in the thread.
        steps: int32 (m, 2): the log positions of each pair.
        rows: int32 (rows, threads), what `races` works on; row 0 is the empty clock.
    """

    execution: Execution
    joins: np.ndarray
    pairs: np.ndarray
    steps: np.ndarray
    rows: np.ndarray

    def races(self) -> int:
        """How many pairs of conflicting steps no synchronisation orders: as many as `races.find_races` finds."""
        return int(_verdict(self.joins, self.pairs, self.rows))

    def racing(self) -> np.ndarray:
        """int32 (races, 2): the log positions of each racing pair."""
        _verdict(self.joins, self.pairs, self.rows)
        return self.steps[self.rows[self.pairs[:, 0], self.pairs[:, 1]] <= self.pairs[:, 2]]


def one_schedule(tables: Tables, execution: Execution | None = None) -> OneSchedule:
    """Specialise one execution (by default: each agent runs on until it blocks)."""
    execution = execution or races.execute(tables)
    found = races.clocks(execution)
    kept = np.flatnonzero(found.time > 0)
    place_of = np.full(execution.steps, -1, np.int64)
    place_of[kept] = np.arange(len(kept))
    # Without what drains tell: it orders nothing else, so pairs that rely on it are left out below.
    chains = found.rows.shape[1] // completion.parts_of(tables)
    chain, rows, time = found.chain[kept], found.rows[kept, :chains], found.time[kept]
    thread = merge_chains(chain, rows.shape[1], rows, time)
    threads = int(thread.max(initial=0)) + 1
    place = np.zeros(len(kept), np.int32)
    for k in range(threads):
        own = np.flatnonzero(thread == k)
        place[own] = np.arange(len(own))
    needed_at, needed = _sources(chain, rows, time)
    _, event, of_thread, minimum = guards_between(len(kept), threads, thread, place, needed_at, needed)
    # A thread's clock changes only where it joins another: one row for each such step.
    joining, first = np.unique(event, return_index=True)
    row_of = np.zeros(len(kept), np.int64)
    latest = np.zeros(threads, np.int64)
    row_at = dict(zip(joining.tolist(), range(1, len(joining) + 1), strict=True))
    continued = np.zeros(len(joining) + 1, np.int64)
    for e in range(len(kept)):
        k = thread[e]
        if e in row_at:
            continued[row_at[e]] = latest[k]
            latest[k] = row_at[e]
        row_of[e] = latest[k]
    by_thread = [np.flatnonzero(thread == k) for k in range(threads)]
    source = np.array([by_thread[u][n - 1] for u, n in zip(of_thread, minimum, strict=True)], np.int64)
    is_first = np.zeros(len(event), bool)
    is_first[first] = True
    own = np.array([row_at[e] for e in event.tolist()], np.int64)
    joins = np.stack(
        (own, np.where(is_first, continued[own], own), row_of[source], of_thread, minimum), axis=1
    ).reshape(-1, 5)
    pairs = races.conflicts(tables, execution, found, ordered=True)[:, :2]
    if chains < found.rows.shape[1]:
        racing = {tuple(pair) for pair in races.conflicts(tables, execution, found)[:, :2].tolist()}
        ordered = found.rows[pairs[:, 1], found.chain[pairs[:, 0]]] >= found.time[pairs[:, 0]]
        pairs = pairs[ordered | np.array([tuple(pair) in racing for pair in pairs.tolist()], bool)]
    earlier, later = place_of[pairs].T
    # Steps of one thread are ordered: nothing to compare.
    apart = thread[earlier] != thread[later]
    earlier, later = earlier[apart], later[apart]
    return OneSchedule(
        execution,
        np.ascontiguousarray(joins, np.int32),
        np.ascontiguousarray(np.stack((row_of[later], thread[earlier], place[earlier]), axis=1), np.int32),
        np.stack((kept[earlier], kept[later]), axis=1).astype(np.int32),
        np.zeros((len(joining) + 1, threads), np.int32),
    )


@njit(cache=True)
def _sources(chain, rows, time):
    """For each step the steps of other chains whose clocks it takes over: what it knows more than the one before."""
    n, chains = rows.shape
    latest = np.full(chains, -1, np.int64)
    longest = np.zeros(chains, np.int64)
    for e in range(n):
        longest[chain[e]] = max(longest[chain[e]], time[e])
    first = np.zeros(chains + 1, np.int64)
    for c in range(chains):
        first[c + 1] = first[c] + longest[c] + 1
    where = np.full(first[chains], -1, np.int64)  # the step of a chain at a time
    for e in range(n):
        where[first[chain[e]] + time[e]] = e
    needed_at = np.zeros(n + 1, np.int64)
    needed = np.zeros(n * chains, np.int64)
    count = 0
    for e in range(n):
        own = chain[e]
        for c in range(chains):
            known = rows[latest[own], c] if latest[own] >= 0 else 0
            if c != own and rows[e, c] > known:
                needed[count] = where[first[c] + rows[e, c]]
                count += 1
        latest[own] = e
        needed_at[e + 1] = count
    return needed_at, needed[:count].copy()


@njit(nogil=True, cache=True, _nrt=False)
def _verdict(joins, pairs, rows):
    threads = rows.shape[1]
    for j in range(len(joins)):
        own, before, other = np.uint64(joins[j, 0]), np.uint64(joins[j, 1]), np.uint64(joins[j, 2])
        for c in range(threads):
            rows[own, c] = max(rows[before, c], rows[other, c])
        joined = np.uint64(joins[j, 3])
        rows[own, joined] = max(rows[own, joined], joins[j, 4])
    count = 0
    for k in range(len(pairs)):
        count += rows[np.uint64(pairs[k, 0]), np.uint64(pairs[k, 1])] <= pairs[k, 2]
    return count
