"""The discrete-event loop of the timing model. `lab.sim.timing` prepares its arrays and reads its results.

Each agent has at most one event in a heap: the instant at which its next operation *samples* memory. Latency before that
instant is the way to the memory, latency after it the way back. A write is recorded at an event and becomes visible at or after
it; events are popped in order of time, so whatever a read at time t may see is known when its event is popped.

A location holds its settled value and a queue of values that will become visible, ordered by time. An agent sees its own
values at once. A queue that would overflow settles its oldest value early and is counted in `INEXACT`.

All times are nanoseconds from the start of the run, as float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Memory, Scope
from lab.sim.words import SUM_LE, met, operand, rmw, signed

# What is special about an operation (Static.role)
PLAIN, LAUNCH, PREVIOUS, KERNEL_END, HOST, HOST_LAUNCH = range(6)
# Counters of a run (State.count)
EVENTS, INEXACT, HEAP, CHECKS, TIMEOUTS, SPANS, SPANS_LOST, MULTI = range(8)
COUNTERS = 8
# Columns of a cell (State.cells): settled value, then value, time and writer of two values under way
BASE, V1, T1, W1, V2, T2, W2, STAMP, S1, S2 = range(10)
CELL_COLUMNS = 8  # without stamps: one cache line
QUEUE = 8  # values under way of one word
# Columns of State.checks and State.timeouts
C_AGENT, C_PC, C_TIME, C_MEAN, C_WRONG, C_ELEMENTS, C_LOW, C_HIGH = range(8)
_CACHED, _UNCACHED, _HOST_MAPPED, _SHARED = (int(m) for m in (Memory.CACHED, Memory.UNCACHED, Memory.HOST_MAPPED, 3))
_DEVICE = int(Scope.DEVICE)
_INF = np.inf


class Static(NamedTuple):
    """What does not change during a run: the arrays of `Tables` and what the timing model adds to them."""

    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    addresses: np.ndarray
    moves: np.ndarray
    sources: np.ndarray
    items: np.ndarray
    iterations: np.ndarray
    agent_start: np.ndarray
    agent_end: np.ndarray
    agent_rank: np.ndarray
    agent_block: np.ndarray
    agent_host: np.ndarray
    agent_launch: np.ndarray
    role: np.ndarray
    bound: np.ndarray
    value: np.ndarray
    cell_rank: np.ndarray
    cell_memory: np.ndarray
    cell_length: np.ndarray
    cell_initial: np.ndarray
    word_initial: np.ndarray
    word_rank: np.ndarray
    word_memory: np.ndarray
    itemsize: float


class State(NamedTuple):
    """What a run changes."""

    count: np.ndarray
    random: np.ndarray
    now: np.ndarray
    poison: np.ndarray
    heap: np.ndarray
    key: np.ndarray
    place: np.ndarray
    pc: np.ndarray
    issue: np.ndarray  # when the current operation was issued
    back: np.ndarray  # the way back of the current access
    row: np.ndarray  # row of `moves`
    at: np.ndarray  # next item of the current payload operation
    upto: np.ndarray  # end of the items of the current iteration
    registers: np.ndarray
    local_drain: np.ndarray  # when this agent's writes to its own rank have arrived
    drain: np.ndarray  # when all have, acknowledgement included
    last: np.ndarray  # (agent, rank): when the last of its writes to that rank became visible
    rate: np.ndarray
    start: np.ndarray
    gap: np.ndarray
    wait_word: np.ndarray
    wait_value: np.ndarray
    wait_first: np.ndarray
    wait_period: np.ndarray
    wait_end: np.ndarray
    next_waiter: np.ndarray
    first_waiter: np.ndarray  # per word
    cell_waiter: np.ndarray  # per cell, where stamps are waited for
    multi: np.ndarray
    words: np.ndarray
    queue_value: np.ndarray
    queue_time: np.ndarray
    queue_writer: np.ndarray
    queued: np.ndarray
    word_time: np.ndarray
    cells: np.ndarray
    memory_free: np.ndarray  # per GPU
    out_free: np.ndarray
    in_free: np.ndarray
    link_last: np.ndarray  # (rank, rank)
    checks: np.ndarray
    timeouts: np.ndarray
    span_op: np.ndarray
    span_time: np.ndarray


# -- random numbers ----------------------------------------------------------------------------------------------------


@njit(cache=True)
def _uniform(state):
    """A double in (0, 1): splitmix64 (Steele, Lea, Flood 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (np.float64(x >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@njit(cache=True)
def _exponential(state, mean):
    return -mean * np.log(_uniform(state))


@njit(cache=True)
def _spread(state, sigma):
    """A log-normal factor of mean 1."""
    if sigma == 0.0:
        return 1.0
    normal = np.sqrt(-2.0 * np.log(_uniform(state))) * np.cos(2.0 * np.pi * _uniform(state))
    return np.exp(sigma * normal - 0.5 * sigma * sigma)


# -- the heap: agents by time, then by number --------------------------------------------------------------------------


@njit(inline="always")
def _before(s, a, b):
    return s.key[a] < s.key[b] or (s.key[a] == s.key[b] and a < b)


@njit(cache=True)
def _up(s, i):
    a = s.heap[i]
    while i > 0:
        parent = (i - 1) >> 1
        b = s.heap[parent]
        if not _before(s, a, b):
            break
        s.heap[i] = b
        s.place[b] = i
        i = parent
    s.heap[i] = a
    s.place[a] = i


@njit(cache=True)
def _down(s, i):
    n = s.count[HEAP]
    a = s.heap[i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        b = s.heap[child]
        if not _before(s, b, a):
            break
        s.heap[i] = b
        s.place[b] = i
        i = child
    s.heap[i] = a
    s.place[a] = i


@njit(cache=True)
def _push(s, agent, key):
    i = s.place[agent]
    if i < 0:
        i = s.count[HEAP]
        s.count[HEAP] += 1
        s.key[agent] = key
        s.heap[i] = agent
        _up(s, i)
        return
    earlier = key < s.key[agent]
    s.key[agent] = key
    if earlier:
        _up(s, i)
    else:
        _down(s, i)


@njit(cache=True)
def _pop(s):
    agent = s.heap[0]
    s.place[agent] = -1
    s.count[HEAP] -= 1
    n = s.count[HEAP]
    if n > 0:
        s.heap[0] = s.heap[n]
        s.place[s.heap[0]] = 0
        _down(s, 0)
    return agent


# -- words -------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _settle(s, w, now):
    """Move every value of word `w` that is visible by `now` into its settled value."""
    n = s.queued[w]
    done = 0
    while done < n and s.queue_time[w, done] <= now:
        s.words[w] = s.queue_value[w, done]
        done += 1
    if done:
        for k in range(done, n):
            s.queue_value[w, k - done] = s.queue_value[w, k]
            s.queue_time[w, k - done] = s.queue_time[w, k]
            s.queue_writer[w, k - done] = s.queue_writer[w, k]
        s.queued[w] = n - done


@njit(cache=True)
def _word_seen(s, w, now, agent):
    if s.queued[w] == 0:
        return s.words[w]
    _settle(s, w, now)
    for k in range(s.queued[w] - 1, -1, -1):
        if s.queue_writer[w, k] == agent:
            return s.queue_value[w, k]
    return s.words[w]


@njit(cache=True)
def _own_pending(s, w, agent):
    """When this agent's newest value of word `w` becomes visible, or 0."""
    for k in range(s.queued[w] - 1, -1, -1):
        if s.queue_writer[w, k] == agent:
            return s.queue_time[w, k]
    return 0.0


@njit(inline="always")
def _next_poll(s, agent, time):
    """The first poll of a waiting agent at or after `time`."""
    first, period = s.wait_first[agent], s.wait_period[agent]
    if time <= first:
        return first
    if period == 0.0:
        return time
    return first + np.ceil((time - first) / period) * period


@njit(cache=True)
def _wake(s, f, w, value, time):
    """Word `w` gets `value` at `time`: wake whoever that satisfies."""
    a = s.first_waiter[w]
    while a >= 0:
        if met(f.ops[s.pc[a], t.FN], value, s.wait_value[a]):
            poll = _next_poll(s, a, time)
            if s.place[a] < 0 or poll < s.key[a]:
                _push(s, a, poll)
        a = s.next_waiter[a]
    for k in range(s.count[MULTI]):
        a = s.multi[k]
        lo = s.wait_word[a]
        if lo <= w < lo + f.ops[s.pc[a], t.COUNT]:
            poll = _next_poll(s, a, time)
            if s.place[a] < 0 or poll < s.key[a]:
                _push(s, a, poll)


@njit(cache=True)
def _write_word(s, f, w, value, now, time, agent):
    """Word `w` will hold `value` from `time` on."""
    _settle(s, w, now)
    n = s.queued[w]
    if n == QUEUE:
        s.count[INEXACT] += 1
        _settle(s, w, s.queue_time[w, 0])
        n = s.queued[w]
    k = n
    while k > 0 and s.queue_time[w, k - 1] > time:
        s.queue_value[w, k] = s.queue_value[w, k - 1]
        s.queue_time[w, k] = s.queue_time[w, k - 1]
        s.queue_writer[w, k] = s.queue_writer[w, k - 1]
        k -= 1
    s.queue_value[w, k], s.queue_time[w, k], s.queue_writer[w, k] = value, time, agent
    s.queued[w] = n + 1
    s.word_time[w] = max(s.word_time[w], time)
    _wake(s, f, w, value, time)


# -- cells -------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _settle_first(cells, c):
    """Settle the first value under way of cell `c`, and its stamp."""
    cells[c, BASE] = cells[c, V1]
    cells[c, V1], cells[c, T1], cells[c, W1], cells[c, T2] = cells[c, V2], cells[c, T2], cells[c, W2], _INF
    if cells.shape[1] > CELL_COLUMNS:
        cells[c, STAMP], cells[c, S1] = cells[c, S1], cells[c, S2]


@njit(cache=True)
def _seen(cells, c, now, agent):
    """The value of cell `c` that `agent` reads at `now`."""
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T1] != _INF:
        if cells[c, T2] != _INF and cells[c, W2] == agent:
            return cells[c, V2]
        if cells[c, W1] == agent:
            return cells[c, V1]
    return cells[c, BASE]


@njit(cache=True)
def _write_cell(s, c, value, now, time, agent):
    """Cell `c` will hold `value` from `time` on."""
    cells = s.cells
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T2] != _INF:
        s.count[INEXACT] += 1
        _settle_first(cells, c)
    if cells[c, T1] == _INF:
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, agent
    elif time >= cells[c, T1]:
        cells[c, V2], cells[c, T2], cells[c, W2] = value, time, agent
    else:
        cells[c, V2], cells[c, T2], cells[c, W2] = cells[c, V1], cells[c, T1], cells[c, W1]
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, agent


@njit(cache=True)
def _write_stamp(s, c, time, stamp, stamped):
    """The stamp of what `_write_cell` just wrote at `time`: `stamp`, or (a plain store) the stamp before it."""
    cells = s.cells
    if cells[c, T2] != _INF and cells[c, T2] == time:
        cells[c, S2] = stamp if stamped else cells[c, S1]
        return
    if cells[c, T2] != _INF:
        cells[c, S2] = cells[c, S1]
    cells[c, S1] = stamp if stamped else cells[c, STAMP]


# -- costs -------------------------------------------------------------------------------------------------------------


@njit(inline="always")
def _gpu(p, rank):
    return np.int64(rank / p.ranks_per_gpu)


@njit(cache=True)
def _read_ns(p, memory, owner, rank, near):
    """Round trip of a load by `rank` from `memory` of `owner`; `near`: L2 may answer (cached, or at most device scope)."""
    if _gpu(p, owner) != _gpu(p, rank) or memory == _HOST_MAPPED:
        return p.remote_read_ns
    if memory == _SHARED:
        return 2.0 * p.step_ns
    if owner == rank and (near or memory == _CACHED):
        return p.l2_read_ns
    return p.uncached_read_ns


@njit(cache=True)
def _store(s, p, agent, rank, memory, owner, near, nbytes, issue):
    """A store of `nbytes` issued at `issue`: (visible, when the agent may issue again). Notes what fences wait for."""
    factor = s.rate[agent] * _spread(s.random, p.access_sigma)
    here, there = _gpu(p, rank), _gpu(p, owner)
    go_on = issue
    if memory == _HOST_MAPPED or memory == _SHARED:
        time = issue + (p.step_ns if memory == _SHARED else p.remote_write_ns * factor)
        answer = time
    elif here == there:
        quick = owner == rank and (near or memory == _CACHED)
        begin = max(issue, s.memory_free[here])
        s.memory_free[here] = begin + nbytes / (p.cached_gbs if quick else p.uncached_gbs)
        time = s.memory_free[here] + (p.l2_write_ns if quick else p.uncached_write_ns) * factor
        answer = time
    else:
        begin = max(issue, s.out_free[here])
        s.out_free[here] = begin + nbytes / p.link_gbs
        arrival = max(s.out_free[here] + p.remote_write_ns, s.in_free[there] + nbytes / p.link_gbs)
        s.in_free[there] = arrival
        # Posted: what one rank sends to another arrives in order.
        time = max(arrival + p.remote_write_ns * (factor - 1.0), s.link_last[rank, owner])
        s.link_last[rank, owner] = time
        answer = time + p.remote_write_ns * factor
        go_on = max(issue, s.out_free[here] - p.link_queue_bytes / p.link_gbs)
    time = max(time, s.last[agent, owner])
    s.last[agent, owner] = time
    s.drain[agent] = max(s.drain[agent], answer, time)
    if owner == rank:
        s.local_drain[agent] = max(s.local_drain[agent], time)
    return time, go_on


# -- operations --------------------------------------------------------------------------------------------------------


@njit(inline="always")
def _address(f, s, pc, agent):
    at = f.ops[pc, t.ADDR]
    select = f.ops[pc, t.SELECT]
    if select < 0:
        return at
    return f.addresses[at + operand(f.exprs, f.postfix, select, s.registers, agent)]


@njit(cache=True)
def _note_span(s, agent, pc, begin, end):
    n = s.count[SPANS]
    if n >= len(s.span_op):
        s.count[SPANS_LOST] += 1
        return
    s.span_op[n, 0], s.span_op[n, 1] = agent, pc
    s.span_time[n, 0], s.span_time[n, 1] = begin, end
    s.count[SPANS] = n + 1


@njit(cache=True)
def _iterate(s, f, p, agent, now):
    """Issue the loads of the next iteration of a payload operation at `now`; its event is when they read."""
    row = s.row[agent]
    rank = f.agent_rank[agent]
    at, count = s.at[agent], f.moves[row, t.M_COUNT]
    turn = f.moves[row, t.M_ITERATION]
    k = at + 1
    while k < count and f.iterations[turn + k] == f.iterations[turn + at]:
        k += 1
    s.upto[agent] = k
    trip = 0.0
    ready = now
    here = _gpu(p, rank)
    first = f.moves[row, t.M_SOURCES]
    for j in range(f.moves[row, t.M_N_SOURCES]):
        items = f.sources[first + j]
        nbytes = 0.0
        for i in range(items + at, items + k):
            nbytes += f.cell_length[f.items[i]]
        nbytes *= f.itemsize
        c = f.items[items + at]
        owner, memory = f.cell_rank[c], f.cell_memory[c]
        trip = max(trip, _read_ns(p, memory, owner, rank, False))
        there = _gpu(p, owner)
        near = memory == _CACHED and owner == rank
        begin = max(now, s.memory_free[there])
        s.memory_free[there] = begin + nbytes / (p.cached_gbs if near else p.uncached_gbs)
        if there != here:
            begin = max(s.memory_free[there], s.out_free[there])
            s.out_free[there] = begin + nbytes / p.link_gbs
            ready = max(ready, s.out_free[there])
        else:
            ready = max(ready, s.memory_free[there])
    trip *= s.rate[agent] * _spread(s.random, p.access_sigma)
    s.back[agent] = 0.5 * trip
    _push(s, agent, ready + 0.5 * trip)


@njit(cache=True)
def _enter(s, f, p, agent, now):
    """Run what needs no memory from `now` on, then schedule the operation that does."""
    while True:
        pc = s.pc[agent]
        if pc >= f.agent_end[agent]:
            return
        kind = f.ops[pc, t.KIND]
        role = f.role[pc]
        begin = now
        s.issue[agent] = now
        if kind == t.NOP:
            now += p.barrier_ns
            s.pc[agent] = pc + 1
        elif kind == t.SET:
            s.registers[agent, f.ops[pc, t.DST]] = operand(f.exprs, f.postfix, f.ops[pc, t.VALUE], s.registers, agent)
            now += p.step_ns
            s.pc[agent] = pc + 1
        elif kind == t.BRANCH:
            cond = f.ops[pc, t.VALUE]
            if cond < 0 or operand(f.exprs, f.postfix, cond, s.registers, agent) == 0:
                s.pc[agent] = f.ops[pc, t.TARGET]
            else:
                s.pc[agent] = pc + 1
            now += p.step_ns
        elif kind == t.FENCE:
            order, scope = f.ops[pc, t.SYNC] & 15, f.ops[pc, t.SYNC] >> 4
            if order & 2:
                now = max(now, s.drain[agent] if scope > _DEVICE else s.local_drain[agent])
            now += p.fence_ns
            s.pc[agent] = pc + 1
        elif kind == t.MOVE or kind == t.WAIT_STAMP:
            select = f.ops[pc, t.SELECT]
            row = f.ops[pc, t.ADDR]
            if select >= 0:
                row += operand(f.exprs, f.postfix, select, s.registers, agent)
            s.row[agent] = row
            s.at[agent] = 0
            if f.moves[row, t.M_COUNT] > 0:
                if kind == t.MOVE:
                    _iterate(s, f, p, agent, now)
                else:
                    _stamp_first(s, f, p, agent, now)
                return
            now += p.step_ns
            s.pc[agent] = pc + 1
        else:
            _schedule(s, f, p, agent, pc, kind, role, now)
            return
        _note_span(s, agent, pc, begin, now)


@njit(cache=True)
def _schedule(s, f, p, agent, pc, kind, role, now):
    """The event of a word operation, FILL or EXPECT issued at `now`."""
    s.back[agent] = 0.0
    if kind == t.FILL or kind == t.EXPECT:
        row = f.ops[pc, t.ADDR]
        select = f.ops[pc, t.SELECT]
        if select >= 0:
            row += operand(f.exprs, f.postfix, select, s.registers, agent)
        s.row[agent] = row
        _push(s, agent, now)
        return
    rank = f.agent_rank[agent]
    w = _address(f, s, pc, agent)
    order, scope = f.ops[pc, t.SYNC] & 15, f.ops[pc, t.SYNC] >> 4
    if kind != t.LOAD and kind != t.WAIT and order & 2:
        # A release leaves only when everything before it has arrived.
        now = max(now, s.drain[agent] if scope > _DEVICE else s.local_drain[agent])
    if kind == t.RMW:
        now = max(now, _own_pending(s, w, agent))
    if kind == t.STORE or role != PLAIN:
        if kind == t.WAIT:
            s.wait_first[agent] = now
            s.wait_period[agent] = p.host_poll_ns if role == HOST else 0.0
            _wait_begins(s, f, agent, pc, w, now)
        _push(s, agent, now)
        return
    near = scope <= _DEVICE
    trip = _read_ns(p, f.word_memory[w], f.word_rank[w], rank, near)
    device_memory = f.word_memory[w] != _SHARED and f.word_memory[w] != _HOST_MAPPED
    if kind == t.RMW and device_memory and _gpu(p, f.word_rank[w]) == _gpu(p, rank):
        trip = p.atomic_ns
    trip *= s.rate[agent] * _spread(s.random, p.access_sigma)
    s.back[agent] = 0.5 * trip
    if kind == t.WAIT:
        s.wait_first[agent] = now + 0.5 * trip
        s.wait_period[agent] = trip + p.poll_gap_ns
        _wait_begins(s, f, agent, pc, w, now)
    _push(s, agent, now + 0.5 * trip)


@njit(cache=True)
def _wait_begins(s, f, agent, pc, w, now):
    s.wait_word[agent] = w
    s.wait_value[agent] = operand(f.exprs, f.postfix, f.ops[pc, t.VALUE], s.registers, agent)
    s.next_waiter[agent] = -2
    bound = f.bound[pc]
    s.wait_end[agent] = _INF if bound < 0 else s.wait_first[agent] + (bound - 1) * max(s.wait_period[agent], 1.0)


@njit(cache=True)
def _join(s, f, agent, pc, w):
    """Sleep until a write to the word."""
    if s.next_waiter[agent] != -2:
        return
    if f.ops[pc, t.COUNT] > 1:
        s.next_waiter[agent] = -1
        s.multi[s.count[MULTI]] = agent
        s.count[MULTI] += 1
        return
    s.next_waiter[agent] = s.first_waiter[w]
    s.first_waiter[w] = agent


@njit(cache=True)
def _leave(s, f, agent, pc, w):
    if s.next_waiter[agent] == -2:
        return
    if f.ops[pc, t.COUNT] > 1:
        n = s.count[MULTI]
        for k in range(n):
            if s.multi[k] == agent:
                s.multi[k] = s.multi[n - 1]
                s.count[MULTI] = n - 1
                break
    elif s.first_waiter[w] == agent:
        s.first_waiter[w] = s.next_waiter[agent]
    else:
        a = s.first_waiter[w]
        while s.next_waiter[a] != agent:
            a = s.next_waiter[a]
        s.next_waiter[a] = s.next_waiter[agent]
    s.next_waiter[agent] = -2


@njit(cache=True)
def _timed_out(s, f, agent, pc, now):
    n = s.count[TIMEOUTS]
    if n < len(s.timeouts):
        s.timeouts[n, 0], s.timeouts[n, 1], s.timeouts[n, 2] = agent, pc, now
    s.count[TIMEOUTS] = n + 1
    target = f.ops[pc, t.TARGET]
    s.pc[agent] = pc + 1 if target < 0 else target


@njit(cache=True)
def _wait(s, f, p, agent, pc, now):
    """One poll."""
    w = s.wait_word[agent]
    count, cond, value = f.ops[pc, t.COUNT], f.ops[pc, t.FN], s.wait_value[agent]
    role = f.role[pc]
    if cond == SUM_LE:
        total = np.int64(0)
        for k in range(count):
            total += signed(_word_seen(s, w + k, now, agent))
        ok = total <= signed(value)
    else:
        ok = met(cond, _word_seen(s, w, now, agent), value)
    if ok:
        _leave(s, f, agent, pc, w)
        s.pc[agent] = pc + 1
        end = now + s.back[agent]
        if role == PREVIOUS:
            end = max(end, s.word_time[w] + s.gap[f.agent_launch[agent]])
        elif role == HOST:
            end += p.host_step_ns + _exponential(s.random, p.host_jitter_ns)
        if role == LAUNCH or role == PREVIOUS:
            after = f.role[pc + 1] if pc + 1 < f.agent_end[agent] else PLAIN
            if after != LAUNCH and after != PREVIOUS:
                end += s.start[agent]
        _note_span(s, agent, pc, s.issue[agent], end)
        _enter(s, f, p, agent, end)
        return
    if now >= s.wait_end[agent] - 1e-3:
        _leave(s, f, agent, pc, w)
        _timed_out(s, f, agent, pc, now)
        _note_span(s, agent, pc, s.issue[agent], now)
        _enter(s, f, p, agent, now + s.back[agent])
        return
    _join(s, f, agent, pc, w)
    poll = s.wait_end[agent]
    for word in range(w, w + count):
        for k in range(s.queued[word]):
            if count > 1 or met(cond, s.queue_value[word, k], value):
                poll = min(poll, _next_poll(s, agent, s.queue_time[word, k]))
                break
    if poll < _INF:
        _push(s, agent, max(poll, now))


@njit(cache=True)
def _stamp_first(s, f, p, agent, now):
    row = s.row[agent]
    c = f.items[f.sources[f.moves[row, t.M_SOURCES]]]
    trip = _read_ns(p, f.cell_memory[c], f.cell_rank[c], f.agent_rank[agent], False)
    trip *= s.rate[agent] * _spread(s.random, p.access_sigma)
    s.back[agent] = 0.5 * trip
    s.wait_first[agent] = now + 0.5 * trip
    s.wait_period[agent] = trip + p.poll_gap_ns
    s.wait_word[agent] = -1
    pc = s.pc[agent]
    s.wait_value[agent] = operand(f.exprs, f.postfix, f.ops[pc, t.VALUE], s.registers, agent)
    bound = f.bound[pc]
    s.wait_end[agent] = _INF if bound < 0 else s.wait_first[agent] + (bound - 1) * max(s.wait_period[agent], 1.0)
    _push(s, agent, now + 0.5 * trip)


@njit(cache=True)
def _wait_stamp(s, f, p, agent, pc, now):
    """One poll of an agent's share of packets: met when every stamp is; else sleep on the first that is not."""
    row = s.row[agent]
    items = f.sources[f.moves[row, t.M_SOURCES]]
    cond, value = f.ops[pc, t.FN], s.wait_value[agent]
    cells = s.cells
    wake = now
    sleep = -1
    for i in range(items, items + f.moves[row, t.M_COUNT]):
        c = f.items[i]
        _seen(cells, c, now, agent)
        if met(cond, np.int64(cells[c, STAMP]), value):
            continue
        if cells[c, T1] != _INF and met(cond, np.int64(cells[c, S1]), value):
            wake = max(wake, cells[c, T1])
        elif cells[c, T2] != _INF and met(cond, np.int64(cells[c, S2]), value):
            wake = max(wake, cells[c, T2])
        else:
            sleep = c
            break
    if sleep < 0 and wake <= now:
        s.pc[agent] = pc + 1
        end = now + s.back[agent]
        _note_span(s, agent, pc, s.issue[agent], end)
        _enter(s, f, p, agent, end)
        return
    if now >= s.wait_end[agent] - 1e-3:
        _timed_out(s, f, agent, pc, now)
        _note_span(s, agent, pc, s.issue[agent], now)
        _enter(s, f, p, agent, now + s.back[agent])
        return
    poll = s.wait_end[agent]
    if sleep < 0:
        poll = min(poll, _next_poll(s, agent, wake))
    else:
        s.next_waiter[agent] = s.cell_waiter[sleep]
        s.cell_waiter[sleep] = agent
    if poll < _INF:
        _push(s, agent, max(poll, now + 1e-3))


@njit(cache=True)
def _wake_cell(s, c, time):
    """A stamp of cell `c` changes at `time`: all who sleep on it look again then."""
    a = s.cell_waiter[c]
    s.cell_waiter[c] = -1
    while a >= 0:
        following = s.next_waiter[a]
        poll = _next_poll(s, a, time)
        if s.place[a] < 0 or poll < s.key[a]:
            _push(s, a, poll)
        a = following


@njit(cache=True)
def _move(s, f, p, agent, pc, now):
    """One loop iteration: the loads read at `now`, the stores are issued when their values are back."""
    row = s.row[agent]
    at, upto, count = s.at[agent], s.upto[agent], f.moves[row, t.M_COUNT]
    first, n = f.moves[row, t.M_SOURCES], f.moves[row, t.M_N_SOURCES]
    items = f.moves[row, t.M_DST]
    c = f.items[items + at]
    nbytes = 0.0
    for i in range(items + at, items + upto):
        nbytes += f.itemsize * f.cell_length[f.items[i]]
    packets = s.cells.shape[1] > CELL_COLUMNS
    stamped = f.ops[pc, t.STAMP] >= 0
    stamp = operand(f.exprs, f.postfix, f.ops[pc, t.STAMP], s.registers, agent) if stamped else np.int64(0)
    if stamped:
        nbytes *= 2.0
    issue = now + s.back[agent] + p.iteration_ns
    time, go_on = _store(s, p, agent, f.agent_rank[agent], f.cell_memory[c], f.cell_rank[c], False, nbytes, issue)
    for i in range(at, upto):
        total = 0.0
        for j in range(n):
            total += _seen(s.cells, f.items[f.sources[first + j] + i], now, agent)
        c = f.items[items + i]
        _write_cell(s, c, total, now, time, agent)
        if packets:
            _write_stamp(s, c, time, stamp, stamped)
            _wake_cell(s, c, time)
    s.at[agent] = upto
    if upto < count:
        _iterate(s, f, p, agent, go_on)
        return
    s.pc[agent] = pc + 1
    _note_span(s, agent, pc, s.issue[agent], go_on)
    _enter(s, f, p, agent, go_on)


@njit(cache=True)
def _check(s, f, agent, pc, now):
    """EXPECT: compare with the sum that is due; 1 if any element differs."""
    row = s.row[agent]
    items = f.sources[f.moves[row, t.M_SOURCES]]
    due = f.value[pc]
    wrong = total = weight = 0.0
    low, high = _INF, -_INF
    for i in range(items, items + f.moves[row, t.M_COUNT]):
        c = f.items[i]
        value = _seen(s.cells, c, now, agent)
        length = f.cell_length[c]
        weight += length
        total += length * value
        low, high = min(low, value), max(high, value)
        if value != due:
            wrong += length
    n = s.count[CHECKS]
    checks = s.checks
    checks[n, C_AGENT], checks[n, C_PC], checks[n, C_TIME] = agent, pc, now
    checks[n, C_MEAN], checks[n, C_WRONG], checks[n, C_ELEMENTS] = total / max(weight, 1.0), wrong, weight
    checks[n, C_LOW], checks[n, C_HIGH] = low, high
    s.count[CHECKS] = n + 1
    return 1 if wrong > 0 else 0


@njit(cache=True)
def _step(s, f, p, agent, now):
    pc = s.pc[agent]
    kind = f.ops[pc, t.KIND]
    if kind == t.MOVE:
        _move(s, f, p, agent, pc, now)
        return
    if kind == t.WAIT:
        _wait(s, f, p, agent, pc, now)
        return
    if kind == t.WAIT_STAMP:
        _wait_stamp(s, f, p, agent, pc, now)
        return
    rank = f.agent_rank[agent]
    role = f.role[pc]
    end = now + s.back[agent]
    if kind == t.LOAD:
        w = _address(f, s, pc, agent)
        s.registers[agent, f.ops[pc, t.DST]] = _word_seen(s, w, now, agent)
    elif kind == t.STORE:
        w = _address(f, s, pc, agent)
        value = operand(f.exprs, f.postfix, f.ops[pc, t.VALUE], s.registers, agent)
        if role == HOST_LAUNCH:
            time = now + p.launch_ns + _exponential(s.random, p.launch_jitter_ns)
            time = max(time, s.last[agent, f.word_rank[w]])
            s.last[agent, f.word_rank[w]] = time
        elif role == HOST:
            time = now
        else:
            near = (f.ops[pc, t.SYNC] >> 4) <= _DEVICE
            time, end = _store(s, p, agent, rank, f.word_memory[w], f.word_rank[w], near, 32.0, now)
        _write_word(s, f, w, value, now, time, agent)
    elif kind == t.RMW:
        w = _address(f, s, pc, agent)
        _settle(s, w, now)
        old = s.words[w]
        value = operand(f.exprs, f.postfix, f.ops[pc, t.VALUE], s.registers, agent)
        expected = np.int64(0)
        if f.ops[pc, t.EXPECTED] >= 0:
            expected = operand(f.exprs, f.postfix, f.ops[pc, t.EXPECTED], s.registers, agent)
        new = rmw(f.ops[pc, t.FN], old, value, expected)
        s.words[w] = new
        s.word_time[w] = max(s.word_time[w], now)
        if f.ops[pc, t.DST] >= 0:
            s.registers[agent, f.ops[pc, t.DST]] = old
        _wake(s, f, w, new, now)
    elif kind == t.EXPECT:
        failed = _check(s, f, agent, pc, now)
        if f.ops[pc, t.DST] >= 0:
            s.registers[agent, f.ops[pc, t.DST]] = failed
    elif kind == t.FILL:
        row = s.row[agent]
        items = f.moves[row, t.M_DST]
        fill = s.poison[0] if np.isnan(f.value[pc]) else f.value[pc]
        for i in range(items, items + f.moves[row, t.M_COUNT]):
            _write_cell(s, f.items[i], fill, now, now, agent)
            if s.cells.shape[1] > CELL_COLUMNS:
                _write_stamp(s, f.items[i], now, np.int64(0), False)
    if role == HOST or role == HOST_LAUNCH:
        end += p.host_step_ns
    elif role == PLAIN:
        end += p.step_ns
    s.pc[agent] = pc + 1
    _note_span(s, agent, pc, s.issue[agent], end)
    _enter(s, f, p, agent, end)


@njit(cache=True, nogil=True)
def reset(s, f, p, poison, seed):
    """Bring `s` to time 0 and draw what is drawn once a run."""
    s.count[:] = 0
    s.random[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x1234567)
    s.poison[0] = poison
    s.place[:] = -1
    s.registers[:] = 0
    s.local_drain[:] = 0.0
    s.drain[:] = 0.0
    s.last[:] = 0.0
    s.next_waiter[:] = -2
    s.first_waiter[:] = -1
    s.cell_waiter[:] = -1
    s.queued[:] = 0
    s.word_time[:] = 0.0
    s.memory_free[:] = 0.0
    s.out_free[:] = 0.0
    s.in_free[:] = 0.0
    s.link_last[:] = 0.0
    for w in range(len(f.word_initial)):
        s.words[w] = f.word_initial[w]
    for c in range(len(f.cell_initial)):
        value = f.cell_initial[c]
        s.cells[c, BASE] = poison if np.isnan(value) else value
        s.cells[c, T1] = _INF
        s.cells[c, T2] = _INF
    if s.cells.shape[1] > CELL_COLUMNS:
        s.cells[:, STAMP] = 0.0
    for k in range(len(s.gap)):
        s.gap[k] = p.gap_ns + _exponential(s.random, p.gap_jitter_ns)
    for a in range(len(f.agent_start)):
        s.pc[a] = f.agent_start[a]
        s.rate[a] = _spread(s.random, p.block_sigma)
        s.start[a] = p.dispatch_ns * max(f.agent_block[a], 0) + _exponential(s.random, p.start_jitter_ns)
        _enter(s, f, p, a, 0.0)


@njit(cache=True, nogil=True)
def run(s, f, p, max_events):
    """Run until nothing is left to happen, or `max_events`. Returns whether it ended by itself."""
    while s.count[HEAP] > 0:
        if s.count[EVENTS] >= max_events:
            return False
        agent = _pop(s)
        s.count[EVENTS] += 1
        s.now[0] = s.key[agent]
        _step(s, f, p, agent, s.key[agent])
    return True


@njit(cache=True, nogil=True)
def settle_all(s):
    """After a run: let every word under way arrive."""
    for w in range(len(s.words)):
        _settle(s, w, _INF)
