"""All states of any program under sc and posted: breadth first over full states of the machine, with exact keys.

A state is a row of int32: program counters, registers that are read, words, every payload cell that anybody writes,
stamps, the stores on each link with what they carry, and how many of them a wave has handed to its block. Every
operation runs at most once (jumps lead forward), so the graph has no cycle.

Partial-order reduction: where one enabled step cannot conflict with anything that others may still do, it alone is
followed (`lab.sim.order.conflicts`; without cycles nothing is ignored for ever).

What limits it: setting the machine up for each transition, a microsecond or two.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine.scheduler import enable, give_up, may_time_out
from lab.sim.order import conflicts
from lab.sim.order.events import used_registers
from lab.sim.order.straight import Straight
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
    get64,
    insert,
    put64,
    room_for,
    rows_of,
)


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
        self.cells = conflicts.written_cells(tables)
        packets = np.any(tables.ops[:, t.STAMP] >= 0) or np.any(tables.ops[:, t.KIND] == t.WAIT_STAMP)
        self.stamps = self.cells if packets else self.cells[:0]
        self.lowest = conflicts.lowest_reachable(tables)
        self.partner_at, self.partners = conflicts.no_partners(tables)
        if reduce:
            self.partner_at, self.partners = (
                conflicts.partners(tables, conflicts.touches(tables, memory), self.lowest)
                if straight is None
                else conflicts.racing_partners(tables, straight)
            )
        self.reduce = reduce
        agents, links = len(tables.agent_start), tables.program.world**2
        widest = agents * (1 + tables.registers) + len(tables.word_initial) + 2 * len(self.cells) + len(self.stamps)
        widest += links + 3 * int(self.static.link_at[-1]) + 2 * int(self.static.pending_at[-1])
        widest += agents * tables.program.world
        self.scratch = np.zeros(widest + 1, np.int32)
        self.registers = np.argwhere(used_registers(tables)).astype(np.int64)
        self.in_flight, self.entities = np.zeros(len(tables.ops), bool), np.zeros(2 * agents + links, np.int32)
        m.reset(self.static, self.state)  # cells that nobody writes are not part of a row
        self.rows = rows_of(parts, widest)
        if parts is None:
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
        return self.rows.done

    def advance(self, states: int, memory_limit: int | None) -> int:
        """Expand up to so many states; returns FINISHED, FAILED, LIMIT, or FULL at the memory limit."""
        return self.rows.advance(self._expand, states, len(self.entities), len(self.scratch), memory_limit)

    def _expand(self, target: int) -> int:
        return int(
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

    def failing(self) -> np.ndarray | None:
        """int32, the choices of the first schedule that fails; None: none was found."""
        failed, last = int(self.rows.counts[N_FAILED]), self.rows.failed_choice
        return None if failed < 0 else np.concatenate((self.rows.path(failed), last[last >= 0])).astype(np.int32)


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
        put64(scratch, at, st.cell[cells[k]])
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
                        put64(scratch, at, st.pending[first + i])
                        at += 2
        for agent in range(agents):
            for rank in range(s.world) if s.block_end[agent] - s.block_start[agent] > 1 else range(0):
                scratch[at] = st.handed[agent, rank]
                at += 1
    return at


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
        st.cell[cells[k]] = get64(arena, at)
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
                enable(st, agents + link)
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
                        st.pending[first + i] = get64(arena, at)
                        at += 2
        for agent in range(agents):
            for rank in range(s.world) if s.block_end[agent] - s.block_start[agent] > 1 else range(0):
                st.handed[agent, rank] = arena[at]
                at += 1
    for agent in range(agents):
        m.settle(s, st, agent)


@njit(cache=True, _nrt=False)
def _finish(s, st):
    while st.counts[m.C_UNSETTLED]:
        st.counts[m.C_UNSETTLED] -= 1
        m.settle(s, st, st.unsettled[st.counts[m.C_UNSETTLED]])


@njit(cache=True, _nrt=False)
def _first(s, st, log, registers, cells, stamps, scratch, arena, offset, parent, choice, table, counts):
    m.reset(s, st)
    _finish(s, st)
    length = _pack(s, st, registers, cells, stamps, scratch)
    insert(scratch, length, arena, offset, parent, choice, table, counts, -1, -1)


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
                if may_time_out(s, st, agent):
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
                if may_time_out(s, st, agent) and s.ops[st.pc[agent], t.CLOCK] <= 0:
                    entities[moves] = timeouts + agent
                    moves += 1
        if reduce and entities[0] < timeouts:
            for k in range(st.counts[m.C_ENABLED]):
                if _safe(s, st, entities[k], partner_at, partners, lowest, in_flight):
                    entities[0] = entities[k]
                    moves = 1
                    break
        if not room_for(moves, len(scratch), arena, parent, table, counts):
            return FULL
        for k in range(moves):
            entity = entities[k]
            if k > 0:
                _load(s, st, registers, cells, stamps, arena, offset[head], in_flight)
            if entity < agents:
                m.execute(s, st, log, entity, 0)
            elif entity < timeouts:
                m.deliver(s, st, entity - agents)
            else:
                agent = entity - timeouts
                m.unpark(s, st, agent)
                st.status[agent] = m.NO_MOVE
                give_up(s, st, agent)
            counts[N_TRANSITIONS] += 1
            wrong = st.counts[m.C_WRONG] > 0
            counts[N_WRONG] += wrong
            aborted = st.counts[m.C_ABORTS] > 0
            counts[N_ABORTS] += aborted
            failed = wrong or aborted
            if failed:
                if counts[N_FAILED] < 0:
                    counts[N_FAILED] = head
                    failed_choice[0] = entity
            _finish(s, st)
            length = _pack(s, st, registers, cells, stamps, scratch)
            insert(scratch, length, arena, offset, parent, choice, table, counts, head, entity)
            if failed and stop:
                return FAILED
        counts[N_HEAD] = head + 1
    return FINISHED
