"""Who does something next: a heap of agents, by time, then by number."""

from __future__ import annotations

from numba import njit

from lab.sim.timing.columns import HEAP, KEY, PLACE


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
def push(heap, agent, clock, count, a, key):
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
def pop(heap, agent, clock, count):
    """Take the agent whose event is next."""
    a = heap[0, 0]
    agent[a, PLACE] = -1
    count[HEAP] -= 1
    n = count[HEAP]
    if n > 0:
        heap[0, 0] = heap[0, n]
        agent[heap[0, 0], PLACE] = 0
        _down(heap, agent, clock, n, 0)
    return a
