"""Histories of memory model `weak`: the messages of a word or payload cell, what an agent may read, what it must see.

A message is a row of an integer table, linked to the next older one. Everything here works on plain arrays, for words
and cells alike: `messages`, `records` (who has read what), `clock` (what each agent knows of each chain).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.machine import completion, words

MAX_CHOICES = 16
"""Messages that a word operation chooses among: the newest ones, and the oldest that is allowed as the last."""
_BLOCK, _DEVICE, _SYSTEM = int(Scope.BLOCK), int(Scope.DEVICE), int(Scope.SYSTEM)
# Columns of a message. OWNER: agent * 8 + 2 * part + whether it is visible outside the rank at once; of initial values
# -1. part: of a clock that says whether the store is complete (`completion.py`); 0 where nobody drains.
VALUE, STEP, CHAIN, TIME, OLDER, RECORD, OWNER, STAMP = range(8)
# Of words instead of STAMP: written by a read-modify-write; at RELEASED + scope, the snapshot released there, or -1.
GLUED = RELEASED = STAMP
WORD_COLUMNS, CELL_COLUMNS, PACKET_COLUMNS = 12, 8, 11  # cells have the snapshots too where there are packets
READ, MATCH, PLACE, SWAP, LOCK = range(5)  # what an operation asks of a history
STALE_READ, EARLY_WRITE = 1, 2  # choices of a payload operation, added up
C_RECORDS = 9  # position in State.counts of the number of records


@njit(cache=True, _nrt=False)
def covered(messages, records, clock, agent, message):
    """Whether the agent must know a message: its store, or a read of it, happened before (RC11: coherence).

    Or its store is complete, and the agent relies on that.
    """
    if clock[agent, messages[message, CHAIN]] >= messages[message, TIME]:
        return True
    record = messages[message, RECORD]
    while record >= 0:
        if clock[agent, records[record, 0]] >= records[record, 1]:
            return True
        record = records[record, 2]
    part = messages[message, OWNER] >> 1 & 3
    if part:
        chains = clock.shape[1] // completion.PARTS
        return completion.relies_on(clock[agent], messages[message, CHAIN], messages[message, TIME], part, chains)
    return False


@njit(cache=True, _nrt=False)
def options(tests, messages, records, clock, agent, head, mode, cond, value, want):
    """(number of messages an operation may choose, the one numbered `want`, the next newer one or -1), newest first.

    READ: any that is not older than the newest the agent must know. MATCH: of these, those that meet a wait.
    PLACE: of these, those behind which a store fits: not before a read-modify-write of it. SWAP: these, and those of
    which a compare-and-swap only reads. LOCK: those behind which one succeeds.
    """
    message, newer, count, chosen, beside = head, np.int64(-1), 0, np.int64(-1), np.int64(-1)
    while True:
        if mode == READ:
            fits = True
        elif mode == MATCH:
            fits = words.met(tests, cond, messages[message, VALUE], value)
        else:
            fits = newer < 0 or messages[newer, GLUED] == 0
            if mode == SWAP:
                fits = fits or messages[message, VALUE] != value
            elif mode == LOCK:
                fits = fits and messages[message, VALUE] == value
        if fits:
            if count == want or (count > want and want == MAX_CHOICES - 1):
                chosen, beside = message, newer
            count += 1
        if covered(messages, records, clock, agent, message):
            return min(count, MAX_CHOICES), chosen, beside
        newer = message
        message = messages[message, OLDER]


@njit(cache=True, _nrt=False)
def oldest(messages, records, clock, agent, message):
    """The oldest message of a history that the agent may still read."""
    while not covered(messages, records, clock, agent, message):
        message = messages[message, OLDER]
    return message


@njit(cache=True, _nrt=False)
def needed_scope(a, b, device, block):
    """The narrowest scope that holds both agents."""
    if a == b:
        return 0
    if device[a] != device[b]:
        return _SYSTEM
    return _BLOCK if block[a] == block[b] else _DEVICE


@njit(cache=True, _nrt=False)
def visible(messages, written_back, rank, device, block, agent, message, scope, uncached):
    """Whether a poll of `agent` at `scope` sees a message in the end, when nothing else happens.

    The poll looks as far as its scope: a narrower one may hit an old copy for ever, in the block's cache or, of
    cached memory that another rank writes, in the rank's (LLVM AMDGPU memory model: loads bypass the caches that
    their scope does not need; uncached memory is not held by the cache of a rank). The store is seen by the own rank
    at once (the caches of a block write through), by others when it was not kept in the rank's cache, or when a
    system release of the rank that covers it has written it back.
    """
    owner = messages[message, OWNER] >> 3
    if owner < 0:
        return True
    needed = needed_scope(agent, owner, device, block)
    if scope < needed and not (uncached and scope >= _DEVICE):
        return False
    if needed < _SYSTEM or messages[message, OWNER] & 1:
        return True
    return written_back[rank[owner], messages[message, CHAIN]] >= messages[message, TIME]


@njit(cache=True, _nrt=False)
def latest_visible(messages, records, clock, written_back, rank, device, block, agent, head, scope, uncached):
    """The message that a poll sees in the end."""
    message = head
    while not visible(messages, written_back, rank, device, block, agent, message, scope, uncached):
        if covered(messages, records, clock, agent, message):
            return message
        message = messages[message, OLDER]
    return message


@njit(cache=True, _nrt=False)
def _join(clock, agent, snapshots, snapshot):
    for c in range(clock.shape[1]):
        if snapshots[snapshot, c] > clock[agent, c]:
            clock[agent, c] = snapshots[snapshot, c]


@njit(cache=True, _nrt=False)
def _join_pending(pending, agent, level, snapshots, snapshot):
    for c in range(pending.shape[2]):
        if snapshots[snapshot, c] > pending[agent, level, c]:
            pending[agent, level, c] = snapshots[snapshot, c]


@njit(cache=True, _nrt=False)
def synchronise(messages, snapshots, clock, pending, device, block, reach, agent, message, sync, fences):
    """Acquire what a message released, and through a chain of read-modify-writes what those before it did."""
    while message >= 0:
        synchronise_with(messages, snapshots, clock, pending, device, block, reach, agent, message, sync, fences)
        if messages[message, GLUED] == 0:
            return
        message = messages[message, OLDER]


@njit(cache=True, _nrt=False)
def synchronise_with(messages, snapshots, clock, pending, device, block, reach, agent, message, sync, fences):
    """Acquire what one message released; a relaxed read keeps it for a later acquire fence.

    Pairs with the snapshot that a releasing store, read-modify-write or fence took: the scopes of both sides include
    the other. What the message tells of drains is heard whatever its order, and relied on by who acquires.
    """
    owner = messages[message, OWNER] >> 3
    if owner < 0:
        return
    level = max(needed_scope(agent, owner, device, block), 1)
    snapshot = messages[message, RELEASED + level]
    if len(reach):
        completion.hear(clock[agent], snapshots[snapshot], reach.shape[1])
        if sync & 1 and sync >> 4 >= level:
            completion.rely(clock[agent], snapshots[snapshot], reach[agent], sync >> 4, reach.shape[1])
    if sync >> 4 >= level and snapshot >= 0:
        if sync & 1:
            _join(clock, agent, snapshots, snapshot)
        elif fences:
            _join_pending(pending, agent, level, snapshots, snapshot)


@njit(cache=True, _nrt=False)
def know(messages, records, clock, agent, message, chain, counts):
    """Remember that `agent` has read a message: who knows of the read may not read an older message."""
    if not covered(messages, records, clock, agent, message):
        at = counts[C_RECORDS]
        counts[C_RECORDS] = at + 1
        records[at, 0] = chain
        records[at, 1] = clock[agent, chain]
        records[at, 2] = messages[message, RECORD]
        messages[message, RECORD] = at
        # Not needed where the message is covered: who knows of this read then knows of what covers it.


@njit(cache=True, _nrt=False)
def least(messages, records, clock, agent, head):
    """The message with the least signed value that the agent may read."""
    message = best = head
    while not covered(messages, records, clock, agent, message):
        message = messages[message, OLDER]
        if words.signed(messages[message, VALUE]) < words.signed(messages[best, VALUE]):
            best = message
    return best


@njit(cache=True, _nrt=False)
def stamped(tests, messages, records, clock, agent, head, cond, value, oldest):
    """The newest (or oldest) message of a packet that the agent may read and whose stamp meets a condition, or -1."""
    message, found = head, np.int64(-1)
    while True:
        if words.met(tests, cond, messages[message, STAMP], value):
            found = message
            if not oldest:
                return found
        if covered(messages, records, clock, agent, message):
            return found
        message = messages[message, OLDER]


@njit(cache=True, _nrt=False)
def payload_choices(moves, sources, items, cells, records, clock, heads, row, agent):
    """Which of STALE_READ and EARLY_WRITE make a difference, added up."""
    n, found = moves[row, t.M_COUNT], 0
    for k in range(moves[row, t.M_SOURCES], moves[row, t.M_SOURCES] + moves[row, t.M_N_SOURCES]):
        for i in range(sources[k], sources[k] + n):
            if not covered(cells, records, clock, agent, np.int64(heads[items[i]])):
                found |= STALE_READ
                break
    if moves[row, t.M_DST] >= 0:
        for i in range(moves[row, t.M_DST], moves[row, t.M_DST] + n):
            if not covered(cells, records, clock, agent, np.int64(heads[items[i]])):
                found |= EARLY_WRITE
                break
    return found


@njit(cache=True, _nrt=False)
def arrive(uncached, messages, heads):
    """A wait of seconds has passed, longer than any delay: what was stored to memory that no cache holds has arrived.

    From now on nobody reads anything older. It gives no order: nobody has acquired anything.
    """
    for word in range(len(heads)):
        if uncached[word]:
            messages[heads[word], TIME] = 0  # covered by every clock
