"""What a run under sc or posted works on: the arrays that stay, and those that a run changes.

Arrays travel in named tuples through functions that LLVM inlines into one loop (`forceinline`): a call that is not
inlined would pass some three hundred scalars.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Memory
from lab.sim.machine import words
from lab.sim.machine.scheduler import C_ABORTS

SC, POSTED = range(2)
SWAP = 64  # in FN of a wait: an operand, in the column STAMP, is then stored in the word
MEMORY_MODELS = ("sc", "posted", "weak")  # which module runs each: lab.sim.machine.engines


class Static(NamedTuple):
    """What does not change between runs of one program under one memory model."""

    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    tests: np.ndarray
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
    outstanding: np.ndarray  # undelivered stores by (agent, destination)
    handed: np.ndarray  # of these, the earliest so many have been handed over to the other waves of the block
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
        _with_locks_as_waits(tables.ops),
        tables.exprs,
        tables.postfix,
        tables.tests,
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


def _with_locks_as_waits(ops: np.ndarray) -> np.ndarray:
    """The operations, where a compare-and-swap that is tried until it succeeds is a wait that then stores.

    So the loop that runs everything asks nothing that it does not ask anyway.
    """
    locks = ops[:, t.PATIENT] > 0
    if not np.any(locks):
        return ops
    ops = ops.copy()
    ops[locks, t.STAMP], ops[locks, t.VALUE] = ops[locks, t.VALUE], ops[locks, t.EXPECTED]
    ops[locks, t.KIND], ops[locks, t.FN], ops[locks, t.EXPECTED] = t.WAIT, words.EQ | SWAP, -1
    return ops


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
        handed=np.zeros((agents, s.world), np.int32),
        priority=np.zeros(entities, np.int64),
        unsettled=np.zeros(4 * agents + 4, np.int32),
        counts=np.zeros(C_ABORTS + 1, np.int64),
    )
