"""Waits that give up: what must be said, and what a verdict then leaves open."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.write import ACQUIRE, RELEASE, SYSTEM, Block, Declare, protocol
from lab.sim.check import check


def words(m: Declare) -> None:
    """One flag of each rank."""
    m.words("flag")


def _waiting(**limits):
    @protocol(memory=words, world=2, bytes=512)
    def waits(b: Block) -> None:
        b.leader.store(b.on(b.peers[0]).flag, b.call, RELEASE, SYSTEM)
        given = {name: (b.ret if value == "return" else value) for name, value in limits.items()}
        b.leader.wait(b.mine.flag, ">=", b.call, ACQUIRE, SYSTEM, **given)
        b.copy(b.input, b.output)

    return waits


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"bound": 4}, "says with `on_timeout`"),
        ({"seconds": 1.0}, "says with `on_timeout`"),
        ({"on_timeout": "return"}, "only such a wait does"),
        ({"bound": 0, "on_timeout": "return"}, "positive number"),
        ({"bound": 4, "seconds": -1.0, "on_timeout": "return"}, "positive number"),
        ({"bound": 4, "on_timeout": 3}, "is a function"),
    ],
    ids=str,
)
def test_half_a_bound_is_refused_with_the_line_of_the_wait(limits, words):
    with pytest.raises(ProtocolError, match=rf"test_bounds.py:\d+: .*{words}"):
        _waiting(**limits).program()


def test_the_listing_shows_the_bound_and_the_verdict_what_it_leaves_open():
    bounded = _waiting(bound=4, on_timeout="return")
    program = bounded.program()
    assert "at most 4 polls" in program.listing(next(a for a in program.agents if a.kind == "block"))
    assert "bounded in polls" in check(bounded, executions=4).proof
    assert "bounded in polls" not in check(_waiting(), executions=4).proof


def test_an_empty_sum_and_a_swap_without_a_comparison_are_refused():
    @protocol(memory=words, world=1, bytes=512)
    def sums_nothing(b: Block) -> None:
        b.reduce([], b.output)

    @protocol(memory=words, world=1, bytes=512)
    def swaps(b: Block) -> None:
        b.leader.rmw("cas", b.mine.flag, 1, RELEASE, SYSTEM)

    with pytest.raises(ProtocolError, match=r"test_bounds.py:\d+: there is nothing to reduce"):
        sums_nothing.program()
    with pytest.raises(ProtocolError, match=r"test_bounds.py:\d+: only cas compares"):
        swaps.program()
