"""Vector clocks of one execution, computed from what each word read saw, with scopes and orders.

* A write releases with its own order, or through the last release fence before it; at scope s, to agents inside s.
* A read-modify-write continues the release sequence of the write that it replaces; a plain store ends it (C++20).
* A wait joins the *first* write of the word's modification order that meets its condition and that the waiter may still
  read. Joining the last one seen would hide races that another schedule shows. A load whose result nobody uses is a
  wait for anything.
* A relaxed read gives order only through a later acquire fence. Where a kernel starts and ends there is a fence too.
* Two agents synchronise when the scopes of both sides include the other: wave < block < device (rank) < system.
* A drain makes the earlier accesses of its agent complete, for whoever hears of it and acquires: `completion.py`.
* A packet (a stamped store) is, cell by cell, a relaxed atomic store at system scope, and a wait for stamps a relaxed
  read. As above it joins the first packet that meets it, and gives order through fences only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.machine import completion, words
from lab.sim.machine.execution import Execution

_BLOCK, _DEVICE, _SYSTEM = int(Scope.BLOCK), int(Scope.DEVICE), int(Scope.SYSTEM)
_LEVELS = 4


@dataclass(frozen=True)
class Clocks:
    """Vector clocks of an execution.

    Attributes:
        rows: int32 (steps, chains): what each step knows of every chain, itself included. Where a program drains, more
            columns follow: the parts of `completion.py`.
        time: int32 (steps,): the step's own time on its chain; 0 for deliveries and timeouts.
        chain: int32 (steps,): its chain.
        joined: int32 (steps,): the step whose write a word read joined, -1: the initial value, or no read.
        wanted: int64 (steps,): what a wait compared with.
        stamp: int64 (steps,): what a step stamped, -1: nothing.
        polls: int32 (polls, 3): for each cell of each wait for stamps, in the order of the execution, its step, the
            cell, and the step of the packet that it joined; -1: what the cell held at first.
    """

    rows: np.ndarray
    time: np.ndarray
    chain: np.ndarray
    joined: np.ndarray
    wanted: np.ndarray
    stamp: np.ndarray
    polls: np.ndarray


def clocks(execution: Execution, guards_only: bool = False, waits_only: bool = False) -> Clocks:
    """Compute the vector clocks of an execution.

    With `guards_only`, the order that holds in every schedule whatever the memory orders say: a wait comes after the
    write that first meets it, and nothing else orders two agents. With `waits_only`, what loads and read-modify-writes
    acquire does not count.
    """
    tables = execution.tables
    steps = execution.steps
    sent, polled = _packet_counts(execution)
    cells = len(tables.cell_start) if sent or polled else 0
    stamp, polls = np.full(steps, -1, np.int64), np.zeros((polled, 3), np.int32)
    n_agents = len(tables.agent_start)
    parts = 1 if guards_only else completion.parts_of(tables)
    reach = completion.reach(tables) if parts > 1 else np.zeros((0, 0), np.int8)
    chains = reach.shape[1] * parts if len(reach) else tables.program.chains
    rows = np.zeros((steps, chains), np.int32)
    time, chain = np.zeros(steps, np.int32), np.full(steps, -1, np.int32)
    joined, wanted = np.full(steps, -1, np.int32), np.zeros(steps, np.int64)
    program = tables.program
    agent_block = np.array([a.block if a.kind != "host" else -1 for a in program.agents], np.int64)
    agent_call = np.array([a.sequence for a in program.agents], np.int64)
    _clocks(
        steps,
        tables.ops,
        execution.log.op,
        execution.log.seen,
        execution.log.value,
        execution.log.row,
        tables.agent_rank,
        agent_block,
        agent_call,
        tables.is_host,
        tables.agent_chain,
        tables.exprs,
        tables.postfix,
        tables.tests,
        tables.word_initial,
        np.zeros((n_agents, tables.registers + words.STACK), np.int64),
        rows,
        time,
        chain,
        joined,
        wanted,
        stamp,
        (tables.moves, tables.sources, tables.items),
        (np.full(cells, -1, np.int64), np.zeros((sent, 2), np.int64)),
        (np.full(cells, -1, np.int64), np.zeros(polled, np.int64)),
        polls,
        reach,
        guards_only,
        waits_only,
    )
    return Clocks(rows, time, chain, joined, wanted, stamp, polls)


def _packet_counts(execution: Execution) -> tuple[int, int]:
    """How many cells packets write, and how many waits for stamps look at, counted each time."""
    ops, log = execution.tables.ops, execution.log
    steps = np.flatnonzero(log.op[: execution.steps] >= 0)
    ran = log.op[steps]
    sends, waits = steps[ops[ran, t.STAMP] >= 0], steps[ops[ran, t.KIND] == t.WAIT_STAMP]
    sent, polled = (int(execution.tables.moves[log.row[some], t.M_COUNT].sum()) for some in (sends, waits))
    return sent, polled


@njit(forceinline=True, cache=True)
def _needed_scope(a, b, rank, block, call, host):
    """The narrowest scope that holds both agents."""
    if a == b:
        return 0
    if host[a] or host[b] or rank[a] != rank[b]:
        return _SYSTEM
    if call[a] == call[b] and block[a] == block[b]:
        return _BLOCK
    return _DEVICE


@njit(forceinline=True, cache=True)
def join(into, other):
    """Let a clock (int32, one time a chain) know what another knows."""
    for c in range(len(into)):
        if other[c] > into[c]:
            into[c] = other[c]


@njit(cache=True)
def _join_released(
    now, pending, agent, acquires, scope, write, released, is_rmw, previous, writer, rows, places, reach
):
    """Join what a write released to `agent`, and through a chain of RMWs what the writes before it did.

    Each of them synchronises by itself: its scope and the reader's must include the other's agent. A relaxed read
    keeps what it saw for a later acquire fence. What the writer had heard of drains can be relied on by who acquires.
    """
    rank, block, call, host = places
    while write >= 0:
        needed = _needed_scope(agent, writer[write], rank, block, call, host)
        level = max(needed, 1)
        row = released[write, level]
        if row >= 0 and scope >= needed:
            join(now[agent] if acquires else pending[agent, level], rows[row])
        if len(reach) and acquires and scope >= needed:
            completion.rely(now[agent], rows[write], reach[agent], scope, reach.shape[1])
        if not is_rmw[write]:
            return
        write = previous[write]


@njit(cache=True)
def _hear(now, write, is_rmw, previous, rows, chains):
    """Hear of drains what the writer of a word had heard, and through a chain of RMWs the writers before it."""
    while write >= 0:
        completion.hear(now, rows[write], chains)
        if not is_rmw[write]:
            return
        write = previous[write]


@njit(cache=True)
def _registers_read(ops, exprs, postfix, n_agents):
    """Registers that some operation of each agent reads, as bits."""
    read = np.zeros(n_agents, np.uint64)
    for op in range(len(ops)):
        for column in (t.VALUE, t.SELECT, t.EXPECTED, t.STAMP):
            row = ops[op, column]
            if row < 0 or (column == t.VALUE and not _has_value(ops[op, t.KIND])):
                continue
            mode, a, b = exprs[row]
            if mode == t.REGISTER or mode == t.REGISTER_PLUS:
                read[ops[op, t.AGENT]] |= np.uint64(1) << np.uint64(a)
            elif mode == t.POSTFIX:
                for k in range(a, a + b):
                    if postfix[k, 0] == t.PUSH_REG:
                        read[ops[op, t.AGENT]] |= np.uint64(1) << np.uint64(postfix[k, 1])
    return read


@njit(forceinline=True, cache=True)
def _has_value(kind):
    return kind in (t.STORE, t.RMW, t.WAIT, t.SET, t.BRANCH, t.WAIT_STAMP)


@njit(cache=True, nogil=True)
def _clocks(
    steps,
    ops,
    log_op,
    log_seen,
    log_value,
    log_row,
    rank,
    block,
    call,
    host,
    agent_chain,
    exprs,
    postfix,
    tests,
    initial,
    registers,
    rows,
    time,
    chain,
    joined,
    wanted,
    stamp,
    payload,
    packets,
    seen_before,
    polls,
    reach,
    guards_only,
    waits_only,
):
    n_agents, n_chains, drains = len(rank), rows.shape[1], len(reach) > 0
    if drains:
        n_chains = reach.shape[1]
    now = np.zeros((n_agents, rows.shape[1]), np.int32)
    ticks = np.zeros(n_chains, np.int32)
    fence = np.full((n_agents, _LEVELS), -1, np.int32)  # step of the last release fence at least that wide
    pending = np.zeros((n_agents, _LEVELS, rows.shape[1]), np.int32)  # what relaxed reads saw released, by scope needed
    released = np.full((steps, _LEVELS), -1, np.int32)  # step whose clock a write releases at each scope
    is_rmw = np.zeros(steps, np.bool_)
    previous = np.full(steps, -1, np.int32)  # the write before it on the same word
    last = np.full(len(initial), -1, np.int32)
    writer = np.full(steps, -1, np.int32)
    earliest = np.full(steps, -1, np.int32)  # the earliest write that a read may have seen
    read_before = np.full(steps, -1, np.int32)  # the read before it of the same agent
    last_read = np.full(n_agents, -1, np.int32)
    used = _registers_read(ops, exprs, postfix, n_agents)
    places = (rank, block, call, host)
    sent = polled = 0
    started = np.zeros(n_agents, np.bool_)
    for op in range(len(ops)):
        if not started[ops[op, t.AGENT]]:
            started[ops[op, t.AGENT]] = True
            _local(ops, op, exprs, postfix, registers, ops[op, t.AGENT])
    for step in range(steps):
        op = log_op[step]
        if op == -2:
            gave_up = log_row[step]
            _local(ops, ops[gave_up, t.TARGET], exprs, postfix, registers, ops[gave_up, t.AGENT])
        if op < 0:
            continue
        agent = ops[op, t.AGENT]
        kind, sync = ops[op, t.KIND], ops[op, t.SYNC]
        order, scope = sync & 3, sync >> 4
        if guards_only:
            scope = _SYSTEM
            order = (1 if kind == t.WAIT else 0) | (2 if kind == t.STORE or kind == t.RMW else 0)
        c = agent_chain[agent]
        ticks[c] += 1
        now[agent, c] = ticks[c]
        time[step], chain[step] = ticks[c], c
        at = log_row[step]
        reads = kind == t.LOAD or kind == t.WAIT or kind == t.RMW
        if reads:
            # A wait joins the first write that meets it, and a read whose result nobody uses the first that it may
            # see: another schedule may show it that one. A read that is used decides what its agent does, so here it
            # has seen what it saw.
            fn, value = words.ANY, np.int64(0)
            if kind == t.WAIT:
                fn, value = ops[op, t.FN], words.wanted_by(ops, exprs, postfix, registers, op, agent)
                wanted[step] = value
            if fn == words.SUM_LE:
                earliest[step] = log_seen[step]
            else:
                floor = _last_seen(last_read[agent], at, log_row, earliest, read_before)
                earliest[step] = _first_satisfying(
                    log_seen[step], tests, fn, value, log_value, previous, now[agent], time, chain, initial[at], floor
                )
            is_used = kind != t.WAIT and ops[op, t.DST] >= 0 and used[agent] >> np.uint64(ops[op, t.DST]) & np.uint64(1)
            is_used = is_used or (kind == t.RMW and ops[op, t.PATIENT] > 0)  # who holds a lock decides what follows
            joined[step] = log_seen[step] if is_used else earliest[step]
            read_before[step], last_read[agent] = last_read[agent], step
            acquires = order & 1 != 0
            if (acquires or not guards_only) and (kind == t.WAIT or not waits_only):
                for k in range(ops[op, t.COUNT] if fn == words.SUM_LE else 1):
                    seen = joined[step] if k == 0 else last[at + k]
                    if drains:
                        _hear(now[agent], seen, is_rmw, previous, rows, n_chains)
                    if seen >= 0 and scope >= _needed_scope(agent, writer[seen], rank, block, call, host):
                        _join_released(
                            now,
                            pending,
                            agent,
                            acquires,
                            scope,
                            seen,
                            released,
                            is_rmw,
                            previous,
                            writer,
                            rows,
                            places,
                            reach,
                        )
        writes = kind == t.STORE or kind == t.RMW
        if kind == t.LOAD or kind == t.RMW:
            old = log_value[step]
            if kind == t.RMW:
                old = log_value[log_seen[step]] if log_seen[step] >= 0 else initial[at]
            if kind == t.RMW and ops[op, t.FN] == t.CAS:
                # A compare-and-swap that fails writes nothing and so releases nothing.
                writes = old == words.operand(exprs, postfix, ops[op, t.EXPECTED], registers, agent)
            if ops[op, t.DST] >= 0:
                registers[agent, ops[op, t.DST]] = old
        if kind == t.EXPECT and ops[op, t.DST] >= 0:
            registers[agent, ops[op, t.DST]] = log_value[step]
        if kind == t.WAIT_STAMP:
            wanted[step] = words.wanted_by(ops, exprs, postfix, registers, op, agent)
            first, condition = polled, (tests, ops[op, t.FN], wanted[step])
            polled = _poll(
                step, condition, payload, at, packets, seen_before, stamp, polls, polled, now[agent], time, chain
            )
            for k in range(first, polled):
                seen = polls[k, 2]
                if seen >= 0 and (k == first or seen != polls[k - 1, 2]):
                    if drains:
                        _hear(now[agent], np.int32(seen), is_rmw, previous, rows, n_chains)
                    _join_released(
                        now,
                        pending,
                        agent,
                        guards_only,
                        _SYSTEM,
                        seen,
                        released,
                        is_rmw,
                        previous,
                        writer,
                        rows,
                        places,
                        reach,
                    )
        boundary = (kind == t.WAIT or kind == t.RMW) and sync & t.BOUNDARY != 0
        if boundary or (kind == t.FENCE and order & 1):
            for level in range(1, scope + 1):
                join(now[agent], pending[agent, level])
            if drains:
                completion.rely(now[agent], now[agent], reach[agent], scope, n_chains)
        if drains:
            if kind == t.FENCE and sync & t.DRAIN:
                completion.drain(now[agent], c, ticks[c], n_chains)
            if scope >= _SYSTEM and (boundary or (order & 2 and (kind == t.FENCE or writes))):
                completion.write_back(now[agent], reach[agent], n_chains)
        rows[step] = now[agent]
        if boundary or (kind == t.FENCE and order & 2):
            for level in range(1, scope + 1):
                fence[agent, level] = step
        if kind == t.MOVE and ops[op, t.STAMP] >= 0:
            writer[step] = agent
            stamp[step] = words.operand(exprs, postfix, ops[op, t.STAMP], registers, agent)
            for level in range(1, _LEVELS):
                released[step, level] = step if guards_only else fence[agent, level]
            sent = _send(step, payload, at, packets, sent)
        if writes:
            writer[step] = agent
            is_rmw[step] = kind == t.RMW
            for level in range(1, scope + 1):
                released[step, level] = step if order & 2 else fence[agent, level]
            previous[step] = last[at]
            last[at] = step
        # Registers are recomputed so that wait operands are known; local operations come right after.
        _local(ops, op + 1, exprs, postfix, registers, agent)


@njit(cache=True)
def _send(step, payload, row, packets, sent):
    """A packet becomes the last of each of its cells; `packets`: the last of each cell, then (step, the one before)."""
    moves, _, items = payload
    last, nodes = packets
    for i in range(moves[row, t.M_DST], moves[row, t.M_DST] + moves[row, t.M_COUNT]):
        nodes[sent, 0], nodes[sent, 1] = step, last[items[i]]
        last[items[i]] = sent
        sent += 1
    return sent


@njit(cache=True)
def _poll(step, condition, payload, row, packets, seen_before, stamp, polls, polled, now, time, chain):
    """Add to `polls` which packet a wait joins in each of its cells: the earliest that meets it and that it may see.

    It may not see one older than a packet that happens before it, or that a wait saw which happens before it.
    """
    moves, sources, items = payload
    last, nodes = packets
    last_poll, poll_before = seen_before
    tests, cond, value = condition
    at = sources[moves[row, t.M_SOURCES]]
    for i in range(at, at + moves[row, t.M_COUNT]):
        cell, floor = items[i], np.int64(-1)
        poll = last_poll[cell]
        while poll >= 0:
            other = polls[poll, 0]
            if polls[poll, 2] > floor and now[chain[other]] >= time[other]:
                floor = np.int64(polls[poll, 2])
            poll = poll_before[poll]
        best, node = np.int64(-1), last[cell]
        while node >= 0:
            write = nodes[node, 0]
            if words.met(tests, cond, stamp[write], value):
                best = write
            if now[chain[write]] >= time[write] or write == floor:
                break
            node = nodes[node, 1]
        if node < 0 and words.met(tests, cond, 0, value):
            best = np.int64(-1)
        polls[polled, 0], polls[polled, 1], polls[polled, 2] = step, cell, best
        last_poll[cell], poll_before[polled] = polled, last_poll[cell]
        polled += 1
    return polled


@njit(cache=True)
def _local(ops, pc, exprs, postfix, registers, agent):
    while pc < len(ops) and ops[pc, t.AGENT] == agent:
        kind = ops[pc, t.KIND]
        if kind == t.SET:
            registers[agent, ops[pc, t.DST]] = words.operand(exprs, postfix, ops[pc, t.VALUE], registers, agent)
            pc += 1
        elif kind == t.BRANCH:
            cond = ops[pc, t.VALUE]
            if cond >= 0 and words.operand(exprs, postfix, cond, registers, agent):
                pc += 1
            else:
                pc = ops[pc, t.TARGET]
        elif kind == t.NOP:
            pc += 1
        else:
            return


@njit(cache=True)
def _last_seen(read, at, log_row, earliest, read_before):
    """The write that the agent's previous read of word `at` saw at the earliest; -1: the initial value."""
    while read >= 0:
        if log_row[read] == at:
            return earliest[read]
        read = read_before[read]
    return np.int32(-1)


@njit(cache=True)
def _first_satisfying(seen, tests, cond, value, log_value, previous, now, time, chain, initial, floor):
    """The earliest write (or -1, the initial value) that meets the condition and that the reader may still see.

    Coherence: it may not see a write older than one that happens before it, or than `floor`, which it saw before.
    """
    best = seen
    write = seen
    while write >= 0:
        if cond == words.ANY or words.met(tests, cond, log_value[write], value):
            best = write
        if now[chain[write]] >= time[write] or write == floor:
            return best
        write = previous[write]
    if cond == words.ANY or words.met(tests, cond, initial, value):
        return np.int32(-1)
    return best
