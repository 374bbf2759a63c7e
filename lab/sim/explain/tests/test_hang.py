"""Hangs are explained: what was there and is gone, who could still write, who waits for whom."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.library import load
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
    Host,
    protocol,
)
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
    told = verdict.hang[0]
    assert "it holds 1, which rank 0 block" in told and "nobody will write it any more" in told
    assert "seen = 1, read at step" in told and "overwrote" not in told, "the register, and the store that gave it"
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


# ---- the waiter's own doing


def counted(m: Declare) -> None:
    """Arrivals."""
    m.words("arrived")


def without_output(h: Host) -> None:
    """One launch; no output is compared."""
    h.launch(blocks=h.config.blocks)
    h.sync()


@protocol(memory=counted, world=1, blocks=3, bytes=64, calls=1, scenarios={"once": without_output})
def overshoots(b: Block) -> None:
    """Three blocks arrive, and each waits for exactly two."""
    b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)
    b.leader.wait(b.mine.arrived, "==", 2, ACQUIRE, DEVICE)


def test_an_addition_of_the_waiter_that_took_the_word_past_its_wait_is_named():
    told = check(overshoots, executions=20, repair_seconds=0).hang
    own = [line for line in told if "and its own addition" in line and "overwrote it with 3" in line]
    assert len(own) == 1 and "made it 2 at step" in own[0] and "nobody will write" not in own[0], told
    assert any("its own addition made it 2" in line and "overwrote it with 3" in line for line in told), told


@protocol(memory=words, world=2, bytes=512)
def wipes_its_own(b: Block) -> None:
    """Each clears its word after the other may have told."""
    (other,) = b.peers
    b.leader.store(b.on(other).turn, 1, RELEASE, SYSTEM)
    b.leader.store(b.mine.turn, 0, RELAXED, SYSTEM)
    b.leader.wait(b.mine.turn, "==", 1, ACQUIRE, SYSTEM)
    b.copy(b.input, b.output)


@pytest.mark.parametrize("memory", MEMORY_MODELS)
def test_a_store_of_the_waiter_that_wiped_the_signal_is_named(memory):
    told = check(wipes_its_own, memory=memory, executions=60, repair_seconds=0).hang
    assert any("made it 1 at step" in line and "its own store (test_hang.py:" in line for line in told), told


@protocol(memory=counted, world=1, blocks=2, bytes=64, calls=2, options={"lacking": True})
def returns_to_zero(b: Block) -> None:
    """Arrive, and wait until the last has set the word to 0 again; in call 2 one block does not arrive."""
    absent = b.options["lacking"] and b.call == 2 and b.block == 1
    if not absent:
        seen = b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)
        with b.leader.when(seen == b.blocks - 1):
            b.leader.store(b.mine.arrived, 0, RELEASE, DEVICE)
        with b.leader.when(seen != b.blocks - 1):
            b.leader.wait(b.mine.arrived, "==", 0, ACQUIRE, DEVICE)
    b.copy(b.input, b.output)


def test_what_met_an_earlier_use_of_a_word_is_not_said_to_be_missed():
    """The 0 of call 1 was seen in call 1; call 2 waits for another, and its addition spoils nothing."""
    told = check(returns_to_zero, executions=40, repair_seconds=0).hang
    assert told and "overwrote" not in told[0] and "nobody will write it any more" in told[0], told
    assert check(returns_to_zero, returns_to_zero.config(options=(("lacking", False),)), executions=40).ok


# ---- what does not exist, or came empty


def uneven(h: Host) -> None:
    """Rank 0 launches one block, rank 1 two."""
    h.launch(blocks=1 + h.rank)
    h.sync()


def flags(m: Declare) -> None:
    """A flag for each block of each rank."""
    m.words("ready", m.world, block=2)


@protocol(memory=flags, world=2, blocks=2, bytes=64, calls=1, scenarios={"uneven": uneven})
def block_by_block(b: Block) -> None:
    """Block k waits for block k of the peer."""
    (other,) = b.peers
    b.leader.store(b.on(other).ready[b.block, b.rank], b.call, RELEASE, SYSTEM)
    b.leader.wait(b.mine.ready[b.block, other], ">=", b.call, ACQUIRE, SYSTEM)


def test_a_grid_that_has_no_such_block_is_named():
    (told, *_) = check(block_by_block, executions=10, repair_seconds=0).hang
    assert "it holds 0, as at first; nobody will write it any more" in told
    assert "rank 0 has 1, rank 1 has 2 blocks; rank 0 has no block 1" in told


@protocol(memory=packets, world=2, bytes=512, calls=2)
def sends_the_empty_stamp(b: Block) -> None:
    """In call 1 the packet carries the stamp of an empty slot; call 2 would send a full one."""
    (peer,) = b.peers
    b.copy(b.input, b.on(peer).packets[b.rank], stamp=b.call - 1)
    b.wait_stamps(b.mine.packets[peer], "!=", 0)
    b.copy(b.input, b.output)


@pytest.mark.parametrize("memory", MEMORY_MODELS)
def test_a_packet_that_came_with_a_stamp_that_does_not_meet_is_named(memory):
    told = check(sends_the_empty_stamp, memory=memory, executions=20, repair_seconds=0).hang
    assert "with stamp 0, which does not meet it" in told[0] and "still to be written" not in told[0], told
    assert not any(line.startswith("each waits for the next") for line in told), "call 2 is no cause"
    assert told[-1].startswith("until these end there wait: ")
