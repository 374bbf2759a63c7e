"""Happens-before race check: vector clocks over one execution; no luck needed.

The machine runs the program once. The clocks are then computed from what each word read saw, with scopes and orders:

* A write releases with its own order, or through the last release fence before it; at scope s, to agents inside s.
* A read-modify-write continues the release sequence of the write that it replaces; a plain store ends it (C++20).
* A wait joins the *first* write of the word's modification order that meets its condition and that the waiter may still
  read. Joining the last one seen would hide races that another schedule shows. A load whose result nobody uses is a
  wait for anything.
* A relaxed read gives order only through a later acquire fence.
* Two agents synchronise when the scopes of both sides include the other: wave < block < device (rank) < system.

Then all conflicting accesses of each payload cell are compared pairwise; two that neither clock covers race, whatever
happened in this run. Words never race (they are atomic), packets (stamped stores) neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Move, Scope
from lab.protocol.tables import Tables
from lab.sim import machine as m
from lab.sim import words
from lab.sim.engines import engine_of
from lab.sim.missing import missing_order
from lab.sim.verdict import Race, access_of, ranges

_BLOCK, _DEVICE, _SYSTEM = int(Scope.BLOCK), int(Scope.DEVICE), int(Scope.SYSTEM)
_LEVELS = 4


@dataclass(frozen=True)
class Execution:
    """One run under a memory model, recorded in full, and how it ended (see `machine.run`)."""

    tables: Tables
    memory: str
    outcome: int
    steps: int
    log: m.Log
    state: m.State
    static: m.Static


@dataclass(frozen=True)
class Clocks:
    """Vector clocks of an execution.

    Attributes:
        rows: int32 (steps, chains): what each step knows of every chain, itself included.
        time: int32 (steps,): the step's own time on its chain; 0 for deliveries and timeouts.
        chain: int32 (steps,): its chain.
        joined: int32 (steps,): the step whose write a word read joined, -1: the initial value, or no read.
        wanted: int64 (steps,): what a wait compared with.
    """

    rows: np.ndarray
    time: np.ndarray
    chain: np.ndarray
    joined: np.ndarray
    wanted: np.ndarray


def execute(
    tables: Tables, memory: str = "sc", policy: int = m.RUN_ON, seed: int = 0, choices: np.ndarray | None = None
) -> Execution:
    """Run `tables` once and keep everything."""
    engine = engine_of(memory)
    static = engine.static(tables, memory)
    state, log = engine.new_state(static, tables.registers), m.new_log(static, m.LEVEL_FULL)
    outcome = engine.run(static, state, log, policy, seed, choices)
    return Execution(tables, memory, outcome, int(state.counts[m.C_STEPS]), log, state, static)


def clocks(execution: Execution, guards_only: bool = False) -> Clocks:
    """Compute the vector clocks of an execution.

    With `guards_only`, the order that holds in every schedule whatever the memory orders say: a wait comes after the
    write that first meets it, and nothing else orders two agents.
    """
    tables = execution.tables
    steps = execution.steps
    n_agents = len(tables.agent_start)
    rows = np.zeros((steps, tables.program.chains), np.int32)
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
        tables.word_initial,
        np.zeros((n_agents, tables.registers + words.STACK), np.int64),
        rows,
        time,
        chain,
        joined,
        wanted,
        guards_only,
    )
    return Clocks(rows, time, chain, joined, wanted)


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
def _join(into, other):
    for c in range(len(into)):
        if other[c] > into[c]:
            into[c] = other[c]


@njit(cache=True)
def _join_released(now, pending, agent, acquires, scope, write, released, is_rmw, previous, writer, rows, places):
    """Join what a write released to `agent`, and through a chain of RMWs what the writes before it did.

    Each of them synchronises by itself: its scope and the reader's must include the other's agent. A relaxed read
    keeps what it saw for a later acquire fence.
    """
    rank, block, call, host = places
    while write >= 0:
        needed = _needed_scope(agent, writer[write], rank, block, call, host)
        level = max(needed, 1)
        row = released[write, level]
        if row >= 0 and scope >= needed:
            _join(now[agent] if acquires else pending[agent, level], rows[row])
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


@njit(cache=True)
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
    initial,
    registers,
    rows,
    time,
    chain,
    joined,
    wanted,
    guards_only,
):
    n_agents, n_chains = len(rank), rows.shape[1]
    now = np.zeros((n_agents, n_chains), np.int32)
    ticks = np.zeros(n_chains, np.int32)
    fence = np.full((n_agents, _LEVELS), -1, np.int32)  # step of the last release fence at least that wide
    pending = np.zeros((n_agents, _LEVELS, n_chains), np.int32)  # what relaxed reads saw released, by scope needed
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
                fn, value = ops[op, t.FN], words.operand(exprs, postfix, ops[op, t.VALUE], registers, agent)
                wanted[step] = value
            if fn == words.SUM_LE:
                earliest[step] = log_seen[step]
            else:
                floor = _last_seen(last_read[agent], at, log_row, earliest, read_before)
                earliest[step] = _first_satisfying(
                    log_seen[step], fn, value, log_value, previous, now[agent], time, chain, initial[at], floor
                )
            is_used = kind != t.WAIT and ops[op, t.DST] >= 0 and used[agent] >> np.uint64(ops[op, t.DST]) & np.uint64(1)
            joined[step] = log_seen[step] if is_used else earliest[step]
            read_before[step], last_read[agent] = last_read[agent], step
            acquires = order & 1 != 0
            if acquires or not guards_only:
                for k in range(ops[op, t.COUNT] if fn == words.SUM_LE else 1):
                    seen = joined[step] if k == 0 else last[at + k]
                    if seen >= 0 and scope >= _needed_scope(agent, writer[seen], rank, block, call, host):
                        _join_released(
                            now, pending, agent, acquires, scope, seen, released, is_rmw, previous, writer, rows, places
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
        if kind == t.FENCE:
            if order & 1:
                for level in range(1, scope + 1):
                    _join(now[agent], pending[agent, level])
        rows[step] = now[agent]
        if kind == t.FENCE and order & 2:
            for level in range(1, scope + 1):
                fence[agent, level] = step
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
def _first_satisfying(seen, cond, value, log_value, previous, now, time, chain, initial, floor):
    """The earliest write (or -1, the initial value) that meets the condition and that the reader may still see.

    Coherence: it may not see a write older than one that happens before it, or than `floor`, which it saw before.
    """
    best = seen
    write = seen
    while write >= 0:
        if cond == words.ANY or words.met(cond, log_value[write], value):
            best = write
        if now[chain[write]] >= time[write] or write == floor:
            return best
        write = previous[write]
    if cond == words.ANY or words.met(cond, initial, value):
        return np.int32(-1)
    return best


@dataclass(frozen=True)
class RaceReport:
    """Races of one execution, one of each kind, and the pairs of table rows behind them."""

    races: tuple[Race, ...]
    pairs: np.ndarray
    execution: Execution
    clocks: Clocks


def find_races(tables: Tables, execution: Execution | None = None) -> RaceReport:
    """Check one execution (by default: each agent runs on until it blocks) for races."""
    execution = execution or execute(tables)
    found = clocks(execution)
    cells, steps, writes = accesses(tables, execution)
    order = np.lexsort((steps, cells))
    pairs = _all_pairs(cells[order], steps[order], writes[order], found.rows, found.time, found.chain)
    return RaceReport(_describe(tables, execution, found, pairs), pairs, execution, found)


def accesses(tables: Tables, execution: Execution) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cell, step, is a write) of every payload access of an execution, packets left out."""
    steps = np.flatnonzero(execution.log.op[: execution.steps] >= 0)
    kinds = tables.ops[execution.log.op[steps], t.KIND]
    steps = steps[(kinds == t.MOVE) | (kinds == t.FILL) | (kinds == t.EXPECT)]
    cells, owners, writes = [], [], []
    for step in steps:
        row = tables.moves[execution.log.row[step]]
        n = int(row[t.M_COUNT])
        offsets = [(int(tables.sources[row[t.M_SOURCES] + k]), False) for k in range(row[t.M_N_SOURCES])]
        if row[t.M_DST] >= 0:
            offsets.append((int(row[t.M_DST]), True))
        for offset, write in offsets:
            cells.append(tables.items[offset : offset + n])
            owners.append(np.full(n, step, np.int32))
            writes.append(np.full(n, write))
    if not cells:
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool)
    cell, step_of, write = np.concatenate(cells), np.concatenate(owners), np.concatenate(writes)
    keep = ~np.isin(tables.cell_region[cell], _packet_regions(tables))
    return cell[keep], step_of[keep], write[keep]


def _packet_regions(tables: Tables) -> np.ndarray:
    """Regions that stamped stores write: data and flag arrive together, so their accesses are atomic."""
    stamped = {
        op.dst.region.id
        for agent in tables.program.agents
        for op in agent.ops
        if isinstance(op, Move) and op.stamp is not None
    }
    return np.array(sorted(stamped), np.int32)


@njit(cache=True)
def _all_pairs(cells, steps, writes, rows, time, chain):
    """Distinct racing pairs: int64 rows (earlier step, later step, a cell, cells, first writes, second writes)."""
    size = 1024
    table = np.full(size, -1, np.int64)
    out = np.zeros((256, 6), np.int64)
    count = 0
    n = len(cells)
    lo = 0
    while lo < n:
        hi = lo
        while hi < n and cells[hi] == cells[lo]:
            hi += 1
        for i in range(lo, hi):
            for j in range(i + 1, hi):
                a, b = steps[i], steps[j]
                if not (writes[i] or writes[j]) or a == b or chain[a] == chain[b]:
                    continue
                if rows[b, chain[a]] >= time[a]:
                    continue
                slot = ((np.int64(a) * 2654435761 + b) * 40503) & (size - 1)
                while table[slot] >= 0 and (out[table[slot], 0] != a or out[table[slot], 1] != b):
                    slot = (slot + 1) & (size - 1)
                at = table[slot]
                if at >= 0:
                    out[at, 3] += 1
                    continue
                if count == len(out):
                    bigger = np.zeros((2 * count, 6), np.int64)
                    bigger[:count] = out
                    out = bigger
                    size = 8 * count
                    while size & (size - 1):
                        size &= size - 1
                    table = np.full(size, -1, np.int64)
                    for k in range(count):
                        s = ((out[k, 0] * 2654435761 + out[k, 1]) * 40503) & (size - 1)
                        while table[s] >= 0:
                            s = (s + 1) & (size - 1)
                        table[s] = k
                    slot = ((np.int64(a) * 2654435761 + b) * 40503) & (size - 1)
                    while table[slot] >= 0:
                        slot = (slot + 1) & (size - 1)
                table[slot] = count
                out[count, 0], out[count, 1], out[count, 2], out[count, 3] = a, b, cells[i], 1
                out[count, 4], out[count, 5] = writes[i], writes[j]
                count += 1
        lo = hi
    return out[:count]


def _describe(tables: Tables, execution: Execution, found: Clocks, pairs: np.ndarray) -> tuple[Race, ...]:
    groups: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
    for index in range(len(pairs)):
        first, second = _in_order(tables, execution, pairs[index])
        op_a, op_b = (tables.op(int(execution.log.op[s])) for s in (first, second))
        agent_a, agent_b = (_agent(tables, execution, s) for s in (first, second))
        key = (
            op_a.site,
            op_a.phase,
            op_b.site,
            op_b.phase,
            agent_a.rank == agent_b.rank,
            agent_b.sequence - agent_a.sequence,
        )
        groups.setdefault(key, []).append((first, second, index))
    return tuple(_race(tables, execution, found, pairs[m[0][2]], m[0][0], m[0][1], len(m)) for m in groups.values())


def _agent(tables: Tables, execution: Execution, step: int):
    return tables.program.agents[int(tables.ops[execution.log.op[step], t.AGENT])]


def _in_order(tables: Tables, execution: Execution, pair: np.ndarray) -> tuple[int, int]:
    """The two steps, the one that should come first first: the earlier call; within a call, the write."""
    a, b = int(pair[0]), int(pair[1])
    one, two = _agent(tables, execution, a), _agent(tables, execution, b)
    if one.sequence != two.sequence and "host" not in (one.kind, two.kind):
        return (a, b) if one.sequence < two.sequence else (b, a)
    if pair[4] and pair[5]:
        return a, b
    return (a, b) if pair[4] else (b, a)


def _race(
    tables: Tables, execution: Execution, found: Clocks, pair: np.ndarray, first: int, second: int, count: int
) -> Race:
    kinds = {int(pair[0]): "write" if pair[4] else "read", int(pair[1]): "write" if pair[5] else "read"}
    one = access_of(tables, int(execution.log.op[first]), kinds[first])
    two = access_of(tables, int(execution.log.op[second]), kinds[second])
    cells = _common_cells(tables, execution, first, second, kinds)
    region = tables.program.regions[int(tables.cell_region[cells[0]])]
    starts, lengths = tables.cell_start[cells], tables.cell_length[cells]
    slot, offset = region.slot(int(starts[0]))
    base = int(starts[0]) - offset
    return Race(
        first=one,
        second=two,
        region=f"{slot} of rank {region.rank}",
        elements=ranges([int(start) - base for start in starts], [int(length) for length in lengths]),
        missing=missing_order(execution, found, first, second),
        pairs=count,
    )


def _cells(tables: Tables, execution: Execution, step: int, kind: str) -> np.ndarray:
    row = tables.moves[execution.log.row[step]]
    n = int(row[t.M_COUNT])
    if kind == "write":
        return tables.items[row[t.M_DST] : row[t.M_DST] + n]
    offsets = tables.sources[row[t.M_SOURCES] : row[t.M_SOURCES] + row[t.M_N_SOURCES]]
    return np.concatenate([tables.items[o : o + n] for o in offsets])


def _common_cells(tables: Tables, execution: Execution, first: int, second: int, kinds: dict[int, str]) -> np.ndarray:
    return np.intersect1d(
        _cells(tables, execution, first, kinds[first]), _cells(tables, execution, second, kinds[second])
    )
