"""Hangs are explained: what was there and is gone, who could still write, who waits for whom."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.library import load
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, RELAXED, RELEASE, UNCACHED, Block, Declare, protocol
from lab.sim.check import check
from lab.sim.machine.interleaved import MEMORY_MODELS


def test_a_value_that_was_overwritten_before_the_waiter_looked_is_named():
    verdict = check(load("mori_494"), minimise=False)
    assert verdict.verdict == "hang"
    first = verdict.hang[0]
    assert "which meets it" in first and "overwrote it with 0" in first and "before the waiter looked" in first


def generation(m: Declare) -> None:
    """A grid barrier: blocks that have arrived, and how often it was passed."""
    m.words("arrived")
    m.words("passed")


@protocol(memory=generation, world=1, blocks=3, bytes=512, options={"early": False})
def counts_generations(b: Block) -> None:
    """The last block to arrive lets the others go; they wait for another generation than they read, `early` or late."""
    if b.options["early"]:
        seen = b.leader.load(b.mine.passed, RELAXED, DEVICE)
    arrived = b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)
    if not b.options["early"]:
        seen = b.leader.load(b.mine.passed, RELAXED, DEVICE)
    with b.leader.when(arrived == b.blocks - 1):
        b.leader.store(b.mine.arrived, 0, RELAXED, DEVICE)
        b.leader.add(b.mine.passed, 1, RELEASE, DEVICE)
    with b.leader.when(arrived != b.blocks - 1):
        b.leader.wait(b.mine.passed, "!=", seen, ACQUIRE, DEVICE)
    b.copy(b.input, b.output)


def test_a_value_that_the_waiter_itself_has_read_is_not_said_to_be_missed():
    verdict = check(counts_generations, minimise=False)
    assert verdict.verdict == "hang"
    assert "it holds 1; nobody will write it any more" in verdict.hang[0] and "overwrote" not in verdict.hang[0]
    assert check(counts_generations, counts_generations.config(options=(("early", True),))).ok


def packets(m: Declare) -> None:
    """One packet buffer of each rank."""
    m.payload("packets", m.max_elements, UNCACHED, source=m.world)


def test_who_would_send_a_packet_is_named():
    @protocol(memory=packets, world=2, bytes=512)
    def receives_first(b: Block) -> None:
        (peer,) = b.peers
        b.wait_stamps(b.mine.packets[peer], ">=", 1)
        b.copy(b.input, b.on(peer).packets[b.rank], stamp=1)
        b.copy(b.input, b.output)

    assert "still to be written by rank 1 block 0" in check(receives_first, executions=10).hang[0]


def test_packets_that_nobody_sends():
    """Without a bound the text is refused; with one the wait gives up, and with nothing to wait for it is met."""

    def waiting(cond: str, bounded: bool):
        @protocol(memory=packets, world=1, bytes=512)
        def waits(b: Block) -> None:
            limit = {"bound": 4, "on_timeout": b.ret} if bounded else {}
            b.wait_stamps(b.mine.packets[b.rank], cond, 1, **limit)
            b.copy(b.input, b.output)

        return waits

    with pytest.raises(ProtocolError, match=r"test_hang.py:\d+: no agent ever writes packets into packets of rank 0"):
        waiting(">=", False).program()
    for memory in MEMORY_MODELS:
        assert check(waiting(">=", True), memory=memory, executions=10).verdict == "abort"
        assert check(waiting("!=", False), memory=memory, executions=10).ok


def words(m: Declare) -> None:
    """One word of each rank."""
    m.words("turn")


@protocol(memory=words, world=2, bytes=512)
def after_you(b: Block) -> None:
    """Each rank waits for the other before it tells."""
    other = b.peers[0]
    b.leader.wait(b.mine.turn, ">=", 1, ACQUIRE, DEVICE)
    b.leader.store(b.on(other).turn, 1, RELEASE, DEVICE)
    b.copy(b.input, b.output)


def test_a_ring_of_waiters_is_shown():
    verdict = check(after_you, executions=10)
    assert verdict.verdict == "hang"
    ring = verdict.hang[-1]
    assert ring.startswith("each waits for the next: ") and "rank 0 block 0" in ring and "rank 1 block 0" in ring
    assert "still to be written by rank 1 block 0" in verdict.hang[0]


def test_a_packet_that_was_overwritten_before_the_waiter_looked_is_named():
    """Rank 0 clears what rank 1 has sent before it waits for it: the packet came and is gone."""

    @protocol(memory=packets, world=2, bytes=512)
    def clears_first(b: Block) -> None:
        (peer,) = b.peers
        b.copy(b.input, b.on(peer).packets[b.rank], stamp=1)
        b.clear(b.mine.packets[peer], 0)
        b.wait_stamps(b.mine.packets[peer], "==", 1)
        b.copy(b.input, b.output)

    for memory in MEMORY_MODELS:
        hang = check(clears_first, memory=memory, executions=60, minimise=False).hang
        gone = [line for line in hang if "before the waiter looked" in line]
        assert gone and "had stamp 1, which meets it" in gone[0] and "overwrote it with stamp 0" in gone[0], hang
        assert not any("before the waiter looked" in line and "nobody will write" in line for line in hang)


def test_a_packet_that_the_waiter_has_taken_is_not_said_to_be_missed():
    @protocol(memory=packets, world=2, bytes=512)
    def waits_twice(b: Block) -> None:
        (peer,) = b.peers
        b.copy(b.input, b.on(peer).packets[b.rank], stamp=1)
        b.wait_stamps(b.mine.packets[peer], "==", 1)
        b.clear(b.mine.packets[peer], 0)
        b.wait_stamps(b.mine.packets[peer], "==", 1)
        b.copy(b.input, b.output)

    (first, *_) = check(waits_twice, executions=10, minimise=False).hang
    assert "nobody will write it any more" in first and "overwrote" not in first
