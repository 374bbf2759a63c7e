"""All executions of any program under memory model `weak`: breadth first over canonical states, with exact keys.

A state's key is its canonical form (`lab.sim.search.canonical_key`). Rows are compared in full, so no state is taken
for another, and every operation runs at most once, so the graph has no cycle.

Partial-order reduction. What an execution does is its graph: which message each read reads, and where each store stands
in the history of its word. The graph does not say in which order agents moved, and each of its linear orders (program
order and reads-from) is an execution of the machine that ends in the same state: `weak` asks of a step only what its
agent must know, and an agent learns by its own reads. Therefore

* a store to a word, a fence, and whatever nobody else touches can always be made first: whoever stores to the same word
  later may still go before or behind it, and whoever reads may still read anything older;
* a read can be made first when no other agent can still write what it reads.

Otherwise the order matters, and only it: a step is followed together with the steps of the agents that can still write
what it reads, and of those that can still write what these read, and so on (a persistent set: Godefroid, LNCS 1032,
1996). One of these steps must be sure to happen. A wait is not sure when only an invisible or overwritten message meets
it, and not either when a release at system scope may change what is visible of it: then those releases belong to the
set.

Not everything can be reordered like this. Payload operations and waits for packets choose between freshest and most
stale, last and earliest only, so that in another order they could choose otherwise: they commute only with what touches
other cells. So do words that a wait for a sum looks at, that are written more often than an operation has choices, or
that a wait polls which may give up early. When nothing but luck and timeouts is left, all of these are followed.

Steps that have no alternative make no state of their own: a state is kept where there is a choice, and at the end.

What limits it: writing and reading canonical forms, a few microseconds a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import weak, words
from lab.sim.machine import weak_history as h
from lab.sim.machine.weak_state import Static
from lab.sim.order import conflicts
from lab.sim.order.visibility import polls_of_caches
from lab.sim.search import canonical_key as key
from lab.sim.search.states import (
    FAILED,
    FINISHED,
    FULL,
    LIMIT,
    N_ABORTS,
    N_FAILED,
    N_HANGS,
    N_HEAD,
    N_STATES,
    N_TRANSITIONS,
    N_WRONG,
    insert,
    room_for,
    rows_of,
)

_VISIBILITY = -1
"""Not a word: what releases at system scope write, and polls read whose messages these may make visible."""


@dataclass(frozen=True)
class End:
    """How executions can end: HANG or DONE, with what registers and memory hold.

    Attributes:
        outcome: `machine.DONE` or `machine.HANG`.
        registers: int64 (agents, registers); words: int64; cells: uint64.
    """

    outcome: int
    registers: np.ndarray
    words: np.ndarray
    cells: np.ndarray


class WeakSearch:
    """Breadth-first search over the canonical states of a program under `weak`.

    Args:
        tables: The program.
        reduce: Whether to reduce.
        stop: Whether to stop at the first failure.
        parts: A checkpoint to go on from.
        early_timeouts: Whether a wait with a bound on its polls may give up although others could move.
        keep: Whether to tell states apart by registers and memory that nobody reads any more; `ends` needs it.

    Attributes:
        rows: The states.
        most_written: Writes of the word that is written most.
    """

    def __init__(
        self,
        tables: Tables,
        reduce: bool,
        stop: bool,
        parts: dict[str, np.ndarray] | None = None,
        early_timeouts: bool = False,
        keep: bool = False,
    ) -> None:
        self.reduce, self.stop, self.early, self.keep = reduce, stop, early_timeouts, keep
        self.static = weak.static(tables)
        self.state = weak.new_state(self.static, tables.registers)
        self.log = weak.new_log(self.static, m.LEVEL_NONE)
        lowest = conflicts.lowest_reachable(tables)
        touched = conflicts.touches(tables, "weak")
        self.future = key.future(tables, lowest, touched, keep)
        self.room = key.room(self.static, self.state, self.future)
        self.partner_at, self.partners = _partners(tables, self.static, touched, lowest, early_timeouts)
        self.most_written = int(_writes(tables, touched).max(initial=0))
        agents = len(tables.agent_start)
        self.members, self.best = np.zeros(agents, bool), np.zeros(agents, bool)
        self.moves = np.zeros((2, agents * (h.MAX_CHOICES + 1) + 1), np.int32)
        self.scratch = np.zeros(key.widest(self.static, self.state), np.int32)
        weak.reset(self.static, self.state)  # cells that nobody writes are not part of a row
        self.rows = rows_of(parts, len(self.scratch))
        if parts is None:
            _first(self.static, self.state, self.future, self.room, self.scratch, *self._found())

    def _found(self) -> tuple[np.ndarray, ...]:
        r = self.rows
        return r.arena, r.offset, r.parent, r.choice, r.table, r.counts

    def _choosing(self) -> tuple:
        return (
            self.partner_at,
            self.partners,
            self.reduce,
            self.early,
            self.members,
            self.best,
        )

    @property
    def done(self) -> bool:
        """Whether every state has been expanded."""
        return self.rows.done

    def advance(self, states: int, memory_limit: int | None) -> int:
        """Expand up to so many states; returns FINISHED, FAILED, LIMIT, or FULL at the memory limit."""
        return self.rows.advance(self._expand, states, self.moves.shape[1], len(self.scratch), memory_limit)

    def _expand(self, target: int) -> int:
        return int(
            _explore(
                self.static,
                self.state,
                self.log,
                self.future,
                self.room,
                self.scratch,
                *self._found(),
                self.rows.failed_choice,
                *self._choosing(),
                self.moves,
                self.stop,
                target,
            )
        )

    def failing(self) -> np.ndarray | None:
        """int32, the choices of the first schedule that fails; None: none was found."""
        failed, last = int(self.rows.counts[N_FAILED]), self.rows.failed_choice
        if failed < 0:
            return None
        return self._with_forced_steps([*self.rows.path(failed).tolist(), *last[last >= 0].tolist()])

    def _with_forced_steps(self, chosen: list[int]) -> np.ndarray:
        """A schedule to its first failure, or to where `chosen` ends, with the steps that had no alternative."""
        self._load(0)
        made: list[int] = []
        while not self.state.counts[m.C_WRONG] and not self.state.counts[m.C_ABORTS]:
            moves = self._moves()
            forced = self.reduce and len(moves) == 1 and made  # the first step of all is recorded, forced or not
            if not moves or not (forced or chosen):
                break
            made.append(moves[0] if forced else chosen.pop(0))
            if made[-1] == weak.hang_entity(self.static, self.state):
                break
            _make(self.static, self.state, self.log, made[-1])
        return np.array(made, np.int32)

    def _load(self, state: int) -> None:
        key.load(self.static, self.state, self.future, self.rows.arena, int(self.rows.offset[state]))

    def _moves(self) -> list[int]:
        out = self.moves[0]
        return out[: _moves(self.static, self.state, self.future, *self._choosing(), out)].tolist()

    def ends(self) -> Iterator[End]:
        """The states in which executions end, each once; only of a search that keeps what nobody reads."""
        if not self.keep:
            raise RuntimeError("internal: this search forgets what nobody reads")
        for state in range(int(self.rows.counts[N_STATES])):
            self._load(state)
            moves = self._moves()
            if moves and moves[-1] != weak.hang_entity(self.static, self.state):
                continue
            outcome = m.HANG if moves else int(weak.stopped(self.static, self.state))
            weak.final(self.state)
            st = self.state
            yield End(outcome, st.registers.copy(), st.word.copy(), st.cell.copy())


# ---- what may conflict


def _partners(
    tables: Tables, s: Static, touched: list[conflicts.Touch | None], lowest: np.ndarray, early: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For each operation, those of other agents whose agents belong to its persistent set."""
    conflict = _conflict(_in_fixed_order(tables, touched, early))
    return conflicts.partners(tables, _with_visibility(tables, s, touched), lowest, conflict)


def _conflict(fixed: set[int]) -> Callable[[conflicts.Touch, conflicts.Touch], bool]:
    """Whether a step has to be followed together with the agent of another; `fixed`: words of `_in_fixed_order`."""

    def conflict(step: conflicts.Touch, other: conflicts.Touch) -> bool:
        return bool(
            step.reads & other.writes
            or step.writes & (other.reads | other.writes) & fixed
            or step.cells_written & (other.cells_read | other.cells_written)
            or other.cells_written & step.cells_read
        )

    return conflict


def _in_fixed_order(tables: Tables, touched: list[conflicts.Touch | None], early: bool) -> set[int]:
    """Words of which no two accesses commute, unless both only read."""
    fixed = set(np.flatnonzero(_writes(tables, touched) >= h.MAX_CHOICES).tolist())
    for op, touch in zip(tables.ops, touched, strict=False):
        impatient = early and op[t.TARGET] >= 0 and op[t.CLOCK] <= 0
        waits = op[t.KIND] in (t.WAIT, t.WAIT_STAMP) or (op[t.KIND] == t.RMW and op[t.PATIENT])
        several = op[t.KIND] == t.WAIT and (op[t.FN] == words.SUM_LE or op[t.FN] & t.ANY_OF)
        if touch and waits and (impatient or several):
            fixed |= touch.reads
            fixed |= {_VISIBILITY} if impatient else set()
    return fixed


def _writes(tables: Tables, touched: list[conflicts.Touch | None]) -> np.ndarray:
    """int64, for each word how many operations may write it."""
    writes = np.zeros(len(tables.word_initial), np.int64)
    for touch in touched:
        if touch is not None:
            writes[list(touch.writes)] += 1
    return writes


def _with_visibility(tables: Tables, s: Static, touched: list[conflicts.Touch | None]) -> list[conflicts.Touch | None]:
    """`touched`, where what is visible of memory is one more thing that is read and written."""
    ops, found = tables.ops, list(touched)
    for row in polls_of_caches(tables, s, touched):
        touch = touched[row] or conflicts.Touch.nothing()
        found[row] = replace(touch, reads=touch.reads | {_VISIBILITY})
    kinds, sync = ops[:, t.KIND], ops[:, t.SYNC]
    releases = np.isin(kinds, (t.STORE, t.RMW, t.FENCE)) & (sync & 2 > 0) & (sync >> 4 >= int(Scope.SYSTEM))
    releases |= (kinds == t.WAIT) & (np.maximum(sync, 0) & t.BOUNDARY > 0)
    for row in np.flatnonzero(releases).tolist():
        touch = touched[row] or conflicts.Touch.nothing()
        found[row] = replace(touch, writes=touch.writes | {_VISIBILITY})
    return found


# ---- the search


@njit(cache=True, _nrt=False)
def _add_choices(s, st, agent, out, n):
    valid = weak.valid(s, st, agent)
    for choice in range(h.MAX_CHOICES):
        if valid >> choice & 1:
            out[n] = weak.entity_of(s, st, agent, choice)
            n += 1
    return n


@njit(cache=True, _nrt=False)
def _add_agent(s, st, agent, early, out, n):
    """The steps that an agent may make now, timeouts included if they may come early."""
    if st.place[agent] >= 0 or st.maybe_place[agent] >= 0:
        n = _add_choices(s, st, agent, out, n)
    if early and weak.may_time_out(s, st, agent) and s.ops[st.pc[agent], t.CLOCK] <= 0:
        out[n] = weak.timeout_entity(s, st, agent)
        n += 1
    return n


@njit(cache=True, _nrt=False)
def _close(s, st, f, partner_at, partners, first, members):
    """Make `members` the agents that must be followed together with `first`; returns how many they are."""
    members[:] = False
    members[first] = True
    size, grown = 1, True
    while grown:
        grown = False
        for agent in range(len(members)):
            if not members[agent] or st.pc[agent] >= s.agent_end[agent]:
                continue
            for k in range(partner_at[st.pc[agent]], partner_at[st.pc[agent] + 1]):
                other = s.ops[partners[k], t.AGENT]
                if not members[other] and key.may_still(s, st, f, other, partners[k]):
                    members[other] = grown = True
                    size += 1
    return size


@njit(cache=True, _nrt=False)
def _moves(s, st, f, partner_at, partners, reduce, early, members, best, out):
    """Write the entities to follow from here to `out`; returns how many."""
    agents, n = len(st.pc), 0
    if st.counts[m.C_ENABLED] == 0:
        for agent in range(agents):
            n = _add_agent(s, st, agent, False, out, n)
        lucky = n
        for agent in range(agents):
            if weak.may_time_out(s, st, agent):
                out[n] = weak.timeout_entity(s, st, agent)
                n += 1
        if lucky and n == lucky:
            out[n] = weak.hang_entity(s, st)
            n += 1
        return n
    fewest = len(out) + 1
    best[:] = True
    if reduce:
        for agent in range(agents):
            if st.place[agent] >= 0:
                size = _close(s, st, f, partner_at, partners, agent, members)
                n = 0
                for other in range(agents):
                    if members[other]:
                        n = _add_agent(s, st, other, early, out, n)
                if n < fewest or size == 1:
                    fewest = n
                    for other in range(agents):
                        best[other] = members[other]
                if size == 1:
                    break
    n = 0
    for agent in range(agents):
        if best[agent]:
            n = _add_agent(s, st, agent, early, out, n)
    return n


@njit(cache=True, _nrt=False)
def _make(s, st, log, entity):
    """Make a step that can be chosen, other than to hang."""
    agent, choice, gives_up = weak.meant(s, st, entity)
    weak.move_on(s, st, log, agent, 0, choice, gives_up, np.uint64(0), 0)
    weak.settle_all(s, st)


@njit(cache=True, _nrt=False)
def _first(s, st, f, r, scratch, arena, offset, parent, choice, table, counts):
    weak.settle_all(s, st)
    length = key.pack(s, st, f, r, scratch)
    insert(scratch, length, arena, offset, parent, choice, table, counts, -1, -1)


@njit(cache=True, _nrt=False)
def _fails(counts, failed_choice, state, entity):
    if counts[N_FAILED] < 0:
        counts[N_FAILED] = state
        failed_choice[0] = entity


@njit(nogil=True, cache=True, _nrt=False)
def _explore(
    s,
    st,
    log,
    f,
    r,
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
    reduce,
    early,
    members,
    best,
    moves,
    stop,
    target,
):
    hang = weak.hang_entity(s, st)
    while counts[N_HEAD] < counts[N_STATES]:
        head = counts[N_HEAD]
        if head >= target:
            return LIMIT
        key.load(s, st, f, arena, offset[head])
        n = _moves(s, st, f, partner_at, partners, reduce, early, members, best, moves[0])
        if not room_for(n, len(scratch), arena, parent, table, counts):
            return FULL
        if n == 0 and weak.stopped(s, st) == m.HANG:
            counts[N_HANGS] += 1
            _fails(counts, failed_choice, head, -1)
        for k in range(n):
            if k > 0:
                key.load(s, st, f, arena, offset[head])
            entity, following = np.int64(moves[0, k]), 0
            while True:
                counts[N_TRANSITIONS] += 1
                if entity == hang:
                    counts[N_HANGS] += 1
                    _fails(counts, failed_choice, head, moves[0, k])
                    break
                _make(s, st, log, entity)
                wrong, aborted = st.counts[m.C_WRONG] > 0, st.counts[m.C_ABORTS] > 0
                st.counts[m.C_WRONG] = st.counts[m.C_ABORTS] = 0
                counts[N_WRONG] += wrong
                counts[N_ABORTS] += aborted
                if wrong or aborted:
                    _fails(counts, failed_choice, head, moves[0, k])
                    if stop:
                        return FAILED
                if reduce:
                    following = _moves(s, st, f, partner_at, partners, reduce, early, members, best, moves[1])
                if following != 1:
                    length = key.pack(s, st, f, r, scratch)
                    insert(scratch, length, arena, offset, parent, choice, table, counts, head, moves[0, k])
                    break
                entity = np.int64(moves[1, 0])
        if stop and counts[N_FAILED] >= 0:
            return FAILED
        counts[N_HEAD] = head + 1
    return FINISHED
