"""What a drain tells: which accesses of whom are complete, who has heard so, and who may rely on it.

A release hands on what its agent knows, to whoever acquires it. A drain is something else: the accesses of its wave are
over, whoever asks. An agent *hears* of it by any chain of stores and loads, relaxed ones too, for time passes along
them. It may *rely* on it once it acquires, at a scope that includes the drained agent: then no cache holds anything
older (LLVM AMDGPU memory model: `s_waitcnt` completes accesses, `buffer_inv` is the acquire).

Where a program drains, clocks have `PARTS` parts of one time a chain each:

* part 0: happens-before;
* UNCACHED: accesses complete at every rank (reads; stores to memory that no cache of a rank holds), relied on;
* IN_RANK: stores complete in the own rank, such as those to cached memory, relied on by agents of that rank;
* WRITTEN_BACK: of these, those that a system release has written back since, relied on;
* the last three: the same, heard.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t
from lab.protocol.program import Memory, Scope

PARTS = 7
UNCACHED, IN_RANK, WRITTEN_BACK = 1, 2, 3
HEARD = 3  # a part that is relied on + this: the same part, heard
_DEVICE, _SYSTEM = int(Scope.DEVICE), int(Scope.SYSTEM)


def parts_of(tables: t.Tables) -> int:
    """How many parts the clocks of a program have: 1 where nobody drains."""
    drains = (tables.ops[:, t.KIND] == t.FENCE) & (tables.ops[:, t.SYNC] & t.DRAIN > 0)
    return PARTS if np.any(drains) else 1


def reach(tables: t.Tables) -> np.ndarray:
    """int8 (agents, chains): the scope at which an agent acquires what an agent of a chain completed.

    Agents of one chain follow each other: where one of them is of the agent's block, those before it ended before the
    kernel of that block began. No rows where nobody drains.
    """
    program = tables.program
    if parts_of(tables) == 1:
        return np.zeros((0, 0), np.int8)
    found = np.full((len(program.agents), int(tables.agent_chain.max(initial=0)) + 1), _SYSTEM, np.int8)
    for k, one in enumerate(program.agents):
        for other in program.agents:
            if "host" in (one.kind, other.kind) or one.rank != other.rank:
                continue
            same_block = (one.sequence, one.block) == (other.sequence, other.block)
            scope = Scope.BLOCK if same_block else Scope.DEVICE
            found[k, other.chain] = min(found[k, other.chain], scope)
    return found


def part_of_memory(memory: Memory) -> int:
    """The part that says when a store to memory of a kind is complete."""
    return IN_RANK if memory is Memory.CACHED else UNCACHED


@njit(cache=True, _nrt=False)
def drain(clock, chain, time, chains):
    """All accesses of a chain up to now are complete; its agent has heard so."""
    clock[(HEARD + UNCACHED) * chains + chain] = time
    clock[(HEARD + IN_RANK) * chains + chain] = time


@njit(cache=True, _nrt=False)
def hear(clock, told, chains):
    """An agent hears what another had heard when it stored what the agent now reads."""
    for c in range((HEARD + 1) * chains, PARTS * chains):
        clock[c] = max(clock[c], told[c])


@njit(cache=True, _nrt=False)
def rely(clock, told, reach, scope, chains):
    """An agent that acquires at a scope may rely on what it was told, as far as the scope reaches."""
    for c in range(chains):
        if reach[c] <= scope:
            for part in (UNCACHED, WRITTEN_BACK):
                at = part * chains + c
                clock[at] = max(clock[at], told[HEARD * chains + at])
        if reach[c] <= min(scope, _DEVICE):
            at = IN_RANK * chains + c
            clock[at] = max(clock[at], told[HEARD * chains + at])


@njit(cache=True, _nrt=False)
def write_back(clock, reach, chains):
    """A release at system scope writes back what its rank holds, and so what it heard is complete there."""
    for c in range(chains):
        if reach[c] <= _DEVICE:
            at = (HEARD + WRITTEN_BACK) * chains + c
            clock[at] = max(clock[at], clock[(HEARD + IN_RANK) * chains + c])


@njit(forceinline=True, cache=True, _nrt=False)
def relies_on(clock, chain, time, part, chains):
    """Whether an agent relies on an access being complete; `part`: `part_of_memory` of a store, UNCACHED of a read."""
    if clock[part * chains + chain] >= time:
        return True
    return part == IN_RANK and clock[WRITTEN_BACK * chains + chain] >= time
