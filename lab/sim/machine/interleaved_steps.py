"""One step under sc or posted: who can make one, and what an operation, a delivery and a look at a wait do.

Reference counting is off (`_nrt=False`); nothing here allocates.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.machine import words
from lab.sim.machine.interleaved_state import POSTED
from lab.sim.machine.scheduler import (
    C_OPS,
    C_POLLERS,
    C_WRONG,
    C_WRONG_OPS,
    DRAINING,
    FINISHED,
    LEVEL_FULL,
    NO_MOVE,
    PARKED,
    POLLING,
    READY,
    disable,
    enable,
    to_visible,
    unsettle,
    wake_pollers,
)

_DEVICE = int(Scope.DEVICE)


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
def settle(s, st, agent):
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
def unpark(s, st, agent):
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
def deliver(s, st, link):
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
def execute(s, st, log, agent, step):
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


@njit(cache=True, _nrt=False)
def is_stale(s, st, agent):
    """Whether the agent's wait was met when the agent was enabled and is not any more."""
    return (
        st.status[agent] == READY
        and s.ops[st.pc[agent], t.KIND] == t.WAIT
        and not _word_wait_met(s, st, st.pc[agent], agent)
    )
