"""One step under sc or posted: who can make one, and what an operation, a delivery and a look at a wait do.

Reference counting is off (`_nrt=False`); nothing here allocates.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.machine import words
from lab.sim.machine.interleaved_state import POSTED, SWAP
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

_BLOCK, _DEVICE = int(Scope.BLOCK), int(Scope.DEVICE)


@njit(forceinline=True, cache=True, _nrt=False)
def _word_wait_met(s, st, op, agent):
    fn = s.ops[op, t.FN]
    if fn >= words.SUM_LE:
        return _other_wait_met(s.ops, s.exprs, s.postfix, s.tests, s.addresses, st.registers, st.word, op, agent)
    value = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
    return words.compares(fn, st.word[words.address(s, st, op, agent)], value)


@njit(cache=True, _nrt=False)
def _other_wait_met(ops, exprs, postfix, tests, addresses, registers, word, op, agent):
    """As `_word_wait_met`, of what few programs wait for. Called: what is inlined slows the whole loop down."""
    fn, at, count = ops[op, t.FN], ops[op, t.ADDR], ops[op, t.COUNT]
    value = words.wanted_by(ops, exprs, postfix, registers, op, agent)
    if fn & t.ANY_OF:
        return _word_that_meets(tests, addresses, word, at, count, fn, value) >= 0
    if ops[op, t.SELECT] >= 0:
        at = addresses[at + words.operand(exprs, postfix, ops[op, t.SELECT], registers, agent)]
    if fn != words.SUM_LE:
        return words.met(tests, fn, word[at], value)
    total = np.int64(0)
    for k in range(count):
        total += words.signed(word[at + k])
    return total <= words.signed(value)


@njit(cache=True, _nrt=False)
def _word_that_meets(tests, addresses, word, at, count, fn, value):
    """The first of several words that meets a wait for any of them; -1: none does."""
    for k in range(at, at + count):
        if words.met(tests, fn, word[addresses[k]], value):
            return np.int64(addresses[k])
    return np.int64(-1)


@njit(forceinline=True, cache=True, _nrt=False)
def _stamps_met(s, st, op, agent):
    value = words.wanted(s, st, op, agent)
    row = words.address(s, st, op, agent)
    first = s.sources[s.moves[row, t.M_SOURCES]]
    for k in range(first, first + s.moves[row, t.M_COUNT]):
        if not words.met(s.tests, s.ops[op, t.FN], st.stamp[s.items[k]], value):
            return False
    return True


@njit(forceinline=True, cache=True, _nrt=False)
def drained(s, op, at):
    """What must have arrived before an operation may run (model posted), as bits of ranks: (own, handed, block).

    own: what the agent itself stored there; handed: what other waves of its block stored there and handed over since;
    block: what they stored there, handed over or not. `at`: the word or the row of moves that the operation names.
    """
    kind, sync = s.ops[op, t.KIND], s.ops[op, t.SYNC]
    handed, block = np.int64(0), np.int64(0)
    every = (np.int64(1) << np.int64(s.world)) - np.int64(1)
    if kind == t.FENCE and sync & t.DRAIN:
        return every, handed, block
    if kind == t.FENCE or kind == t.STORE or kind == t.RMW or (kind == t.WAIT and s.ops[op, t.FN] & SWAP):
        if (sync & 2) and (sync >> 4) >= _DEVICE:
            # A release at device or system scope comes after all earlier stores on every link (s_waitcnt before it):
            # what another block of the rank then hands on by a system release includes them.
            handed = every
    if kind == t.WAIT and words.any_of(s, op):
        for k in range(s.ops[op, t.ADDR], s.ops[op, t.ADDR] + s.ops[op, t.COUNT]):
            rank = s.word_rank[s.addresses[k]]
            block |= np.int64(1) << np.int64(rank) if rank >= 0 else np.int64(0)
    elif kind == t.RMW or kind == t.LOAD or kind == t.WAIT:
        # A read does not pass posted stores to the same destination.
        rank = s.word_rank[at]
        if rank >= 0:
            block = np.int64(1) << np.int64(rank)
    elif (kind == t.MOVE or kind == t.WAIT_STAMP) and s.moves[at, t.M_COUNT]:
        for k in range(s.moves[at, t.M_SOURCES], s.moves[at, t.M_SOURCES] + s.moves[at, t.M_N_SOURCES]):
            block |= np.int64(1) << np.int64(s.cell_rank[s.items[s.sources[k]]])
    return handed | block, handed, block


@njit(forceinline=True, cache=True, _nrt=False)
def hands_over(s, op):
    """Whether an operation hands what its wave stored before to the other waves of the block: a release to them."""
    kind, sync = s.ops[op, t.KIND], s.ops[op, t.SYNC]
    if kind != t.FENCE and kind != t.STORE and kind != t.RMW and (kind != t.WAIT or s.ops[op, t.FN] & SWAP == 0):
        return False
    return sync & 2 != 0 and (sync >> 4) >= _BLOCK


@njit(forceinline=True, cache=True, _nrt=False)
def _needs_drain(s, st, op, agent):
    """Whether `agent` may not execute `op` before earlier stores of its block are delivered (model posted).

    Happens-before is transitive: what another wave stored before a block barrier is covered by this wave's release.
    What it stored since it last released anything to the block is not: nobody can have acquired it. What was handed
    over is waited for whether this wave acquired it or not. No outcome is lost by that: to all others a store under way
    is one that is not executed yet, and in another schedule it is not. (Where a wave learns of such a store through
    relaxed words alone, which give no order, the race is the race check's to find.)
    """
    at = words.address(s, st, op, agent) if s.ops[op, t.KIND] != t.FENCE else np.int64(-1)
    own, handed, block = drained(s, op, at)
    rank = 0
    while own:
        if own & 1:
            if st.outstanding[agent, rank]:
                return True
            for wave in range(s.block_start[agent], s.block_end[agent]):
                if handed & 1 and st.handed[wave, rank]:
                    return True
                if block & 1 and st.outstanding[wave, rank]:
                    return True
        own >>= np.int64(1)
        handed >>= np.int64(1)
        block >>= np.int64(1)
        rank += 1
    return False


@njit(forceinline=True, cache=True, _nrt=False)
def _hand_over(s, st, agent):
    """What an agent stored and is still under way is waited for by releases of the other waves from now on."""
    for rank in range(s.world):
        st.handed[agent, rank] = st.outstanding[agent, rank]
    _look_again(s, st, agent)


@njit(forceinline=True, cache=True, _nrt=False)
def _look_again(s, st, agent):
    """The release or read of another wave of the block may have to wait for a store of this one."""
    for other in range(s.block_start[agent], s.block_end[agent]):
        if other != agent and st.status[other] == READY:
            unsettle(st, other)


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
        if words.looks_at_several(s, pc):
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
    base = s.moves[row, t.M_VALUES]  # what is added to the sources; -1: nothing
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
            total = s.values[base + i] if base >= 0 else np.uint64(0)
            for k in range(n_sources):
                total += st.cell[s.items[s.sources[first + k] + i]]
            st.pending[s.pending_at[row] + i] = total
            if log.level == LEVEL_FULL:
                log.wrote[s.pending_at[row] + i] = total
        _post(s, st, op, row, stamp, agent, rank, step)
        return
    if n_sources == 1 and base < 0:
        source = s.sources[first]
        for i in range(n):
            to = s.items[dst + i]
            st.cell[to] = st.cell[s.items[source + i]]
            st.cell_writer[to] = step
    else:
        for i in range(n):
            total = s.values[base + i] if base >= 0 else np.uint64(0)
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
    st.outstanding[agent, rank] += 1
    enable(st, len(st.pc) + link)
    _look_again(s, st, agent)


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
    st.outstanding[agent, link % s.world] -= 1
    st.handed[agent, link % s.world] = max(0, st.handed[agent, link % s.world] - 1)  # those came first
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
    if s.model == POSTED and s.block_end[agent] - s.block_start[agent] > 1 and hands_over(s, pc):
        _hand_over(s, st, agent)
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
        fn = s.ops[pc, t.FN]
        if fn & t.ANY_OF:
            first, count = s.ops[pc, t.ADDR], s.ops[pc, t.COUNT]
            value = words.wanted_by(s.ops, s.exprs, s.postfix, st.registers, pc, agent)
            address = _word_that_meets(s.tests, s.addresses, st.word, first, count, fn, value)
        value = st.word[address]
        seen = st.word_writer[address]
        if fn & SWAP:
            value = words.operand(s.exprs, s.postfix, s.ops[pc, t.STAMP], st.registers, agent)
            _write_word(st, address, value, step)
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
        if s.ops[pc, t.FN] == t.UPDATE:  # its value is computed of the old one
            given = words.operand(s.exprs, s.postfix, s.ops[pc, t.VALUE], st.registers, agent)
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
def is_stale(s, st, agent):
    """Whether the agent's wait was met when the agent was enabled and is not any more."""
    return (
        st.status[agent] == READY
        and s.ops[st.pc[agent], t.KIND] == t.WAIT
        and not _word_wait_met(s, st, st.pc[agent], agent)
    )
