"""What memory model `weak` keeps of a program and of a run of it, and how large that may be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.errors import LabError
from lab.protocol import tables as t
from lab.protocol.program import Cache, Memory, Rmw, Scope, Store, Wait
from lab.sim.machine import completion, words
from lab.sim.machine import weak_history as h

MEMORY_LIMIT = 2 << 30
"""Bytes that the state of one run may take."""
# Positions in State.counts behind those of `scheduler`: waiting agents in `maybe`, messages and snapshots so far.
C_MAYBE, C_WORDS, C_CELLS, C_SNAPSHOTS = range(h.C_RECORDS + 1, h.C_RECORDS + 5)


class Static(NamedTuple):
    """What does not change between runs of one program."""

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
    agent_chain: np.ndarray
    agent_device: np.ndarray  # equal: the same rank, and neither is a host
    agent_block: np.ndarray  # equal: the same block of one launch
    word_initial: np.ndarray
    cell_initial: np.ndarray
    pending_at: np.ndarray  # first slot of Log.wrote of each row of moves
    reads_at: np.ndarray  # first slot of Log.reads of each row of moves
    uncached: np.ndarray  # bool, one a word: no cache outside a block holds it
    at_once: np.ndarray  # bool, one an operation: what it stores is visible outside its rank without a release
    word_part: np.ndarray  # one a word: the part of a clock that says whether a store is complete; 0: nobody drains
    cell_part: np.ndarray
    reach: np.ndarray  # int8 (agents, chains), see `completion.reach`; no rows where nobody drains
    fences: bool  # some fence acquires
    written_back: bool  # some wait looks at cached memory
    world: int


class State(NamedTuple):
    """Everything that a run changes; reused from run to run."""

    registers: np.ndarray
    pc: np.ndarray
    status: np.ndarray
    enabled: np.ndarray
    place: np.ndarray  # position in `enabled`, -1: not there
    maybe: np.ndarray  # waiting agents that an invisible or overwritten message may let go
    maybe_place: np.ndarray
    word: np.ndarray  # the last message of each word, at the end of a recorded run
    cell: np.ndarray
    waiter: np.ndarray  # first agent whose next operation waits for a word, whether met or not
    next_waiter: np.ndarray
    parked_at: np.ndarray  # the word an agent is on the list of
    word_head: np.ndarray  # newest message
    cell_head: np.ndarray
    words: np.ndarray  # messages of words; invariant: message w is the initial value of word w
    cells: np.ndarray  # messages of payload; invariant: message c is the initial value of cell c
    records: np.ndarray  # (chain, time, next): readers that make a message known; see _cover
    clock: np.ndarray  # what each agent knows of each chain
    ticks: np.ndarray  # operations of each chain
    snapshots: np.ndarray  # clocks that were released
    fence: np.ndarray  # snapshot of the agent's last release fence at least so wide, by scope; -1: none
    pending: np.ndarray  # what relaxed reads of the agent saw released, by scope needed
    written_back: np.ndarray  # by (rank, chain): what system releases of the rank have written back
    priority: np.ndarray
    unsettled: np.ndarray
    counts: np.ndarray  # see C_*


def static(tables: t.Tables, memory: str = "weak") -> Static:
    """Bring `tables` into the form of this engine."""
    program = tables.program
    local = np.array([r.memory != Memory.CACHED for r in program.regions], bool)
    counts = tables.moves[:, t.M_COUNT].astype(np.int64)
    reads = counts * np.maximum(tables.moves[:, t.M_N_SOURCES], 0)
    uncached = local[tables.word_region]
    kinds = tables.ops[:, t.KIND]
    blocks: dict[tuple[int, int, int], int] = {}
    device, block = [], []
    for agent in program.agents:
        alone = -1 - agent.id
        key = (agent.rank, agent.sequence, agent.block)
        device.append(alone if agent.kind == "host" else agent.rank)
        block.append(alone if agent.kind == "host" else blocks.setdefault(key, len(blocks)))
    cached_waits = any(
        isinstance(op, Wait) and any(ref.region.memory == Memory.CACHED for ref in op.words)
        for a in program.agents
        for op in a.ops
    )
    return Static(
        tables.ops,
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
        tables.agent_chain,
        np.array(device, np.int32),
        np.array(block, np.int32),
        tables.word_initial,
        tables.cell_initial,
        np.concatenate(([0], np.cumsum(counts))),
        np.concatenate(([0], np.cumsum(reads))),
        uncached,
        _at_once(tables, local),
        *_completion(tables),
        needs_pending(tables),
        bool(np.any(kinds == t.WAIT_STAMP)) or cached_waits,
        program.world,
    )


def _completion(tables: t.Tables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`word_part`, `cell_part` and `reach`."""
    drains = completion.parts_of(tables) > 1
    part = [completion.part_of_memory(region.memory) if drains else 0 for region in tables.program.regions]
    of_region = np.array(part, np.int64)
    return of_region[tables.word_region], of_region[tables.cell_region], completion.reach(tables)


def needs_pending(tables: t.Tables) -> bool:
    """Whether some fence, or the end of some kernel, acquires what relaxed reads before it saw released or heard."""
    kinds, sync = tables.ops[:, t.KIND], np.maximum(tables.ops[:, t.SYNC], 0)
    if completion.parts_of(tables) > 1:
        return True  # what was heard of drains is relied on where a kernel starts or ends
    relaxed = np.isin(kinds, (t.LOAD, t.RMW, t.WAIT)) & (sync & 1 == 0)
    if np.any((kinds == t.FENCE) & (sync & 1 > 0)):
        return True
    return bool(np.any(sync & t.BOUNDARY > 0) and np.any(relaxed | (kinds == t.WAIT_STAMP)))


def _at_once(tables: t.Tables, local: np.ndarray) -> np.ndarray:
    """Which operations store so that agents outside the rank can see it without a later release.

    Memory that is not cached; accesses that bypass the caches; atomic accesses at system scope (LLVM AMDGPU memory
    model, gfx942: `sc0 sc1` writes through); hosts.
    """
    found = np.zeros(len(tables.ops), bool)
    row = 0
    for agent in tables.program.agents:
        for op in agent.ops:
            where = getattr(op, "word", None) or getattr(op, "dst", None)
            region = getattr(where, "region", None)
            if region is not None:
                atomic = isinstance(op, (Store, Rmw))
                found[row] = (
                    local[region.id]
                    or agent.kind == "host"
                    or getattr(op, "cache", Cache.CACHED) == Cache.BYPASS
                    or (atomic and op.scope == Scope.SYSTEM)
                )
            row += 1
    return found


def new_state(s: Static, registers: int) -> State:
    """Allocate the state of a run.

    Raises:
        LabError: The histories of this program would take more than MEMORY_LIMIT bytes.
    """
    agents, chains = len(s.agent_start), int(s.agent_chain.max(initial=0)) + 1
    drains = len(s.reach) > 0
    chains *= completion.PARTS if drains else 1
    kinds, order = s.ops[:, t.KIND], np.maximum(s.ops[:, t.SYNC], 0)
    writes = np.count_nonzero((kinds == t.STORE) | (kinds == t.RMW))
    reads = int(s.ops[(kinds == t.LOAD) | (kinds == t.RMW) | (kinds == t.WAIT), t.COUNT].sum())
    stores = int(s.moves[s.moves[:, t.M_DST] >= 0, t.M_COUNT].sum())
    polled = int(s.moves[(s.moves[:, t.M_DST] < 0) & (s.moves[:, t.M_VALUES] < 0), t.M_COUNT].sum())
    releases = np.count_nonzero((order & 2 > 0) & ((kinds == t.STORE) | (kinds == t.RMW) | (kinds == t.FENCE)))
    releases += np.count_nonzero((order & t.BOUNDARY > 0) & (kinds == t.WAIT))
    if drains:
        releases += 3 * (writes + np.count_nonzero(s.ops[:, t.STAMP] >= 0))  # every store tells what it has heard
    columns = h.PACKET_COLUMNS if np.any(s.ops[:, t.STAMP] >= 0) else h.CELL_COLUMNS
    n_words, n_cells = len(s.word_initial), len(s.cell_initial)
    pending = agents if s.fences else 1
    size = 8 * h.WORD_COLUMNS * (n_words + writes) + 8 * columns * (n_cells + stores)
    size += 12 * (reads + polled) + 4 * chains * (agents + releases + 4 * pending)
    if size > MEMORY_LIMIT:
        raise LabError(
            "this program is too large for memory model weak",
            value=f"its histories would take {size / 2**30:.1f} GiB, the limit is {MEMORY_LIMIT / 2**30:.0f} GiB",
            hint="use fewer ranks, blocks or calls; a program without races of which one execution stands for all "
            "gives the same results under weak as under sc, and needs no exploration",
        )
    word_messages = np.zeros((n_words + writes, h.WORD_COLUMNS), np.int64)
    cell_messages = np.zeros((n_cells + stores, columns), np.int64)
    for messages, initial in ((word_messages, s.word_initial), (cell_messages, s.cell_initial.view(np.int64))):
        first = messages[: len(initial)]
        first[:, h.VALUE] = initial
        first[:, (h.STEP, h.OLDER, h.RECORD, h.OWNER)] = -1
    word_messages[:n_words, h.RELEASED + 1 :] = -1
    cell_messages[:n_cells, h.RELEASED + 1 :] = -1
    return State(
        registers=np.zeros((agents, registers + words.STACK), np.int64),
        pc=np.zeros(agents, np.int32),
        status=np.zeros(agents, np.int8),
        enabled=np.zeros(agents, np.int32),
        place=np.full(agents, -1, np.int32),
        maybe=np.zeros(agents, np.int32),
        maybe_place=np.full(agents, -1, np.int32),
        word=np.zeros(n_words, np.int64),
        cell=np.zeros(n_cells, np.uint64),
        waiter=np.zeros(n_words, np.int32),
        next_waiter=np.zeros(agents, np.int32),
        parked_at=np.zeros(agents, np.int32),
        word_head=np.zeros(n_words, np.int32),
        cell_head=np.zeros(n_cells, np.int32),
        words=word_messages,
        cells=cell_messages,
        records=np.zeros((reads + polled + 1, 3), np.int32),
        clock=np.zeros((agents, chains), np.int32),
        ticks=np.zeros(chains, np.int32),  # the first of each chain; the search counts in every part
        snapshots=np.zeros((releases + 1, chains), np.int32),
        fence=np.zeros((agents, 4), np.int32),
        pending=np.zeros((pending, 4, chains), np.int32),
        written_back=np.zeros((s.world, chains), np.int32),
        priority=np.zeros(agents, np.int64),
        unsettled=np.zeros(4 * agents + 4, np.int32),
        counts=np.zeros(16, np.int64),
    )
