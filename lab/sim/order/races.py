"""Happens-before race check: vector clocks over one execution; no luck needed.

The machine runs the program once, `clocks` says what each step comes after. Then all conflicting accesses of each
payload cell are compared pairwise; two that neither clock covers race, whatever happened in this run. Words never race
(they are atomic), and an access that is complete does not race with what relies on that (`completion.py`). In the
cells of a packet, what a wait for it happens before comes after it (coherence): accesses of the waiter, of its next
kernel, of whom it tells. But packets that nothing orders race with each other, and a packet with a wait that it might
unmeet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import completion, words
from lab.sim.machine.execution import Execution, execute
from lab.sim.order.clocks import Clocks, clocks, join
from lab.sim.order.kinds import ACCESS_KINDS, READ, WAIT, WRITE, Key, in_order, key_of_steps, pair_kinds
from lab.sim.order.missing import missing_order
from lab.sim.order.verdict import Race, access_of, ranges


@dataclass(frozen=True)
class RaceReport:
    """Races of one execution, one of each kind, and the pairs of table rows behind them."""

    races: tuple[Race, ...]
    pairs: np.ndarray
    execution: Execution
    clocks: Clocks


def find_races(tables: Tables, execution: Execution | None = None, waits_only: bool = False) -> RaceReport:
    """Check one execution (by default: each agent runs on until it blocks) for races; `waits_only` as in `clocks`."""
    execution = execution or execute(tables)
    found = clocks(execution, waits_only=waits_only)
    pairs = conflicts(tables, execution, found)
    return RaceReport(_describe(tables, execution, found, pairs), pairs, execution, found)


def conflicts(tables: Tables, execution: Execution, found: Clocks, ordered: bool = False) -> np.ndarray:
    """Distinct pairs of accesses that race or, with `ordered`, would if no clock ordered them.

    Two steps of which each writes what the other reads are two pairs.

    Returns:
        int64 (pairs, 6): earlier step, later step, a cell, how many cells, what each does (READ, WRITE, WAIT).
    """
    return _all_pairs(*_columns(tables, execution, found), _order(tables, execution, found), ordered)


def _columns(tables: Tables, execution: Execution, found: Clocks) -> list[np.ndarray]:
    """(cell, step, kind, packet that a wait joined) of every access and wait, by cell and step."""
    cells, steps, writes = accesses(tables, execution)
    kinds = np.concatenate((np.where(writes, WRITE, READ), np.full(len(found.polls), WAIT))).astype(np.int8)
    has = np.concatenate((np.full(len(cells), -1, np.int32), found.polls[:, 2]))
    cells, steps = np.concatenate((cells, found.polls[:, 1])), np.concatenate((steps, found.polls[:, 0]))
    order = np.lexsort((steps, cells))
    return [column[order] for column in (cells, steps, kinds, has)]


def _order(tables: Tables, execution: Execution, found: Clocks) -> tuple[object, ...]:
    """What says whether two accesses are ordered: stamps, conditions and wanted values of waits, clocks, drains."""
    cond = tables.ops[np.maximum(execution.log.op[: execution.steps], 0), t.FN]
    drains = _drains(tables, found)
    return found.stamp, tables.tests, cond, found.wanted, found.rows, found.time, found.chain, drains


def _drains(tables: Tables, found: Clocks) -> tuple[int, int, np.ndarray]:
    """(parts of a clock, chains, of each cell the part that says whether a store to it is complete)."""
    parts = completion.parts_of(tables)
    of_region = np.array([completion.part_of_memory(r.memory) for r in tables.program.regions], np.int8)
    return parts, found.rows.shape[1] // parts, of_region[tables.cell_region]


def accesses(tables: Tables, execution: Execution) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cell, step, is a write) of every access to payload in an execution; waits for stamps are none."""
    steps = np.flatnonzero(execution.log.op[: execution.steps] >= 0)
    kinds = tables.ops[execution.log.op[steps], t.KIND]
    steps = steps[(kinds == t.MOVE) | (kinds == t.FILL) | (kinds == t.EXPECT)]
    cells, owners, writes = [], [], []
    for step in steps:
        row = tables.moves[execution.log.row[step]]
        n = int(row[t.M_COUNT])
        offsets = [(int(tables.sources[row[t.M_SOURCES] + k]), False) for k in range(row[t.M_N_SOURCES])]
        if row[t.M_DST] >= 0:
            offsets.append((int(row[t.M_DST]), True))
        for offset, write in offsets:
            cells.append(tables.items[offset : offset + n])
            owners.append(np.full(n, step, np.int32))
            writes.append(np.full(n, write))
    if not cells:
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool)
    return np.concatenate(cells), np.concatenate(owners), np.concatenate(writes)


@njit(forceinline=True, cache=True)
def _leaves_met(write, wait, stamp, tests, cond, wanted):
    """Whether a write of a cell cannot unmeet a wait for its stamp, so that the two need no order."""
    return stamp[write] < 0 or words.met(tests, cond[wait], stamp[write], wanted[wait])


@njit(forceinline=True, cache=True)
def _before(a, b, kind, cell, rows, time, chain, drains):
    """Whether access `a` of a cell, of a kind, happens before step `b` or is complete and `b` may rely on that."""
    if rows[b, chain[a]] >= time[a]:
        return True
    parts, chains, part_of_cell = drains
    if parts == 1:
        return False
    part = part_of_cell[cell] if kind == WRITE else completion.UNCACHED
    return completion.relies_on(rows[b], chain[a], time[a], part, chains)


@njit(cache=True)
def _known(cell, steps, kinds, has, order):
    """What each access of a cell comes after in the cell: its clock, and more by coherence; int32 (accesses, chains).

    What a wait for a packet happens before comes after that packet, and so after whatever the packet comes after in
    the cell. A write that came before the packet after all would be overwritten by it while the wait had seen it; a
    read would see what is older than the packet (RC11, coherence: no cycle of reads-from, happens-before and
    modification order).
    """
    rows, time, chain, drains = order[4:]
    known = np.empty((len(steps), rows.shape[1]), np.int32)
    for j in range(len(steps)):
        known[j] = rows[steps[j]]
        for i in range(j):
            if steps[i] == steps[j]:
                continue
            packet = kinds[i] == WRITE and kinds[j] == WAIT and steps[i] == has[j]
            if packet or _before(steps[i], steps[j], kinds[i], cell, rows, time, chain, drains):
                join(known[j], known[i])
    return known


@njit(forceinline=True, cache=True)
def _races(i, j, lo, cells, steps, kinds, polled, known, order, ordered):
    """Whether accesses `i` and `j` of one cell, the earlier first, race; with `ordered`, also if clocks order them."""
    stamp, tests, cond, wanted, rows, time, chain, drains = order
    a, b = steps[i], steps[j]
    if (kinds[i] != WRITE and kinds[j] != WRITE) or a == b or chain[a] == chain[b]:
        return False
    # A step that reads and writes the cell comes twice, the read first: against a write, once is enough.
    if kinds[j] == WRITE and i > lo and steps[i - 1] == a:
        return False
    if kinds[i] == WRITE and kinds[j] == WRITE and steps[j - 1] == b:
        return False
    if _before(a, b, kinds[i], cells[i], rows, time, chain, drains):
        if not ordered:
            return False
    elif polled and known[j - lo, chain[a]] >= time[a]:
        return False
    if kinds[j] == WAIT and _leaves_met(a, b, stamp, tests, cond, wanted):
        return False
    return not (kinds[i] == WAIT and _leaves_met(b, a, stamp, tests, cond, wanted))


@njit(cache=True, nogil=True)
def _all_pairs(cells, steps, kinds, has, order, ordered):
    """See `conflicts`."""
    rows = order[4]
    size = 1024
    table = np.full(size, -1, np.int64)
    out = np.zeros((256, 6), np.int64)
    count = 0
    n = len(cells)
    known = np.zeros((0, rows.shape[1]), np.int32)
    lo = 0
    while lo < n:
        hi = lo
        while hi < n and cells[hi] == cells[lo]:
            hi += 1
        polled = np.any(kinds[lo:hi] == WAIT)
        if polled:
            known = _known(cells[lo], steps[lo:hi], kinds[lo:hi], has[lo:hi], order)
        for i in range(lo, hi):
            for j in range(i + 1, hi):
                if not _races(i, j, lo, cells, steps, kinds, polled, known, order, ordered):
                    continue
                slot = _slot(table, out, steps[i], steps[j], kinds[i], kinds[j])
                if table[slot] >= 0:
                    out[table[slot], 3] += 1
                    continue
                if count == len(out):
                    bigger = np.zeros((2 * count, 6), np.int64)
                    bigger[:count] = out
                    out = bigger
                    size = 8 * count
                    while size & (size - 1):
                        size &= size - 1
                    table = np.full(size, -1, np.int64)
                    for k in range(count):
                        table[_slot(table, out, out[k, 0], out[k, 1], out[k, 4], out[k, 5])] = k
                    slot = _slot(table, out, steps[i], steps[j], kinds[i], kinds[j])
                table[slot] = count
                out[count, 0], out[count, 1], out[count, 2], out[count, 3] = steps[i], steps[j], cells[i], 1
                out[count, 4], out[count, 5] = kinds[i], kinds[j]
                count += 1
        lo = hi
    return out[:count]


@njit(forceinline=True, cache=True)
def _slot(table, out, a, b, first, second):
    """The place of a pair in a hash table of pairs, or the free one where it belongs."""
    mask = len(table) - 1
    slot = (((np.int64(a) * 2654435761 + b) * 40503) ^ (first * 3 + second)) & mask
    while table[slot] >= 0:
        row = out[table[slot]]
        if row[0] == a and row[1] == b and row[4] == first and row[5] == second:
            return slot
        slot = (slot + 1) & mask
    return slot


@njit(cache=True)
def _cells_of_pair(pair, cells, steps, kinds, has, order):
    """The cells at which a pair of accesses races: where packets are waited for, other cells may be ordered."""
    rows = order[4]
    found = np.zeros(pair[3], np.int64)
    count = lo = 0
    known = np.zeros((0, rows.shape[1]), np.int32)
    while lo < len(cells) and count < len(found):
        hi = lo
        first = second = -1
        while hi < len(cells) and cells[hi] == cells[lo]:
            if steps[hi] == pair[0] and kinds[hi] == pair[4] and first < 0:
                first = hi
            if steps[hi] == pair[1] and kinds[hi] == pair[5] and second < 0:
                second = hi
            hi += 1
        if first >= 0 and second >= 0:
            polled = np.any(kinds[lo:hi] == WAIT)
            if polled:
                known = _known(cells[lo], steps[lo:hi], kinds[lo:hi], has[lo:hi], order)
            if _races(first, second, lo, cells, steps, kinds, polled, known, order, False):
                found[count] = cells[lo]
                count += 1
        lo = hi
    return found[:count]


def _describe(tables: Tables, execution: Execution, found: Clocks, pairs: np.ndarray) -> tuple[Race, ...]:
    groups: dict[Key, list[int]] = {}
    for index, pair in enumerate(pairs):
        key = key_of_steps(execution, int(pair[0]), int(pair[1]), pair_kinds(pair))
        groups.setdefault(key, []).append(index)
    columns = _columns(tables, execution, found) if groups else []
    return tuple(_race(tables, execution, found, pairs[same[0]], len(same), columns) for same in groups.values())


def _race(
    tables: Tables, execution: Execution, found: Clocks, pair: np.ndarray, count: int, columns: list[np.ndarray]
) -> Race:
    """The race of a pair, the first of `count` of its kind; `columns`: all accesses."""
    first, second = in_order(execution, int(pair[0]), int(pair[1]), pair_kinds(pair))
    kinds = {int(pair[0]): ACCESS_KINDS[pair[4]], int(pair[1]): ACCESS_KINDS[pair[5]]}
    cells = _cells_of_pair(pair, *columns, _order(tables, execution, found))
    region = tables.program.regions[int(tables.cell_region[cells[0]])]
    starts, lengths = tables.cell_start[cells], tables.cell_length[cells]
    slot, offset = region.slot(int(starts[0]))
    base = int(starts[0]) - offset
    lacking = missing_order(execution, found, first, second)
    return Race(
        first=access_of(tables, int(execution.log.op[first]), kinds[first]),
        second=access_of(tables, int(execution.log.op[second]), kinds[second]),
        region=f"{slot} of rank {region.rank}",
        elements=ranges([int(start) - base for start in starts], [int(length) for length in lengths]),
        missing=lacking.text,
        pairs=count,
        release=lacking.release,
        acquire=lacking.acquire,
    )
