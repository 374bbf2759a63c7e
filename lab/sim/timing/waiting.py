"""Words in time: values under way, and agents that sleep until one arrives."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.sim.machine import words
from lab.sim.timing.agenda import push
from lab.sim.timing.columns import (
    BOUND,
    CHANGED,
    INEXACT,
    INF,
    KEY,
    LIMIT,
    MULTI,
    NEXT,
    NOT_WAITING,
    PC,
    PLACE,
    QUEUE,
    QUEUE_TIME,
    QUEUE_VALUE,
    QUEUE_WRITER,
    QUEUED,
    VALUE,
    W_FIRST,
    W_PERIOD,
    W_VALUE,
    W_WORD,
    WAITER,
)


# Called, not inlined a dozen times: half the time to compile.
@njit(cache=True, _nrt=False)
def operand(exprs, postfix, row, registers, a):
    """The word that expression `row` has for agent `a`."""
    return words.operand(exprs, postfix, row, registers, a)


@njit(cache=True, _nrt=False)
def met(tests, cond, word, value):
    """Whether one word meets a wait condition."""
    return words.met(tests, cond, word, value)


@njit(cache=True, _nrt=False)
def settle(word, queue, w, now):
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
def word_seen(word, queue, w, now, a):
    """What agent `a` reads from word `w` at `now`."""
    settle(word, queue, w, now)
    for k in range(word[w, QUEUED] - 1, -1, -1):
        if word[w, QUEUE_WRITER + k] == a:
            return word[w, QUEUE_VALUE + k]
    return word[w, VALUE]


@njit(cache=True, _nrt=False)
def own_arrival(word, queue, w, a):
    """When the newest value of word `w` that agent `a` has under way becomes visible, or 0."""
    for k in range(word[w, QUEUED] - 1, -1, -1):
        if word[w, QUEUE_WRITER + k] == a:
            return queue[w, QUEUE_TIME + k]
    return 0.0


@njit(cache=True, _nrt=False)
def write_word(word, queue, count, w, value, now, time, a):
    """Word `w` will hold `value` from `time` on."""
    settle(word, queue, w, now)
    n = word[w, QUEUED]
    if n == QUEUE:
        count[INEXACT] += 1
        settle(word, queue, w, queue[w, QUEUE_TIME])
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
def next_poll(clock, a, time):
    """The first poll of a waiting agent at or after `time`."""
    first, period = clock[a, W_FIRST], clock[a, W_PERIOD]
    if time <= first:
        return first
    if period == 0.0:
        return time
    return first + np.ceil((time - first) / period) * period


@njit(cache=True, _nrt=False)
def deadline_of(ops, clock, a, pc):
    """The poll at which a bounded wait gives up."""
    if ops[pc, BOUND] >= 0:
        return clock[a, W_FIRST] + (ops[pc, BOUND] - 1) * max(clock[a, W_PERIOD], 1.0)
    if ops[pc, LIMIT] >= 0:
        return clock[a, W_FIRST] + 1e3 * ops[pc, LIMIT]
    return INF


@njit(cache=True, _nrt=False)
def wake(tests, ops, agent, clock, word, heap, count, w, value, time):
    """Word `w` gets `value` at `time`: everyone whom that satisfies looks at the next poll."""
    a = word[w, WAITER]
    while a >= 0:
        if met(tests, ops[agent[a, PC], t.FN], value, agent[a, W_VALUE]):
            poll = next_poll(clock, a, time)
            if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
                push(heap, agent, clock, count, a, poll)
        a = agent[a, NEXT]
    for k in range(count[MULTI]):
        a = heap[1, k]
        lo = agent[a, W_WORD]
        if lo <= w < lo + ops[agent[a, PC], t.COUNT]:
            poll = next_poll(clock, a, time)
            if agent[a, PLACE] < 0 or poll < clock[a, KEY]:
                push(heap, agent, clock, count, a, poll)


@njit(cache=True, _nrt=False)
def fall_asleep(agent, word, heap, count, a, w, width):
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
def wake_up(agent, word, heap, count, a, w, width):
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
