"""The canonical form of a state of memory model `weak`: equal rows, equal futures.

What happens next depends on a state only through this:

* program counters, and registers that are still read;
* of each word and cell that some agent may still touch, the messages that one of these agents may still choose: those
  down to the oldest that one of them must know. What lies below is left out, but for the release sequence that the
  oldest continues;
* of clocks, how they compare with the times of those messages and of those who read them. A time is written as its
  rank among the times on its chain that matter, so that how often a chain has ticked is forgotten;
* of released snapshots the same, numbered in the order in which messages carry them.

Message numbers, steps, ticks and what nobody can look at any more are not in it. `load` makes a state of a row again;
it is not the state that was packed, but one that no operation can tell from it. Rows are int32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import weak
from lab.sim.machine import weak_history as h
from lab.sim.machine.weak_state import C_CELLS, C_SNAPSHOTS, C_WORDS, State, Static, needs_pending
from lab.sim.order import conflicts
from lab.sim.order.events import registers_read
from lab.sim.search.states import get64, put64


class Future(NamedTuple):
    """What each agent may still do, from the text; rows are those of `Tables.ops`, -1: nothing.

    Attributes:
        lowest: int32, for each row the lowest that can be reached from it (`conflicts.lowest_reachable`).
        words, cells, registers: int32 (agents, ...), the last row of an agent that touches the word, touches the
            written cell, reads the register.
        acquires, writes: int32, the last row of an agent that acquires as a fence does, that writes a word or a packet.
        written: int64, the cells that `cells` counts: those that some operation writes.
        keep: Whether states are told apart by registers and memory that nobody reads any more.
    """

    lowest: np.ndarray
    words: np.ndarray
    cells: np.ndarray
    registers: np.ndarray
    acquires: np.ndarray
    writes: np.ndarray
    written: np.ndarray
    keep: bool


class Room(NamedTuple):
    """Where `pack` works.

    Attributes:
        times: int32 (chains, operations of a chain), the times that matter, in order; many: int32, how many.
        depths: int32, messages of each word, then of each written cell, that may still be chosen.
        snapshots: int32 (releases + 1, chains), those written so far; used: int64 (1,), how many.
        chains: How many chains there are; clocks have as many times, or a multiple (`completion.py`): a time that
            matters does so in all parts of a clock.
    """

    times: np.ndarray
    many: np.ndarray
    depths: np.ndarray
    snapshots: np.ndarray
    used: np.ndarray
    chains: int


def future(tables: Tables, lowest: np.ndarray, touched: list[conflicts.Touch | None], keep: bool) -> Future:
    """Read off the text what each agent may still do."""
    ops, agents = tables.ops, len(tables.agent_start)
    written = conflicts.written_cells(tables)
    place = {int(cell): k for k, cell in enumerate(written)}
    words = np.full((agents, len(tables.word_initial)), -1, np.int32)
    cells = np.full((agents, len(written)), -1, np.int32)
    for row, touch in enumerate(touched[: len(ops)]):
        if touch is not None:
            agent = int(ops[row, t.AGENT])
            words[agent, [word for word in touch.reads | touch.writes if word >= 0]] = row
            cells[agent, [place[cell] for cell in touch.cells_read | touch.cells_written if cell in place]] = row
    registers = np.full((agents, tables.registers), -1, np.int32)
    for row, register in registers_read(tables).tolist():
        registers[ops[row, t.AGENT], register] = max(row, registers[ops[row, t.AGENT], register])
    kinds = ops[:, t.KIND]
    boundary = ((kinds == t.WAIT) | (kinds == t.RMW)) & (ops[:, t.SYNC] & t.BOUNDARY > 0)
    fences = ((kinds == t.FENCE) & (ops[:, t.SYNC] & 1 > 0)) | (boundary & needs_pending(tables))
    acquires = _last(tables, fences)
    writes = _last(tables, (kinds == t.STORE) | (kinds == t.RMW) | (ops[:, t.STAMP] >= 0))
    return Future(lowest, words, cells, registers, acquires, writes, written, keep)


def _last(tables: Tables, chosen: np.ndarray) -> np.ndarray:
    last = np.full(len(tables.agent_start), -1, np.int32)
    for row in np.flatnonzero(chosen).tolist():
        last[tables.ops[row, t.AGENT]] = row
    return last


def room(s: Static, st: State, f: Future) -> Room:
    """Allocate where `pack` works."""
    chains = st.clock.shape[1]
    longest = int(np.bincount(s.agent_chain, s.agent_end - s.agent_start).max(initial=0)) + 1
    return Room(
        times=np.zeros((chains, longest), np.int32),
        many=np.zeros(chains, np.int32),
        depths=np.zeros(len(s.word_initial) + len(f.written), np.int32),
        snapshots=np.zeros((len(st.snapshots) + 1, chains), np.int32),
        used=np.zeros(1, np.int64),
        chains=s.reach.shape[1] if len(s.reach) else chains,
    )


def widest(s: Static, st: State) -> int:
    """Integers that a row has at most."""
    agents, chains = st.clock.shape
    levels = 3 if s.fences else 0
    heads = agents * (1 + st.registers.shape[1] + 3) + chains * (1 + agents * (1 + levels) + len(st.written_back))
    messages = 10 * len(st.words) + 12 * len(st.cells) + 2 * (len(st.word_head) + len(st.cell_head))
    return heads + messages + 2 * len(st.records) + 1 + len(st.snapshots) * chains


# ---- what matters


@njit(forceinline=True, cache=True, _nrt=False)
def may_still(s, st, f, agent, last):
    """Whether `agent` may still execute row `last` of its own, or one before it."""
    pc = st.pc[agent]
    return pc < s.agent_end[agent] and f.lowest[pc] <= last


@njit(cache=True, _nrt=False)
def _depth(s, st, f, messages, head, last, place):
    """How many messages of a history somebody may still choose; the last of them is covered by all who may choose."""
    depth = 0
    for agent in range(len(st.pc)):
        if may_still(s, st, f, agent, last[agent, place]):
            message, found = head, 1
            while not h.covered(messages, st.records, st.clock, agent, message):
                message = messages[message, h.OLDER]
                found += 1
            depth = max(depth, found)
    return depth


@njit(cache=True, _nrt=False)
def _says_more(messages, records, message, record):
    """Whether a record covers its message for somebody whom neither its store nor another record does."""
    chain, time = records[record, 0], records[record, 1]
    if messages[message, h.CHAIN] == chain and messages[message, h.TIME] <= time:
        return False
    other = messages[message, h.RECORD]
    while other >= 0:
        if records[other, 0] == chain and (records[other, 1] < time or (records[other, 1] == time and other < record)):
            return False
        other = records[other, 2]
    return True


@njit(cache=True, _nrt=False)
def _note(r, chain, time):
    """Add a time to those that matter."""
    if time <= 0:
        return
    for of_part in range(chain, len(r.many), r.chains):
        _note_in(r, of_part, time)


@njit(cache=True, _nrt=False)
def _note_in(r, chain, time):
    n = r.many[chain]
    at = n
    while at > 0 and r.times[chain, at - 1] >= time:
        at -= 1
    if at < n and r.times[chain, at] == time:
        return
    for k in range(n, at, -1):
        r.times[chain, k] = r.times[chain, k - 1]
    r.times[chain, at] = time
    r.many[chain] = n + 1


@njit(cache=True, _nrt=False)
def _rank(r, chain, time):
    """How many of the times that matter are reached."""
    n = r.many[chain]
    while n > 0 and r.times[chain, n - 1] > time:
        n -= 1
    return n


@njit(cache=True, _nrt=False)
def _note_history(st, r, messages, head, depth):
    message = head
    for _ in range(depth - 1):
        _note(r, messages[message, h.CHAIN], messages[message, h.TIME])
        record = np.int64(messages[message, h.RECORD])
        while record >= 0:
            if _says_more(messages, st.records, message, record):
                _note(r, st.records[record, 0], st.records[record, 1])
            record = np.int64(st.records[record, 2])
        message = messages[message, h.OLDER]


# ---- writing a row


@njit(cache=True, _nrt=False)
def _carries(st, r, snapshot):
    """Whether a snapshot can tell anybody anything."""
    if snapshot >= 0:
        for chain in range(st.clock.shape[1]):
            if _rank(r, chain, st.snapshots[snapshot, chain]) > 0:
                return True
    return False


@njit(cache=True, _nrt=False)
def _number(st, r, snapshot):
    """The number of a snapshot in this row, by what it says; -1: nothing."""
    if not _carries(st, r, snapshot):
        return -1
    n = r.used[0]
    for chain in range(st.clock.shape[1]):
        r.snapshots[n, chain] = _rank(r, chain, st.snapshots[snapshot, chain])
    for k in range(n):
        same = True
        for chain in range(st.clock.shape[1]):
            same = same and r.snapshots[k, chain] == r.snapshots[n, chain]
        if same:
            return k
    r.used[0] = n + 1
    return n


@njit(cache=True, _nrt=False)
def _releases(st, r, message):
    for level in range(1, 4):
        if _carries(st, r, st.words[message, h.RELEASED + level]):
            return True
    return False


@njit(cache=True, _nrt=False)
def _below(st, r, base):
    """How many messages under the oldest that can be chosen still release something through it."""
    message, count, last = base, 0, 0
    while st.words[message, h.GLUED] and st.words[message, h.OLDER] >= 0:
        message = st.words[message, h.OLDER]
        count += 1
        if _releases(st, r, message):
            last = count
    return last


@njit(cache=True, _nrt=False)
def _put_order(st, r, messages, message, row, at):
    """Chain, time and readers of a message."""
    row[at] = messages[message, h.CHAIN]
    row[at + 1] = _rank(r, messages[message, h.CHAIN], messages[message, h.TIME])
    count_at = at + 2
    row[count_at] = 0
    at += 3
    for chain in range(st.clock.shape[1]):
        record = np.int64(messages[message, h.RECORD])
        while record >= 0:
            if st.records[record, 0] == chain and _says_more(messages, st.records, message, record):
                row[at] = chain
                row[at + 1] = _rank(r, chain, st.records[record, 1])
                row[count_at] += 1
                at += 2
            record = np.int64(st.records[record, 2])
    return at


@njit(cache=True, _nrt=False)
def _put_word(st, r, word, keep, row, at):
    depth, message = r.depths[word], np.int64(st.word_head[word])
    value = np.int32(np.uint32(st.words[message, h.VALUE] & 0xFFFFFFFF))
    if depth == 0:
        row[at] = keep
        row[at + 1] = value
        return at + 1 + keep
    base = message
    for _ in range(depth - 1):
        base = st.words[base, h.OLDER]
    below = _below(st, r, base)
    silent = below == 0 and not _releases(st, r, base)
    if depth == 1 and silent:
        row[at] = 3
        row[at + 1] = value
        return at + 2
    row[at] = 2 * depth
    row[at + 1] = below
    at += 2
    for k in range(depth + below):
        row[at] = np.int32(np.uint32(st.words[message, h.VALUE] & 0xFFFFFFFF)) if k < depth else 0
        row[at + 1] = -1 if silent and k == depth - 1 else st.words[message, h.OWNER]
        row[at + 2] = st.words[message, h.GLUED] if k < depth - 1 else k < depth + below - 1
        for level in range(1, 4):
            row[at + 2 + level] = _number(st, r, st.words[message, h.RELEASED + level])
        at += 6
        if k < depth - 1:
            at = _put_order(st, r, st.words, message, row, at)
        message = st.words[message, h.OLDER]
    return at


@njit(cache=True, _nrt=False)
def _put_cell(st, r, cell, depth, keep, row, at):
    message = np.int64(st.cell_head[cell])
    row[at] = 2 * depth + (keep and depth == 0)
    at += 1
    for k in range(max(depth, np.int64(keep))):
        put64(row, at, st.cells[message, h.VALUE])
        row[at + 2] = np.int32(np.uint32(st.cells[message, h.STAMP] & 0xFFFFFFFF))
        at += 3
        if st.cells.shape[1] > h.CELL_COLUMNS:
            at = _put_released(st, r, message, row, at)
        if k < depth - 1:
            row[at] = st.cells[message, h.OWNER]
            at = _put_order(st, r, st.cells, message, row, at + 1)
        message = st.cells[message, h.OLDER]
    return at


@njit(cache=True, _nrt=False)
def _put_released(st, r, message, row, at):
    """What a packet releases at each scope, behind its owner; -1 for the owner of one that releases nothing."""
    row[at] = -1
    for level in range(1, 4):
        row[at + level] = _number(st, r, st.cells[message, h.RELEASED + level])
        if row[at + level] >= 0:
            row[at] = st.cells[message, h.OWNER]
    return at + 4


@njit(cache=True, _nrt=False)
def pack(s, st, f, r, row):
    """Write the canonical form of a state whose agents are settled; returns its length."""
    agents, chains, n_words = st.clock.shape[0], st.clock.shape[1], len(st.word_head)
    r.used[0] = 0
    r.many[:] = 0
    for word in range(n_words):
        head = np.int64(st.word_head[word])
        r.depths[word] = _depth(s, st, f, st.words, head, f.words, word)
        _note_history(st, r, st.words, head, r.depths[word])
    for k in range(len(f.written)):
        head = np.int64(st.cell_head[f.written[k]])
        r.depths[n_words + k] = _depth(s, st, f, st.cells, head, f.cells, k)
        _note_history(st, r, st.cells, head, r.depths[n_words + k])
    at = 0
    for agent in range(agents):
        row[at] = st.pc[agent]
        at += 1
        for register in range(f.registers.shape[1]):
            if f.keep or may_still(s, st, f, agent, f.registers[agent, register]):
                row[at] = np.int32(np.uint32(st.registers[agent, register] & 0xFFFFFFFF))
                at += 1
    for chain in range(chains):
        row[at] = r.many[chain]
        at += 1
    for agent in range(agents):
        if st.pc[agent] >= s.agent_end[agent]:
            continue
        at = _put_ranks(r, st.clock[agent], row, at)
        if may_still(s, st, f, agent, f.acquires[agent]):
            for level in range(1, 4):
                at = _put_ranks(r, st.pending[agent, level], row, at)
        if may_still(s, st, f, agent, f.writes[agent]):
            for level in range(1, 4):
                row[at] = _number(st, r, np.int64(st.fence[agent, level]))
                at += 1
    if s.written_back:
        for rank in range(s.world):
            at = _put_ranks(r, st.written_back[rank], row, at)
    for word in range(n_words):
        at = _put_word(st, r, word, f.keep, row, at)
    for k in range(len(f.written)):
        at = _put_cell(st, r, f.written[k], r.depths[n_words + k], f.keep, row, at)
    row[at] = r.used[0]
    at += 1
    for k in range(r.used[0]):
        for chain in range(chains):
            row[at] = r.snapshots[k, chain]
            at += r.many[chain] > 0
    return at


@njit(cache=True, _nrt=False)
def _put_ranks(r, clock, row, at):
    for chain in range(len(clock)):
        if r.many[chain]:
            row[at] = _rank(r, chain, clock[chain])
            at += 1
    return at


# ---- reading it


@njit(cache=True, _nrt=False)
def _get_ranks(ticks, clock, row, at):
    for chain in range(len(clock)):
        clock[chain] = 0
        if ticks[chain]:
            clock[chain] = row[at]
            at += 1
    return at


@njit(cache=True, _nrt=False)
def _get_order(st, messages, message, row, at):
    messages[message, h.CHAIN], messages[message, h.TIME] = row[at], row[at + 1]
    readers = row[at + 2]
    at += 3
    for _ in range(readers):
        record = st.counts[h.C_RECORDS]
        st.counts[h.C_RECORDS] = record + 1
        st.records[record, 0], st.records[record, 1] = row[at], row[at + 1]
        st.records[record, 2] = messages[message, h.RECORD]
        messages[message, h.RECORD] = record
        at += 2
    return at


@njit(cache=True, _nrt=False)
def _get_word(st, word, row, at):
    kind = row[at]
    st.word_head[word] = word
    if kind == 0:
        return at + 1
    if kind & 1:
        st.words[word, h.VALUE] = np.int64(np.uint32(row[at + 1]))
        return at + 2
    depth, below, newer = kind >> 1, row[at + 1], np.int64(-1)
    at += 2
    for k in range(depth + below):
        message = np.int64(word)  # the place of the initial value: of a message that nobody can tell from one
        if k < depth + below - 1 or row[at + 1] >= 0:
            message = st.counts[C_WORDS]
            st.counts[C_WORDS] += 1
        if newer < 0:
            st.word_head[word] = message
        else:
            st.words[newer, h.OLDER] = message
        newer = message
        st.words[message, h.VALUE] = np.int64(np.uint32(row[at]))
        st.words[message, h.OWNER] = row[at + 1]
        st.words[message, h.GLUED] = row[at + 2]
        for level in range(1, 4):
            st.words[message, h.RELEASED + level] = row[at + 2 + level]
        st.words[message, h.OLDER] = st.words[message, h.RECORD] = -1
        st.words[message, h.CHAIN] = st.words[message, h.TIME] = 0
        at += 6
        if k < depth - 1:
            at = _get_order(st, st.words, message, row, at)
    return at


@njit(cache=True, _nrt=False)
def _get_cell(st, cell, row, at):
    depth, newer = max(row[at] >> 1, row[at] & 1), np.int64(-1)
    at += 1
    st.cell_head[cell] = cell
    for k in range(depth):
        message = np.int64(cell)  # as in `_get_word`
        if k < depth - 1:
            message = st.counts[C_CELLS]
            st.counts[C_CELLS] += 1
        if newer < 0:
            st.cell_head[cell] = message
        else:
            st.cells[newer, h.OLDER] = message
        newer = message
        st.cells[message, h.VALUE] = np.int64(get64(row, at))
        st.cells[message, h.STAMP] = np.int64(np.uint32(row[at + 2]))
        st.cells[message, h.OWNER] = st.cells[message, h.OLDER] = st.cells[message, h.RECORD] = -1
        st.cells[message, h.CHAIN] = st.cells[message, h.TIME] = 0
        at += 3
        if st.cells.shape[1] > h.CELL_COLUMNS:
            st.cells[message, h.OWNER] = row[at]
            for level in range(1, 4):
                st.cells[message, h.RELEASED + level] = row[at + level]
            at += 4
        if k < depth - 1:
            st.cells[message, h.OWNER] = row[at]
            at = _get_order(st, st.cells, message, row, at + 1)
    return at


@njit(cache=True, _nrt=False)
def load(s, st, f, row, at):
    """Make a state of the row that begins at `at`, and settle its agents."""
    agents, n_words = len(st.pc), len(st.word_head)
    st.counts[:] = 0
    st.status[:] = 0
    st.place[:] = -1
    st.maybe_place[:] = -1
    st.waiter[:] = -1
    for agent in range(agents):
        st.pc[agent] = row[at]
        at += 1
        for register in range(f.registers.shape[1]):
            st.registers[agent, register] = 0
            if f.keep or may_still(s, st, f, agent, f.registers[agent, register]):
                st.registers[agent, register] = np.int64(np.uint32(row[at]))
                at += 1
    for chain in range(len(st.ticks)):
        st.ticks[chain] = row[at]
        at += 1
    for agent in range(agents):
        if st.pc[agent] >= s.agent_end[agent]:
            continue
        at = _get_ranks(st.ticks, st.clock[agent], row, at)
        if may_still(s, st, f, agent, f.acquires[agent]):
            for level in range(1, 4):
                at = _get_ranks(st.ticks, st.pending[agent, level], row, at)
        if may_still(s, st, f, agent, f.writes[agent]):
            for level in range(1, 4):
                st.fence[agent, level] = row[at]
                at += 1
    if s.written_back:
        for rank in range(s.world):
            at = _get_ranks(st.ticks, st.written_back[rank], row, at)
    st.counts[C_WORDS], st.counts[C_CELLS] = n_words, len(st.cell_head)
    for word in range(n_words):
        at = _get_word(st, word, row, at)
    for k in range(len(f.written)):
        at = _get_cell(st, f.written[k], row, at)
    st.counts[C_SNAPSHOTS] = row[at]
    at += 1
    for k in range(st.counts[C_SNAPSHOTS]):
        at = _get_ranks(st.ticks, st.snapshots[k], row, at)
    for agent in range(agents - 1, -1, -1):
        weak.unsettle(st, agent)
    weak.settle_all(s, st)
