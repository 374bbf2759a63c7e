"""All states of a straight program, each visited once, without a set of visited states.

The states of a straight program are the sets of steps that are closed under the must order, one counter a thread.
They are enumerated by reverse search (Avis and Fukuda, Discrete Applied Mathematics 65, 1996): the *parent* of a
state is the state without the last step of the highest thread whose last step can be taken back, that is, on which no
step made depends. Every state but the first has exactly one parent, so a depth-first walk from parents to children
meets each state exactly once and needs no memory but its path. The key of a state is exact (its counters), and
nothing is hashed.

In every state each enabled step is examined: its checks say whether it sees what the recorded execution saw; a state
in which nothing is enabled before the end is a hang.

What limits it: the misprediction of whether a step leads to a child.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from lab.sim.order.straight import Straight

MAX_THREADS = 64
# Slots of `Walk.counts`.
W_DEPTH, W_STATES, W_TRANSITIONS, W_HANGS, W_DEVIATED = range(5)


@dataclass(frozen=True)
class Walk:
    """A depth-first walk over the states of a straight program, which can be stopped, stored and taken up again.

    Attributes:
        counter: int32, of each thread.
        path: int8, the thread that moved at each depth.
        enabled, removable, todo: uint64 by depth, sets of threads: enabled; last step can be taken back; still to be
            tried.
        width: int64 by depth, how many threads are enabled.
        counts: int64, by W_*.
    """

    straight: Straight
    counter: np.ndarray
    path: np.ndarray
    enabled: np.ndarray
    removable: np.ndarray
    todo: np.ndarray
    width: np.ndarray
    counts: np.ndarray
    wakes: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def done(self) -> bool:
        """Whether all states have been visited."""
        return self.counts[W_DEPTH] < 0

    @property
    def bytes(self) -> int:
        """Memory that grows with the search: all of it."""
        return sum(a.nbytes for a in (self.counter, self.path, self.enabled, self.removable, self.todo, self.width))

    def parts(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds."""
        names = ("counter", "path", "enabled", "removable", "todo", "width", "counts")
        return {name: getattr(self, name) for name in names}

    def advance(self, states: int) -> None:
        """Visit up to so many further states; stops at the first hang or deviation."""
        s = self.straight
        _advance(
            s.start,
            s.guard_at,
            s.guard_thread,
            s.guard_min,
            s.check_at,
            s.check_thread,
            s.check_min,
            *self.wakes,
            self.counter,
            self.path,
            self.enabled,
            self.removable,
            self.todo,
            self.width,
            self.counts,
            states,
        )


def begin(straight: Straight, parts: dict[str, np.ndarray] | None = None) -> Walk:
    """A walk at the initial state, or where a checkpoint left it.

    Raises:
        ValueError: There are more than MAX_THREADS threads.
    """
    s = straight
    if s.threads > MAX_THREADS:
        raise ValueError(f"{s.threads} threads, the walk holds {MAX_THREADS}")
    guard_row = np.repeat(np.arange(s.steps), np.diff(s.guard_at))
    sources = s.start[s.guard_thread] + s.guard_min - 1
    order = np.argsort(sources, kind="stable")
    wake_at = np.concatenate(([0], np.cumsum(np.bincount(sources, minlength=s.steps)))).astype(np.int64)
    thread = np.repeat(np.arange(s.threads), s.lengths())[guard_row].astype(np.int32)
    number = (guard_row - s.start[thread]).astype(np.int32)
    wakes = (wake_at, thread[order], number[order])
    if parts is not None:
        return Walk(s, **{name: np.array(a) for name, a in parts.items()}, wakes=wakes)
    depth = s.steps + 1
    walk = Walk(
        straight=s,
        counter=np.zeros(s.threads, np.int32),
        path=np.zeros(depth, np.int8),
        enabled=np.zeros(depth, np.uint64),
        removable=np.zeros(depth, np.uint64),
        todo=np.zeros(depth, np.uint64),
        width=np.zeros(depth, np.int64),
        counts=np.zeros(5, np.int64),
        wakes=wakes,
    )
    first = [k for k in range(s.threads) if s.start[k] < s.start[k + 1] and not np.diff(s.guard_at)[s.start[k]]]
    walk.enabled[0] = walk.todo[0] = np.uint64(sum(1 << k for k in first))
    walk.width[0] = len(first)
    early = [k for k in first if s.check_at[s.start[k]] < s.check_at[s.start[k] + 1]]
    walk.counts[:] = [0, 1, len(first), not first and s.steps > 0, len(early)]
    return walk


@njit(forceinline=True, cache=True, _nrt=False)
def _met(row, at, thread, minimum, counter):
    for k in range(at[row], at[row + np.uint64(1)]):
        if counter[np.uint64(thread[k])] < minimum[k]:
            return False
    return True


@njit(nogil=True, cache=True, _nrt=False)
def _advance(
    start,
    guard_at,
    guard_thread,
    guard_min,
    check_at,
    check_thread,
    check_min,
    wake_at,
    wake_thread,
    wake_number,
    counter,
    path,
    enabled,
    removable,
    todo,
    width,
    counts,
    limit,
):
    one = np.uint64(1)
    steps = np.int64(start[len(start) - 1])
    depth = np.int64(counts[W_DEPTH])
    states, transitions = np.int64(0), np.int64(0)
    hangs, deviated = np.int64(0), np.int64(0)
    while depth >= 0 and states < limit and not hangs and not deviated:
        d = np.uint64(depth)
        candidates = todo[d]
        if candidates == np.uint64(0):
            depth -= 1
            if depth >= 0:
                counter[np.uint64(path[np.uint64(depth)])] -= 1
            continue
        q = np.uint64(trailing_zeros(candidates))
        todo[d] = candidates & (candidates - one)
        made = np.uint64(counter[q])
        row = np.uint64(start[q]) + made
        # The last steps that this one depends on cannot be taken back any more.
        back = removable[d]
        above = (back >> q) >> one
        first_guard, last_guard = guard_at[row], guard_at[row + one]
        if first_guard == last_guard:
            if above:
                continue  # its parent is another state
        else:
            for g in range(first_guard, last_guard):
                u = np.uint64(guard_thread[g])
                if counter[u] == guard_min[g]:
                    back &= ~(one << u)
            if (back >> q) >> one:
                continue
        counter[q] = made + one
        now = enabled[d] & ~(one << q)
        wide = width[d] - 1
        row += one
        if row < np.uint64(start[q + one]) and _met(row, guard_at, guard_thread, guard_min, counter):
            now |= one << q
            wide += 1
            if not _met(row, check_at, check_thread, check_min, counter):
                deviated += 1
        for w in range(wake_at[row - one], wake_at[row]):
            v = np.uint64(wake_thread[w])
            if counter[v] == wake_number[w]:
                woken = np.uint64(start[v]) + np.uint64(wake_number[w])
                if _met(woken, guard_at, guard_thread, guard_min, counter):
                    now |= one << v
                    wide += 1
                    if not _met(woken, check_at, check_thread, check_min, counter):
                        deviated += 1
        states += 1
        transitions += wide
        path[d] = q
        depth += 1
        d += one
        enabled[d] = now
        todo[d] = now
        removable[d] = back | (one << q)
        width[d] = wide
        if wide == 0 and depth < steps:
            hangs += 1
    counts[W_DEPTH] = depth
    counts[W_STATES] += states
    counts[W_TRANSITIONS] += transitions
    counts[W_HANGS] += hangs
    counts[W_DEVIATED] += deviated
