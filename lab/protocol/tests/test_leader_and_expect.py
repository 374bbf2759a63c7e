"""What only the leader of a block does, and comparing a part of an output."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.write import DEVICE, RELAXED, Block, Declare, Host, protocol
from lab.sim.check import check


def words(m: Declare) -> None:
    """One word that stops the block."""
    m.words("stop", initial=1)


@protocol(memory=words, world=1, bytes=2048, waves=4)
def leaves_when_told(b: Block) -> None:
    """Thread 0 returns for the whole block; the other waves follow at the barrier and never copy."""
    stop = b.leader.load(b.mine.stop, RELAXED, DEVICE)
    with b.leader.when(stop == 1):
        b.ret()
    b.barrier()
    b.copy(b.input, b.output)


def test_a_return_of_the_leader_ends_the_other_waves_at_the_barrier():
    verdict = check(leaves_when_told, executions=50)
    assert verdict.verdict == "wrong", "the output was written although the block had returned"
    assert "initial contents" in verdict.wrong[0].holds
    assert verdict.wrong[0].elements == ((0, 1024),)


def _part(lo: int, hi: int, shift: int = 0):
    def scenario(h: Host) -> None:
        x, out = h.input(2048), h.output(2048)
        h.launch(x, out)
        h.sync()
        h.expect(out[lo:hi], x[lo + shift : hi + shift])

    return scenario


def _copying(scenario):
    @protocol(memory=lambda m: None, world=1, bytes=2048, scenarios={"part": scenario})
    def copies(b: Block) -> None:
        b.copy(b.input, b.output)

    return copies


def test_a_part_of_an_output_is_compared_with_the_same_part_of_the_input():
    assert check(_copying(_part(100, 300)), executions=4).ok
    assert check(_copying(_part(100, 300, shift=1)), executions=4).verdict == "wrong"


def test_parts_of_different_length_are_refused_with_the_line():
    def scenario(h: Host) -> None:
        x, out = h.input(2048), h.output(2048)
        h.launch(x, out)
        h.sync()
        h.expect(out[0:10], x)

    with pytest.raises(ProtocolError, match=r"test_leader_and_expect.py:\d+: .*10 elements.*1024"):
        _copying(scenario).program()
