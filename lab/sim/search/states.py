"""The states that a search has found: rows of integers, compared in full, as a queue, with the step that led to each.

The hash only finds where to look, so no state is taken for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

# Slots of `Rows.counts`.
N_STATES, N_HEAD, N_TRANSITIONS, N_WRONG, N_HANGS, N_ABORTS, N_USED, N_FAILED = range(8)
# Why `_explore` came back.
FINISHED, FULL, FAILED, LIMIT = range(4)


@dataclass
class Rows:
    """The states found so far, as a queue, with the step that led to each.

    Attributes:
        arena: int32, the rows one after the other; offset: int64, where each starts.
        parent: int64; choice: int32, the entity that moved. State 0 is the initial one.
        table: int64, open addressing, state numbers or -1.
        counts: int64, by N_*. N_FAILED is the state before the first failure, `failed_choice` the step that fails.
    """

    arena: np.ndarray
    offset: np.ndarray
    parent: np.ndarray
    choice: np.ndarray
    table: np.ndarray
    counts: np.ndarray
    failed_choice: np.ndarray

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return sum(a.nbytes for a in (self.arena, self.offset, self.parent, self.choice, self.table))

    @property
    def done(self) -> bool:
        """Whether every state has been expanded."""
        return bool(self.counts[N_HEAD] == self.counts[N_STATES])

    def advance(
        self, explore: Callable[[int], int], states: int, moves: int, widest: int, memory_limit: int | None
    ) -> int:
        """Expand up to so many states, making room as it is needed (see `grow`).

        Args:
            explore: Expands states until so many have been expanded in all, or says why not.
            states: How many more.
            moves: Successors of one state, at most.
            widest: Integers of a row, at most.
            memory_limit: Bytes; None: none.

        Returns:
            FINISHED, FAILED, LIMIT, or FULL at the memory limit.
        """
        target = int(self.counts[N_HEAD]) + states
        while True:
            why = explore(target)
            if why != FULL or not self.grow(moves, widest, memory_limit):
                return why

    def parts(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds."""
        n, used = int(self.counts[N_STATES]), int(self.counts[N_USED])
        return {
            "arena": self.arena[:used],
            "offset": self.offset[: n + 1],
            "parent": self.parent[:n],
            "choice": self.choice[:n],
            "table": self.table,
            "counts": self.counts,
            "failed_choice": self.failed_choice,
        }

    def path(self, state: int) -> np.ndarray:
        """int32, the choices that were made on the way to a state."""
        made = []
        while state > 0:
            made.append(int(self.choice[state]))
            state = int(self.parent[state])
        return np.array(made[::-1], np.int32)

    def grow(self, moves: int, widest: int, memory_limit: int | None) -> bool:
        """Make room for the successors of one more state, `moves` of `widest` integers at most, and for many more.

        Returns:
            Whether the memory limit (bytes; None: none) allows it; if not, nothing has changed.
        """
        n, used = int(self.counts[N_STATES]), int(self.counts[N_USED])
        room = int(1.6 * max(n, 256)) + moves
        arena = int(1.6 * max(used, 4096)) + moves * widest
        table = len(self.table)
        while 2 * room > table:
            table *= 2
        # Old and new arrays live side by side while they are copied, one at a time.
        wanted = 4 * arena + (8 + 8 + 4) * room + 8 * table
        if memory_limit is not None and wanted + max(4 * used, 8 * n) > memory_limit:
            return False
        self.arena = _longer(self.arena, used, arena)
        self.offset = _longer(self.offset, n + 1, room + 1)
        self.parent, self.choice = _longer(self.parent, n, room), _longer(self.choice, n, room)
        if table > len(self.table):
            self.table = np.full(table, -1, np.int64)
            _rehash(self.arena, self.offset, n, self.table)
        return True


def rows_of(parts: dict[str, np.ndarray] | None, widest: int) -> Rows:
    """No state, or those of a checkpoint; rows have `widest` integers at most."""
    if parts is not None:
        return Rows(**{name: np.array(a) for name, a in parts.items()})
    rows = Rows(
        arena=np.zeros(max(1 << 12, 2 * widest), np.int32),
        offset=np.zeros(257, np.int64),
        parent=np.full(256, -1, np.int64),
        choice=np.zeros(256, np.int32),
        table=np.full(1024, -1, np.int64),
        counts=np.zeros(8, np.int64),
        failed_choice=np.full(1, -1, np.int32),
    )
    rows.counts[N_FAILED] = -1
    return rows


def _longer(a: np.ndarray, used: int, size: int) -> np.ndarray:
    if size <= len(a):
        return a
    out = np.zeros(size, a.dtype)
    out[:used] = a[:used]
    return out


@njit(cache=True, _nrt=False)
def _hash(row, at, length):
    """Where to look for a row: four multiplications under way at a time."""
    a, b, c, d = np.uint64(length), np.uint64(1), np.uint64(2), np.uint64(3)
    multiplier = np.uint64(0xD6E8FEB86659FD93)
    end = at + length
    while at + 4 <= end:
        a = (a ^ np.uint64(np.uint32(row[at]))) * multiplier
        b = (b ^ np.uint64(np.uint32(row[at + 1]))) * multiplier
        c = (c ^ np.uint64(np.uint32(row[at + 2]))) * multiplier
        d = (d ^ np.uint64(np.uint32(row[at + 3]))) * multiplier
        a ^= a >> np.uint64(32)
        b ^= b >> np.uint64(32)
        c ^= c >> np.uint64(32)
        d ^= d >> np.uint64(32)
        at += 4
    while at < end:
        a = (a ^ np.uint64(np.uint32(row[at]))) * multiplier
        a ^= a >> np.uint64(32)
        at += 1
    for other in (b, c, d):
        a = (a ^ other) * multiplier
        a ^= a >> np.uint64(32)
    return a


@njit(cache=True, _nrt=False)
def _rehash(arena, offset, n, table):
    mask = np.uint64(len(table) - 1)
    for k in range(n):
        slot = _hash(arena, offset[k], offset[k + 1] - offset[k]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = k


@njit(cache=True, _nrt=False)
def insert(scratch, length, arena, offset, parent, choice, table, counts, from_state, entity):
    """Add a state unless it is known; there is room (see `room_for`)."""
    mask = np.uint64(len(table) - 1)
    slot = _hash(scratch, 0, length) & mask
    while table[slot] >= 0:
        at = offset[table[slot]]
        if offset[table[slot] + 1] - at == length:
            same = True
            for k in range(length):
                if arena[at + k] != scratch[k]:
                    same = False
                    break
            if same:
                return
        slot = (slot + np.uint64(1)) & mask
    n = counts[N_STATES]
    table[slot] = n
    at = counts[N_USED]
    for k in range(length):
        arena[at + k] = scratch[k]
    counts[N_USED] = at + length
    offset[n + 1] = at + length
    parent[n], choice[n] = from_state, entity
    counts[N_STATES] = n + 1


@njit(forceinline=True, cache=True, _nrt=False)
def room_for(moves, widest, arena, parent, table, counts):
    """Whether `moves` more states of `widest` integers at most fit."""
    room = counts[N_STATES] + moves
    return room < len(parent) and 2 * room <= len(table) and counts[N_USED] + moves * widest <= len(arena)


@njit(cache=True, _nrt=False)
def put64(row, at, value):
    """Write 64 bits as two integers of a row."""
    row[at] = np.int32(np.uint32(np.uint64(value) & np.uint64(0xFFFFFFFF)))
    row[at + 1] = np.int32(np.uint32(np.uint64(value) >> np.uint64(32)))


@njit(cache=True, _nrt=False)
def get64(row, at):
    """What `put64` wrote, as uint64."""
    return np.uint64(np.uint32(row[at])) | (np.uint64(np.uint32(row[at + 1])) << np.uint64(32))
