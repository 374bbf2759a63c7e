"""What an access costs: round trips, and the memory and links that it occupies."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.sim.timing.chance import spread
from lab.sim.timing.columns import (
    ACCESS_SIGMA,
    CACHED,
    CACHED_GBS,
    DRAIN,
    GPUS,
    HOST_MAPPED,
    IN_FREE,
    L2_READ,
    L2_WRITE,
    LAST,
    LENGTH,
    LINK_GBS,
    LINK_LAST,
    LINK_QUEUE,
    LOCAL_DRAIN,
    MEMORY_FREE,
    OUT_FREE,
    RANKS_PER_GPU,
    RATE,
    REMOTE_ACK,
    REMOTE_READ,
    REMOTE_WRITE,
    SHARED,
    STEP,
    UNCACHED_GBS,
    UNCACHED_READ,
    UNCACHED_WRITE,
)


@njit(inline="always", _nrt=False)
def _gpu(p, rank):
    return np.int64(rank / p[RANKS_PER_GPU])


@njit(cache=True, _nrt=False)
def read_ns(p, memory, owner, rank, near):
    """Round trip of a load by `rank` from `memory` of `owner`; `near`: at most device scope, so that L2 answers."""
    if memory == SHARED:
        return p[STEP]
    if memory == HOST_MAPPED or _gpu(p, owner) != _gpu(p, rank):
        return p[REMOTE_READ]
    if owner == rank and (near or memory == CACHED):
        return p[L2_READ]
    return p[UNCACHED_READ]


@njit(cache=True, _nrt=False)
def post(p, clock, machine, random, a, rank, memory, owner, near, nbytes, issue):
    """A store of `nbytes` issued at `issue`: (visible, when the agent may issue again). Notes what fences wait for."""
    factor = clock[a, RATE] * spread(random, p[ACCESS_SIGMA])
    here, there = _gpu(p, rank), _gpu(p, owner)
    go_on = issue
    if memory == SHARED:
        time = issue + p[STEP]
        answer = time
    elif memory == HOST_MAPPED:
        time = issue + p[REMOTE_WRITE] * factor
        answer = issue + p[REMOTE_ACK] * factor
    elif here == there:
        quick = owner == rank and (near or memory == CACHED)
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
def load_costs(p, machine, cells, place_of_cell, sources, items, first, n, at, upto, rank, itemsize, now):
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
        trip = max(trip, read_ns(p, memory, owner, rank, False))
        there = _gpu(p, owner)
        near = memory == CACHED and owner == rank
        done = max(now, machine[MEMORY_FREE + there]) + nbytes / (p[CACHED_GBS] if near else p[UNCACHED_GBS])
        machine[MEMORY_FREE + there] = done
        if there != here:
            done = max(done, machine[OUT_FREE + there] + nbytes / p[LINK_GBS])
            machine[OUT_FREE + there] = done
        ready = max(ready, done)
    return trip, ready
