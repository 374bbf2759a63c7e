"""The discrete-event loop of the timing model. `lab.sim.timing.timing` prepares its arrays and reads its results.

Each agent has at most one event in a heap: the instant at which its next operation *samples* memory. Latency before
that instant is the way to the memory, latency after it the way back. A write is recorded at an event and becomes
visible at or after it; events are popped in order of time, so whatever a read at time t may see is known when its
event is popped.

A location holds its settled value and a queue of values that will become visible, ordered by time. An agent sees its
own values at once. A queue that would overflow settles its oldest value early and is counted in `INEXACT`.

All times are nanoseconds from the start of the run, as float64. State lies in few arrays with named columns: numba
passes every array of a call by value, so that many small arrays cost more than the work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Memory, Scope
from lab.protocol.tables import COLUMNS
from lab.sim.machine import words
from lab.sim.machine.words import SUM_LE, rmw, signed
from lab.sim.timing.presets import Costs

# `ops` has the columns of `Tables.ops` and four more: what is special about an operation, its poll bound and its
# bound in microseconds (-1: none), and its row of `values`.
ROLE, BOUND, LIMIT, NUMBER = range(COLUMNS, COLUMNS + 4)
OP_COLUMNS = COLUMNS + 4
PLAIN, LAUNCH, PREVIOUS, KERNEL_END, HOST, HOST_LAUNCH = range(6)
# Integers of an agent
PLACE, PC, ROW, AT, UPTO, W_WORD, W_VALUE, NEXT, STARTED, END, RANK, BLOCK, NTH_LAUNCH, FIRST, PHASE = range(15)
AGENT_INTEGERS = 15
LOADS, SAMPLE, STORES = range(3)  # PHASE of one iteration: its event is when loads leave, read, or stores leave
NOT_WAITING = -2  # NEXT of an agent that sleeps on nothing
# Floats of an agent; from LAST on, one a rank: when the last of its writes to that rank became visible
KEY, ISSUE, BACK, LOCAL_DRAIN, DRAIN, RATE, DELAY, W_FIRST, W_PERIOD, W_END, LAST = range(11)
# Integers and floats of a word; QUEUE values may be under way
VALUE, QUEUED, WAITER, OWNER, MEMORY, QUEUE_VALUE = range(6)
QUEUE = 8
QUEUE_WRITER = QUEUE_VALUE + QUEUE
WORD_INTEGERS = QUEUE_WRITER + QUEUE
CHANGED, QUEUE_TIME = range(2)
WORD_FLOATS = QUEUE_TIME + QUEUE
# A cell: elements, settled value, then value, time and writer of two values under way; with packets also their stamps
LENGTH, BASE, V1, T1, W1, V2, T2, W2, STAMP, S1, S2 = range(11)
CELL_COLUMNS, PACKET_COLUMNS = 8, 11
# Counters
EVENTS, INEXACT, HEAP, CHECKS, TIMEOUTS, SPANS, SPANS_LOST, MULTI = range(8)
COUNTERS = 8
# Floats of the machine: three servers a GPU, then one instant a pair of ranks
NOW, POISON, MEMORY_FREE = range(3)
GPUS = 8
OUT_FREE = MEMORY_FREE + GPUS
IN_FREE = OUT_FREE + GPUS
LINK_LAST = IN_FREE + GPUS
MACHINE_FLOATS = LINK_LAST + GPUS * GPUS
# Results
C_AGENT, C_PC, C_TIME, C_MEAN, C_WRONG, C_ELEMENTS, C_LOW, C_HIGH = range(8)
# Parameters of the machine, by position in `Costs`
_P = {name: position for position, name in enumerate(Costs._fields)}
RANKS_PER_GPU, STEP, BARRIER, FENCE, PROLOGUE, ITERATION = (
    _P[name] for name in ("ranks_per_gpu", "step_ns", "barrier_ns", "fence_ns", "prologue_ns", "iteration_ns")
)
L2_READ, UNCACHED_READ, REMOTE_READ = (_P[name] for name in ("l2_read_ns", "uncached_read_ns", "remote_read_ns"))
L2_WRITE, UNCACHED_WRITE, REMOTE_WRITE, REMOTE_ACK = (
    _P[name] for name in ("l2_write_ns", "uncached_write_ns", "remote_write_ns", "remote_ack_ns")
)
ATOMIC, POLL_GAP, ACCESS_SIGMA, BLOCK_SIGMA = (
    _P[name] for name in ("atomic_ns", "poll_gap_ns", "access_sigma", "block_sigma")
)
CACHED_GBS, UNCACHED_GBS, LINK_GBS, LINK_QUEUE = (
    _P[name] for name in ("cached_gbs", "uncached_gbs", "link_gbs", "link_queue_bytes")
)
LAUNCH_NS, LAUNCH_JITTER, GAP, GAP_JITTER = (
    _P[name] for name in ("launch_ns", "launch_jitter_ns", "gap_ns", "gap_jitter_ns")
)
DISPATCH, START_JITTER = _P["dispatch_ns"], _P["start_jitter_ns"]
HOST_STEP, HOST_POLL, HOST_JITTER = _P["host_step_ns"], _P["host_poll_ns"], _P["host_jitter_ns"]
_CACHED, _HOST_MAPPED, _SHARED = int(Memory.CACHED), int(Memory.HOST_MAPPED), int(Memory.BLOCK_SHARED)
_DEVICE = int(Scope.DEVICE)
_INF = np.inf
_WORD_BYTES = 32.0  # what a flag takes on a link


class Arrays(NamedTuple):
    """What the loop works on, in the order of its arguments; the first nine do not change."""

    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    addresses: np.ndarray
    moves: np.ndarray
    sources: np.ndarray
    items: np.ndarray
    iterations: np.ndarray
    place_of_cell: np.ndarray  # int16: rank << 8 | memory
    values: np.ndarray  # what FILL writes and EXPECT is due
    agent: np.ndarray
    clock: np.ndarray
    registers: np.ndarray
    word: np.ndarray
    queue: np.ndarray
    cells: np.ndarray
    held: np.ndarray  # what the loads of an agent's iteration read
    cell_waiter: np.ndarray
    gaps: np.ndarray
    heap: np.ndarray  # row 0: the heap; row 1: agents that wait for the sum of several words
    count: np.ndarray
    machine: np.ndarray
    random: np.ndarray
    checks: np.ndarray
    timeouts: np.ndarray
    span_op: np.ndarray
    span_time: np.ndarray


# Called, not inlined a dozen times: half the time to compile.
@njit(cache=True, _nrt=False)
def operand(exprs, postfix, row, registers, a):
    """The word that expression `row` has for agent `a`."""
    return words.operand(exprs, postfix, row, registers, a)


@njit(cache=True, _nrt=False)
def met(cond, word, value):
    """Whether one word meets a wait condition."""
    return words.met(cond, word, value)


# -- random numbers ----------------------------------------------------------------------------------------------------


@njit(cache=True, _nrt=False)
def _uniform(random):
    """A double in (0, 1): splitmix64 (Steele, Lea, Flood 2014)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (np.float64(x >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@njit(cache=True, _nrt=False)
def _exponential(random, mean):
    return -mean * np.log(_uniform(random))


@njit(cache=True, _nrt=False)
def _spread(random, sigma):
    """A log-normal factor of mean 1."""
    if sigma == 0.0:
        return 1.0
    normal = np.sqrt(-2.0 * np.log(_uniform(random))) * np.cos(2.0 * np.pi * _uniform(random))
    return np.exp(sigma * normal - 0.5 * sigma * sigma)


# -- the heap: agents by time, then by number --------------------------------------------------------------------------


@njit(inline="always", _nrt=False)
def _before(clock, a, b):
    return clock[a, KEY] < clock[b, KEY] or (clock[a, KEY] == clock[b, KEY] and a < b)


@njit(cache=True, _nrt=False)
def _up(heap, agent, clock, i):
    a = heap[0, i]
    while i > 0:
        parent = (i - 1) >> 1
        b = heap[0, parent]
        if not _before(clock, a, b):
            break
        heap[0, i] = b
        agent[b, PLACE] = i
        i = parent
    heap[0, i] = a
    agent[a, PLACE] = i


@njit(cache=True, _nrt=False)
def _down(heap, agent, clock, n, i):
    a = heap[0, i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _before(clock, heap[0, child + 1], heap[0, child]):
            child += 1
        b = heap[0, child]
        if not _before(clock, b, a):
            break
        heap[0, i] = b
        agent[b, PLACE] = i
        i = child
    heap[0, i] = a
    agent[a, PLACE] = i


@njit(cache=True, _nrt=False)
def _push(heap, agent, clock, count, a, key):
    """Give agent `a` its event, or move it."""
    i = agent[a, PLACE]
    if i < 0:
        i = count[HEAP]
        count[HEAP] += 1
        clock[a, KEY] = key
        heap[0, i] = a
        _up(heap, agent, clock, i)
        return
    earlier = key < clock[a, KEY]
    clock[a, KEY] = key
    if earlier:
        _up(heap, agent, clock, i)
    else:
        _down(heap, agent, clock, count[HEAP], i)


@njit(cache=True, _nrt=False)
def _pop(heap, agent, clock, count):
    a = heap[0, 0]
    agent[a, PLACE] = -1
    count[HEAP] -= 1
    n = count[HEAP]
    if n > 0:
        heap[0, 0] = heap[0, n]
        agent[heap[0, 0], PLACE] = 0
        _down(heap, agent, clock, n, 0)
    return a


# -- words -------------------------------------------------------------------------------------------------------------


@njit(cache=True, _nrt=False)
def _settle(word, queue, w, now):
    """Move every value of word `w` that is visible by `now` into its settled value."""
    n = word[w, QUEUED]
    done = 0
    while done < n and queue[w, QUEUE_TIME + done] <= now:
        word[w, VALUE] = word[w, QUEUE_VALUE + done]
        done += 1
    if done:
        for k in range(done, n):
            word[w, QUEUE_VALUE + k - done] = word[w, QUEUE_VALUE + k]
            word[w, QUEUE_WRITER + k - done] = word[w, QUEUE_WRITER + k]
            queue[w, QUEUE_TIME + k - done] = queue[w, QUEUE_TIME + k]
        word[w, QUEUED] = n - done


@njit(cache=True, _nrt=False)
def _word_seen(word, queue, w, now, a):
    """What agent `a` reads from word `w` at `now`."""
    _settle(word, queue, w, now)
    for k in range(word[w, QUEUED] - 1, -1, -1):
        if word[w, QUEUE_WRITER + k] == a:
            return word[w, QUEUE_VALUE + k]
    return word[w, VALUE]


@njit(cache=True, _nrt=False)
def _own_arrival(word, queue, w, a):
    """When the newest value of word `w` that agent `a` has under way becomes visible, or 0."""
    for k in range(word[w, QUEUED] - 1, -1, -1):
        if word[w, QUEUE_WRITER + k] == a:
            return queue[w, QUEUE_TIME + k]
    return 0.0


@njit(cache=True, _nrt=False)
def _write_word(word, queue, count, w, value, now, time, a):
    """Word `w` will hold `value` from `time` on."""
    _settle(word, queue, w, now)
    n = word[w, QUEUED]
    if n == QUEUE:
        count[INEXACT] += 1
        _settle(word, queue, w, queue[w, QUEUE_TIME])
        n = word[w, QUEUED]
    k = n
    while k > 0 and queue[w, QUEUE_TIME + k - 1] > time:
        word[w, QUEUE_VALUE + k] = word[w, QUEUE_VALUE + k - 1]
        word[w, QUEUE_WRITER + k] = word[w, QUEUE_WRITER + k - 1]
        queue[w, QUEUE_TIME + k] = queue[w, QUEUE_TIME + k - 1]
        k -= 1
    word[w, QUEUE_VALUE + k], word[w, QUEUE_WRITER + k], queue[w, QUEUE_TIME + k] = value, a, time
    word[w, QUEUED] = n + 1
    queue[w, CHANGED] = max(queue[w, CHANGED], time)


@njit(inline="always", _nrt=False)
def _next_poll(clock, a, time):
    """The first poll of a waiting agent at or after `time`."""
    first, period = clock[a, W_FIRST], clock[a, W_PERIOD]
    if time <= first:
        return first
    if period == 0.0:
        return time
    return first + np.ceil((time - first) / period) * period


@njit(cache=True, _nrt=False)
def _deadline(ops, clock, a, pc):
    """The poll at which a bounded wait gives up."""
    if ops[pc, BOUND] >= 0:
        return clock[a, W_FIRST] + (ops[pc, BOUND] - 1) * max(clock[a, W_PERIOD], 1.0)
    if ops[pc, LIMIT] >= 0:
        return clock[a, W_FIRST] + 1e3 * ops[pc, LIMIT]
    return _INF


@njit(cache=True, _nrt=False)
def _wake(ops, agent, clock, word, heap, count, w, value, time):
    """Word `w` gets `value` at `time`: everyone whom that satisfies looks at the next poll."""
    a = word[w, WAITER]
    while a >= 0:
        if met(ops[agent[a, PC], t.FN], value, agent[a, W_VALUE]):
            poll = _next_poll(clock, a, time)
            if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
                _push(heap, agent, clock, count, a, poll)
        a = agent[a, NEXT]
    for k in range(count[MULTI]):
        a = heap[1, k]
        lo = agent[a, W_WORD]
        if lo <= w < lo + ops[agent[a, PC], t.COUNT]:
            poll = _next_poll(clock, a, time)
            if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
                _push(heap, agent, clock, count, a, poll)


@njit(cache=True, _nrt=False)
def _join(agent, word, heap, count, a, w, width):
    """Agent `a` sleeps until a write to the word, or to one of several."""
    if agent[a, NEXT] != NOT_WAITING:
        return
    if width > 1:
        agent[a, NEXT] = -1
        heap[1, count[MULTI]] = a
        count[MULTI] += 1
    else:
        agent[a, NEXT] = word[w, WAITER]
        word[w, WAITER] = a


@njit(cache=True, _nrt=False)
def _leave(agent, word, heap, count, a, w, width):
    """Agent `a` waits no more."""
    if agent[a, NEXT] == NOT_WAITING:
        return
    if width > 1:
        n = count[MULTI]
        for k in range(n):
            if heap[1, k] == a:
                heap[1, k] = heap[1, n - 1]
                count[MULTI] = n - 1
                break
    elif word[w, WAITER] == a:
        word[w, WAITER] = agent[a, NEXT]
    else:
        b = word[w, WAITER]
        while agent[b, NEXT] != a:
            b = agent[b, NEXT]
        agent[b, NEXT] = agent[a, NEXT]
    agent[a, NEXT] = NOT_WAITING


# -- cells -------------------------------------------------------------------------------------------------------------


@njit(cache=True, _nrt=False)
def _settle_first(cells, c):
    """Settle the first value under way of cell `c`, and its stamp."""
    cells[c, BASE] = cells[c, V1]
    cells[c, V1], cells[c, T1], cells[c, W1], cells[c, T2] = cells[c, V2], cells[c, T2], cells[c, W2], _INF
    if cells.shape[1] > CELL_COLUMNS:
        cells[c, STAMP], cells[c, S1] = cells[c, S1], cells[c, S2]


@njit(cache=True, _nrt=False)
def _seen(cells, c, now, a):
    """The value of cell `c` that agent `a` reads at `now`."""
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T1] != _INF:
        if cells[c, T2] != _INF and cells[c, W2] == a:
            return cells[c, V2]
        if cells[c, W1] == a:
            return cells[c, V1]
    return cells[c, BASE]


@njit(cache=True, _nrt=False)
def _write_cell(cells, count, c, value, now, time, a):
    """Cell `c` will hold `value` from `time` on."""
    while cells[c, T1] <= now:
        _settle_first(cells, c)
    if cells[c, T2] != _INF:
        count[INEXACT] += 1
        _settle_first(cells, c)
    if cells[c, T1] == _INF:
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, a
    elif time >= cells[c, T1]:
        cells[c, V2], cells[c, T2], cells[c, W2] = value, time, a
    else:
        cells[c, V2], cells[c, T2], cells[c, W2] = cells[c, V1], cells[c, T1], cells[c, W1]
        cells[c, V1], cells[c, T1], cells[c, W1] = value, time, a


@njit(cache=True, _nrt=False)
def _write_stamp(cells, c, time, stamp, stamped):
    """The stamp of what `_write_cell` just wrote at `time`: `stamp`, or (a plain store) the stamp before it."""
    if cells[c, T2] != _INF and cells[c, T2] == time:
        cells[c, S2] = stamp if stamped else cells[c, S1]
        return
    if cells[c, T2] != _INF:
        cells[c, S2] = cells[c, S1]
    cells[c, S1] = stamp if stamped else cells[c, STAMP]


@njit(cache=True, _nrt=False)
def _wake_cell(agent, clock, cell_waiter, heap, count, c, time):
    """A stamp of cell `c` changes at `time`: all who sleep on it look again."""
    a = cell_waiter[c]
    cell_waiter[c] = -1
    while a >= 0:
        following = agent[a, NEXT]
        agent[a, NEXT] = NOT_WAITING
        poll = _next_poll(clock, a, time)
        if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
            _push(heap, agent, clock, count, a, poll)
        a = following


@njit(cache=True, _nrt=False)
def _stamps_met(cells, items, lo, hi, cond, value, now, a):
    """(when all stamps are met as far as is known, the first cell of which that is not known or -1)."""
    time = now
    for i in range(lo, hi):
        c = items[i]
        _seen(cells, c, now, a)
        if met(cond, np.int64(cells[c, STAMP]), value):
            continue
        if cells[c, T1] != _INF and met(cond, np.int64(cells[c, S1]), value):
            time = max(time, cells[c, T1])
        elif cells[c, T2] != _INF and met(cond, np.int64(cells[c, S2]), value):
            time = max(time, cells[c, T2])
        else:
            return time, c
    return time, -1


# -- costs -------------------------------------------------------------------------------------------------------------


@njit(inline="always", _nrt=False)
def _gpu(p, rank):
    return np.int64(rank / p[RANKS_PER_GPU])


@njit(cache=True, _nrt=False)
def _read_ns(p, memory, owner, rank, near):
    """Round trip of a load by `rank` from `memory` of `owner`; `near`: at most device scope, so that L2 answers."""
    if memory == _SHARED:
        return p[STEP]
    if memory == _HOST_MAPPED or _gpu(p, owner) != _gpu(p, rank):
        return p[REMOTE_READ]
    if owner == rank and (near or memory == _CACHED):
        return p[L2_READ]
    return p[UNCACHED_READ]


@njit(cache=True, _nrt=False)
def _store(p, clock, machine, random, a, rank, memory, owner, near, nbytes, issue):
    """A store of `nbytes` issued at `issue`: (visible, when the agent may issue again). Notes what fences wait for."""
    factor = clock[a, RATE] * _spread(random, p[ACCESS_SIGMA])
    here, there = _gpu(p, rank), _gpu(p, owner)
    go_on = issue
    if memory == _SHARED:
        time = issue + p[STEP]
        answer = time
    elif memory == _HOST_MAPPED:
        time = issue + p[REMOTE_WRITE] * factor
        answer = issue + p[REMOTE_ACK] * factor
    elif here == there:
        quick = owner == rank and (near or memory == _CACHED)
        done = max(issue, machine[MEMORY_FREE + here]) + nbytes / (p[CACHED_GBS] if quick else p[UNCACHED_GBS])
        machine[MEMORY_FREE + here] = done
        time = done + (p[L2_WRITE] if quick else p[UNCACHED_WRITE]) * factor
        answer = time
    else:
        sent = max(issue, machine[OUT_FREE + here]) + nbytes / p[LINK_GBS]
        machine[OUT_FREE + here] = sent
        arrival = max(sent + p[REMOTE_WRITE], machine[IN_FREE + there] + nbytes / p[LINK_GBS])
        machine[IN_FREE + there] = arrival
        # Posted: what one rank sends to another arrives in order.
        pair = LINK_LAST + rank * GPUS + owner
        time = max(arrival + p[REMOTE_WRITE] * (factor - 1.0), machine[pair])
        machine[pair] = time
        answer = sent + p[REMOTE_ACK] * factor
        go_on = max(issue, sent - p[LINK_QUEUE] / p[LINK_GBS])
    time = max(time, clock[a, LAST + owner])
    clock[a, LAST + owner] = time
    clock[a, DRAIN] = max(clock[a, DRAIN], answer)
    if owner == rank:
        clock[a, LOCAL_DRAIN] = max(clock[a, LOCAL_DRAIN], time)
    return time, go_on


@njit(cache=True, _nrt=False)
def _loads(p, machine, cells, place_of_cell, sources, items, first, n, at, upto, rank, itemsize, now):
    """The loads of one iteration, issued at `now`: (round trip, when bandwidth allows the last of them)."""
    trip, ready = 0.0, now
    here = _gpu(p, rank)
    for j in range(first, first + n):
        nbytes = 0.0
        for i in range(sources[j] + at, sources[j] + upto):
            nbytes += cells[items[i], LENGTH]
        nbytes *= itemsize
        place = place_of_cell[items[sources[j] + at]]
        owner, memory = place >> 8, place & 255
        trip = max(trip, _read_ns(p, memory, owner, rank, False))
        there = _gpu(p, owner)
        near = memory == _CACHED and owner == rank
        done = max(now, machine[MEMORY_FREE + there]) + nbytes / (p[CACHED_GBS] if near else p[UNCACHED_GBS])
        machine[MEMORY_FREE + there] = done
        if there != here:
            done = max(done, machine[OUT_FREE + there] + nbytes / p[LINK_GBS])
            machine[OUT_FREE + there] = done
        ready = max(ready, done)
    return trip, ready


# -- the loop ----------------------------------------------------------------------------------------------------------


@njit(cache=True, _nrt=False)
def _note(span_op, span_time, count, a, pc, begin, end):
    n = count[SPANS]
    if n >= len(span_op):
        count[SPANS_LOST] += 1
        return
    span_op[n, 0], span_op[n, 1], span_time[n, 0], span_time[n, 1] = a, pc, begin, end
    count[SPANS] = n + 1


@njit(cache=True, _nrt=False)
def _check(moves, sources, items, cells, checks, count, a, pc, row, due, now):
    """EXPECT: compare with the sum that is due; 1 if any element differs."""
    lo = sources[moves[row, t.M_SOURCES]]
    wrong = total = weight = 0.0
    low, high = _INF, -_INF
    for i in range(lo, lo + moves[row, t.M_COUNT]):
        c = items[i]
        value = _seen(cells, c, now, a)
        length = cells[c, LENGTH]
        weight += length
        total += length * value
        low, high = min(low, value), max(high, value)
        if value != due:
            wrong += length
    n = count[CHECKS]
    checks[n, C_AGENT], checks[n, C_PC], checks[n, C_TIME] = a, pc, now
    checks[n, C_MEAN], checks[n, C_WRONG], checks[n, C_ELEMENTS] = total / max(weight, 1.0), wrong, weight
    checks[n, C_LOW], checks[n, C_HIGH] = low, high
    count[CHECKS] = n + 1
    return 1 if wrong > 0 else 0


@njit(cache=True, _nrt=False)
def _sample(moves, sources, items, cells, held, a, row, at, upto, now):
    """The loads of one iteration read."""
    first, n = moves[row, t.M_SOURCES], moves[row, t.M_N_SOURCES]
    for i in range(at, upto):
        total = 0.0
        for j in range(first, first + n):
            total += _seen(cells, items[sources[j] + i], now, a)
        held[a, i - at] = total


@njit(cache=True, _nrt=False)
def _stores(
    moves, items, place_of_cell, clock, cells, held, machine, count, random, p, a, rank, row, at, upto, now,
    stamp, stamped, itemsize,
):  # fmt: skip
    """The stores of one iteration leave: (when they are visible, when the agent may go on)."""
    into = moves[row, t.M_DST]
    nbytes = 0.0
    for i in range(into + at, into + upto):
        nbytes += cells[items[i], LENGTH]
    nbytes *= itemsize * (2.0 if stamped else 1.0)
    place = place_of_cell[items[into + at]]
    time, go_on = _store(p, clock, machine, random, a, rank, place & 255, place >> 8, False, nbytes, now)
    packets = cells.shape[1] > CELL_COLUMNS
    for i in range(at, upto):
        c = items[into + i]
        _write_cell(cells, count, c, held[a, i - at], now, time, a)
        if packets:
            _write_stamp(cells, c, time, stamp, stamped)
    return time, go_on


@njit(cache=True, nogil=True, _nrt=False)
def run(
    ops, exprs, postfix, addresses, moves, sources, items, iterations, place_of_cell, values,
    agent, clock, registers, word, queue, cells, held, cell_waiter, gaps, heap, count, machine, random, checks,
    timeouts, span_op, span_time, p, itemsize, max_events,
):  # fmt: skip
    """Run until nothing is left to happen, or `max_events`. Returns whether it ended by itself."""
    while count[HEAP] > 0:
        if count[EVENTS] >= max_events:
            return False
        a = _pop(heap, agent, clock, count)
        count[EVENTS] += 1
        now = clock[a, KEY]
        machine[NOW] = now
        pc = agent[a, PC]
        rank = agent[a, RANK]
        issue = now
        if agent[a, STARTED] == 0:
            agent[a, STARTED] = 1
        else:
            # What happens at the instant at which this operation reaches memory; `issue`: when the next may be issued.
            kind, role = ops[pc, t.KIND], ops[pc, ROLE]
            issue = now + clock[a, BACK]
            if kind == t.MOVE:
                row = agent[a, ROW]
                size = moves[row, t.M_COUNT]
                if agent[a, PHASE] == SAMPLE:
                    _sample(moves, sources, items, cells, held, a, row, agent[a, AT], agent[a, UPTO], now)
                    agent[a, PHASE] = STORES
                    _push(heap, agent, clock, count, a, issue + p[ITERATION])
                    continue
                issue = now
                if agent[a, PHASE] == STORES:
                    stamped = ops[pc, t.STAMP] >= 0
                    stamp = operand(exprs, postfix, ops[pc, t.STAMP], registers, a) if stamped else np.int64(0)
                    time, issue = _stores(
                        moves, items, place_of_cell, clock, cells, held, machine, count, random, p, a, rank, row,
                        agent[a, AT], agent[a, UPTO], now, stamp, stamped, itemsize,
                    )  # fmt: skip
                    if stamped:
                        into = moves[row, t.M_DST]
                        for i in range(into + agent[a, AT], into + agent[a, UPTO]):
                            _wake_cell(agent, clock, cell_waiter, heap, count, items[i], time)
                    agent[a, AT] = agent[a, UPTO]
                    agent[a, PHASE] = LOADS
                if agent[a, AT] < size:
                    if issue > now:  # the link is full
                        _push(heap, agent, clock, count, a, issue)
                        continue
                    at = agent[a, AT]
                    turn = moves[row, t.M_ITERATION]
                    upto = at + 1
                    while upto < size and iterations[turn + upto] == iterations[turn + at]:
                        upto += 1
                    trip, ready = _loads(
                        p, machine, cells, place_of_cell, sources, items, moves[row, t.M_SOURCES],
                        moves[row, t.M_N_SOURCES], at, upto, rank, itemsize, now,
                    )  # fmt: skip
                    trip *= clock[a, RATE] * _spread(random, p[ACCESS_SIGMA])
                    clock[a, BACK] = 0.5 * trip
                    agent[a, UPTO], agent[a, PHASE] = upto, SAMPLE
                    _push(heap, agent, clock, count, a, ready + 0.5 * trip)
                    continue
                agent[a, PC] = pc + 1
            elif kind == t.WAIT or kind == t.WAIT_STAMP:
                w, wanted, cond = agent[a, W_WORD], agent[a, W_VALUE], ops[pc, t.FN]
                width = ops[pc, t.COUNT] if kind == t.WAIT else 0
                later = _INF  # the next poll that is worth making
                if kind == t.WAIT_STAMP:
                    row = agent[a, ROW]
                    lo = sources[moves[row, t.M_SOURCES]]
                    time, sleep = _stamps_met(cells, items, lo, lo + moves[row, t.M_COUNT], cond, wanted, now, a)
                    ok = sleep < 0 and time <= now
                    if sleep < 0:
                        later = _next_poll(clock, a, time)
                elif cond == SUM_LE:
                    total = np.int64(0)
                    for k in range(width):
                        total += signed(_word_seen(word, queue, w + k, now, a))
                    ok = total <= signed(wanted)
                else:
                    ok = met(cond, _word_seen(word, queue, w, now, a), wanted)
                if ok or now >= clock[a, W_END] - 1e-3:
                    if kind == t.WAIT:
                        _leave(agent, word, heap, count, a, w, width)
                    agent[a, PC] = pc + 1
                    if not ok:
                        n = count[TIMEOUTS]
                        if n < len(timeouts):
                            timeouts[n, 0], timeouts[n, 1], timeouts[n, 2] = a, pc, now
                        count[TIMEOUTS] = n + 1
                        if ops[pc, t.TARGET] >= 0:
                            agent[a, PC] = ops[pc, t.TARGET]
                    elif role == HOST:
                        issue += p[HOST_STEP] + _exponential(random, p[HOST_JITTER])
                    elif role == LAUNCH or role == PREVIOUS:
                        if role == PREVIOUS:
                            issue = max(issue, queue[w, CHANGED] + gaps[agent[a, NTH_LAUNCH]])
                        if pc + 1 >= agent[a, END] or ops[pc + 1, ROLE] != PREVIOUS:
                            issue += clock[a, DELAY]
                else:
                    if kind == t.WAIT:
                        _join(agent, word, heap, count, a, w, width)
                        for k in range(w, w + width):
                            for j in range(word[k, QUEUED]):
                                if width > 1 or met(cond, word[k, QUEUE_VALUE + j], wanted):
                                    later = min(later, _next_poll(clock, a, queue[k, QUEUE_TIME + j]))
                                    break
                    elif later == _INF:
                        if agent[a, NEXT] == NOT_WAITING:
                            agent[a, NEXT] = cell_waiter[sleep]
                            cell_waiter[sleep] = a
                    later = min(later, clock[a, W_END])
                    if later < _INF:
                        _push(heap, agent, clock, count, a, later)
                    continue
            else:
                agent[a, PC] = pc + 1
                if kind == t.LOAD or kind == t.STORE or kind == t.RMW:
                    w = ops[pc, t.ADDR]
                    if ops[pc, t.SELECT] >= 0:
                        w = addresses[w + operand(exprs, postfix, ops[pc, t.SELECT], registers, a)]
                if kind == t.LOAD:
                    registers[a, ops[pc, t.DST]] = _word_seen(word, queue, w, now, a)
                elif kind == t.STORE:
                    value = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    time = now
                    if role == HOST_LAUNCH:
                        time = now + p[LAUNCH_NS] + _exponential(random, p[LAUNCH_JITTER])
                        time = max(time, clock[a, LAST + rank])  # launches of one host take effect in order
                        clock[a, LAST + rank] = time
                    elif role != HOST:
                        near = (ops[pc, t.SYNC] >> 4) <= _DEVICE
                        time, issue = _store(
                            p, clock, machine, random, a, rank, word[w, MEMORY], word[w, OWNER], near, _WORD_BYTES, now
                        )
                    _write_word(word, queue, count, w, value, now, time, a)
                    _wake(ops, agent, clock, word, heap, count, w, value, time)
                elif kind == t.RMW:
                    _settle(word, queue, w, now)
                    old = word[w, VALUE]
                    value = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    expected = np.int64(0)
                    if ops[pc, t.EXPECTED] >= 0:
                        expected = operand(exprs, postfix, ops[pc, t.EXPECTED], registers, a)
                    value = rmw(ops[pc, t.FN], old, value, expected)
                    word[w, VALUE] = value
                    queue[w, CHANGED] = max(queue[w, CHANGED], now)
                    if ops[pc, t.DST] >= 0:
                        registers[a, ops[pc, t.DST]] = old
                    _wake(ops, agent, clock, word, heap, count, w, value, now)
                elif kind == t.EXPECT:
                    due = values[ops[pc, NUMBER]]
                    failed = _check(moves, sources, items, cells, checks, count, a, pc, agent[a, ROW], due, now)
                    if ops[pc, t.DST] >= 0:
                        registers[a, ops[pc, t.DST]] = failed
                elif kind == t.FILL:
                    row = agent[a, ROW]
                    fill = values[ops[pc, NUMBER]]
                    if np.isnan(fill):
                        fill = machine[POISON]
                    into = moves[row, t.M_DST]
                    for i in range(into, into + moves[row, t.M_COUNT]):
                        _write_cell(cells, count, items[i], fill, now, now, a)
                        if cells.shape[1] > CELL_COLUMNS:
                            _write_stamp(cells, items[i], now, np.int64(0), False)
                if role == HOST or role == HOST_LAUNCH:
                    issue += p[HOST_STEP]
                elif role == PLAIN:
                    issue += p[STEP]
            if agent[a, PC] != pc:
                _note(span_op, span_time, count, a, pc, clock[a, ISSUE], issue)
                clock[a, ISSUE] = issue
        # Run what needs no memory, then give the operation that does its event.
        now = issue
        while agent[a, PC] < agent[a, END]:
            pc = agent[a, PC]
            kind, role = ops[pc, t.KIND], ops[pc, ROLE]
            order, scope = ops[pc, t.SYNC] & 15, ops[pc, t.SYNC] >> 4
            if kind >= t.MOVE and kind <= t.WAIT_STAMP:
                row = ops[pc, t.ADDR]
                if ops[pc, t.SELECT] >= 0:
                    row += operand(exprs, postfix, ops[pc, t.SELECT], registers, a)
                agent[a, ROW] = row
                size = moves[row, t.M_COUNT]
                if kind == t.FILL or kind == t.EXPECT:
                    clock[a, BACK] = 0.0
                    _push(heap, agent, clock, count, a, now)
                    break
                now += p[PROLOGUE]
                if size > 0 and kind == t.MOVE:
                    agent[a, AT], agent[a, PHASE], clock[a, BACK] = 0, LOADS, 0.0
                    _push(heap, agent, clock, count, a, now)
                    break
                if size > 0:
                    place = place_of_cell[items[sources[moves[row, t.M_SOURCES]]]]
                    trip = _read_ns(p, place & 255, place >> 8, rank, False)
                    trip *= clock[a, RATE] * _spread(random, p[ACCESS_SIGMA])
                    agent[a, W_VALUE] = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    agent[a, NEXT] = NOT_WAITING
                    clock[a, W_FIRST], clock[a, W_PERIOD] = now + 0.5 * trip, trip + p[POLL_GAP]
                    clock[a, W_END] = _deadline(ops, clock, a, pc)
                    clock[a, BACK] = 0.5 * trip
                    _push(heap, agent, clock, count, a, now + 0.5 * trip)
                    break
                agent[a, PC] = pc + 1
            elif kind == t.NOP:
                now += p[BARRIER]
                agent[a, PC] = pc + 1
            elif kind == t.SET:
                registers[a, ops[pc, t.DST]] = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                now += p[STEP]
                agent[a, PC] = pc + 1
            elif kind == t.BRANCH:
                agent[a, PC] = pc + 1
                if ops[pc, t.VALUE] < 0 or operand(exprs, postfix, ops[pc, t.VALUE], registers, a) == 0:
                    agent[a, PC] = ops[pc, t.TARGET]
                now += p[STEP]
            elif kind == t.FENCE:
                if order & 2:
                    now = max(now, clock[a, DRAIN] if scope > _DEVICE else clock[a, LOCAL_DRAIN])
                now += p[FENCE]
                agent[a, PC] = pc + 1
            else:
                w = ops[pc, t.ADDR]
                if ops[pc, t.SELECT] >= 0:
                    w = addresses[w + operand(exprs, postfix, ops[pc, t.SELECT], registers, a)]
                if (kind == t.STORE or kind == t.RMW) and order & 2:
                    # A release leaves only when everything before it has arrived.
                    now = max(now, clock[a, DRAIN] if scope > _DEVICE else clock[a, LOCAL_DRAIN])
                if kind == t.RMW:
                    now = max(now, _own_arrival(word, queue, w, a))
                trip, gap = 0.0, p[POLL_GAP]
                if role != PLAIN:
                    gap = p[HOST_POLL] if role == HOST else 0.0
                elif kind != t.STORE:
                    memory, owner = word[w, MEMORY], word[w, OWNER]
                    trip = _read_ns(p, memory, owner, rank, scope <= _DEVICE)
                    if kind == t.RMW and trip != p[STEP] and trip != p[REMOTE_READ]:
                        trip = p[ATOMIC]
                    trip *= clock[a, RATE] * _spread(random, p[ACCESS_SIGMA])
                clock[a, BACK] = 0.5 * trip
                if kind == t.WAIT:
                    agent[a, W_WORD], agent[a, NEXT] = w, NOT_WAITING
                    agent[a, W_VALUE] = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    clock[a, W_FIRST], clock[a, W_PERIOD] = now + 0.5 * trip, trip + gap
                    clock[a, W_END] = _deadline(ops, clock, a, pc)
                _push(heap, agent, clock, count, a, now + 0.5 * trip)
                break
            _note(span_op, span_time, count, a, pc, clock[a, ISSUE], now)
            clock[a, ISSUE] = now
    return True


@njit(cache=True, nogil=True, _nrt=False)
def reset(agent, clock, registers, word, queue, cells, held, cell_waiter, gaps, heap, count, machine, random,
          word_initial, cell_initial, p, poison, seed):  # fmt: skip
    """Bring the state to time 0, draw what is drawn once a run, and give every agent its first event."""
    count[:] = 0
    machine[:] = 0.0
    machine[POISON] = poison
    random[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x1234567)
    registers[:] = 0
    cell_waiter[:] = -1
    queue[:] = 0.0
    for w in range(len(word_initial)):
        word[w, VALUE], word[w, QUEUED], word[w, WAITER] = word_initial[w], 0, -1
    for c in range(len(cell_initial)):
        cells[c, BASE] = poison if np.isnan(cell_initial[c]) else cell_initial[c]
        cells[c, T1] = cells[c, T2] = _INF
        if cells.shape[1] > CELL_COLUMNS:
            cells[c, STAMP] = 0.0
    for k in range(len(gaps)):
        gaps[k] = p[GAP] + _exponential(random, p[GAP_JITTER])
    clock[:] = 0.0
    for a in range(len(agent)):
        agent[a, PC], agent[a, PLACE], agent[a, NEXT] = agent[a, FIRST], -1, NOT_WAITING
        agent[a, AT], agent[a, STARTED] = 0, 0
        clock[a, RATE] = _spread(random, p[BLOCK_SIGMA])
        clock[a, DELAY] = p[DISPATCH] * max(agent[a, BLOCK], 0) + _exponential(random, p[START_JITTER])
        _push(heap, agent, clock, count, a, 0.0)


@njit(cache=True, nogil=True, _nrt=False)
def settle_all(word, queue):
    """After a run: let every word under way arrive."""
    for w in range(len(word)):
        _settle(word, queue, w, _INF)
