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
from lab.sim.order.missing import missing_order
from lab.sim.order.verdict import Race, access_of, ranges

# What an access does to a cell.
READ, WRITE, WAIT = range(3)
ACCESS_KINDS = ("read", "write", "wait")


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
    """Distinct pairs of steps that race or, with `ordered`, would if no clock ordered them.

    Returns:
        int64 (pairs, 6): earlier step, later step, a cell, how many cells, what each does (READ, WRITE, WAIT).
    """
    cells, steps, writes = accesses(tables, execution)
    kinds = np.concatenate((np.where(writes, WRITE, READ), np.full(len(found.polls), WAIT))).astype(np.int8)
    has = np.concatenate((np.full(len(cells), -1, np.int32), found.polls[:, 2]))
    cells, steps = np.concatenate((cells, found.polls[:, 1])), np.concatenate((steps, found.polls[:, 0]))
    order = np.lexsort((steps, cells))
    cond = tables.ops[np.maximum(execution.log.op[: execution.steps], 0), t.FN]
    return _all_pairs(
        *(column[order] for column in (cells, steps, kinds, has)),
        found.stamp,
        tables.tests,
        cond,
        found.wanted,
        found.rows,
        found.time,
        found.chain,
        _drains(tables, found),
        ordered,
    )


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
def _known(cell, steps, kinds, has, rows, time, chain, drains):
    """What each access of a cell comes after in the cell: its clock, and more by coherence; int32 (accesses, chains).

    What a wait for a packet happens before comes after that packet, and so after whatever the packet comes after in
    the cell. A write that came before the packet after all would be overwritten by it while the wait had seen it; a
    read would see what is older than the packet (RC11, coherence: no cycle of reads-from, happens-before and
    modification order).
    """
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


@njit(cache=True)
def _all_pairs(cells, steps, kinds, has, stamp, tests, cond, wanted, rows, time, chain, drains, ordered):
    """See `conflicts`."""
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
            known = _known(cells[lo], steps[lo:hi], kinds[lo:hi], has[lo:hi], rows, time, chain, drains)
        for i in range(lo, hi):
            for j in range(i + 1, hi):
                a, b = steps[i], steps[j]
                if (kinds[i] != WRITE and kinds[j] != WRITE) or a == b or chain[a] == chain[b]:
                    continue
                if _before(a, b, kinds[i], cells[i], rows, time, chain, drains):
                    if not ordered:
                        continue
                elif polled and known[j - lo, chain[a]] >= time[a]:
                    continue
                if kinds[j] == WAIT and _leaves_met(a, b, stamp, tests, cond, wanted):
                    continue
                if kinds[i] == WAIT and _leaves_met(b, a, stamp, tests, cond, wanted):
                    continue
                slot = ((np.int64(a) * 2654435761 + b) * 40503) & (size - 1)
                while table[slot] >= 0 and (out[table[slot], 0] != a or out[table[slot], 1] != b):
                    slot = (slot + 1) & (size - 1)
                at = table[slot]
                if at >= 0:
                    out[at, 3] += 1
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
                        s = ((out[k, 0] * 2654435761 + out[k, 1]) * 40503) & (size - 1)
                        while table[s] >= 0:
                            s = (s + 1) & (size - 1)
                        table[s] = k
                    slot = ((np.int64(a) * 2654435761 + b) * 40503) & (size - 1)
                    while table[slot] >= 0:
                        slot = (slot + 1) & (size - 1)
                table[slot] = count
                out[count, 0], out[count, 1], out[count, 2], out[count, 3] = a, b, cells[i], 1
                out[count, 4], out[count, 5] = kinds[i], kinds[j]
                count += 1
        lo = hi
    return out[:count]


def _describe(tables: Tables, execution: Execution, found: Clocks, pairs: np.ndarray) -> tuple[Race, ...]:
    groups: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
    for index in range(len(pairs)):
        first, second = _in_order(tables, execution, pairs[index])
        op_a, op_b = (tables.op(int(execution.log.op[s])) for s in (first, second))
        agent_a, agent_b = (_agent(tables, execution, s) for s in (first, second))
        key = (
            op_a.site,
            op_a.phase,
            op_b.site,
            op_b.phase,
            agent_a.rank == agent_b.rank,
            agent_b.sequence - agent_a.sequence,
        )
        groups.setdefault(key, []).append((first, second, index))
    return tuple(_race(tables, execution, found, pairs[m[0][2]], m[0][0], m[0][1], len(m)) for m in groups.values())


def _agent(tables: Tables, execution: Execution, step: int):
    return tables.program.agents[int(tables.ops[execution.log.op[step], t.AGENT])]


def _in_order(tables: Tables, execution: Execution, pair: np.ndarray) -> tuple[int, int]:
    """The two steps, the one that should come first first: the earlier call; within a call, the write."""
    a, b = int(pair[0]), int(pair[1])
    one, two = _agent(tables, execution, a), _agent(tables, execution, b)
    if one.sequence != two.sequence and "host" not in (one.kind, two.kind):
        return (a, b) if one.sequence < two.sequence else (b, a)
    if pair[4] == WRITE and pair[5] == WRITE:
        return a, b
    return (a, b) if pair[4] == WRITE else (b, a)


def _race(
    tables: Tables, execution: Execution, found: Clocks, pair: np.ndarray, first: int, second: int, count: int
) -> Race:
    kinds = {int(pair[0]): ACCESS_KINDS[pair[4]], int(pair[1]): ACCESS_KINDS[pair[5]]}
    one = access_of(tables, int(execution.log.op[first]), kinds[first])
    two = access_of(tables, int(execution.log.op[second]), kinds[second])
    cells = _common_cells(tables, execution, first, second, kinds)
    region = tables.program.regions[int(tables.cell_region[cells[0]])]
    starts, lengths = tables.cell_start[cells], tables.cell_length[cells]
    slot, offset = region.slot(int(starts[0]))
    base = int(starts[0]) - offset
    return Race(
        first=one,
        second=two,
        region=f"{slot} of rank {region.rank}",
        elements=ranges([int(start) - base for start in starts], [int(length) for length in lengths]),
        missing=missing_order(execution, found, first, second),
        pairs=count,
    )


def _cells(tables: Tables, execution: Execution, step: int, kind: str) -> np.ndarray:
    row = tables.moves[execution.log.row[step]]
    n = int(row[t.M_COUNT])
    if kind == "write":
        return tables.items[row[t.M_DST] : row[t.M_DST] + n]
    offsets = tables.sources[row[t.M_SOURCES] : row[t.M_SOURCES] + row[t.M_N_SOURCES]]
    return np.concatenate([tables.items[o : o + n] for o in offsets])


def _common_cells(tables: Tables, execution: Execution, first: int, second: int, kinds: dict[int, str]) -> np.ndarray:
    return np.intersect1d(
        _cells(tables, execution, first, kinds[first]), _cells(tables, execution, second, kinds[second])
    )
