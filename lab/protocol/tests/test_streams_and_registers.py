"""What the language promises about streams with overlap, captured launches, grids and bounded registers."""

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.program import Wait
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, Block, Declare, Host, protocol
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
    assert seen == [(1, 7), (1, 7)]


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


# ---- streams that wait for each other


def handed_over(h: Host) -> None:
    """A producer on a compute stream, the call on a communication stream, a consumer on the compute stream again."""
    x, out, ahead = h.mine.x, h.output(512), h.options["events"]
    h.produce(x, stream=0)
    if ahead in ("both", "first"):
        h.wait_stream(1, 0)
    h.launch(x, out, stream=1, nbytes=512)
    if h.options["overlap"]:
        h.launch(x, h.output(512), stream=1, nbytes=512, overlap=True)
    if ahead == "both":
        h.wait_stream(0, 1)
    h.consume(out, stream=0)
    h.sync(0)


def one_input(m: Declare) -> None:
    m.payload("x", m.max_elements)


@protocol(
    memory=one_input,
    bytes=512,
    world=1,
    scenarios={"handed_over": handed_over},
    options={"events": "both", "overlap": False},
)
def copies_x(b: Block) -> None:
    b.copy(b.input, b.output)


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize(("events", "kind"), [("both", "ok"), ("first", "wrong"), ("none", "wrong")])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_that_waits_for_another_is_ordered_with_it(memory, events, kind, overlap):
    config = copies_x.config(options=(("events", events), ("overlap", overlap)))
    assert check(copies_x, config, memory=memory, executions=200, minimise=False).verdict == kind


def test_an_overlapping_kernel_starts_after_what_the_kernel_ahead_of_it_waited_for():
    """The kernel ahead may still run; what that one waited for has ended."""

    def three(h: Host) -> None:
        out = h.output(512)
        h.produce(h.mine.x)
        h.launch(h.mine.x, h.output(512), nbytes=512)
        h.launch(h.mine.x, out, nbytes=512, overlap=True)
        h.consume(out)
        h.sync()

    found = protocol(memory=one_input, bytes=512, world=1, scenarios={"three": three})(copies_x.kernel)
    assert check(found, executions=200, minimise=False).ok


def test_waiting_for_a_stream_that_waits_is_waiting_for_both():
    def chain(h: Host) -> None:
        out = h.output(512)
        h.produce(h.mine.x, stream=0)
        h.wait_stream(1, 0)
        h.wait_stream(2, 1)
        h.launch(h.mine.x, out, stream=2, nbytes=512)
        h.wait_stream(3, 2)
        h.sync(3)
        h.fill(h.mine.x)

    found = protocol(memory=one_input, bytes=512, world=1, scenarios={"chain": chain})(copies_x.kernel)
    assert check(found, executions=200, minimise=False).ok


# ---- what is due


def gather(h: Host) -> None:
    """An allgather: the part of each rank, in order."""
    n = 512 // h.config.itemsize // h.world
    x, out = h.input(512), h.output(512)
    h.launch(x, out)
    h.sync()
    for j in range(h.world):
        due = h.options["due"] if h.options["due"] >= 0 else j
        h.expect(out[j * n : (j + 1) * n], x[:n], of=[due])


def inbox(m: Declare) -> None:
    m.payload("parts", m.max_elements // m.world, source=m.world)
    m.words("flag", m.world)


@protocol(memory=inbox, bytes=512, world=4, scenarios={"gather": gather}, options={"due": -1})
def all_gather(b: Block) -> None:
    n = b.elements // b.world
    for j in range(b.world):
        b.copy(b.input[:n], b.on(j).parts[b.rank])
    b.barrier()
    for j in range(b.world):
        b.leader.store(b.on(j).flag[b.rank], 1, RELEASE, SYSTEM)
    for j in range(b.world):
        b.leader.wait(b.mine.flag[j], ">=", 1, ACQUIRE, SYSTEM)
    b.barrier()
    for j in range(b.world):
        b.copy(b.mine.parts[j], b.output[j * n : (j + 1) * n])


def test_what_is_due_may_be_the_input_of_some_ranks():
    assert check(all_gather, executions=50).ok
    wrong = check(all_gather, all_gather.config(options=(("due", 1),)), executions=20)
    assert wrong.verdict == "wrong" and all("the input of rank 1 of this call" in w.due for w in wrong.wrong)


@pytest.mark.parametrize("of", [[], [4], ["0"]])
def test_ranks_that_are_none_are_refused(of):
    def compares(h: Host) -> None:
        x, out = h.input(512), h.output(512)
        h.expect(out, x, of=of)

    with pytest.raises(ProtocolError, match="ranks 0 to 3"):
        protocol(memory=inbox, bytes=512, world=4, scenarios={"compares": compares})(all_gather.kernel).program()
