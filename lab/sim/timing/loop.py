"""The discrete-event loop of the timing model. `lab.sim.timing.timing` prepares its arrays and reads its results.

Each agent has at most one event in a heap: the instant at which its next operation *samples* memory. Latency before
that instant is the way to the memory, latency after it the way back. A write is recorded at an event and becomes
visible at or after it; events are popped in order of time, so whatever a read at time t may see is known when its
event is popped.

A location holds its settled value and a queue of values that will become visible, ordered by time. An agent sees its
own values at once. A queue that would overflow settles its oldest value early and is counted in `INEXACT`.

All times are nanoseconds from the start of the run, as float64. `columns` says what the arrays hold, `agenda` who is
next, `waiting` what words hold when and who sleeps, `packets` the same of payload, `charges` what an access costs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.sim.machine import words
from lab.sim.machine.words import SUM_LE, rmw, signed
from lab.sim.timing.agenda import pop, push
from lab.sim.timing.chance import exponential, spread
from lab.sim.timing.charges import load_costs, post, read_ns
from lab.sim.timing.columns import (
    ACCESS_SIGMA,
    AT,
    ATOMIC,
    BACK,
    BARRIER,
    BASE,
    BLOCK,
    BLOCK_SIGMA,
    C_AGENT,
    C_ELEMENTS,
    C_HIGH,
    C_LOW,
    C_MEAN,
    C_PC,
    C_TIME,
    C_WRONG,
    CELL_COLUMNS,
    CHANGED,
    CHECKS,
    DELAY,
    DEVICE_SCOPE,
    DISPATCH,
    DRAIN,
    END,
    EVENTS,
    FENCE,
    FIRST,
    GAP,
    GAP_JITTER,
    HEAP,
    HOST,
    HOST_JITTER,
    HOST_LAUNCH,
    HOST_POLL,
    HOST_STEP,
    INF,
    ISSUE,
    ITERATION,
    KEY,
    LAST,
    LAUNCH,
    LAUNCH_JITTER,
    LAUNCH_NS,
    LENGTH,
    LOADS,
    LOCAL_DRAIN,
    MEMORY,
    NEXT,
    NOT_WAITING,
    NOW,
    NTH_LAUNCH,
    NUMBER,
    OWNER,
    PC,
    PHASE,
    PLACE,
    PLAIN,
    POISON,
    POLL_GAP,
    PREVIOUS,
    PROLOGUE,
    QUEUE_TIME,
    QUEUE_VALUE,
    QUEUED,
    RANK,
    RATE,
    REMOTE_READ,
    ROLE,
    ROW,
    SAMPLE,
    SPANS,
    SPANS_LOST,
    STAMP,
    START_JITTER,
    STARTED,
    STEP,
    STORES,
    T1,
    T2,
    TIMEOUTS,
    UPTO,
    VALUE,
    W_END,
    W_FIRST,
    W_PERIOD,
    W_VALUE,
    W_WORD,
    WAITER,
    WORD_BYTES,
)
from lab.sim.timing.packets import cell_seen, stamps_met, wake_cell, write_cell, write_stamp
from lab.sim.timing.waiting import (
    deadline_of,
    fall_asleep,
    met,
    next_poll,
    operand,
    own_arrival,
    settle,
    wake,
    wake_up,
    word_seen,
    write_word,
)


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
    low, high = INF, -INF
    for i in range(lo, lo + moves[row, t.M_COUNT]):
        c = items[i]
        value = cell_seen(cells, c, now, a)
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
            total += cell_seen(cells, items[sources[j] + i], now, a)
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
    time, go_on = post(p, clock, machine, random, a, rank, place & 255, place >> 8, False, nbytes, now)
    packets = cells.shape[1] > CELL_COLUMNS
    for i in range(at, upto):
        c = items[into + i]
        write_cell(cells, count, c, held[a, i - at], now, time, a)
        if packets:
            write_stamp(cells, c, time, stamp, stamped)
    return time, go_on


@njit(cache=True, nogil=True, _nrt=False)
def run(
    ops, exprs, postfix, tests, addresses, moves, sources, items, iterations, place_of_cell, values,
    agent, clock, registers, word, queue, cells, held, cell_waiter, gaps, heap, count, machine, random, checks,
    timeouts, span_op, span_time, p, itemsize, max_events,
):  # fmt: skip
    """Run until nothing is left to happen, or `max_events`. Returns whether it ended by itself."""
    while count[HEAP] > 0:
        if count[EVENTS] >= max_events:
            return False
        a = pop(heap, agent, clock, count)
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
                    push(heap, agent, clock, count, a, issue + p[ITERATION])
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
                            wake_cell(agent, clock, cell_waiter, heap, count, items[i], time)
                    agent[a, AT] = agent[a, UPTO]
                    agent[a, PHASE] = LOADS
                if agent[a, AT] < size:
                    if issue > now:  # the link is full
                        push(heap, agent, clock, count, a, issue)
                        continue
                    at = agent[a, AT]
                    turn = moves[row, t.M_ITERATION]
                    upto = at + 1
                    while upto < size and iterations[turn + upto] == iterations[turn + at]:
                        upto += 1
                    trip, ready = load_costs(
                        p, machine, cells, place_of_cell, sources, items, moves[row, t.M_SOURCES],
                        moves[row, t.M_N_SOURCES], at, upto, rank, itemsize, now,
                    )  # fmt: skip
                    trip *= clock[a, RATE] * spread(random, p[ACCESS_SIGMA])
                    clock[a, BACK] = 0.5 * trip
                    agent[a, UPTO], agent[a, PHASE] = upto, SAMPLE
                    push(heap, agent, clock, count, a, ready + 0.5 * trip)
                    continue
                agent[a, PC] = pc + 1
            elif kind == t.WAIT or kind == t.WAIT_STAMP:
                w, wanted, cond = agent[a, W_WORD], agent[a, W_VALUE], ops[pc, t.FN]
                width = ops[pc, t.COUNT] if kind == t.WAIT else 0
                later = INF  # the next poll that is worth making
                if kind == t.WAIT_STAMP:
                    row = agent[a, ROW]
                    lo = sources[moves[row, t.M_SOURCES]]
                    time, sleep = stamps_met(tests, cells, items, lo, lo + moves[row, t.M_COUNT], cond, wanted, now, a)
                    ok = sleep < 0 and time <= now
                    if sleep < 0:
                        later = next_poll(clock, a, time)
                elif cond == SUM_LE:
                    total = np.int64(0)
                    for k in range(width):
                        total += signed(word_seen(word, queue, w + k, now, a))
                    ok = total <= signed(wanted)
                else:
                    ok = met(tests, cond, word_seen(word, queue, w, now, a), wanted)
                if ok or now >= clock[a, W_END] - 1e-3:
                    if kind == t.WAIT:
                        wake_up(agent, word, heap, count, a, w, width)
                    agent[a, PC] = pc + 1
                    if not ok:
                        n = count[TIMEOUTS]
                        if n < len(timeouts):
                            timeouts[n, 0], timeouts[n, 1], timeouts[n, 2] = a, pc, now
                        count[TIMEOUTS] = n + 1
                        if ops[pc, t.TARGET] >= 0:
                            agent[a, PC] = ops[pc, t.TARGET]
                    elif role == HOST:
                        issue += p[HOST_STEP] + exponential(random, p[HOST_JITTER])
                    elif role == LAUNCH or role == PREVIOUS:
                        if role == PREVIOUS:
                            issue = max(issue, queue[w, CHANGED] + gaps[agent[a, NTH_LAUNCH]])
                        if pc + 1 >= agent[a, END] or ops[pc + 1, ROLE] != PREVIOUS:
                            issue += clock[a, DELAY]
                else:
                    if kind == t.WAIT:
                        fall_asleep(agent, word, heap, count, a, w, width)
                        for k in range(w, w + width):
                            for j in range(word[k, QUEUED]):
                                if width > 1 or met(tests, cond, word[k, QUEUE_VALUE + j], wanted):
                                    later = min(later, next_poll(clock, a, queue[k, QUEUE_TIME + j]))
                                    break
                    elif later == INF:
                        if agent[a, NEXT] == NOT_WAITING:
                            agent[a, NEXT] = cell_waiter[sleep]
                            cell_waiter[sleep] = a
                    later = min(later, clock[a, W_END])
                    if later < INF:
                        push(heap, agent, clock, count, a, later)
                    continue
            else:
                agent[a, PC] = pc + 1
                if kind == t.LOAD or kind == t.STORE or kind == t.RMW:
                    w = ops[pc, t.ADDR]
                    if ops[pc, t.SELECT] >= 0:
                        w = addresses[w + operand(exprs, postfix, ops[pc, t.SELECT], registers, a)]
                if kind == t.LOAD:
                    registers[a, ops[pc, t.DST]] = word_seen(word, queue, w, now, a)
                elif kind == t.STORE:
                    value = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    time = now
                    if role == HOST_LAUNCH:
                        time = now + p[LAUNCH_NS] + exponential(random, p[LAUNCH_JITTER])
                        time = max(time, clock[a, LAST + rank])  # launches of one host take effect in order
                        clock[a, LAST + rank] = time
                    elif role != HOST:
                        near = (ops[pc, t.SYNC] >> 4) <= DEVICE_SCOPE
                        time, issue = post(
                            p, clock, machine, random, a, rank, word[w, MEMORY], word[w, OWNER], near, WORD_BYTES, now
                        )
                    write_word(word, queue, count, w, value, now, time, a)
                    wake(tests, ops, agent, clock, word, heap, count, w, value, time)
                elif kind == t.RMW:
                    settle(word, queue, w, now)
                    old = word[w, VALUE]
                    value = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    expected = np.int64(0)
                    if ops[pc, t.EXPECTED] >= 0:
                        expected = operand(exprs, postfix, ops[pc, t.EXPECTED], registers, a)
                    if ops[pc, t.DST] >= 0:
                        registers[a, ops[pc, t.DST]] = old
                    if ops[pc, t.FN] == t.UPDATE:  # its value is computed of the old one
                        value = operand(exprs, postfix, ops[pc, t.VALUE], registers, a)
                    value = rmw(ops[pc, t.FN], old, value, expected)
                    word[w, VALUE] = value
                    queue[w, CHANGED] = max(queue[w, CHANGED], now)
                    wake(tests, ops, agent, clock, word, heap, count, w, value, now)
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
                        write_cell(cells, count, items[i], fill, now, now, a)
                        if cells.shape[1] > CELL_COLUMNS:
                            write_stamp(cells, items[i], now, np.int64(0), False)
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
                    push(heap, agent, clock, count, a, now)
                    break
                now += p[PROLOGUE]
                if size > 0 and kind == t.MOVE:
                    agent[a, AT], agent[a, PHASE], clock[a, BACK] = 0, LOADS, 0.0
                    push(heap, agent, clock, count, a, now)
                    break
                if size > 0:
                    place = place_of_cell[items[sources[moves[row, t.M_SOURCES]]]]
                    trip = read_ns(p, place & 255, place >> 8, rank, False)
                    trip *= clock[a, RATE] * spread(random, p[ACCESS_SIGMA])
                    agent[a, W_VALUE] = words.wanted_by(ops, exprs, postfix, registers, pc, a)
                    agent[a, NEXT] = NOT_WAITING
                    clock[a, W_FIRST], clock[a, W_PERIOD] = now + 0.5 * trip, trip + p[POLL_GAP]
                    clock[a, W_END] = deadline_of(ops, clock, a, pc)
                    clock[a, BACK] = 0.5 * trip
                    push(heap, agent, clock, count, a, now + 0.5 * trip)
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
                if order & 2 or order & t.DRAIN:
                    now = max(now, clock[a, DRAIN] if scope > DEVICE_SCOPE else clock[a, LOCAL_DRAIN])
                now += p[FENCE] if order & 3 else 0.0  # a drain only waits
                agent[a, PC] = pc + 1
            else:
                w = ops[pc, t.ADDR]
                if ops[pc, t.SELECT] >= 0:
                    w = addresses[w + operand(exprs, postfix, ops[pc, t.SELECT], registers, a)]
                if (kind == t.STORE or kind == t.RMW) and order & 2:
                    # A release leaves only when everything before it has arrived.
                    now = max(now, clock[a, DRAIN] if scope > DEVICE_SCOPE else clock[a, LOCAL_DRAIN])
                if kind == t.RMW:
                    now = max(now, own_arrival(word, queue, w, a))
                trip, gap = 0.0, p[POLL_GAP]
                if role != PLAIN:
                    gap = p[HOST_POLL] if role == HOST else 0.0
                elif kind != t.STORE:
                    memory, owner = word[w, MEMORY], word[w, OWNER]
                    trip = read_ns(p, memory, owner, rank, scope <= DEVICE_SCOPE)
                    if kind == t.RMW and trip != p[STEP] and trip != p[REMOTE_READ]:
                        trip = p[ATOMIC]
                    trip *= clock[a, RATE] * spread(random, p[ACCESS_SIGMA])
                clock[a, BACK] = 0.5 * trip
                if kind == t.WAIT:
                    agent[a, W_WORD], agent[a, NEXT] = w, NOT_WAITING
                    agent[a, W_VALUE] = words.wanted_by(ops, exprs, postfix, registers, pc, a)
                    clock[a, W_FIRST], clock[a, W_PERIOD] = now + 0.5 * trip, trip + gap
                    clock[a, W_END] = deadline_of(ops, clock, a, pc)
                push(heap, agent, clock, count, a, now + 0.5 * trip)
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
        cells[c, T1] = cells[c, T2] = INF
        if cells.shape[1] > CELL_COLUMNS:
            cells[c, STAMP] = 0.0
    for k in range(len(gaps)):
        gaps[k] = p[GAP] + exponential(random, p[GAP_JITTER])
    clock[:] = 0.0
    for a in range(len(agent)):
        agent[a, PC], agent[a, PLACE], agent[a, NEXT] = agent[a, FIRST], -1, NOT_WAITING
        agent[a, AT], agent[a, STARTED] = 0, 0
        clock[a, RATE] = spread(random, p[BLOCK_SIGMA])
        clock[a, DELAY] = p[DISPATCH] * max(agent[a, BLOCK], 0) + exponential(random, p[START_JITTER])
        push(heap, agent, clock, count, a, 0.0)


@njit(cache=True, nogil=True, _nrt=False)
def settle_all(word, queue):
    """After a run: let every word under way arrive."""
    for w in range(len(word)):
        settle(word, queue, w, INF)
