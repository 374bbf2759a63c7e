"""One step under weak: who can make one, which choices it has, and what an operation does to histories and clocks."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.machine import completion, words
from lab.sim.machine import weak_history as h
from lab.sim.machine.scheduler import (
    C_OPS,
    C_POLLERS,
    C_UNSETTLED,
    C_WRONG,
    C_WRONG_OPS,
    FINISHED,
    LEVEL_FULL,
    NO_MOVE,
    PARKED,
    POLLING,
    READY,
    below,
    disable,
    enable,
    give_up,
    to_visible,
    unsettle,
    wake_pollers,
)
from lab.sim.machine.weak_state import C_CELLS, C_MAYBE, C_SNAPSHOTS, C_WORDS

_SYSTEM = int(Scope.SYSTEM)
_STALE_READ, _EARLY_WRITE = h.STALE_READ, h.EARLY_WRITE
_NOTHING = (np.int64(-1), np.int64(-1), np.int64(-1))


# ---- who can move


@njit(forceinline=True, cache=True, _nrt=False)
def _set_maybe(st, agent, wanted):
    at = st.maybe_place[agent]
    if wanted and at < 0:
        st.maybe_place[agent] = st.counts[C_MAYBE]
        st.maybe[st.counts[C_MAYBE]] = agent
        st.counts[C_MAYBE] += 1
    elif at >= 0 and not wanted:
        last = st.counts[C_MAYBE] - 1
        other = st.maybe[last]
        st.maybe[at] = other
        st.maybe_place[other] = at
        st.maybe_place[agent] = -1
        st.counts[C_MAYBE] = last


@njit(forceinline=True, cache=True, _nrt=False)
def _seen(s, st, op, agent, k):
    """What a poll of word `k` sees in the end."""
    message = h.latest_visible(
        st.words,
        st.records,
        st.clock,
        st.written_back,
        s.agent_rank,
        s.agent_device,
        s.agent_block,
        agent,
        np.int64(st.word_head[k]),
        s.ops[op, t.SYNC] >> 4,
        s.uncached[k],
    )
    return st.words[message, h.VALUE]


@njit(forceinline=True, cache=True, _nrt=False)
def _matching(s, st, op, agent, k, value, want):
    """As `history.options`, of the messages of word `k` that meet a wait."""
    head = np.int64(st.word_head[k])
    return h.options(s.tests, st.words, st.records, st.clock, agent, head, h.MATCH, s.ops[op, t.FN], value, want)


@njit(cache=True, _nrt=False)
def _any_state(s, st, op, agent, value):
    """As `_wait_state`, of a wait for any of several words."""
    state = 0
    for at in range(s.ops[op, t.ADDR], s.ops[op, t.ADDR] + s.ops[op, t.COUNT]):
        k = np.int64(s.addresses[at])
        if words.met(s.tests, s.ops[op, t.FN], _seen(s, st, op, agent, k), value):
            return 2
        if _matching(s, st, op, agent, k, value, 0)[0]:
            state = 1
    return state


@njit(cache=True, _nrt=False)
def _any_option(s, st, op, agent, value, want):
    """(messages that meet a wait for any of several words, the word and the message of the one numbered `want`)."""
    total, word, message = 0, np.int64(-1), np.int64(-1)
    for at in range(s.ops[op, t.ADDR], s.ops[op, t.ADDR] + s.ops[op, t.COUNT]):
        k = np.int64(s.addresses[at])
        count, chosen, _ = _matching(s, st, op, agent, k, value, max(want - total, 0))
        if total <= want < total + count:
            word, message = k, chosen
        total += count
    return min(total, h.MAX_CHOICES), word, message


@njit(cache=True, _nrt=False)
def _swap_state(s, st, op, agent):
    """2: a compare-and-swap tried until it succeeds does so on the newest message; 1: on another one; 0: on none."""
    value = words.operand(s.exprs, s.postfix, s.ops[op, t.EXPECTED], st.registers, agent)
    head = np.int64(st.word_head[words.address(s, st, op, agent)])
    if st.words[head, h.VALUE] == value:
        return 2
    count, _, _ = h.options(s.tests, st.words, st.records, st.clock, agent, head, h.LOCK, s.ops[op, t.FN], value, 0)
    return 1 if count else 0


@njit(forceinline=True, cache=True, _nrt=False)
def _wait_state(s, st, op, agent):
    """2: met by what the agent sees in the end; 1: met only by another message that it may read; 0: not met."""
    value = words.wanted(s, st, op, agent)
    if words.any_of(s, op):
        return _any_state(s, st, op, agent, value)
    at, cond = words.address(s, st, op, agent), s.ops[op, t.FN]
    total, least = np.int64(0), np.int64(0)
    for k in range(at, at + s.ops[op, t.COUNT]):
        seen = _seen(s, st, op, agent, k)
        if cond != words.SUM_LE:
            if words.met(s.tests, cond, seen, value):
                return 2
            return 1 if _matching(s, st, op, agent, k, value, 0)[0] else 0
        total += words.signed(seen)
        head = np.int64(st.word_head[k])
        least += words.signed(st.words[h.least(st.words, st.records, st.clock, agent, head), h.VALUE])
    if total <= words.signed(value):
        return 2
    return 1 if least <= words.signed(value) else 0


@njit(forceinline=True, cache=True, _nrt=False)
def _stamps_state(s, st, op, agent):
    """As `_wait_state`, for packets. They are polled at system scope, whatever their memory."""
    value = words.wanted(s, st, op, agent)
    row = words.address(s, st, op, agent)
    first, cond = s.sources[s.moves[row, t.M_SOURCES]], s.ops[op, t.FN]
    state = 2
    for k in range(first, first + s.moves[row, t.M_COUNT]):
        head = np.int64(st.cell_head[s.items[k]])
        message = h.latest_visible(
            st.cells,
            st.records,
            st.clock,
            st.written_back,
            s.agent_rank,
            s.agent_device,
            s.agent_block,
            agent,
            head,
            _SYSTEM,
            False,
        )
        if not words.met(s.tests, cond, st.cells[message, h.STAMP], value):
            if h.stamped(s.tests, st.cells, st.records, st.clock, agent, head, cond, value, False) < 0:
                return 0
            state = 1
    return state


@njit(forceinline=True, cache=True, _nrt=False)
def _settle(s, st, agent):
    """Run local operations, then enable or park the agent at its next visible one."""
    pc = to_visible(s, st, agent)
    kind, state = t.NOP, 0
    if pc < s.agent_end[agent]:
        kind, state = s.ops[pc, t.KIND], 2
    st.status[agent] = READY if state else FINISHED
    if kind == t.WAIT:
        state = _wait_state(s, st, pc, agent)
    elif kind == t.WAIT_STAMP:
        state = _stamps_state(s, st, pc, agent)
    elif kind == t.RMW and s.ops[pc, t.PATIENT]:
        state = _swap_state(s, st, pc, agent)
    _set_maybe(st, agent, state == 1)
    if state == 2:
        enable(st, agent)
    else:
        disable(st, agent)
    if kind != t.NOP and words.looks_at_several(s, pc):
        st.status[agent] = POLLING
        st.counts[C_POLLERS] += 1
    elif kind == t.WAIT or (kind == t.RMW and s.ops[pc, t.PATIENT]):
        at = words.address(s, st, pc, agent)
        st.status[agent] = PARKED
        st.parked_at[agent] = at
        st.next_waiter[agent] = st.waiter[at]
        st.waiter[at] = agent


@njit(forceinline=True, cache=True, _nrt=False)
def settle_all(s, st):
    """Look at the next operation of every agent for whom something has changed."""
    while st.counts[C_UNSETTLED]:
        st.counts[C_UNSETTLED] -= 1
        _settle(s, st, np.int64(st.unsettled[st.counts[C_UNSETTLED]]))


@njit(forceinline=True, cache=True, _nrt=False)
def _unpark(st, agent):
    """An agent that waited goes on, or has to be settled again: take it off the list of its word."""
    if st.status[agent] == POLLING:
        st.counts[C_POLLERS] -= 1
    elif st.status[agent] == PARKED:
        at = st.parked_at[agent]
        if st.waiter[at] == agent:
            st.waiter[at] = st.next_waiter[agent]
        else:
            other = st.waiter[at]
            while st.next_waiter[other] != agent:
                other = st.next_waiter[other]
            st.next_waiter[other] = st.next_waiter[agent]
    st.status[agent] = NO_MOVE


@njit(cache=True, _nrt=False)
def _wake_waiting(st):
    """What agents wait for may have become visible, overwritten by what is visible now, or unreadable."""
    for agent in range(len(st.pc)):
        if st.status[agent] == PARKED or st.status[agent] == POLLING:
            _unpark(st, agent)
            unsettle(st, agent)


# ---- operations


@njit(cache=True, _nrt=False)
def _told(s, st, agent, known, released):
    """The snapshot that a store carries: what a release made `known` (-1: nothing), and what its agent has heard."""
    if known >= 0 and known == released:
        return known  # taken just now
    at, chains = st.counts[C_SNAPSHOTS], s.reach.shape[1]
    st.counts[C_SNAPSHOTS] += 1
    for c in range(st.clock.shape[1]):
        st.snapshots[at, c] = st.snapshots[known, c] if known >= 0 else 0
    completion.hear(st.snapshots[at], st.clock[agent], chains)
    return at


@njit(forceinline=True, cache=True, _nrt=False)
def _write_word(s, st, op, at, value, agent, step, older, newer):
    """Put a message between `older` and `newer` (-1: last), and wake who waits for the word."""
    message = st.counts[C_WORDS]
    st.counts[C_WORDS] += 1
    chain = s.agent_chain[agent]
    sync = s.ops[op, t.SYNC]
    st.words[message, h.VALUE] = value
    st.words[message, h.STEP] = step
    st.words[message, h.CHAIN] = chain
    st.words[message, h.TIME] = st.clock[agent, chain]
    st.words[message, h.OLDER] = older
    st.words[message, h.RECORD] = -1
    st.words[message, h.OWNER] = agent << 3 | s.word_part[at] << 1 | s.at_once[op]
    st.words[message, h.GLUED] = s.ops[op, t.KIND] == t.RMW
    released = np.int64(-1)
    if sync & 2:
        # Release: pairs with an acquiring read of this message, or of one that continues its release sequence.
        released = st.counts[C_SNAPSHOTS] - 1
    for level in range(1, 4):
        known = released if sync & 2 else np.int64(st.fence[agent, level])
        known = known if level <= sync >> 4 else np.int64(-1)
        st.words[message, h.RELEASED + level] = _told(s, st, agent, known, released) if len(s.reach) else known
    if newer < 0:
        st.word_head[at] = message
    else:
        st.words[newer, h.OLDER] = message
    waiting = st.waiter[at]
    st.waiter[at] = -1
    while waiting >= 0:
        following = st.next_waiter[waiting]
        st.status[waiting] = NO_MOVE
        unsettle(st, waiting)
        waiting = following
    if st.counts[C_POLLERS]:
        wake_pollers(st)


@njit(forceinline=True, cache=True, _nrt=False)
def _released_by_fences(s, st, agent, stamped):
    """The snapshots that a packet carries at block, device and system scope."""
    if stamped and len(s.reach):
        none = np.int64(-1)
        return (
            _told(s, st, agent, np.int64(st.fence[agent, 1]), none),
            _told(s, st, agent, np.int64(st.fence[agent, 2]), none),
            _told(s, st, agent, np.int64(st.fence[agent, 3]), none),
        )
    return np.int64(st.fence[agent, 1]), np.int64(st.fence[agent, 2]), np.int64(st.fence[agent, 3])


@njit(forceinline=True, cache=True, _nrt=False)
def _write_cell(s, st, op, to, value, stamp, told, agent, step, early):
    message = st.counts[C_CELLS]
    st.counts[C_CELLS] += 1
    chain = s.agent_chain[agent]
    older = np.int64(st.cell_head[to])
    if early and not h.covered(st.cells, st.records, st.clock, agent, older):
        newer = older
        older = st.cells[newer, h.OLDER]
        while not h.covered(st.cells, st.records, st.clock, agent, older):
            newer = older
            older = st.cells[newer, h.OLDER]
        st.cells[newer, h.OLDER] = message
    else:
        st.cell_head[to] = message
    st.cells[message, h.VALUE] = value
    st.cells[message, h.STEP] = step
    st.cells[message, h.CHAIN] = chain
    st.cells[message, h.TIME] = st.clock[agent, chain]
    st.cells[message, h.OLDER] = older
    st.cells[message, h.RECORD] = -1
    st.cells[message, h.OWNER] = agent << 3 | s.cell_part[to] << 1 | s.at_once[op]
    st.cells[message, h.STAMP] = stamp if stamp >= 0 else st.cells[older, h.STAMP]
    if st.cells.shape[1] > h.CELL_COLUMNS:
        for level in range(1, 4):
            st.cells[message, h.RELEASED + level] = told[level - 1] if stamp >= 0 else -1


@njit(forceinline=True, cache=True, _nrt=False)
def _read_cell(st, cell, agent, stale):
    message = np.int64(st.cell_head[cell])
    if stale:
        message = h.oldest(st.cells, st.records, st.clock, agent, message)
    return message


@njit(forceinline=True, cache=True, _nrt=False)
def _move(s, st, log, op, row, agent, step, choice):
    n, first = s.moves[row, t.M_COUNT], s.moves[row, t.M_SOURCES]
    dst, n_sources = s.moves[row, t.M_DST], s.moves[row, t.M_N_SOURCES]
    stale, early = choice & _STALE_READ, choice & _EARLY_WRITE
    stamped = s.ops[op, t.STAMP] >= 0
    stamp = np.int64(-1)
    if stamped:
        stamp = words.operand(s.exprs, s.postfix, s.ops[op, t.STAMP], st.registers, agent)
    told = _released_by_fences(s, st, agent, stamped)
    base = s.moves[row, t.M_VALUES]  # what is added to the sources; -1: nothing
    for i in range(n):
        total = np.int64(s.values[base + i]) if base >= 0 else np.int64(0)
        for k in range(n_sources):
            message = _read_cell(st, s.items[s.sources[first + k] + i], agent, stale)
            total += st.cells[message, h.VALUE]
            if log.level == LEVEL_FULL:
                log.reads[s.reads_at[row] + k * n + i] = st.cells[message, h.STEP]
        _write_cell(s, st, op, s.items[dst + i], total, stamp, told, agent, step, early)
        if log.level == LEVEL_FULL:
            log.wrote[s.pending_at[row] + i] = np.uint64(total)
    if stamped and st.counts[C_POLLERS]:
        wake_pollers(st)


@njit(forceinline=True, cache=True, _nrt=False)
def _expect(s, st, log, op, row, agent, choice):
    n, first, at = s.moves[row, t.M_COUNT], s.sources[s.moves[row, t.M_SOURCES]], s.moves[row, t.M_VALUES]
    wrong = 0
    for i in range(n):
        message = _read_cell(st, s.items[first + i], agent, choice & _STALE_READ)
        if log.level == LEVEL_FULL:
            log.reads[s.reads_at[row] + i] = st.cells[message, h.STEP]
        if np.uint64(st.cells[message, h.VALUE]) != s.values[at + i]:
            if log.level == LEVEL_FULL:
                log.wrong[st.counts[C_WRONG] + wrong, 0] = op
                log.wrong[st.counts[C_WRONG] + wrong, 1] = i
            wrong += 1
    if wrong:
        st.counts[C_WRONG_OPS] += 1
        st.counts[C_WRONG] += wrong
    return wrong


@njit(forceinline=True, cache=True, _nrt=False)
def _wait_stamps(s, st, log, op, row, agent, choice):
    value = words.wanted(s, st, op, agent)
    first, cond = s.sources[s.moves[row, t.M_SOURCES]], s.ops[op, t.FN]
    for i in range(s.moves[row, t.M_COUNT]):
        head = np.int64(st.cell_head[s.items[first + i]])
        message = h.stamped(s.tests, st.cells, st.records, st.clock, agent, head, cond, value, choice > 0)
        # The packet's data came with its stamp: the agent may not read an older packet afterwards.
        h.know(st.cells, st.records, st.clock, agent, message, s.agent_chain[agent], st.counts)
        h.synchronise_with(
            st.cells,
            st.snapshots,
            st.clock,
            st.pending,
            s.agent_device,
            s.agent_block,
            s.reach,
            agent,
            message,
            _SYSTEM << 4,
            s.fences,
        )
        if log.level == LEVEL_FULL:
            log.reads[s.reads_at[row] + i] = st.cells[message, h.STEP]


@njit(cache=True, _nrt=False)
def valid(s, st, agent):
    """The choices of an agent that can move or that luck lets go, as bits."""
    op = st.pc[agent]
    kind = s.ops[op, t.KIND]
    if kind == t.FENCE:
        return 1
    at = words.address(s, st, op, agent)
    if kind == t.MOVE or kind == t.FILL or kind == t.EXPECT:
        found = h.payload_choices(s.moves, s.sources, s.items, st.cells, st.records, st.clock, st.cell_head, at, agent)
        return (1, 3, 5, 15)[found]
    cond = s.ops[op, t.FN]
    if kind == t.WAIT and words.any_of(s, op):
        count, _, _ = _any_option(s, st, op, agent, words.wanted(s, st, op, agent), 0)
        return (1 << count) - 1
    if words.looks_at_several(s, op):
        return 3  # the newest of each word or packet that fit, or the oldest packets, the least words
    mode = h.READ if kind == t.LOAD else h.MATCH if kind == t.WAIT else h.PLACE
    value = np.int64(0)
    if kind == t.WAIT:
        value = words.wanted(s, st, op, agent)
    elif kind == t.RMW and s.ops[op, t.FN] == t.CAS:
        mode, value = (
            h.LOCK if s.ops[op, t.PATIENT] else h.SWAP,
            words.operand(s.exprs, s.postfix, s.ops[op, t.EXPECTED], st.registers, agent),
        )
    head = np.int64(st.word_head[at])
    count, _, _ = h.options(s.tests, st.words, st.records, st.clock, agent, head, mode, cond, value, 0)
    return (1 << count) - 1


@njit(forceinline=True, cache=True, _nrt=False)
def _learn(s, st, agent, message, chain, sync):
    """An agent has read a message of a word: it may not read an older one, and acquires what the message released."""
    h.know(st.words, st.records, st.clock, agent, message, chain, st.counts)
    h.synchronise(
        st.words,
        st.snapshots,
        st.clock,
        st.pending,
        s.agent_device,
        s.agent_block,
        s.reach,
        agent,
        message,
        sync,
        s.fences,
    )


@njit(forceinline=True, cache=True, _nrt=False)
def _another(x, count):
    """A choice other than the first of `count`: the oldest in half of the cases, any in the others."""
    return count - 1 if x & np.uint64(1) else 1 + below(x << np.uint64(20), count - 1)


@njit(forceinline=True, cache=True, _nrt=False)
def _read_sum(s, st, op, at, agent, choice):
    """A wait for the sum of several words reads the newest of each where these fit, the least of each otherwise."""
    value = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
    total = np.int64(0)
    for k in range(at, at + s.ops[op, t.COUNT]):
        total += words.signed(st.words[st.word_head[k], h.VALUE])
    least = choice > 0 or total > words.signed(value)
    for k in range(at, at + s.ops[op, t.COUNT]):
        message = np.int64(st.word_head[k])
        if least:
            message = h.least(st.words, st.records, st.clock, agent, message)
        _learn(s, st, agent, message, s.agent_chain[agent], s.ops[op, t.SYNC])


@njit(forceinline=True, cache=True, _nrt=False)
def _release(s, st, agent, scope):
    """Take a snapshot of what the agent knows; a system release writes back what its rank has stored before."""
    if len(s.reach) and scope >= _SYSTEM:
        completion.write_back(st.clock[agent], s.reach[agent], s.reach.shape[1])
    at = st.counts[C_SNAPSHOTS]
    st.counts[C_SNAPSHOTS] += 1
    for c in range(st.clock.shape[1]):
        st.snapshots[at, c] = st.clock[agent, c]
    if s.written_back and scope >= _SYSTEM:
        rank = s.agent_rank[agent]
        for c in range(st.clock.shape[1]):
            st.written_back[rank, c] = max(st.written_back[rank, c], st.clock[agent, c])
        for c in range(s.reach.shape[1]):
            heard = st.clock[agent, (completion.HEARD + completion.WRITTEN_BACK) * s.reach.shape[1] + c]
            st.written_back[rank, c] = max(st.written_back[rank, c], heard)
        _wake_waiting(st)
    return at


@njit(cache=True, _nrt=False)
def _fence(s, st, agent, order, scope):
    if order & 1:
        # Acquire fence: pairs with releases seen by this agent's earlier relaxed reads.
        for level in range(1, scope + 1):
            for c in range(st.clock.shape[1]):
                st.clock[agent, c] = max(st.clock[agent, c], st.pending[agent, level, c])
        if len(s.reach):
            completion.rely(st.clock[agent], st.clock[agent], s.reach[agent], scope, s.reach.shape[1])
    if order & 2:
        # Release fence: pairs with acquiring reads of this agent's later relaxed stores.
        at = _release(s, st, agent, scope)
        for level in range(1, scope + 1):
            st.fence[agent, level] = at


@njit(forceinline=True, cache=True, _nrt=False)
def _execute(s, st, log, agent, step, given, x, stale):
    """Execute the agent's visible operation; returns the choice made: `given`, or where that is -1 a random one."""
    op = st.pc[agent]
    kind, sync = s.ops[op, t.KIND], s.ops[op, t.SYNC]
    st.pc[agent] = op + 1
    chain = s.agent_chain[agent]
    st.ticks[chain] += 1
    st.clock[agent, chain] = st.ticks[chain]
    address = np.int64(-1)
    value = np.int64(0)
    seen = np.int64(-1)
    choice = max(given, 0)
    other = given < 0 and below(x, 1 << 16) < stale
    if kind != t.FENCE:
        address = words.address(s, st, op, agent)
    if kind == t.WAIT and words.any_of(s, op):
        wanted, count, message = words.wanted(s, st, op, agent), 2, np.int64(-1)
        while True:
            count, address, message = _any_option(s, st, op, agent, wanted, choice)
            if not other or count < 2:
                break
            other = False
            choice = _another(x, count)
        seen, value = st.words[message, h.STEP], st.words[message, h.VALUE]
        _learn(s, st, agent, message, chain, sync)
    elif kind == t.LOAD or kind == t.STORE or kind == t.RMW or (kind == t.WAIT and s.ops[op, t.FN] != words.SUM_LE):
        mode = h.READ if kind == t.LOAD else h.MATCH if kind == t.WAIT else h.PLACE
        wanted = expected = np.int64(0)
        if kind != t.LOAD:
            wanted = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
        if kind == t.WAIT:
            wanted = words.wanted(s, st, op, agent)
        if kind == t.RMW and s.ops[op, t.FN] == t.CAS:
            mode, expected = (
                h.LOCK if s.ops[op, t.PATIENT] else h.SWAP,
                words.operand(s.exprs, s.postfix, s.ops[op, t.EXPECTED], st.registers, agent),
            )
        count, message, newer = 2, np.int64(-1), np.int64(-1)
        while True:
            count, message, newer = h.options(
                s.tests,
                st.words,
                st.records,
                st.clock,
                agent,
                np.int64(st.word_head[address]),
                mode,
                s.ops[op, t.FN],
                expected if mode == h.SWAP or mode == h.LOCK else wanted,
                choice,
            )
            if not other or count < 2:
                break
            other = False
            choice = _another(x, count)
        if kind != t.STORE:
            seen = st.words[message, h.STEP]
            value = st.words[message, h.VALUE]
            _learn(s, st, agent, message, chain, sync)
            if kind != t.WAIT and s.ops[op, t.DST] >= 0:
                st.registers[agent, s.ops[op, t.DST]] = value
            if kind == t.RMW and s.ops[op, t.FN] == t.UPDATE:  # its value is computed of the old one
                wanted = words.operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)
        if (kind == t.WAIT or kind == t.RMW) and sync & t.BOUNDARY:
            # A kernel starts: a fence behind the wait. It ends: a fence before the addition, which releases itself.
            _fence(s, st, agent, (1 if s.fences else 0) | (2 if kind == t.WAIT else 0), sync >> 4)
        if kind == t.STORE or (kind == t.RMW and (mode == h.PLACE or value == expected)):
            # A compare-and-swap that fails writes nothing and so releases nothing.
            value = wanted if kind == t.STORE else words.rmw(s.ops[op, t.FN], value, wanted, expected)
            if sync & 2:
                _release(s, st, agent, sync >> 4)
            _write_word(s, st, op, address, value, agent, step, message, newer)
    elif kind == t.FENCE and sync & t.DRAIN:
        completion.drain(st.clock[agent], chain, st.ticks[chain], s.reach.shape[1])
    elif kind == t.FENCE:
        _fence(s, st, agent, sync & 3, sync >> 4)
    elif kind == t.WAIT:
        seen = st.words[st.word_head[address], h.STEP]
        value = st.words[st.word_head[address], h.VALUE]
        choice = 1 if other else choice
        _read_sum(s, st, op, address, agent, choice)
    elif kind == t.WAIT_STAMP:
        choice = 1 if other else choice
        _wait_stamps(s, st, log, op, address, agent, choice)
    else:
        if other:
            choice = h.payload_choices(
                s.moves, s.sources, s.items, st.cells, st.records, st.clock, st.cell_head, address, agent
            )
            if x & np.uint64(1):
                choice &= 1 + np.int64(x >> np.uint64(1) & np.uint64(1))
        if kind == t.MOVE:
            _move(s, st, log, op, address, agent, step, choice)
        elif kind == t.FILL:
            dst, at = s.moves[address, t.M_DST], s.moves[address, t.M_VALUES]
            for i in range(s.moves[address, t.M_COUNT]):
                filled = np.int64(s.values[at + i])
                _write_cell(
                    s, st, op, s.items[dst + i], filled, np.int64(-1), _NOTHING, agent, step, choice & _EARLY_WRITE
                )
                if log.level == LEVEL_FULL:
                    log.wrote[s.pending_at[address] + i] = s.values[at + i]
        else:
            value = np.int64(_expect(s, st, log, op, address, agent, choice) > 0)
            if s.ops[op, t.DST] >= 0:
                st.registers[agent, s.ops[op, t.DST]] = value
    if log.level == LEVEL_FULL:
        log.op[step] = op
        log.seen[step] = seen
        log.value[step] = value
        log.row[step] = address
    st.counts[C_OPS] += 1
    unsettle(st, agent)
    return choice


@njit(forceinline=True, cache=True, _nrt=False)
def move_on(s, st, log, agent, step, given, gives_up, x, stale):
    """Make an agent's next step: its operation, or (`gives_up`) the timeout of its wait; returns the choice made."""
    _unpark(st, agent)
    if not gives_up:
        return _execute(s, st, log, agent, step, given, x, stale)
    if log.level == LEVEL_FULL:
        log.op[step] = -2
        log.row[step] = st.pc[agent]
    if s.ops[st.pc[agent], t.CLOCK] > 0:
        h.arrive(s.uncached, st.words, st.word_head)
        _wake_waiting(st)
    give_up(s, st, agent)
    return given
