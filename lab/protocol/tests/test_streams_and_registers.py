"""What the language promises about streams with overlap, captured launches, grids and bounded registers."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.program import Wait
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, SYSTEM, Block, Declare, Host, protocol
from lab.sim.check import check


def memory(m: Declare) -> None:
    m.words("word", 4)
    m.payload("shared", m.max_elements)


def overlapping(h: Host) -> None:
    x, first, second = h.input(512), h.output(512), h.output(512)
    h.launch(x, first)
    h.launch(x, second, overlap=True)
    if h.options["third"]:
        h.launch(x, h.output(512))
    h.sync()
    h.expect(first, x)
    h.expect(second, x)


@protocol(
    memory=memory, bytes=512, world=1, scenarios={"overlapping": overlapping}, options={"third": False, "shared": False}
)
def copies(b: Block) -> None:
    b.copy(b.input, b.output)
    if b.options["shared"]:
        b.copy(b.input, b.mine.shared)


@pytest.mark.parametrize("third", [False, True])
def test_what_follows_overlapping_kernels_waits_for_all_of_them(third):
    assert check(copies, copies.config(options=(("third", third),)), executions=200, minimise=False).ok


def test_overlapping_kernels_are_not_ordered():
    assert check(copies, copies.config(options=(("shared", True),)), executions=200, minimise=False).verdict == "race"


def test_a_captured_launch_runs_only_when_replayed():
    def twice(h: Host) -> None:
        graph = h.capture(h.input(512), h.output(512), args={"frozen": 7})
        h.replay(graph)
        h.replay(graph)
        h.sync()

    seen = []

    @protocol(memory=memory, bytes=512, world=1, scenarios={"twice": twice})
    def captured(b: Block) -> None:
        seen.append((b.call, b.args["frozen"]))
        b.copy(b.input, b.output)

    captured.program()
    assert seen == [(1, 7), (2, 7)]


def test_a_numeric_grid_is_a_default_that_the_configuration_may_raise():
    @protocol(memory=lambda m: m.words("row", block=m.blocks), blocks=1, bytes=512, world=1)
    def gridded(b: Block) -> None:
        b.copy(b.input, b.output)

    for blocks, expected in ((None, 1), (5, 5)):
        program = gridded.program(blocks=blocks)
        assert sum(agent.kind == "block" for agent in program.agents) == expected
        assert next(region.length for region in program.regions if region.name == "row") == expected


def test_a_bounded_register_stays_bounded():
    @protocol(memory=memory, bytes=512, world=1)
    def breaks_it(b: Block) -> None:
        p = b.let(b.load(b.mine.word[0], RELAXED, DEVICE) % 2)
        b.assign(p, 1)
        b.assign(p, p + 1)

    with pytest.raises(ProtocolError, match=r"p stays below 2"):
        breaks_it.program()


def test_a_rank_that_never_launches_is_no_mistake_of_the_text():
    def one_leaves(h: Host) -> None:
        if h.rank == 0:
            h.launch(h.input(512), h.output(512))
            h.sync()

    @protocol(memory=memory, bytes=512, scenarios={"one_leaves": one_leaves})
    def meets(b: Block) -> None:
        for j in b.peers:
            b.leader.store(b.on(j).word[b.rank], 1, RELAXED, SYSTEM)
            b.leader.wait(b.mine.word[j], ">=", 1, ACQUIRE, SYSTEM)

    assert check(meets, executions=50, minimise=False).verdict == "hang"


def test_a_bound_in_seconds_is_recorded():
    @protocol(memory=memory, bytes=512, world=1)
    def waits(b: Block) -> None:
        b.leader.wait(b.mine.word[0], ">=", 0, ACQUIRE, SYSTEM, seconds=2.5, on_timeout=b.ret)
        b.leader.store(b.mine.word[0], 1, RELAXED, SYSTEM)

    op = next(op for agent in waits.program().agents for op in agent.ops if isinstance(op, Wait) and op.seconds)
    assert (op.seconds, op.bound) == (2.5, None)
