"""The machine: runs a Program's tables step by step under a scheduler and a memory model.

A *step* is one choice: an agent that executes its next visible operation, or (memory model `posted`) a link that
delivers its oldest store. Register arithmetic and branches are local and cost no step. A wait is a guard: an agent
whose condition is not met is not enabled, so no schedule is spent on polling. A bounded wait gives up only when nothing
else can move, unless the run allows early timeouts.

Arrays travel in named tuples through functions that LLVM inlines into one loop (`forceinline`): a call that is not
inlined would pass some three hundred scalars. Reference counting is off (`_nrt=False`); nothing in the loop allocates.

What limits it: on small programs, one random choice and one table row a step; on real geometry, moving the cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Memory, Scope
from lab.sim.machine import words
from lab.sim.machine.scheduler import (  # noqa: F401 (what callers of an engine need is found on it)
    C_ABORTS,
    C_ENABLED,
    C_OPS,
    C_POLLERS,
    C_STEPS,
    C_TIMEOUTS,
    C_UNSETTLED,
    C_WRONG,
    C_WRONG_OPS,
    DIVERGED,
    DONE,
    DRAINING,
    FINISHED,
    HANG,
    LEVEL_CHOICES,
    LEVEL_FULL,
    LEVEL_NONE,
    NO_MOVE,
    PARKED,
    PCT,
    PCT_DEPTH,
    POLLING,
    RANDOM,
    READY,
    REPLAY,
    RUN_ON,
    STEP_LIMIT,
    T_ABORTS,
    T_FIRST,
    T_HANGS,
    T_OPS,
    T_RUNS,
    T_WRONG,
    TOLERANT,
    Log,
    add_up,
    below,
    demoted,
    disable,
    draw_change_points,
    enable,
    give_up,
    highest,
    lowest,
    may_time_out,
    new_change_points,
    new_log,
    new_totals,
    next_random,
    prioritise,
    seeded,
    stopped,
    timed_out,
    to_visible,
    unsettle,
    wake_pollers,
)

SC, POSTED = range(2)
MEMORY_MODELS = ("sc", "posted", "weak")  # which module runs each: lab.sim.machine.engines
_DEVICE = int(Scope.DEVICE)


class Static(NamedTuple):
    """What does not change between runs of one program under one memory model."""

    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    addresses: np.ndarray
    moves: np.ndarray
    sources: np.ndarray
    items: np.ndarray
    values: np.ndarray
    agent_start: np.ndarray
    agent_end: np.ndarray
    agent_rank: np.ndarray
    agent_host: np.ndarray
    block_start: np.ndarray  # of each agent, the first agent of its block: waves follow each other
    block_end: np.ndarray  # and the one after the last
    word_initial: np.ndarray
    word_rank: np.ndarray  # -1: not reached through a link (host-mapped, block-shared)
    cell_initial: np.ndarray
    cell_rank: np.ndarray
    pending_at: np.ndarray  # first slot of State.pending of each row of moves
    reads_at: np.ndarray  # first slot of Log.reads of each row of moves
    link_at: np.ndarray  # first queue slot of each link
    model: int
    world: int


class State(NamedTuple):
    """Everything that a run changes; reused from run to run."""

    registers: np.ndarray
    pc: np.ndarray
    status: np.ndarray
    enabled: np.ndarray
    place: np.ndarray  # position in `enabled`, -1: not there
    word: np.ndarray
    word_writer: np.ndarray  # step that wrote the word last, -1: initial
    waiter: np.ndarray  # first agent parked on a word
    next_waiter: np.ndarray
    cell: np.ndarray
    cell_writer: np.ndarray
    stamp: np.ndarray
    queue: np.ndarray  # (row of ops, address, value or stamp, agent, step)
    queue_head: np.ndarray
    queue_tail: np.ndarray
    pending: np.ndarray
    outstanding: np.ndarray  # undelivered stores by (first agent of a block, destination)
    priority: np.ndarray
    unsettled: np.ndarray  # agents whose next operation has to be looked at before the next choice
    counts: np.ndarray  # see C_*


def static(tables: t.Tables, memory: str) -> Static:
    """Bring `tables` into the machine's form for memory model `memory` ("sc" or "posted")."""
    regions = tables.program.regions
    local = np.array([region.memory in (Memory.HOST_MAPPED, Memory.BLOCK_SHARED) for region in regions], bool)
    word_rank = np.where(local[tables.word_region], -1, tables.word_rank).astype(np.int64)
    counts = tables.moves[:, t.M_COUNT].astype(np.int64)
    reads = counts * np.maximum(tables.moves[:, t.M_N_SOURCES], 0)
    world = tables.program.world
    per_link = np.zeros(world * world + 1, np.int64)
    if memory == "posted":
        per_link[1:] = _stores_per_link(tables, word_rank)
    return Static(
        tables.ops,
        tables.exprs,
        tables.postfix,
        tables.addresses,
        tables.moves,
        tables.sources,
        tables.items,
        tables.values,
        tables.agent_start,
        tables.agent_end,
        tables.agent_rank,
        tables.is_host,
        *_blocks(tables),
        tables.word_initial,
        word_rank,
        tables.cell_initial,
        tables.cell_rank,
        np.concatenate(([0], np.cumsum(counts))),
        np.concatenate(([0], np.cumsum(reads))),
        np.cumsum(per_link),
        MEMORY_MODELS.index(memory),
        world,
    )


def _blocks(tables: t.Tables) -> tuple[np.ndarray, np.ndarray]:
    """int64, one an agent: the first agent of its block, and the one after the last; hosts are alone."""
    agents = tables.program.agents
    place = [(a.rank, a.sequence, a.block) if a.kind != "host" else (a.rank, -1, -1 - a.id) for a in agents]
    new = np.array([k == 0 or place[k] != place[k - 1] for k in range(len(place))], bool)
    start = np.flatnonzero(new).astype(np.int64)
    size = np.diff(start, append=len(place))
    return np.repeat(start, size), np.repeat(start + size, size)


def _stores_per_link(tables: t.Tables, word_rank: np.ndarray) -> np.ndarray:
    """An upper bound of the stores that can be queued on each link (source * world + destination)."""
    world = tables.program.world
    counts = np.zeros((world, world), np.int64)
    for op in tables.ops:
        source = tables.agent_rank[op[t.AGENT]]
        if op[t.KIND] == t.STORE:
            first = op[t.ADDR] if op[t.SELECT] < 0 else tables.addresses[op[t.ADDR]]
            counts[source, word_rank[first]] += 1
        elif op[t.KIND] == t.MOVE:
            counts[source, tables.moves[op[t.ADDR], t.M_RANK]] += 1
    np.fill_diagonal(counts, 0)
    return counts.ravel()


def new_state(s: Static, registers: int) -> State:
    """Allocate the state of a run."""
    agents, links = len(s.agent_start), s.world * s.world
    entities = 2 * agents + links
    queue = int(s.link_at[-1]) + 1
    pending = int(s.pending_at[-1]) + 1 if s.model == POSTED else 1
    packets = np.any(s.ops[:, t.STAMP] >= 0) or np.any(s.ops[:, t.KIND] == t.WAIT_STAMP)
    stamps = len(s.cell_initial) if packets else 1
    return State(
        registers=np.zeros((agents, registers + words.STACK), np.int64),
        pc=np.zeros(agents, np.int32),
        status=np.zeros(agents, np.int8),
        enabled=np.zeros(entities, np.int32),
        place=np.full(entities, -1, np.int32),
        word=np.zeros(len(s.word_initial), np.int64),
        word_writer=np.zeros(len(s.word_initial), np.int32),
        waiter=np.zeros(len(s.word_initial), np.int32),
        next_waiter=np.zeros(agents, np.int32),
        cell=np.zeros(len(s.cell_initial), np.uint64),
        cell_writer=np.zeros(len(s.cell_initial), np.int32),
        stamp=np.zeros(stamps, np.int64),
        queue=np.zeros((queue, 5), np.int64),
        queue_head=np.zeros(links, np.int64),
        queue_tail=np.zeros(links, np.int64),
        pending=np.zeros(pending, np.uint64),
        outstanding=np.zeros((agents, s.world), np.int32),
        priority=np.zeros(entities, np.int64),
        unsettled=np.zeros(4 * agents + 4, np.int32),
        counts=np.zeros(C_ABORTS + 1, np.int64),
    )


@njit(forceinline=True, cache=True, _nrt=False)
def _word_wait_met(s, st, op, agent):
    value = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
    at = words.address(s, st, op, agent)
    if s.ops[op, t.FN] != words.SUM_LE:
        return words.met(s.ops[op, t.FN], st.word[at], value)
    total = np.int64(0)
    for k in range(s.ops[op, t.COUNT]):
        total += words.signed(st.word[at + k])
    return total <= words.signed(value)


@njit(forceinline=True, cache=True, _nrt=False)
def _stamps_met(s, st, op, agent):
    value = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
    row = words.address(s, st, op, agent)
    first = s.sources[s.moves[row, t.M_SOURCES]]
    for k in range(first, first + s.moves[row, t.M_COUNT]):
        if not words.met(s.ops[op, t.FN], st.stamp[s.items[k]], value):
            return False
    return True


@njit(forceinline=True, cache=True, _nrt=False)
def drained(s, op, at):
    """The ranks, as bits, that must have received what an operation's block stored before it may run (model posted).

    `at`: the word or the row of moves that it names.
    """
    kind, sync = s.ops[op, t.KIND], s.ops[op, t.SYNC]
    ranks = np.int64(0)
    if kind == t.FENCE or kind == t.STORE or kind == t.RMW:
        if (sync & 2) and (sync >> 4) >= _DEVICE:
            # A release at device or system scope comes after all earlier stores on every link (s_waitcnt before it):
            # what another block of the rank then hands on by a system release includes them.
            return (np.int64(1) << np.int64(s.world)) - np.int64(1)
    if kind == t.RMW or kind == t.LOAD or kind == t.WAIT:
        # A read does not pass posted stores to the same destination.
        rank = s.word_rank[at]
        if rank >= 0:
            ranks = np.int64(1) << np.int64(rank)
    elif (kind == t.MOVE or kind == t.WAIT_STAMP) and s.moves[at, t.M_COUNT]:
        for k in range(s.moves[at, t.M_SOURCES], s.moves[at, t.M_SOURCES] + s.moves[at, t.M_N_SOURCES]):
            ranks |= np.int64(1) << np.int64(s.cell_rank[s.items[s.sources[k]]])
    return ranks


@njit(forceinline=True, cache=True, _nrt=False)
def _needs_drain(s, st, op, agent):
    """Whether `agent` may not execute `op` before earlier stores of its block are delivered (model posted).

    Happens-before is transitive: what another wave stored before a block barrier is covered by this wave's release,
    and not passed by its reads. Stores of waves that handed nothing over are waited for as well. No outcome is lost by
    that: to all others a store under way is one that is not executed yet, and in another schedule it is not. (Where a
    wave learns of the store through relaxed words alone, which give no order, the race is the race check's to find.)
    """
    at = words.address(s, st, op, agent) if s.ops[op, t.KIND] != t.FENCE else np.int64(-1)
    ranks, rank = drained(s, op, at), 0
    while ranks:
        if ranks & 1 and st.outstanding[s.block_start[agent], rank]:
            return True
        ranks >>= np.int64(1)
        rank += 1
    return False


@njit(forceinline=True, cache=True, _nrt=False)
def _settle(s, st, agent):
    """Run local operations, then enable or park the agent at its next visible one."""
    pc = to_visible(s, st, agent)
    if pc >= s.agent_end[agent]:
        st.status[agent] = FINISHED
        disable(st, agent)
        return
    kind = s.ops[pc, t.KIND]
    if s.model == POSTED and _needs_drain(s, st, pc, agent):
        st.status[agent] = DRAINING
        disable(st, agent)
    elif kind == t.WAIT and not _word_wait_met(s, st, pc, agent):
        disable(st, agent)
        if s.ops[pc, t.FN] == words.SUM_LE:
            st.status[agent] = POLLING
            st.counts[C_POLLERS] += 1
        else:
            at = words.address(s, st, pc, agent)
            st.status[agent] = PARKED
            st.next_waiter[agent] = st.waiter[at]
            st.waiter[at] = agent
    elif kind == t.WAIT_STAMP and not _stamps_met(s, st, pc, agent):
        st.status[agent] = POLLING
        st.counts[C_POLLERS] += 1
        disable(st, agent)
    else:
        st.status[agent] = READY
        enable(st, agent)


@njit(forceinline=True, cache=True, _nrt=False)
def _write_word(st, at, value, step):
    st.word[at] = value
    st.word_writer[at] = step
    agent = st.waiter[at]
    if agent >= 0:
        st.waiter[at] = -1
        while agent >= 0:
            following = st.next_waiter[agent]
            if st.status[agent] == PARKED:
                st.status[agent] = NO_MOVE
                unsettle(st, agent)
            agent = following
    if st.counts[C_POLLERS]:
        wake_pollers(st)


@njit(cache=True, _nrt=False)
def _unpark(s, st, agent):
    """Take an agent that timed out off the list of its word."""
    if st.status[agent] == POLLING:
        st.counts[C_POLLERS] -= 1
        return
    at = words.address(s, st, st.pc[agent], agent)
    if st.waiter[at] == agent:
        st.waiter[at] = st.next_waiter[agent]
        return
    other = st.waiter[at]
    while other >= 0:
        if st.next_waiter[other] == agent:
            st.next_waiter[other] = st.next_waiter[agent]
            return
        other = st.next_waiter[other]


@njit(forceinline=True, cache=True, _nrt=False)
def _move(s, st, log, op, row, agent, step):
    """Execute a copy or reduce: read the sources now; write now, or leave the values to the link."""
    n, first = s.moves[row, t.M_COUNT], s.moves[row, t.M_SOURCES]
    dst, n_sources = s.moves[row, t.M_DST], s.moves[row, t.M_N_SOURCES]
    rank = s.moves[row, t.M_RANK]
    posted = s.model == POSTED and rank != s.agent_rank[agent]
    stamped = s.ops[op, t.STAMP] >= 0
    stamp = np.int64(0)
    if stamped:
        stamp = words.operand(s.exprs, s.postfix, s.ops[op, t.STAMP], st.registers, agent)
    if log.level == LEVEL_FULL:
        for k in range(n_sources):
            for i in range(n):
                log.reads[s.reads_at[row] + k * n + i] = st.cell_writer[s.items[s.sources[first + k] + i]]
    if posted:
        for i in range(n):
            total = np.uint64(0)
            for k in range(n_sources):
                total += st.cell[s.items[s.sources[first + k] + i]]
            st.pending[s.pending_at[row] + i] = total
            if log.level == LEVEL_FULL:
                log.wrote[s.pending_at[row] + i] = total
        _post(s, st, op, row, stamp, agent, rank, step)
        return
    if n_sources == 1:
        source = s.sources[first]
        for i in range(n):
            to = s.items[dst + i]
            st.cell[to] = st.cell[s.items[source + i]]
            st.cell_writer[to] = step
    else:
        for i in range(n):
            total = np.uint64(0)
            for k in range(n_sources):
                total += st.cell[s.items[s.sources[first + k] + i]]
            to = s.items[dst + i]
            st.cell[to] = total
            st.cell_writer[to] = step
    if log.level == LEVEL_FULL:
        for i in range(n):
            log.wrote[s.pending_at[row] + i] = st.cell[s.items[dst + i]]
    if stamped:
        for i in range(n):
            st.stamp[s.items[dst + i]] = stamp
        if st.counts[C_POLLERS]:
            wake_pollers(st)


@njit(forceinline=True, cache=True, _nrt=False)
def _post(s, st, op, address, value, agent, rank, step):
    link = s.agent_rank[agent] * s.world + rank
    slot = s.link_at[link] + st.queue_tail[link]
    st.queue_tail[link] += 1
    st.queue[slot, 0] = op
    st.queue[slot, 1] = address
    st.queue[slot, 2] = value
    st.queue[slot, 3] = agent
    st.queue[slot, 4] = step
    st.outstanding[s.block_start[agent], rank] += 1
    enable(st, len(st.pc) + link)
    for other in range(s.block_start[agent], s.block_end[agent]):
        if other != agent and st.status[other] == READY:
            unsettle(st, other)  # its release or read may have to wait for this store


@njit(forceinline=True, cache=True, _nrt=False)
def _deliver(s, st, link):
    """The oldest store of a link reaches memory."""
    slot = s.link_at[link] + st.queue_head[link]
    st.queue_head[link] += 1
    if st.queue_head[link] == st.queue_tail[link]:
        disable(st, len(st.pc) + link)
    op, address, value = st.queue[slot, 0], st.queue[slot, 1], st.queue[slot, 2]
    agent, step = st.queue[slot, 3], st.queue[slot, 4]
    if s.ops[op, t.KIND] == t.MOVE:
        dst = s.moves[address, t.M_DST]
        for i in range(s.moves[address, t.M_COUNT]):
            to = s.items[dst + i]
            st.cell[to] = st.pending[s.pending_at[address] + i]
            st.cell_writer[to] = step
            if s.ops[op, t.STAMP] >= 0:
                st.stamp[to] = value
        if st.counts[C_POLLERS]:
            wake_pollers(st)
    else:
        _write_word(st, address, value, step)
    st.outstanding[s.block_start[agent], link % s.world] -= 1
    for other in range(s.block_start[agent], s.block_end[agent]):
        if st.status[other] == DRAINING:
            st.status[other] = NO_MOVE
            unsettle(st, other)


@njit(forceinline=True, cache=True, _nrt=False)
def _expect(s, st, log, op, row):
    n, first, at = s.moves[row, t.M_COUNT], s.sources[s.moves[row, t.M_SOURCES]], s.moves[row, t.M_VALUES]
    wrong = 0
    for i in range(n):
        cell = s.items[first + i]
        if log.level == LEVEL_FULL:
            log.reads[s.reads_at[row] + i] = st.cell_writer[cell]
        if st.cell[cell] != s.values[at + i]:
            if log.level == LEVEL_FULL:
                log.wrong[st.counts[C_WRONG] + wrong, 0] = op
                log.wrong[st.counts[C_WRONG] + wrong, 1] = i
            wrong += 1
    if wrong:
        st.counts[C_WRONG_OPS] += 1
        st.counts[C_WRONG] += wrong
    return wrong


@njit(forceinline=True, cache=True, _nrt=False)
def _execute(s, st, log, agent, step):
    """Execute the agent's visible operation."""
    pc = st.pc[agent]
    kind = s.ops[pc, t.KIND]
    st.pc[agent] = pc + 1
    address = np.int64(-1)
    value = np.int64(0)
    seen = np.int32(-1)
    if kind != t.FENCE:
        address = words.address(s, st, pc, agent)
    if kind == t.STORE:
        value = words.operand(s.exprs, s.postfix, s.ops[pc, t.VALUE], st.registers, agent)
        rank = s.word_rank[address]
        if s.model == POSTED and rank >= 0 and rank != s.agent_rank[agent] and not s.agent_host[agent]:
            _post(s, st, pc, address, value, agent, rank, step)
        else:
            _write_word(st, address, value, step)
    elif kind == t.WAIT:
        value = st.word[address]
        seen = st.word_writer[address]
    elif kind == t.LOAD:
        value = st.word[address]
        seen = st.word_writer[address]
        st.registers[agent, s.ops[pc, t.DST]] = value
    elif kind == t.RMW:
        old = st.word[address]
        seen = st.word_writer[address]
        given = words.operand(s.exprs, s.postfix, s.ops[pc, t.VALUE], st.registers, agent)
        expected = np.int64(0)
        if s.ops[pc, t.EXPECTED] >= 0:
            expected = words.operand(s.exprs, s.postfix, s.ops[pc, t.EXPECTED], st.registers, agent)
        if s.ops[pc, t.DST] >= 0:
            st.registers[agent, s.ops[pc, t.DST]] = old
        value = words.rmw(s.ops[pc, t.FN], old, given, expected)
        if s.ops[pc, t.FN] != t.CAS or old == expected:
            _write_word(st, address, value, step)
    elif kind == t.MOVE:
        _move(s, st, log, pc, address, agent, step)
    elif kind == t.FILL:
        dst, at = s.moves[address, t.M_DST], s.moves[address, t.M_VALUES]
        for i in range(s.moves[address, t.M_COUNT]):
            st.cell[s.items[dst + i]] = s.values[at + i]
            st.cell_writer[s.items[dst + i]] = step
            if log.level == LEVEL_FULL:
                log.wrote[s.pending_at[address] + i] = s.values[at + i]
    elif kind == t.EXPECT:
        wrong = _expect(s, st, log, pc, address)
        if s.ops[pc, t.DST] >= 0:
            value = np.int64(wrong > 0)
            st.registers[agent, s.ops[pc, t.DST]] = value
    if log.level == LEVEL_FULL:
        log.op[step] = pc
        log.seen[step] = seen
        log.value[step] = value
        log.row[step] = address
    st.counts[C_OPS] += 1
    unsettle(st, agent)


@njit(forceinline=True, cache=True, _nrt=False)
def _copy(to, source):
    for k in range(len(to)):
        to[k] = source[k]


@njit(forceinline=True, cache=True, _nrt=False)
def _clear(to, value):
    for k in range(len(to)):
        to[k] = value


@njit(cache=True, _nrt=False)
def _reset(s, st):
    _copy(st.pc, s.agent_start)
    _copy(st.word, s.word_initial)
    _copy(st.cell, s.cell_initial)
    _clear(st.status, NO_MOVE)
    _clear(st.place, -1)
    _clear(st.word_writer, -1)
    _clear(st.waiter, -1)
    _clear(st.next_waiter, -1)
    _clear(st.cell_writer, -1)
    _clear(st.stamp, 0)
    _clear(st.queue_head, 0)
    _clear(st.queue_tail, 0)
    for agent in range(st.outstanding.shape[0]):
        for rank in range(st.outstanding.shape[1]):
            st.outstanding[agent, rank] = 0
        for register in range(st.registers.shape[1]):
            st.registers[agent, register] = 0
    _clear(st.counts, 0)
    for agent in range(len(st.pc) - 1, -1, -1):
        unsettle(st, agent)


@njit(cache=True, _nrt=False)
def _is_stale(s, st, agent):
    """Whether the agent's wait was met when the agent was enabled and is not any more."""
    return (
        st.status[agent] == READY
        and s.ops[st.pc[agent], t.KIND] == t.WAIT
        and not _word_wait_met(s, st, st.pc[agent], agent)
    )


@njit(cache=True, _nrt=False)
def _may_choose(s, st, entity):
    """Whether `entity` is enabled, or is the timeout of an agent that may time out."""
    timeouts = len(st.pc) + s.world * s.world
    if entity < timeouts:
        return entity >= 0 and st.place[entity] >= 0
    if entity >= len(st.priority):
        return False
    if _is_stale(s, st, entity - timeouts):
        _settle(s, st, entity - timeouts)  # the run that is repeated polled here without success, which is no step
    return may_time_out(s, st, entity - timeouts)


@njit(forceinline=True, cache=True, _nrt=False)
def _run(s, st, log, policy, seed, choices, change_points, early_timeout, max_steps, stop_on_wrong):
    _reset(s, st)
    agents = len(st.pc)
    first_timeout = agents + s.world * s.world
    x = seeded(seed)
    if policy == PCT:
        x = prioritise(st, x)
    step = np.int64(0)
    cursor = np.int64(0)
    current = np.int64(-1)
    while True:
        while st.counts[C_UNSETTLED]:
            st.counts[C_UNSETTLED] -= 1
            _settle(s, st, st.unsettled[st.counts[C_UNSETTLED]])
        st.counts[C_STEPS] = step
        n = st.counts[C_ENABLED]
        x = next_random(x)
        chosen = np.int64(-1)
        given = False
        if policy == TOLERANT:
            while cursor < len(choices) and not _may_choose(s, st, choices[cursor]):
                cursor += 1
        if (policy == REPLAY or policy == TOLERANT) and cursor < len(choices):
            chosen = np.int64(choices[cursor])
            cursor += 1
            given = True
            if not _may_choose(s, st, chosen):
                return DIVERGED
        elif n == 0:
            chosen = np.int64(timed_out(s, st, x, False))
            if chosen < 0:
                return stopped(s, st)
            chosen += first_timeout
        elif early_timeout > 0 and below(x, 1 << 32) < early_timeout and timed_out(s, st, x, True) >= 0:
            x = next_random(x)  # the number that made it a timeout is small, so it cannot also say whose
            chosen = first_timeout + timed_out(s, st, x, True)
        elif policy == RANDOM:
            chosen = st.enabled[below(x, n)]
        elif policy == PCT:
            chosen = demoted(st, change_points, step, highest(st))
        else:
            chosen = current if current >= 0 and current < agents and st.place[current] >= 0 else lowest(st)
        if step >= max_steps:
            return STEP_LIMIT
        current = chosen
        if log.level != LEVEL_NONE:
            log.choice[step] = chosen
        if chosen < agents:
            if _is_stale(s, st, chosen):
                # Met when the agent was enabled, not any more: it polls again and sees nothing.
                unsettle(st, chosen)
                if policy == REPLAY and given:
                    return DIVERGED
                continue
            _execute(s, st, log, chosen, step)
        elif chosen < first_timeout:
            if log.level == LEVEL_FULL:
                log.op[step] = -1
                log.row[step] = st.queue[s.link_at[chosen - agents] + st.queue_head[chosen - agents], 4]
            _deliver(s, st, chosen - agents)
        else:
            agent = chosen - first_timeout
            _unpark(s, st, agent)
            if log.level == LEVEL_FULL:
                log.op[step] = -2
                log.row[step] = st.pc[agent]
            give_up(s, st, agent)
        step += 1
        st.counts[C_STEPS] = step
        if stop_on_wrong and st.counts[C_WRONG]:
            return DONE


@njit(nogil=True, cache=True, _nrt=False)
def _runs(s, st, log, policy, seed, count, choices, change_points, early_timeout, max_steps, stop_on_wrong, totals):
    # One function that is compiled once: `run` and `batch` both call it.
    outcome = np.int64(DONE)
    for k in range(seed, seed + count):
        if policy == PCT:
            draw_change_points(change_points, k, len(s.ops))
        outcome = _run(s, st, log, policy, k, choices, change_points, early_timeout, max_steps, stop_on_wrong)
        add_up(st, totals, k, outcome)
    return outcome


def run(
    s: Static,
    st: State,
    log: Log,
    policy: int,
    seed: int = 0,
    choices: np.ndarray | None = None,
    early_timeout: int = 0,
    max_steps: int | None = None,
    pct_depth: int = PCT_DEPTH,
) -> int:
    """Run once from the start.

    Args:
        s: From `static`.
        st: From `new_state`; holds the state at the end.
        log: From `new_log`; its level says what is kept.
        policy: RANDOM; PCT; RUN_ON (the same agent until it blocks, then the lowest); REPLAY (`choices`, then RUN_ON);
            TOLERANT (like REPLAY, but leaves out choices that are not enabled).
        seed: Of the scheduler.
        choices: int32 entities: agent a is a, link source * world + destination is agents + that, the timeout of agent
            a is agents + world**2 + a.
        early_timeout: Probability, in 2**-32, that a step is the timeout of a waiting agent although others could move.
        max_steps: Gives up after so many; None: as many as the program can take.
        pct_depth: Of PCT: d - 1 steps, drawn over the program's length, demote the agent that would move there
            (Burckhardt et al., ASPLOS 2010).

    Returns:
        DONE, HANG, STEP_LIMIT or DIVERGED (a choice was not enabled; `st.counts[C_STEPS]` says where).

    Raises:
        LabError: `pct_depth` is less than 1.
    """
    chosen = np.zeros(0, np.int32) if choices is None else np.ascontiguousarray(choices, np.int32)
    limit = 2 * len(s.ops) if max_steps is None else max_steps
    points, totals = new_change_points(pct_depth), new_totals()
    return int(_runs(s, st, log, policy, seed, 1, chosen, points, early_timeout, limit, False, totals))


def batch(
    s: Static,
    st: State,
    log: Log,
    policy: int,
    seed: int,
    count: int,
    early_timeout: int = 0,
    stop_on_wrong: bool = True,
    pct_depth: int = PCT_DEPTH,
) -> np.ndarray:
    """Run seeds `seed`, `seed + 1`, ... `seed + count - 1` (see `run`); returns the totals, indexed by T_*."""
    points, totals = new_change_points(pct_depth), new_totals()
    none = np.zeros(0, np.int32)
    limit = 2 * len(s.ops)
    _runs(s, st, log, policy, seed, count, none, points, early_timeout, limit, stop_on_wrong, totals)
    return totals


def movable(s: Static, st: State) -> list[int]:
    """What can be chosen next, in order: what can move; where nothing can, a bounded wait that gives up."""
    agents = len(st.pc)
    enabled = sorted(st.enabled[: st.counts[C_ENABLED]].tolist())
    movable = [entity for entity in enabled if entity >= agents or not _is_stale(s, st, entity)]
    timeouts = range(agents + s.world * s.world, len(st.priority))
    return movable or [entity for entity in timeouts if _may_choose(s, st, entity)]
