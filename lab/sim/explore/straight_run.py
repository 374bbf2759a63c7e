"""Random and PCT schedules of a straight program, at the speed of its counters.

A schedule is a walk over rows; every schedule of a straight program has the same number of rows, so several walk in
lockstep without a branch: what is unpredictable (does a step wake somebody, is the next one enabled) is computed, not
jumped over, and independent walks hide each other's latency. PCT runs one thread until it blocks, so it branches, and
skips rows that touch nobody.

Steps that commute with everything that may run beside them can be fused into the step before: payload without a race,
loads, fences, stores that nobody waits for. No verdict depends on where they stand between other threads' steps.

A walk in which a check fails has *deviated* (`lab.sim.order.straight`): memory decides whether a value is wrong, so it
is repeated on the machine.

What limits it: random, some thirty instructions a row; PCT, one or two mispredicted branches a change of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.sim.machine import interleaved as m
from lab.sim.order.straight import Straight

_LANES = 4
_NEVER = 1 << 30


@dataclass(frozen=True)
class Rows:
    """A straight program for the walkers: one row a step (or a fused run of steps), one more at the end of each thread.

    Attributes:
        straight: Where it comes from.
        first: int32, first row of each thread.
        wake_thread, wake_row: int32. After this row, thread `wake_thread` is enabled if it stands at `wake_row`.
        guard_thread, guard_min: int32. The row is enabled when thread `guard_thread` stands at row `guard_min` or
            beyond.
        skip: int32, how many rows from here on touch nobody and are followed by a row without a guard.
        check_at, check_thread, check_min: Racing predecessors of each row, as rows. The first of each row once more in
            `one_thread`, `one_min` (no check: always true), and whether there are others in `more`.
        covers_lo, covers_hi: int64, the steps of `straight` that a row makes.
        length: Rows of every complete schedule.
        fused: Whether commuting steps were fused.
    """

    straight: Straight
    first: np.ndarray
    wake_thread: np.ndarray
    wake_row: np.ndarray
    guard_thread: np.ndarray
    guard_min: np.ndarray
    skip: np.ndarray
    check_at: np.ndarray
    check_thread: np.ndarray
    check_min: np.ndarray
    one_thread: np.ndarray
    one_min: np.ndarray
    more: np.ndarray
    covers_lo: np.ndarray
    covers_hi: np.ndarray
    length: int
    fused: bool


def rows_of(straight: Straight, fuse: bool = True, all_checks: bool = False) -> Rows:
    """Bring a straight program into rows.

    Args:
        straight: The program.
        fuse: Fuse commuting steps.
        all_checks: Check every pair of conflicting accesses, also those that the must order keeps in order.
    """
    s = straight
    n, threads = s.steps, s.threads
    kept = s.check_races | all_checks
    check_row = np.repeat(np.arange(n), np.diff(s.check_at))[kept]
    sources_of_checks = (s.start[s.check_thread] + s.check_min - 1)[kept]
    check_thread = s.check_thread[kept]
    guard_row = np.repeat(np.arange(n), np.diff(s.guard_at))
    sources = s.start[s.guard_thread] + s.guard_min - 1
    pinned = np.full(n, not fuse)
    pinned[s.start[:-1]] = True
    for touched in (guard_row, sources, check_row, sources_of_checks):
        pinned[touched] = True
    # A step that waits for several gets a row before it for each but one; one that wakes several a row after it.
    guards, wakes = np.bincount(guard_row, minlength=n), np.bincount(sources, minlength=n)
    before, after = np.maximum(guards - 1, 0), np.maximum(wakes - 1, 0)
    width = np.where(pinned, 1 + before + after, 0)
    thread = np.repeat(np.arange(threads), s.lengths())
    own = np.cumsum(width) - width + before + thread  # the row that makes a pinned step
    own = np.where(pinned, own, -1)
    total = int(width.sum()) + threads
    first = np.concatenate(([0], np.cumsum(width)))[s.start[:-1]] + np.arange(threads)
    end = np.append(first[1:], total) - 1
    wake_thread, wake_row = np.zeros(total, np.int32), np.full(total, -1, np.int32)
    guard_thread, guard_min = np.zeros(total, np.int32), np.zeros(total, np.int32)
    used_before, used_after = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for row, source, other in zip(guard_row, sources, s.guard_thread, strict=True):
        waiter, waker = own[row] - used_before[row], own[source] + used_after[source]
        used_before[row] += 1
        used_after[source] += 1
        guard_thread[waiter], guard_min[waiter] = other, waker + 1
        wake_thread[waker], wake_row[waker] = thread[row], waiter
    guard_thread[end], guard_min[end] = np.arange(threads), _NEVER
    lo = np.zeros(total, np.int64)
    hi = np.zeros(total, np.int64)
    steps = np.flatnonzero(pinned)
    lo[own[steps]] = steps
    hi[own[steps]] = np.minimum(np.append(steps[1:], n), s.start[thread[steps] + 1])
    order = np.argsort(own[check_row], kind="stable")
    check_at = np.concatenate(([0], np.cumsum(np.bincount(own[check_row], minlength=total))))
    checks = np.diff(check_at)
    plain = (wake_row < 0) & (checks == 0)
    check_thread = check_thread[order].astype(np.int32)
    check_min = (own[sources_of_checks] + 1)[order].astype(np.int32)
    one_thread, one_min = np.zeros(total, np.int32), np.zeros(total, np.int32)
    one_thread[checks > 0] = check_thread[check_at[:-1][checks > 0]]
    one_min[checks > 0] = check_min[check_at[:-1][checks > 0]]
    return Rows(
        straight=s,
        first=first.astype(np.int32),
        wake_thread=wake_thread,
        wake_row=wake_row,
        guard_thread=guard_thread,
        guard_min=guard_min,
        skip=_skips(plain, guard_min),
        check_at=check_at.astype(np.int32),
        check_thread=check_thread,
        check_min=check_min,
        one_thread=one_thread,
        one_min=one_min,
        more=checks > 1,
        covers_lo=lo,
        covers_hi=hi,
        length=int(width.sum()),
        fused=fuse,
    )


def _skips(plain: np.ndarray, guard_min: np.ndarray) -> np.ndarray:
    skip = np.zeros(len(plain), np.int32)
    for row in range(len(plain) - 2, -1, -1):
        if plain[row] and guard_min[row + 1] == 0:
            skip[row] = skip[row + 1] + 1
    return skip


# What `Runner.batch` returns.
R_RUNS, R_DEVIATED, R_FIRST = range(3)


class Runner:
    """Runs a straight program under seeded schedulers; seed `k` is the same schedule in every batch."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        threads = len(rows.first)
        self._pc = np.zeros(_LANES * threads, np.int32)
        self._enabled = np.zeros(_LANES * (threads + 1), np.int32)
        self._made = np.zeros(rows.length + 1, np.int32)
        self._order, self._rank = np.zeros(threads, np.int32), np.zeros(threads, np.int32)
        self._points = np.zeros(8, np.int64)

    def batch(self, scheduler: str, seed: int, count: int, depth: int = 3) -> np.ndarray:
        """Run seeds `seed` to `seed + count - 1`; returns (runs, deviated runs, first seed that deviated or -1).

        Args:
            scheduler: "random" (each enabled thread is equally likely) or "pct" (Burckhardt et al., ASPLOS 2010).
            seed: The first.
            count: How many.
            depth: Of PCT: one more than the changes of priority.
        """
        return self._run(scheduler, seed, count, depth, False)

    def choices(self, scheduler: str, seed: int, depth: int = 3) -> np.ndarray:
        """The schedule of a seed as choices (int32 entities) that `machine.run` replays."""
        self._run(scheduler, seed, 1, depth, True)
        r = self.rows
        made = self._made[: r.length]
        return np.concatenate([r.straight.entity[r.covers_lo[row] : r.covers_hi[row]] for row in made])

    def wrong(self, scheduler: str, seed: int, depth: int = 3) -> bool:
        """Whether the schedule of a seed makes an element wrong, by the machine."""
        s = self.rows.straight.execution.static
        state, log = m.new_state(s, self.rows.straight.tables.registers), m.new_log(s, m.LEVEL_NONE)
        m.run(s, state, log, m.REPLAY, choices=self.choices(scheduler, seed, depth))
        return bool(state.counts[m.C_WRONG])

    def _run(self, scheduler: str, seed: int, count: int, depth: int, record: bool) -> np.ndarray:
        r = self.rows
        totals = np.array([count, 0, -1], np.int64)
        tables = (
            r.first,
            r.wake_thread,
            r.wake_row,
            r.guard_thread,
            r.guard_min,
            r.check_at,
            r.check_thread,
            r.check_min,
        )
        if scheduler == "random":
            whole = 0 if record else count // _LANES * _LANES
            lanes = (*tables, r.one_thread, r.one_min, r.more, self._pc, self._enabled)
            if len(r.check_min):
                _random_lanes_checked(*lanes, seed, whole, r.length, totals)
            else:
                _random_lanes(*tables[:5], self._pc, self._enabled, seed, whole, r.length)
            rest = (seed + whole, count - whole, r.length, record, self._made, totals)
            _random_one(*tables, self._pc, self._enabled, *rest)
        elif scheduler == "pct":
            _pct(
                *tables,
                r.skip,
                self._pc,
                self._order,
                self._rank,
                self._points,
                seed,
                count,
                depth - 1,
                r.length,
                record,
                self._made,
                totals,
            )
        else:
            raise ValueError(f"a straight program runs under random or pct, not {scheduler}")
        return totals


@njit(forceinline=True, cache=True, _nrt=False)
def _seeded(seed):
    """splitmix64's finaliser (Steele, Lea, Flood 2014): neighbouring seeds give unrelated streams."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return x | np.uint64(1)


@njit(forceinline=True, cache=True, _nrt=False)
def _next(x):
    """xorshift64 (Marsaglia 2003), one step."""
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    return x


@njit(forceinline=True, cache=True, _nrt=False)
def _below(x, n):
    """A number below n from the high bits of a scrambled state."""
    return (((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32)) * n) >> np.uint64(32)


@njit(forceinline=True, cache=True, _nrt=False)
def _begin(first, guard_thread, guard_min, pc, enabled, at, list_at):
    """Put a walk at its first rows; returns how many threads are enabled."""
    threads = len(first)
    for q in range(threads):
        pc[at + q] = first[q]
    n = 0
    for q in range(threads):
        row = first[q]
        if pc[at + guard_thread[row]] >= guard_min[row]:
            enabled[list_at + n] = q
            n += 1
    return np.uint64(n)


@njit(forceinline=True, cache=True, _nrt=False)
def _walk(x, n, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at, list_at):
    """Make one row of a walk without a branch; returns how many threads are enabled then."""
    i = list_at + _below(x, n)
    q = enabled[i]
    mine = at + np.uint64(q)
    row = np.uint64(pc[mine])
    following = row + np.uint64(1)
    pc[mine] = following
    woken = wake_thread[row]
    enabled[list_at + n] = woken
    n += np.uint64(pc[at + np.uint64(woken)] == wake_row[row])
    blocked = pc[at + np.uint64(guard_thread[following])] < guard_min[following]
    n -= np.uint64(blocked)
    enabled[i] = enabled[list_at + n] if blocked else q
    return n


@njit(nogil=True, cache=True, _nrt=False)
def _random_lanes(first, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, seed, count, length):
    """Four walks in lockstep: every schedule has `length` rows."""
    threads = np.uint64(len(first))
    wide = threads + np.uint64(1)
    at0, at1, at2, at3 = np.uint64(0), threads, np.uint64(2) * threads, np.uint64(3) * threads
    l0, l1, l2, l3 = np.uint64(0), wide, np.uint64(2) * wide, np.uint64(3) * wide
    for k in range(0, count, 4):
        x0, x1, x2, x3 = _seeded(seed + k), _seeded(seed + k + 1), _seeded(seed + k + 2), _seeded(seed + k + 3)
        n0 = _begin(first, guard_thread, guard_min, pc, enabled, at0, l0)
        n1 = _begin(first, guard_thread, guard_min, pc, enabled, at1, l1)
        n2 = _begin(first, guard_thread, guard_min, pc, enabled, at2, l2)
        n3 = _begin(first, guard_thread, guard_min, pc, enabled, at3, l3)
        for _ in range(length):
            x0, x1, x2, x3 = _next(x0), _next(x1), _next(x2), _next(x3)
            n0 = _walk(x0, n0, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at0, l0)
            n1 = _walk(x1, n1, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at1, l1)
            n2 = _walk(x2, n2, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at2, l2)
            n3 = _walk(x3, n3, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at3, l3)


@njit(forceinline=True, cache=True, _nrt=False)
def _deviates(x, n, check_at, check_thread, check_min, one_thread, one_min, more, pc, enabled, at, list_at):
    """Whether the row that `_walk` makes next fails a check."""
    row = np.uint64(pc[at + np.uint64(enabled[list_at + _below(x, n)])])
    failed = pc[at + np.uint64(one_thread[row])] < one_min[row]
    if more[row]:
        for c in range(check_at[row], check_at[row + np.uint64(1)]):
            failed |= pc[at + np.uint64(check_thread[c])] < check_min[c]
    return failed


@njit(nogil=True, cache=True, _nrt=False)
def _random_lanes_checked(
    first,
    wake_thread,
    wake_row,
    guard_thread,
    guard_min,
    check_at,
    check_thread,
    check_min,
    one_thread,
    one_min,
    more,
    pc,
    enabled,
    seed,
    count,
    length,
    totals,
):
    """`_random_lanes` with checks; walks that deviate go on to their end."""
    threads = np.uint64(len(first))
    wide = threads + np.uint64(1)
    at0, at1, at2, at3 = np.uint64(0), threads, np.uint64(2) * threads, np.uint64(3) * threads
    l0, l1, l2, l3 = np.uint64(0), wide, np.uint64(2) * wide, np.uint64(3) * wide
    for k in range(0, count, 4):
        x0, x1, x2, x3 = _seeded(seed + k), _seeded(seed + k + 1), _seeded(seed + k + 2), _seeded(seed + k + 3)
        n0 = _begin(first, guard_thread, guard_min, pc, enabled, at0, l0)
        n1 = _begin(first, guard_thread, guard_min, pc, enabled, at1, l1)
        n2 = _begin(first, guard_thread, guard_min, pc, enabled, at2, l2)
        n3 = _begin(first, guard_thread, guard_min, pc, enabled, at3, l3)
        d0 = d1 = d2 = d3 = False
        for _ in range(length):
            x0, x1, x2, x3 = _next(x0), _next(x1), _next(x2), _next(x3)
            d0 |= _deviates(x0, n0, check_at, check_thread, check_min, one_thread, one_min, more, pc, enabled, at0, l0)
            n0 = _walk(x0, n0, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at0, l0)
            d1 |= _deviates(x1, n1, check_at, check_thread, check_min, one_thread, one_min, more, pc, enabled, at1, l1)
            n1 = _walk(x1, n1, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at1, l1)
            d2 |= _deviates(x2, n2, check_at, check_thread, check_min, one_thread, one_min, more, pc, enabled, at2, l2)
            n2 = _walk(x2, n2, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at2, l2)
            d3 |= _deviates(x3, n3, check_at, check_thread, check_min, one_thread, one_min, more, pc, enabled, at3, l3)
            n3 = _walk(x3, n3, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, at3, l3)
        totals[R_DEVIATED] += d0 + d1 + d2 + d3
        if (d0 or d1 or d2 or d3) and totals[R_FIRST] < 0:
            totals[R_FIRST] = seed + k + (0 if d0 else 1 if d1 else 2 if d2 else 3)


@njit(nogil=True, cache=True, _nrt=False)
def _random_one(
    first,
    wake_thread,
    wake_row,
    guard_thread,
    guard_min,
    check_at,
    check_thread,
    check_min,
    pc,
    enabled,
    seed,
    count,
    length,
    record,
    made,
    totals,
):
    """One walk after the other, with checks; the same schedules as `_random_lanes`."""
    zero = np.uint64(0)
    for k in range(count):
        x = _seeded(seed + k)
        n = _begin(first, guard_thread, guard_min, pc, enabled, zero, zero)
        deviated = False
        for step in range(length):
            x = _next(x)
            row = np.uint64(pc[np.uint64(enabled[_below(x, n)])])
            if record:
                made[step] = row
            for c in range(check_at[row], check_at[row + np.uint64(1)]):
                if pc[np.uint64(check_thread[c])] < check_min[c]:
                    deviated = True
            n = _walk(x, n, wake_thread, wake_row, guard_thread, guard_min, pc, enabled, zero, zero)
        totals[R_DEVIATED] += deviated
        if deviated and totals[R_FIRST] < 0:
            totals[R_FIRST] = seed + k


@njit(nogil=True, cache=True, _nrt=False)
def _pct(
    first,
    wake_thread,
    wake_row,
    guard_thread,
    guard_min,
    check_at,
    check_thread,
    check_min,
    skip,
    pc,
    order,
    rank,
    points,
    seed,
    count,
    changes,
    length,
    record,
    made,
    totals,
):
    """The enabled thread of highest priority runs; at each change point it falls to the lowest."""
    threads = len(first)
    for k in range(count):
        x = _seeded(seed + k)
        for q in range(threads):
            pc[q] = first[q]
            order[q] = q
        for q in range(threads - 1, 0, -1):
            x = _next(x)
            other = _below(x, np.uint64(q + 1))
            order[q], order[other] = order[other], order[q]
        for q in range(threads):
            rank[order[q]] = q
        for c in range(changes):
            x = _next(x)
            point = np.int64(_below(x, np.uint64(length))) + 1
            at = c
            while at > 0 and points[at - 1] > point:
                points[at] = points[at - 1]
                at -= 1
            points[at] = point
        cursor = 0
        change = points[0] if changes > 0 else np.int64(_NEVER)
        step = np.int64(0)
        deviated = False
        place = 0
        q = np.uint64(order[0])
        row = np.uint64(pc[q])
        running = False
        while step < length:
            if not running:
                # Nobody before `place` is enabled: whoever wakes one of them hands over to it.
                q = np.uint64(order[place])
                row = np.uint64(pc[q])
                running = pc[np.uint64(guard_thread[row])] >= guard_min[row]
                if not running:
                    place += 1
                    continue
            quiet = min(np.int64(skip[row]), change - step)
            if quiet > 0:
                if record:
                    for d in range(quiet):
                        made[step + d] = row + np.uint64(d)
                step += quiet
                row += np.uint64(quiet)
                pc[q] = row
            else:
                for c in range(check_at[row], check_at[row + np.uint64(1)]):
                    if pc[np.uint64(check_thread[c])] < check_min[c]:
                        deviated = True
                if record:
                    made[step] = row
                step += 1
                waits_at = wake_row[row]
                woken = np.uint64(wake_thread[row])
                row += np.uint64(1)
                pc[q] = row
                if pc[woken] == waits_at and rank[woken] < place:
                    place = rank[woken]
                    running = False
                elif pc[np.uint64(guard_thread[row])] < guard_min[row]:
                    place += 1
                    running = False
            if step == change:
                at = rank[q]
                for c in range(at, threads - 1):
                    order[c] = order[c + 1]
                    rank[order[c]] = c
                order[threads - 1] = q
                rank[q] = threads - 1
                cursor += 1
                while cursor < changes and points[cursor] == change:
                    cursor += 1
                change = points[cursor] if cursor < changes else np.int64(_NEVER)
                if at < place:
                    place -= 1
                elif at == place:
                    running = False
        totals[R_DEVIATED] += deviated
        if deviated and totals[R_FIRST] < 0:
            totals[R_FIRST] = seed + k
