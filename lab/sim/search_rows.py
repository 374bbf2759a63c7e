"""All states of any program: breadth first over full states of the general machine, with exact keys.

A state is a row of int32: program counters, registers that are read, words, every payload cell that anybody writes,
stamps, and the stores on each link with what they carry. Rows are compared in full (the hash only finds where to
look), so no state is taken for another. Every operation runs at most once (jumps lead forward), so the graph has no
cycle.

Partial-order reduction: where one enabled step cannot conflict with anything that others may still do, it alone is
followed (a singleton persistent set: Godefroid, LNCS 1032, 1996, section 4; without cycles nothing is ignored for
ever). `partners` lists, for each step, the steps of others that conflict with it; it is safe when all of them have
been made or can no longer be made.

What limits it: setting the machine up for each transition, a microsecond or two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.expr import enumerate_index
from lab.protocol.program import Memory
from lab.protocol.tables import Tables
from lab.sim import machine as m
from lab.sim import words
from lab.sim.straight import DELIVER_DATA, DELIVER_WORD, Straight, used_registers

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

    def schedule(self, state: int) -> np.ndarray:
        """The choices that lead to a state."""
        made = []
        while state > 0:
            made.append(int(self.choice[state]))
            state = int(self.parent[state])
        return np.array(made[::-1], np.int32)


class RowSearch:
    """Breadth-first search over full states of a program under a memory model.

    Args:
        tables, memory: The program and the memory model.
        straight: Its straight form, whose must order sharpens the reduction; None: it has none.
        reduce: Whether to reduce.
        stop: Whether to stop at the first failure.
        parts: A checkpoint to go on from.
        early_timeouts: Whether a wait with a bound on its polls may give up although others could move.
    """

    def __init__(
        self,
        tables: Tables,
        memory: str,
        straight: Straight | None,
        reduce: bool,
        stop: bool,
        parts: dict[str, np.ndarray] | None = None,
        early_timeouts: bool = False,
    ) -> None:
        self.early = early_timeouts
        self.static = m.static(tables, memory)
        self.state, self.log = m.new_state(self.static, tables.registers), m.new_log(self.static, m.LEVEL_NONE)
        self.stop = stop
        self.cells = _written_cells(tables)
        self.stamps = self.cells if np.any(tables.ops[:, t.STAMP] >= 0) else self.cells[:0]
        self.lowest = _lowest_reachable(tables)
        self.partner_at, self.partners = _no_partners(tables)
        if reduce:
            self.partner_at, self.partners = (
                _partners(tables, memory, self.lowest) if straight is None else _racing_partners(tables, straight)
            )
        self.reduce = reduce
        agents, links = len(tables.agent_start), tables.program.world**2
        widest = agents * (1 + tables.registers) + len(tables.word_initial) + 2 * len(self.cells) + len(self.stamps)
        widest += links + 3 * int(self.static.link_at[-1]) + 2 * int(self.static.pending_at[-1])
        self.scratch = np.zeros(widest + 1, np.int32)
        self.registers = np.argwhere(used_registers(tables)).astype(np.int64)
        self.in_flight, self.entities = np.zeros(len(tables.ops), bool), np.zeros(2 * agents + links, np.int32)
        m._reset(self.static, self.state)  # cells that nobody writes are not part of a row
        if parts is not None:
            self.rows = Rows(**{name: np.array(a) for name, a in parts.items()})
            return
        self.rows = Rows(
            arena=np.zeros(max(1 << 12, 2 * widest), np.int32),
            offset=np.zeros(257, np.int64),
            parent=np.full(256, -1, np.int64),
            choice=np.zeros(256, np.int32),
            table=np.full(1024, -1, np.int64),
            counts=np.zeros(8, np.int64),
            failed_choice=np.full(1, -1, np.int32),
        )
        _first(*self._arguments())

    def _arguments(self) -> tuple:
        r = self.rows
        return (
            self.static,
            self.state,
            self.log,
            self.registers,
            self.cells,
            self.stamps,
            self.scratch,
            r.arena,
            r.offset,
            r.parent,
            r.choice,
            r.table,
            r.counts,
        )

    @property
    def done(self) -> bool:
        """Whether every state has been expanded."""
        return bool(self.rows.counts[N_HEAD] == self.rows.counts[N_STATES])

    def advance(self, states: int, memory_limit: int | None) -> int:
        """Expand up to so many states; returns FINISHED, FAILED, LIMIT, or FULL at the memory limit."""
        target = int(self.rows.counts[N_HEAD]) + states
        while True:
            why = int(
                _explore(
                    *self._arguments(),
                    self.rows.failed_choice,
                    self.partner_at,
                    self.partners,
                    self.lowest,
                    self.reduce,
                    self.stop,
                    self.early,
                    target,
                    self.in_flight,
                    self.entities,
                )
            )
            if why != FULL or not self._grow(memory_limit):
                return why

    def _grow(self, memory_limit: int | None) -> bool:
        r = self.rows
        n, used = int(r.counts[N_STATES]), int(r.counts[N_USED])
        moves = len(self.entities)
        room = int(1.6 * max(n, 256)) + moves
        arena = int(1.6 * max(used, 4096)) + moves * len(self.scratch)
        table = len(r.table)
        while 2 * room > table:
            table *= 2
        # Old and new arrays live side by side while they are copied, one at a time.
        wanted = 4 * arena + (8 + 8 + 4) * room + 8 * table
        if memory_limit is not None and wanted + max(4 * used, 8 * n) > memory_limit:
            return False
        r.arena = _longer(r.arena, used, arena)
        r.offset = _longer(r.offset, n + 1, room + 1)
        r.parent, r.choice = _longer(r.parent, n, room), _longer(r.choice, n, room)
        if table > len(r.table):
            r.table = np.full(table, -1, np.int64)
            _rehash(r.arena, r.offset, n, r.table)
        return True


def _longer(a: np.ndarray, used: int, size: int) -> np.ndarray:
    if size <= len(a):
        return a
    out = np.zeros(size, a.dtype)
    out[:used] = a[:used]
    return out


# ---- what may conflict


def _written_cells(tables: Tables) -> np.ndarray:
    """Cells that some operation writes; the others never change."""
    found = [
        tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]] for move in tables.moves if move[t.M_DST] >= 0
    ]
    return np.unique(np.concatenate(found)).astype(np.int64) if found else np.zeros(0, np.int64)


def _successors(tables: Tables, row: int) -> list[int]:
    """Rows that may follow a row of the tables."""
    op = tables.ops[row]
    if op[t.KIND] == t.BRANCH:
        return [int(op[t.TARGET])] if op[t.VALUE] < 0 else [row + 1, int(op[t.TARGET])]
    if op[t.KIND] in (t.WAIT, t.WAIT_STAMP) and op[t.TARGET] >= 0:
        return [row + 1, int(op[t.TARGET])]
    return [row + 1]


def _lowest_reachable(tables: Tables) -> np.ndarray:
    """int32, for each row (and the end of each agent): the lowest row that can be reached from it, itself included."""
    n = len(tables.ops)
    lowest = np.arange(n + 1, dtype=np.int32)
    changed = True
    while changed:
        changed = False
        for agent in range(len(tables.agent_start)):
            end = int(tables.agent_end[agent])
            for row in range(end - 1, int(tables.agent_start[agent]) - 1, -1):
                best = min([int(lowest[row])] + [int(lowest[k]) for k in _successors(tables, row) if k < end])
                if best < lowest[row]:
                    lowest[row] = best
                    changed = True
    return lowest


def _no_partners(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(2 * len(tables.ops) + 1, np.int64), np.zeros(0, np.int32)


def _racing_partners(tables: Tables, straight: Straight) -> tuple[np.ndarray, np.ndarray]:
    """Partners in a straight program: only payload that races.

    Why this is enough (simulator.md, finding 5). Pushing a posted store and delivering a flag touch no payload; a
    wait on a word of a straight program stays met, and no write changes what another word operation sees. So all of
    them commute with whatever is not ordered after them. Delivering data whose next reader is behind a later flag,
    and reading data whose next overwriter is behind a wait on a flag that the reader publishes later, are ordered
    with those by the must order. What remains are accesses to the same cells that nothing orders.
    """
    s, n = straight, len(tables.ops)
    delivery = (s.kind == DELIVER_DATA) | (s.kind == DELIVER_WORD)
    number = s.op + n * delivery
    lists: list[list[int]] = [[] for _ in range(2 * n)]
    for step, other in s.racing_pairs().tolist():
        lists[number[step]].append(int(number[other]))
        lists[number[other]].append(int(number[step]))
    return _flat(lists)


def _flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    at = np.concatenate(([0], np.cumsum([len(part) for part in lists]))).astype(np.int64)
    return at, np.array([k for part in lists for k in part], np.int32)


@dataclass
class _Touch:
    """What a step may touch: words and cells read and written, links pushed to."""

    reads: set[int]
    writes: set[int]
    cells_read: set[int]
    cells_written: set[int]
    links: set[int]

    def conflicts(self, other: _Touch) -> bool:
        """Whether two steps may fail to commute."""
        return bool(
            self.writes & (other.reads | other.writes)
            or other.writes & self.reads
            or self.cells_written & (other.cells_read | other.cells_written)
            or other.cells_written & self.cells_read
            or self.links & other.links
        )


def _partners(tables: Tables, memory: str, lowest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Partners in any program: every step of another agent that may touch the same, unless it must come later."""
    n = len(tables.ops)
    touches = _touches(tables, memory)
    known = _passed(tables, lowest)
    by_object: dict[tuple[str, int], list[int]] = {}
    for k, touch in enumerate(touches):
        if touch is not None:
            for kind, found in (("w", touch.reads | touch.writes), ("c", touch.cells_read | touch.cells_written)):
                for place in found:
                    by_object.setdefault((kind, place), []).append(k)
            for link in touch.links:
                by_object.setdefault(("l", link), []).append(k)
    near: list[set[int]] = [set() for _ in range(2 * n)]
    for sharing in by_object.values():
        for k in sharing:
            near[k].update(sharing)
    lists: list[list[int]] = [[] for _ in range(2 * n)]
    for k, others in enumerate(near):
        touch = touches[k]
        for other in sorted(others):
            row, other_row = k % n, other % n
            if tables.ops[row, t.AGENT] == tables.ops[other_row, t.AGENT] and k < n and other < n:
                continue
            # `other` comes after `k` in every schedule: when it may run, the agent of `k` has passed `k`.
            later = k < n and known[other_row][tables.ops[row, t.AGENT]] > row
            if k != other and not later and touch.conflicts(touches[other]):  # type: ignore[union-attr, arg-type]
                lists[k].append(other)
    return _flat(lists)


def _touches(tables: Tables, memory: str) -> list[_Touch | None]:
    """What each operation touches when it runs, and (from n on) when what it posted is delivered; None: nothing."""
    n, world = len(tables.ops), tables.program.world
    found: list[_Touch | None] = [None] * (2 * n)
    local = [r.memory in (Memory.HOST_MAPPED, Memory.BLOCK_SHARED) for r in tables.program.regions]
    for row in range(n):
        kind, agent = int(tables.ops[row, t.KIND]), int(tables.ops[row, t.AGENT])
        if kind in (t.SET, t.BRANCH, t.NOP):
            continue
        now = _Touch(set(), set(), set(), set(), set())
        found[row] = now
        rank = int(tables.agent_rank[agent])
        if kind in (t.LOAD, t.STORE, t.RMW, t.WAIT):
            op = tables.op(row)
            base = int(tables.word_base[op.word.region.id])  # type: ignore[attr-defined]
            first = [base + k for k in enumerate_index(op.word.index)[1][0]]  # type: ignore[attr-defined]
            touched = {k + i for k in first for i in range(max(1, int(tables.ops[row, t.COUNT])))}
            now.reads |= touched if kind != t.STORE else set()
            to = op.word.region.rank  # type: ignore[attr-defined]
            posted = memory == "posted" and to != rank and not local[op.word.region.id]  # type: ignore[attr-defined]
            if kind == t.STORE and posted and not tables.is_host[agent]:
                found[n + row] = _Touch(set(), touched, set(), set(), set())
                now.links.add(rank * world + to)
            elif kind in (t.STORE, t.RMW):
                now.writes |= touched
        elif kind != t.FENCE:
            _touch_payload(tables, row, memory, found)
    return found


def _touch_payload(tables: Tables, row: int, memory: str, found: list[_Touch | None]) -> None:
    n, world = len(tables.ops), tables.program.world
    op, now = tables.op(row), found[row]
    assert now is not None
    kind, rank = int(tables.ops[row, t.KIND]), int(tables.agent_rank[tables.ops[row, t.AGENT]])
    spans = (op.dst, *op.sources) if kind == t.MOVE else (op.dst,) if kind == t.FILL else (op.span,)  # type: ignore[attr-defined]
    variants = len(enumerate_index(*(span.start for span in spans))[1][0])
    for k in range(variants):
        move = tables.moves[tables.ops[row, t.ADDR] + k]
        count = int(move[t.M_COUNT])
        for source in range(int(move[t.M_N_SOURCES])):
            offset = int(tables.sources[move[t.M_SOURCES] + source])
            now.cells_read.update(tables.items[offset : offset + count].tolist())
        if move[t.M_DST] < 0:
            continue
        written = set(tables.items[move[t.M_DST] : move[t.M_DST] + count].tolist())
        if kind == t.MOVE and memory == "posted" and move[t.M_RANK] != rank:
            now.links.add(rank * world + int(move[t.M_RANK]))
            later = found[n + row]
            found[n + row] = _Touch(set(), set(), set(), written | (later.cells_written if later else set()), set())
        else:
            now.cells_written |= written


def _passed(tables: Tables, lowest: np.ndarray) -> np.ndarray:
    """int32 (rows, agents): rows of each agent below this can no longer run once the row may run.

    Only from waits for a constant that the word cannot reach without certain writes (launches, kernel ends, host
    barriers): a wait `>= v` on a word that is only added to, or only stored to, with constants, needs each write
    without which `v` is out of reach.
    """
    n, agents = len(tables.ops), len(tables.agent_start)
    needed = _needed_writes(tables)
    passed = np.zeros((n + 1, agents), np.int64)
    before: list[list[int]] = [[] for _ in range(n + 1)]
    for row in range(n):
        for k in _successors(tables, row):
            if k < tables.agent_end[tables.ops[row, t.AGENT]]:
                before[k].append(row)
    after = np.zeros((n, agents), np.int64)
    changed = True
    while changed:
        changed = False
        for row in range(n):
            start = row == tables.agent_start[tables.ops[row, t.AGENT]]
            if not before[row] and not start:
                continue
            now = np.min([after[k] for k in before[row]], axis=0) if before[row] and not start else passed[row].copy()
            passed[row] = np.maximum(passed[row], now)
            done = passed[row].copy()
            for write in needed.get(row, ()):
                done = np.maximum(done, after[write])
                agent = int(tables.ops[write, t.AGENT])
                end = int(tables.agent_end[agent])
                done[agent] = max(done[agent], end if write + 1 >= end else int(lowest[write + 1]))
            if np.any(done > after[row]):
                after[row] = np.maximum(after[row], done)
                changed = True
    return passed


def _needed_writes(tables: Tables) -> dict[int, list[int]]:
    """For waits without a timeout, the writes without which they cannot be met."""
    ops, exprs = tables.ops, tables.exprs
    writers: dict[int, list[int]] = {}
    open_words: set[int] = set()
    for row in np.flatnonzero(np.isin(ops[:, t.KIND], (t.STORE, t.RMW))).tolist():
        constant = exprs[ops[row, t.VALUE], t.E_MODE] == t.IMMEDIATE
        if ops[row, t.SELECT] >= 0:
            op = tables.op(row)
            base = int(tables.word_base[op.word.region.id])  # type: ignore[attr-defined]
            open_words.update(base + k for k in enumerate_index(op.word.index)[1][0])  # type: ignore[attr-defined]
        elif not constant or (ops[row, t.KIND] == t.RMW and ops[row, t.FN] != t.ADD):
            open_words.add(int(ops[row, t.ADDR]))
        else:
            writers.setdefault(int(ops[row, t.ADDR]), []).append(row)
    needed = {}
    for row in np.flatnonzero(ops[:, t.KIND] == t.WAIT).tolist():
        word = int(ops[row, t.ADDR])
        plain = ops[row, t.SELECT] < 0 and ops[row, t.FN] == words.GE and ops[row, t.TARGET] < 0
        if not plain or word in open_words or exprs[ops[row, t.VALUE], t.E_MODE] != t.IMMEDIATE:
            continue
        wanted, writes = int(exprs[ops[row, t.VALUE], t.E_A]), writers.get(word, [])
        amounts = [int(exprs[ops[k, t.VALUE], t.E_A]) for k in writes]
        kinds = {int(ops[k, t.KIND]) for k in writes}
        initial = int(tables.word_initial[word])
        if kinds == {t.RMW} and initial + sum(amounts) < 1 << 32:
            total = initial + sum(amounts)
            needed[row] = [k for k, amount in zip(writes, amounts, strict=True) if total - amount < wanted]
        elif kinds == {t.STORE}:
            reach = [max([initial] + [a for j, a in enumerate(amounts) if j != i]) for i in range(len(amounts))]
            needed[row] = [k for k, best in zip(writes, reach, strict=True) if best < wanted]
    return needed


# ---- the search


@njit(cache=True, _nrt=False)
def _pack(s, st, registers, cells, stamps, scratch):
    """Write the machine's state into `scratch`; returns its length."""
    at = np.int64(0)
    agents = len(st.pc)
    for agent in range(agents):
        scratch[at] = st.pc[agent]
        at += 1
    for k in range(len(registers)):
        scratch[at] = np.int32(np.uint32(st.registers[registers[k, 0], registers[k, 1]] & 0xFFFFFFFF))
        at += 1
    for k in range(len(st.word)):
        scratch[at] = np.int32(np.uint32(st.word[k] & 0xFFFFFFFF))
        at += 1
    for k in range(len(cells)):
        value = st.cell[cells[k]]
        scratch[at] = np.int32(np.uint32(value & np.uint64(0xFFFFFFFF)))
        scratch[at + 1] = np.int32(np.uint32(value >> np.uint64(32)))
        at += 2
    for k in range(len(stamps)):
        scratch[at] = np.int32(np.uint32(st.stamp[stamps[k]] & 0xFFFFFFFF))
        at += 1
    if s.model == m.POSTED:
        for link in range(len(st.queue_head)):
            head, tail = st.queue_head[link], st.queue_tail[link]
            scratch[at] = np.int32(tail - head)
            at += 1
            for k in range(s.link_at[link] + head, s.link_at[link] + tail):
                scratch[at] = np.int32(st.queue[k, 0])
                scratch[at + 1] = np.int32(st.queue[k, 1])
                scratch[at + 2] = np.int32(np.uint32(st.queue[k, 2] & 0xFFFFFFFF))
                at += 3
                if s.ops[st.queue[k, 0], t.KIND] == t.MOVE:
                    first = s.pending_at[st.queue[k, 1]]
                    for i in range(s.moves[st.queue[k, 1], t.M_COUNT]):
                        value = st.pending[first + i]
                        scratch[at] = np.int32(np.uint32(value & np.uint64(0xFFFFFFFF)))
                        scratch[at + 1] = np.int32(np.uint32(value >> np.uint64(32)))
                        at += 2
    return at


@njit(cache=True, _nrt=False)
def _wide(low, high):
    return np.uint64(np.uint32(low)) | (np.uint64(np.uint32(high)) << np.uint64(32))


@njit(cache=True, _nrt=False)
def _load(s, st, registers, cells, stamps, arena, at, in_flight):
    """Put the machine into the state whose row starts at `at`, and settle its agents."""
    agents = len(st.pc)
    st.counts[:] = 0
    st.status[:] = 0
    st.place[:] = -1
    st.waiter[:] = -1
    for agent in range(agents):
        st.pc[agent] = arena[at]
        at += 1
    for k in range(len(registers)):
        st.registers[registers[k, 0], registers[k, 1]] = np.int64(np.uint32(arena[at]))
        at += 1
    for k in range(len(st.word)):
        st.word[k] = np.int64(np.uint32(arena[at]))
        at += 1
    for k in range(len(cells)):
        st.cell[cells[k]] = _wide(arena[at], arena[at + 1])
        at += 2
    for k in range(len(stamps)):
        st.stamp[stamps[k]] = np.int64(np.uint32(arena[at]))
        at += 1
    if s.model == m.POSTED:
        st.outstanding[:] = 0
        in_flight[:] = False
        for link in range(len(st.queue_head)):
            count = np.int64(arena[at])
            at += 1
            st.queue_head[link] = 0
            st.queue_tail[link] = count
            if count:
                m._enable(st, agents + link)
            for k in range(s.link_at[link], s.link_at[link] + count):
                op = np.int64(arena[at])
                row = np.int64(arena[at + 1])
                agent = s.ops[op, t.AGENT]
                st.queue[k, 0], st.queue[k, 1] = op, row
                st.queue[k, 2] = np.int64(np.uint32(arena[at + 2]))
                st.queue[k, 3] = agent
                st.queue[k, 4] = 0
                st.outstanding[agent, link % s.world] += 1
                in_flight[op] = True
                at += 3
                if s.ops[op, t.KIND] == t.MOVE:
                    first = s.pending_at[row]
                    for i in range(s.moves[row, t.M_COUNT]):
                        st.pending[first + i] = _wide(arena[at], arena[at + 1])
                        at += 2
    for agent in range(agents):
        m._settle(s, st, agent)


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
def _insert(scratch, length, arena, offset, parent, choice, table, counts, from_state, entity):
    """Add a state unless it is known; there is room."""
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


@njit(cache=True, _nrt=False)
def _finish(s, st):
    while st.counts[m.C_UNSETTLED]:
        st.counts[m.C_UNSETTLED] -= 1
        m._settle(s, st, st.unsettled[st.counts[m.C_UNSETTLED]])


@njit(cache=True, _nrt=False)
def _first(s, st, log, registers, cells, stamps, scratch, arena, offset, parent, choice, table, counts):
    m._reset(s, st)
    _finish(s, st)
    length = _pack(s, st, registers, cells, stamps, scratch)
    counts[N_FAILED] = -1
    _insert(scratch, length, arena, offset, parent, choice, table, counts, -1, -1)


@njit(cache=True, _nrt=False)
def _safe(s, st, entity, partner_at, partners, lowest, in_flight):
    """Whether nothing that others may still do conflicts with the next step of `entity`."""
    agents, n = len(st.pc), len(s.ops)
    step = np.int64(st.pc[entity]) if entity < agents else n + st.queue[s.link_at[entity - agents], 0]
    for k in range(partner_at[step], partner_at[step + 1]):
        row = np.int64(partners[k])
        delivery = row >= n
        if delivery:
            row -= n
            if in_flight[row]:
                return False
        agent = s.ops[row, t.AGENT]
        pc = st.pc[agent]
        if pc < s.agent_end[agent] and row >= lowest[pc]:
            return False
    return True


@njit(cache=True, _nrt=False)
def _explore(
    s,
    st,
    log,
    registers,
    cells,
    stamps,
    scratch,
    arena,
    offset,
    parent,
    choice,
    table,
    counts,
    failed_choice,
    partner_at,
    partners,
    lowest,
    reduce,
    stop,
    early,
    target,
    in_flight,
    entities,
):
    agents = len(st.pc)
    timeouts = agents + s.world * s.world
    while counts[N_HEAD] < counts[N_STATES]:
        head = counts[N_HEAD]
        if head >= target:
            return LIMIT
        _load(s, st, registers, cells, stamps, arena, offset[head], in_flight)
        moves = st.counts[m.C_ENABLED]
        for k in range(moves):
            entities[k] = st.enabled[k]
        if moves == 0:
            for agent in range(agents):
                if m._may_time_out(s, st, agent):
                    entities[moves] = timeouts + agent
                    moves += 1
            if moves == 0:
                for agent in range(agents):
                    launched = s.agent_host[agent] or st.pc[agent] != s.agent_start[agent]
                    if st.pc[agent] < s.agent_end[agent] and launched:
                        counts[N_HANGS] += 1
                        if counts[N_FAILED] < 0:
                            counts[N_FAILED] = head
                            failed_choice[0] = -1
                        break
                counts[N_HEAD] = head + 1
                if stop and counts[N_FAILED] >= 0:
                    return FAILED
                continue
        elif early:
            for agent in range(agents):
                if m._may_time_out(s, st, agent) and s.ops[st.pc[agent], t.CLOCK] <= 0:
                    entities[moves] = timeouts + agent
                    moves += 1
        if reduce and entities[0] < timeouts:
            for k in range(st.counts[m.C_ENABLED]):
                if _safe(s, st, entities[k], partner_at, partners, lowest, in_flight):
                    entities[0] = entities[k]
                    moves = 1
                    break
        room = counts[N_STATES] + moves
        if room >= len(parent) or 2 * room > len(table) or counts[N_USED] + moves * len(scratch) > len(arena):
            return FULL
        for k in range(moves):
            entity = entities[k]
            if k > 0:
                _load(s, st, registers, cells, stamps, arena, offset[head], in_flight)
            if entity < agents:
                m._execute(s, st, log, entity, 0)
            elif entity < timeouts:
                m._deliver(s, st, entity - agents)
            else:
                agent = entity - timeouts
                m._unpark(s, st, agent)
                st.pc[agent] = s.ops[st.pc[agent], t.TARGET]
                st.status[agent] = 0
                m._unsettle(st, agent)
                counts[N_ABORTS] += 1
            counts[N_TRANSITIONS] += 1
            wrong = st.counts[m.C_WRONG] > 0
            counts[N_WRONG] += wrong
            failed = wrong or entity >= timeouts
            if failed:
                if counts[N_FAILED] < 0:
                    counts[N_FAILED] = head
                    failed_choice[0] = entity
            _finish(s, st)
            length = _pack(s, st, registers, cells, stamps, scratch)
            _insert(scratch, length, arena, offset, parent, choice, table, counts, head, entity)
            if failed and stop:
                return FAILED
        counts[N_HEAD] = head + 1
    return FINISHED
