"""Structures of other libraries, right and with the fault that they are known for, under every memory model."""

from __future__ import annotations

import pytest

from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    View,
    protocol,
)
from lab.sim.check import check
from lab.sim.machine.interleaved import MEMORY_MODELS

under_each_memory = pytest.mark.parametrize("memory", MEMORY_MODELS)


def verdict(found, memory: str, **options):
    config = found.config(options=tuple(options.items()))
    return check(found, config, memory=memory, executions=300, minimise=False, repair_seconds=0)


def reduce_with(b: Block, received: dict[int, View]) -> None:
    """The own input and what came from the peers, in rank order."""
    b.reduce([b.input if j == b.rank else received[j] for j in range(b.world)], b.output)


# ---- put with signal (symmetric heap)


def heap(m: Declare) -> None:
    """A slot for each source in both parities, and signals: one of all sources, one for each."""
    m.payload("heap", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("signal", m.world + 1)


@protocol(memory=heap, world=3, bytes=1024, calls=3, options={"one_signal": False, "puts_first": False})
def put_with_signal(b: Block) -> None:
    """Puts that add to a signal; `one_signal` counts all peers in one word, where a fast one counts for a slow one.

    Were all puts made before the first signal, one word would do: who is ahead has waited for the slow one's signal.
    """
    p, shared = b.call % 2, b.world
    for j in b.peers:
        b.copy(b.input, b.on(j).heap[p, b.rank])
        b.barrier()
        if not b.options["puts_first"]:
            b.leader.add(b.on(j).signal[shared if b.options["one_signal"] else b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers if b.options["puts_first"] else ():
        b.leader.add(b.on(j).signal[shared if b.options["one_signal"] else b.rank], 1, RELEASE, SYSTEM)
    if b.options["one_signal"]:
        b.leader.wait(b.mine.signal[shared], ">=", b.call * (b.world - 1), ACQUIRE, SYSTEM)
    for j in b.peers if not b.options["one_signal"] else ():
        b.leader.wait(b.mine.signal[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    reduce_with(b, {j: b.mine.heap[p, j] for j in b.peers})


@under_each_memory
def test_a_signal_of_all_peers_is_met_by_the_second_one_of_a_fast_peer(memory):
    assert verdict(put_with_signal, memory).ok
    assert verdict(put_with_signal, memory, one_signal=True, puts_first=True).ok
    found = verdict(put_with_signal, memory, one_signal=True)
    assert found.verdict == "wrong"
    assert any(
        "(wait signal[3] of rank " in race.missing and "is met by rank " in race.missing for race in found.races
    ), [race.missing for race in found.races]


# ---- two levels


def two_levels(m: Declare) -> None:
    """Parts inside a group, the exchange between groups, and the gather; flags by stage."""
    part = m.max_elements // 2
    m.payload("inside", part, UNCACHED, source=2)
    m.payload("between", part, UNCACHED, parity=2)
    m.payload("gather", part, UNCACHED, source=2)
    m.words("flag", m.world, stage=3)


@protocol(memory=two_levels, world=4, bytes=1024, calls=3, options={"buffers": 2})
def hierarchical(b: Block) -> None:
    """Two groups of two: reduce-scatter inside, exchange between, allgather inside; the exchange needs two buffers.

    What orders a rank with its mate orders it with nobody of the other group: with one buffer the next exchange
    overwrites what is still read.
    """
    group, own = divmod(b.rank, 2)
    mate, other = 2 * group + 1 - own, 2 * (1 - group) + own
    half = b.elements // 2
    parts = [slice(0, half), slice(half, b.elements)]
    between = b.call % b.options["buffers"]

    def meet(stage: int, j: int) -> None:
        b.barrier()
        b.leader.store(b.on(j).flag[stage, b.rank], b.call, RELEASE, SYSTEM)
        b.leader.wait(b.mine.flag[stage, j], ">=", b.call, ACQUIRE, SYSTEM)
        b.barrier()

    b.copy(b.input[parts[1 - own]], b.on(mate).inside[own])
    meet(0, mate)
    b.reduce([b.input[parts[own]], b.mine.inside[1 - own]], b.output[parts[own]])
    b.barrier()
    b.copy(b.output[parts[own]], b.on(other).between[between])
    meet(1, other)
    b.reduce([b.output[parts[own]], b.mine.between[between]], b.output[parts[own]])
    b.barrier()
    b.copy(b.output[parts[own]], b.on(mate).gather[own])
    meet(2, mate)
    b.copy(b.mine.gather[1 - own], b.output[parts[1 - own]])


@under_each_memory
def test_what_is_exchanged_between_groups_needs_two_buffers(memory):
    assert verdict(hierarchical, memory).ok
    found = verdict(hierarchical, memory, buffers=1)
    assert found.verdict == "wrong" and {race.region.split()[0] for race in found.races} == {"between[parity"}


# ---- packets whose data is the flag


def turns(m: Declare) -> None:
    """Two buffers a source."""
    m.payload("buffer", m.max_elements, UNCACHED, turn=2, source=m.world)


@protocol(memory=turns, world=2, bytes=512, calls=5, options={"buffers": 2})
def cleared_after_use(b: Block) -> None:
    """Packets are full or cleared (1 or 0); a call clears what it has read: in one buffer it clears the next packet."""
    now = b.call % b.options["buffers"]
    for j in b.peers:
        b.copy(b.input, b.on(j).buffer[now, b.rank], stamp=1)
    for j in b.peers:
        b.wait_stamps(b.mine.buffer[now, j], ">=", 1)
    b.barrier()
    reduce_with(b, {j: b.mine.buffer[now, j] for j in b.peers})
    for j in b.peers:
        b.clear(b.mine.buffer[now, j], stamp=0)


@under_each_memory
def test_clearing_what_was_read_needs_two_buffers(memory):
    assert verdict(cleared_after_use, memory).ok
    found = verdict(cleared_after_use, memory, buffers=1)
    assert "hang" in {outcome.kind for outcome in found.outcomes} and "wait stamps of buffer" in found.hang[0]


# ---- blocks without elements


def gridded(m: Declare) -> None:
    """An inbox, the counter of a grid barrier, and flags."""
    m.payload("inbox", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("arrived")
    m.words("flag", m.world)
    m.words("go")


@protocol(memory=gridded, world=2, blocks=4, bytes=(4096, 512), calls=3, options={"idle_return": False})
def grid_barrier(b: Block) -> None:
    """A grid barrier before the flags; blocks that have no element `idle_return` before it."""
    p = b.call % 2
    if b.options["idle_return"] and b.block * b.threads >= b.elements:
        return
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[p, b.rank][: b.elements])
    b.barrier()
    b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)
    if b.block == 0:
        b.leader.wait(b.mine.arrived, ">=", b.call * b.blocks, ACQUIRE, DEVICE)
        for j in b.peers:
            b.leader.store(b.on(j).flag[b.rank], b.call, RELEASE, SYSTEM)
        for j in b.peers:
            b.leader.wait(b.mine.flag[j], ">=", b.call, ACQUIRE, SYSTEM)
        b.leader.store(b.mine.go, b.call, RELEASE, DEVICE)
    b.leader.wait(b.mine.go, ">=", b.call, ACQUIRE, DEVICE)
    b.barrier()
    reduce_with(b, {j: b.mine.inbox[p, j][: b.elements] for j in b.peers})


@under_each_memory
def test_blocks_without_elements_must_arrive_too(memory):
    assert verdict(grid_barrier, memory).ok
    found = verdict(grid_barrier, memory, idle_return=True)
    assert found.verdict == "hang" and "wait arrived of rank 0 >= 8" in found.hang[0]


# ---- a queue of several producers


def queue(m: Declare) -> None:
    """A queue on each rank: entries, tickets, and a word for each entry that says for which call it is full."""
    m.payload("entry", m.max_elements, UNCACHED, parity=2, place=3)
    m.words("ticket", parity=2)
    m.words("full", 3, parity=2)


@protocol(memory=queue, world=4, bytes=1024, calls=2, options={"by_ticket": False})
def several_producers(b: Block) -> None:
    """Peers take a ticket, fill that entry, and mark it; `by_ticket`, the owner waits for the tickets instead."""
    p, n = b.call % 2, b.world - 1
    for j in b.peers:
        place = b.share(b.leader.add(b.on(j).ticket[p, 0], 1, RELAXED, SYSTEM) % n)
        b.copy(b.input, b.on(j).entry[p, place])
        b.barrier()
        b.leader.store(b.on(j).full[p, place], b.call, RELEASE, SYSTEM)
    if b.options["by_ticket"]:
        b.leader.wait(b.mine.ticket[p, 0], ">=", n, ACQUIRE, SYSTEM)
    for k in range(n) if not b.options["by_ticket"] else ():
        b.leader.wait(b.mine.full[p, k], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input, *(b.mine.entry[p, k] for k in range(n))], b.output)


@under_each_memory
def test_a_ticket_is_not_an_entry(memory):
    assert verdict(several_producers, memory).ok
    assert verdict(several_producers, memory, by_ticket=True).verdict == "wrong"
