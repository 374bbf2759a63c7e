"""Which steps may conflict: from the text of a program, what each touches, and which of others' steps must come later.

This is what partial-order reduction rests on. `partners` lists, for each step, the steps of others that may fail to
commute with it; where all of them have been made, or can no longer be made, the step can be taken alone (a persistent
set of one: Godefroid, LNCS 1032, 1996, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lab.protocol import tables as t
from lab.protocol.cells import count_of
from lab.protocol.expr import enumerate_index
from lab.protocol.program import Memory, Span
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.order.events import DELIVER_DATA, DELIVER_WORD
from lab.sim.order.straight import Straight


def written_cells(tables: Tables) -> np.ndarray:
    """Cells that some operation writes; the others never change."""
    found = [
        tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]] for move in tables.moves if move[t.M_DST] >= 0
    ]
    return np.unique(np.concatenate(found)).astype(np.int64) if found else np.zeros(0, np.int64)


def lowest_reachable(tables: Tables) -> np.ndarray:
    """int32, for each row (and the end of each agent): the lowest row that can be reached from it, itself included."""
    n = len(tables.ops)
    lowest = np.arange(n + 1, dtype=np.int32)
    changed = True
    while changed:
        changed = False
        for agent in range(len(tables.agent_start)):
            end = int(tables.agent_end[agent])
            for row in range(end - 1, int(tables.agent_start[agent]) - 1, -1):
                best = min([int(lowest[row])] + [int(lowest[k]) for k in tables.successors(row) if k < end])
                if best < lowest[row]:
                    lowest[row] = best
                    changed = True
    return lowest


def no_partners(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """Nothing conflicts, in the form of `partners`."""
    return np.zeros(2 * len(tables.ops) + 1, np.int64), np.zeros(0, np.int32)


def racing_partners(tables: Tables, straight: Straight) -> tuple[np.ndarray, np.ndarray]:
    """Partners in a straight program: only payload that races.

    Why this is enough (simulator.md, finding 5). Pushing a posted store and delivering a flag touch no payload; a
    wait on a word of a straight program stays met, and no write changes what another word operation sees. So all of
    them commute with whatever is not ordered after them. Delivering data whose next reader is behind a later flag,
    and reading data whose next overwriter is behind a wait on a flag that the reader publishes later, are ordered
    with those by the must order. What remains are accesses to the same cells that nothing orders, and a store of one
    wave, or what hands it over, with what another wave may do only before that or after the store has arrived.
    """
    s, n = straight, len(tables.ops)
    delivery = (s.kind == DELIVER_DATA) | (s.kind == DELIVER_WORD)
    number = s.op + n * delivery
    lists: list[list[int]] = [[] for _ in range(2 * n)]
    for step, other in [*s.racing_pairs().tolist(), *s.held_pairs()[:, 1:].tolist()]:
        lists[number[step]].append(int(number[other]))
        lists[number[other]].append(int(number[step]))
    return _flat(lists)


def _flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    at = np.concatenate(([0], np.cumsum([len(part) for part in lists]))).astype(np.int64)
    return at, np.array([k for part in lists for k in part], np.int32)


@dataclass
class Touch:
    """What a step may touch: words and cells read and written, links pushed to.

    posts, drains: Where blocks have several waves, (block, rank) as one number: what the block sends where or hands
    over, and what of it has to have arrived before the step.
    """

    reads: set[int]
    writes: set[int]
    cells_read: set[int]
    cells_written: set[int]
    links: set[int]
    posts: set[int] = field(default_factory=set)
    drains: set[int] = field(default_factory=set)

    @classmethod
    def nothing(cls) -> Touch:
        """A step that touches nothing."""
        return cls(set(), set(), set(), set(), set())

    def conflicts(self, other: Touch) -> bool:
        """Whether two steps may fail to commute."""
        return bool(
            self.writes & (other.reads | other.writes)
            or other.writes & self.reads
            or self.cells_written & (other.cells_read | other.cells_written)
            or other.cells_written & self.cells_read
            or self.links & other.links
            or self.posts & other.drains
            or self.drains & other.posts
        )


def partners(
    tables: Tables,
    touched: list[Touch | None],
    lowest: np.ndarray,
    conflict: Callable[[Touch, Touch], bool] = Touch.conflicts,
) -> tuple[np.ndarray, np.ndarray]:
    """Partners in any program: every step of another agent that may touch the same, unless it must come later.

    Args:
        tables: The program, of n operations.
        touched: From `touches`: 2 n steps, the operations and their deliveries.
        lowest: From `lowest_reachable`.
        conflict: Whether a step (the first) may fail to commute with one of another agent (the second).

    Returns:
        int64 (2 n + 1), where the partners of each step begin; int32, the partners.
    """
    n = len(tables.ops)
    known = _passed(tables, lowest)
    by_object: dict[tuple[str, int], list[int]] = {}
    for k, touch in enumerate(touched):
        if touch is not None:
            for kind, found in (("w", touch.reads | touch.writes), ("c", touch.cells_read | touch.cells_written)):
                for place in found:
                    by_object.setdefault((kind, place), []).append(k)
            for kind, found in (("l", touch.links), ("b", touch.posts | touch.drains)):
                for place in found:
                    by_object.setdefault((kind, place), []).append(k)
    near: list[set[int]] = [set() for _ in range(2 * n)]
    for sharing in by_object.values():
        for k in sharing:
            near[k].update(sharing)
    lists: list[list[int]] = [[] for _ in range(2 * n)]
    for k, others in enumerate(near):
        touch = touched[k]
        for other in sorted(others):
            row, other_row = k % n, other % n
            if tables.ops[row, t.AGENT] == tables.ops[other_row, t.AGENT] and k < n and other < n:
                continue
            # `other` comes after `k` in every schedule: when it may run, the agent of `k` has passed `k`.
            later = k < n and known[other_row][tables.ops[row, t.AGENT]] > row
            if k != other and not later and conflict(touch, touched[other]):  # type: ignore[arg-type]
                lists[k].append(other)
    return _flat(lists)


def touches(tables: Tables, memory: str) -> list[Touch | None]:
    """What each operation touches when it runs, and (from n on) when what it posted is delivered; None: nothing."""
    n, world = len(tables.ops), tables.program.world
    found: list[Touch | None] = [None] * (2 * n)
    local = [r.memory in (Memory.HOST_MAPPED, Memory.BLOCK_SHARED) for r in tables.program.regions]
    for row in range(n):
        kind, agent = int(tables.ops[row, t.KIND]), int(tables.ops[row, t.AGENT])
        if kind in (t.SET, t.BRANCH, t.NOP):
            continue
        now = Touch.nothing()
        found[row] = now
        rank = int(tables.agent_rank[agent])
        if kind in (t.LOAD, t.STORE, t.RMW, t.WAIT):
            op, touched = tables.op(row), set(tables.words_of(row))
            now.reads |= touched if kind != t.STORE else set()
            to = op.word.region.rank  # type: ignore[attr-defined]
            posted = memory == "posted" and to != rank and not local[op.word.region.id]  # type: ignore[attr-defined]
            if kind == t.STORE and posted and not tables.is_host[agent]:
                found[n + row] = Touch(set(), touched, set(), set(), set())
                now.links.add(rank * world + to)
            elif kind in (t.STORE, t.RMW):
                now.writes |= touched
        elif kind != t.FENCE:
            _touch_payload(tables, row, memory, found)
    if memory == "posted":
        _touch_queues(tables, found)
    return found


def _touch_queues(tables: Tables, found: list[Touch | None]) -> None:
    """What each step of a block with several waves posts, and what it waits for (`interleaved.drained`)."""
    s, world = m.static(tables, "posted"), tables.program.world
    for row in range(len(tables.ops)):
        now, agent = found[row], int(tables.ops[row, t.AGENT])
        block = int(s.block_start[agent])
        if now is None or s.block_end[agent] - block == 1:
            continue
        ranks = 0
        for at in _places(tables, row):
            _, handed, whole = m.drained.py_func(s, row, at)
            ranks |= int(handed | whole)
        now.drains |= {block * world + rank for rank in range(world) if ranks >> rank & 1}
        now.posts |= {block * world + link % world for link in now.links}
        if m.hands_over.py_func(s, row):
            now.posts |= {block * world + rank for rank in range(world)}


def _places(tables: Tables, row: int) -> list[int]:
    """The words, or rows of moves, that an operation may name; of a fence, none that matters."""
    kind = int(tables.ops[row, t.KIND])
    if kind in (t.LOAD, t.STORE, t.RMW, t.WAIT):
        return tables.words_of(row)
    if kind == t.FENCE:
        return [-1]
    first = int(tables.ops[row, t.ADDR])
    starts = (span.start for span in _spans(tables, row))
    return list(range(first, first + len(enumerate_index(*starts, count_of(tables.op(row)))[1][0])))


def _spans(tables: Tables, row: int) -> tuple[Span, ...]:
    """The payload that an operation names."""
    op, kind = tables.op(row), int(tables.ops[row, t.KIND])
    return (op.dst, *op.sources) if kind == t.MOVE else (op.dst,) if kind == t.FILL else (op.span,)  # type: ignore[attr-defined]


def _touch_payload(tables: Tables, row: int, memory: str, found: list[Touch | None]) -> None:
    n, world = len(tables.ops), tables.program.world
    now = found[row]
    assert now is not None
    kind, rank = int(tables.ops[row, t.KIND]), int(tables.agent_rank[tables.ops[row, t.AGENT]])
    for place in _places(tables, row):
        move = tables.moves[place]
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
            found[n + row] = Touch(set(), set(), set(), written | (later.cells_written if later else set()), set())
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
    found = np.zeros((n + 1, agents), np.int64)
    before: list[list[int]] = [[] for _ in range(n + 1)]
    for row in range(n):
        for k in tables.successors(row):
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
            now = np.min([after[k] for k in before[row]], axis=0) if before[row] and not start else found[row].copy()
            found[row] = np.maximum(found[row], now)
            done = found[row].copy()
            for write in needed.get(row, ()):
                done = np.maximum(done, after[write])
                agent = int(tables.ops[write, t.AGENT])
                end = int(tables.agent_end[agent])
                done[agent] = max(done[agent], end if write + 1 >= end else int(lowest[write + 1]))
            if np.any(done > after[row]):
                after[row] = np.maximum(after[row], done)
                changed = True
    return found


def _needed_writes(tables: Tables) -> dict[int, list[int]]:
    """For waits without a timeout, the writes without which they cannot be met."""
    ops, exprs = tables.ops, tables.exprs
    writers: dict[int, list[int]] = {}
    open_words: set[int] = set()
    for row in np.flatnonzero(np.isin(ops[:, t.KIND], (t.STORE, t.RMW))).tolist():
        constant = exprs[ops[row, t.VALUE], t.E_MODE] == t.IMMEDIATE
        if ops[row, t.SELECT] >= 0:
            open_words.update(tables.words_of(row))
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
