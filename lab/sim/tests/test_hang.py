"""Hangs are explained: what was there and is gone, who could still write, who waits for whom."""

from lab.protocol.library import load
from lab.protocol.write import ACQUIRE, DEVICE, RELEASE, Block, Declare, protocol
from lab.sim.check import check


def test_a_value_that_was_overwritten_before_the_waiter_looked_is_named():
    verdict = check(load("mori_494"), minimise=False)
    assert verdict.verdict == "hang"
    first = verdict.hang[0]
    assert "which meets it" in first and "overwrote it with 0" in first and "before the waiter looked" in first


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
