"""Constants, maxima, residuals, sizes known only at run time, and copy engines: what outputs are then due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.program import CONSTANT, Expect, Move, Program
from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQUIRE,
    CACHED,
    DEVICE,
    KIB,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    Host,
    Protocol,
    protocol,
)
from lab.sim.check import check
from lab.sim.explain.values import outputs
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.search.search import search
from lab.sim.timing.timing import plan

BYTES = 1 * KIB


def made_of(kernel: Callable[[Block], None], scenario: Callable[[Host], None], world: int = 2, **options) -> Protocol:
    def memory(d: Declare) -> None:
        d.payload("inbox", d.max_elements, UNCACHED, source=d.world)
        d.payload("cached", d.max_elements, CACHED)
        d.words("ready", d.world)
        d.words("size")

    return protocol(
        memory=memory, blocks=1, bytes=BYTES, world=world, scenarios={"own": scenario}, options=options or None
    )(kernel)


def push(b: Block, **how) -> None:
    """An all-reduce that pushes its input to every peer; `how`: of the reduction."""
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank], vector=8)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", 1, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j] for j in range(b.world)], b.output, vector=8, **how)


def wrong_share(made: Protocol, memory: str = "sc", **changes) -> float:
    engine = Engine(compile_tables(made.program(made.config(**changes))), memory)
    totals = engine.batch("random", 0, 20)
    assert not totals[m.T_HANGS]
    return totals[m.T_WRONG] / totals[m.T_RUNS]


# ---- maximum and residual


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("taken", "due", "right"), [("max", "max", 1), ("max", "sum", 0), ("sum", "max", 0)])
def test_a_maximum_is_no_sum(world, taken, due, right):
    def scenario(h: Host) -> None:
        x, out = h.input(BYTES), h.output(BYTES)
        h.launch(x, out)
        h.sync()
        h.expect(out, x, fn=due)

    made = made_of(lambda b: push(b, fn=taken), scenario, world)
    assert wrong_share(made, world=world) == 1 - right


def test_a_maximum_may_be_grouped():
    """The maximum of three ranks, taken two by two, is the maximum; so is its number."""

    def kernel(b: Block) -> None:
        push_only(b)
        b.reduce([b.input, b.mine.inbox[b.peers[0]]], b.mine.cached, fn="max")
        b.reduce([b.mine.cached, b.mine.inbox[b.peers[1]]], b.output, fn="max")

    def push_only(b: Block) -> None:
        for j in b.peers:
            b.copy(b.input, b.on(j).inbox[b.rank])
            b.store(b.on(j).ready[b.rank], 1, RELEASE, SYSTEM)
        for j in b.peers:
            b.wait(b.mine.ready[j], ">=", 1, ACQUIRE, SYSTEM)

    def scenario(h: Host) -> None:
        x, out = h.input(BYTES), h.output(BYTES)
        h.launch(x, out)
        h.sync()
        h.expect(out, x, fn="max")

    made = made_of(kernel, scenario, 3)
    assert wrong_share(made) == 0
    (found, *_) = outputs(execute(compile_tables(made.program())))
    assert (found.mean, found.due) == (3.0, 3.0)


@pytest.mark.parametrize("added", [True, False])
def test_a_residual_is_due_on_top(added):
    def kernel(b: Block) -> None:
        push(b)
        if added:
            b.reduce([b.output, b.args["residual"]], b.output)

    def scenario(h: Host) -> None:
        x, residual, out = h.input(BYTES), h.input(BYTES), h.output(BYTES)
        h.launch(x, out, args={"residual": residual})
        h.sync()
        h.expect(out, x, plus=[residual])

    made = made_of(kernel, scenario)
    assert wrong_share(made) == (0 if added else 1)
    op = next(op for agent in made.program().agents for op in agent.ops if isinstance(op, Expect))
    assert op.describe().endswith("= sum over ranks 0, 1 of input version 1 + input of rank 0, version 2")


@pytest.mark.parametrize(
    ("plus", "message"),
    [
        (lambda x, other, out: [x], "is no other input"),
        (lambda x, other, out: [out], "is no other input"),
        (lambda x, other, out: [other[:4]], "slice both alike"),
    ],
)
def test_what_is_no_residual(plus, message):
    def scenario(h: Host) -> None:
        x, other, out = h.input(BYTES), h.input(BYTES), h.output(BYTES)
        h.launch(x, out)
        h.expect(out, x, plus=plus(x, other, out))

    with pytest.raises(ProtocolError, match=message):
        made_of(push, scenario).program()


# ---- constants


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@pytest.mark.parametrize(("put", "wrong"), [(0, 0.0), (7, 1.0)])
def test_a_constant_is_what_was_put(memory, put, wrong):
    """Rank 0 clears the peer's buffer, and says so."""

    def kernel(b: Block) -> None:
        if b.rank == 0:
            b.put_constant(b.on(1).inbox[0], put, vector=8)
            b.leader.store(b.on(1).ready[0], 1, RELEASE, SYSTEM)
        else:
            b.leader.wait(b.mine.ready[0], ">=", 1, ACQUIRE, SYSTEM)
            b.copy(b.mine.inbox[0], b.output)

    def scenario(h: Host) -> None:
        out = h.output(BYTES)
        h.launch(h.input(BYTES), out)
        h.sync()
        if h.rank == 1:
            h.expect_constant(out, 0)

    assert wrong_share(made_of(kernel, scenario), memory) == wrong


def test_a_constant_adds_like_any_value():
    def kernel(b: Block) -> None:
        b.put_constant(b.mine.cached, 5)
        b.reduce([b.mine.cached, b.mine.cached], b.output)

    def scenario(h: Host) -> None:
        x, out = h.input(BYTES), h.output(BYTES)
        h.fill(x, constant=5)
        h.launch(x, out)
        h.sync()
        h.expect_constant(x, 5)
        h.expect_constant(out, 5)

    made = made_of(kernel, scenario, 1)
    found = outputs(execute(compile_tables(made.program())))
    assert [(out.mean, out.due, out.wrong_share) for out in found] == [(5.0, 5.0, 0.0), (10.0, 5.0, 1.0)]


def test_an_unordered_constant_races():
    """Clearing a buffer while the peer still sends into it."""

    def kernel(b: Block) -> None:
        b.put_constant(b.mine.inbox[b.peers[0]], 0)
        b.copy(b.input, b.on(b.peers[0]).inbox[b.rank])

    def scenario(h: Host) -> None:
        h.launch(h.input(BYTES), h.output(BYTES))
        h.sync()

    made = made_of(kernel, scenario)
    races = check(made, made.config(), executions=20, minimise=False).races
    assert races and "put the constant 0" in made.program().agents[0].ops[1].describe() + str(
        [op.describe() for agent in made.program().agents for op in agent.ops]
    )


# ---- sizes known at run time


def sized(most: int, stored: int, read: Callable | None = None) -> Protocol:
    """Rank 0 sends only as many elements as a word in its memory says; rank 1 knows as many."""

    def kernel(b: Block) -> None:
        b.store(b.mine.size, stored, RELAXED, DEVICE)
        n = b.share(b.leader.load(b.mine.size, RELAXED, DEVICE) % (most + 1))
        if b.rank == 0:
            b.copy(b.input, b.on(1).inbox[0], vector=8, count=n)
            b.barrier()
            b.leader.store(b.on(1).ready[0], 1, RELEASE, SYSTEM)
        else:
            b.leader.wait(b.mine.ready[0], ">=", 1, ACQUIRE, SYSTEM)
            b.barrier()
            b.copy(b.mine.inbox[0], b.output, vector=8, count=n)

    def scenario(h: Host) -> None:
        x, out = h.input(BYTES), h.output(BYTES)
        h.launch(x, out)
        h.sync()
        if h.rank == 1:
            h.expect(out[:stored], x[:stored], of=[0])
            if read is not None:
                read(h, out, x)

    return made_of(kernel, scenario)


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@pytest.mark.parametrize("stored", [1, 8, 13, 40])
def test_a_size_known_at_run_time(memory, stored):
    assert wrong_share(sized(40, stored), memory) == 0


def test_what_lies_behind_the_size_is_not_copied():
    assert wrong_share(sized(40, 16, lambda h, out, x: h.expect(out[16:17], x[16:17], of=[0]))) == 1


def test_every_search_knows_the_size():
    tables = compile_tables(sized(40, 13).program())
    for memory in m.MEMORY_MODELS:
        found = search(tables, memory, stop=False)
        assert found.complete and not found.failed


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda b, n: n % 2000, "has 512 elements"),
        (lambda b, n: n, "without a bound"),
        (lambda b, n: -1, "a number of elements"),
        (lambda b, n: 1.5, "a number of elements"),
        (lambda b, n: 999, "has 512 elements"),
    ],
)
def test_what_is_no_size(count, message):
    def kernel(b: Block) -> None:
        n = b.load(b.mine.size, RELAXED, DEVICE)
        b.copy(b.input, b.output, count=count(b, n))

    def scenario(h: Host) -> None:
        h.launch(h.input(BYTES), h.output(BYTES))

    with pytest.raises(ProtocolError, match=message) as raised:
        compile_tables(made_of(kernel, scenario).program())
    assert "test_payload_verbs.py" in str(raised.value)


# ---- copy engines


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_engine_is_one_more_on_the_stream(memory, waits):
    """It copies the input into the peer on a stream of its own; the kernel of the peer is told by a flag after it."""

    def tell(b: Block) -> None:
        b.leader.store(b.on(1 - b.rank).ready[b.rank], 1, RELEASE, SYSTEM)

    def kernel(b: Block) -> None:
        j = b.peers[0]
        b.leader.wait(b.mine.ready[j], ">=", 1, ACQUIRE, SYSTEM)
        b.barrier()
        b.reduce([b.input, b.mine.inbox[j]], b.output)

    def scenario(h: Host) -> None:
        x, out = h.input(BYTES), h.output(BYTES)
        j = 1 - h.rank
        h.copy(h.on(j).inbox[h.rank], x, stream=1)
        if waits:
            h.wait_stream(2, 1)
        h.launch(x, None, kernel=tell, stream=2)
        h.launch(x, out)
        h.sync()
        h.expect(out, x)

    made = made_of(kernel, scenario)
    verdict = check(made, made.config(), memory=memory, executions=100, minimise=False)
    assert verdict.ok == waits and bool(verdict.races) != waits
    engines = [agent for agent in made.program().agents if "copy kernel" in agent.name]
    assert len(engines) == 2 and all(isinstance(op, Move) for a in engines for op in a.ops if op.phase == "copy")


def test_copies_are_of_one_length():
    def scenario(h: Host) -> None:
        h.copy(h.mine.cached, h.input(4))

    with pytest.raises(ProtocolError, match="input 1 has 2 elements, cached 512"):
        made_of(push, scenario).program()


# ---- the timing model knows no such numbers, and says so


@pytest.mark.parametrize(
    "kernel",
    [
        lambda b: b.put_constant(b.output, 0),
        lambda b: b.reduce([b.input, b.input], b.output, fn="max"),
        lambda b: b.wait_any([b.mine.ready[0], b.mine.size], "==", 0, RELAXED, SYSTEM),
        lambda b: b.cas_until(b.mine.size, 0, 1, RELAXED, SYSTEM),
    ],
)
def test_the_timing_model_refuses_what_it_does_not_know(kernel):
    def scenario(h: Host) -> None:
        h.launch(h.input(BYTES), h.output(BYTES))

    with pytest.raises(ProtocolError, match="the timing model does not time this"):
        plan(compile_tables(made_of(kernel, scenario).program()))


def program_fingerprints(*kernels: Callable[[Block], None]) -> set[str]:
    def scenario(h: Host) -> None:
        h.launch(h.input(BYTES), h.output(BYTES))

    programs: list[Program] = [made_of(kernel, scenario).program() for kernel in kernels]
    return {program.fingerprint() for program in programs}


def test_what_is_new_is_in_the_fingerprint():
    found = program_fingerprints(
        lambda b: b.copy(b.input, b.output),
        lambda b: b.copy(b.input, b.output, count=3),
        lambda b: b.put_constant(b.output, 1),
        lambda b: b.put_constant(b.output, 2),
        lambda b: b.reduce([b.input, b.input], b.output),
        lambda b: b.reduce([b.input, b.input], b.output, fn="max"),
        lambda b: b.wait(b.mine.size, "==", 0, RELAXED, SYSTEM),
        lambda b: b.wait(b.mine.size, "==", 0, RELAXED, SYSTEM, mask=1),
        lambda b: b.wait(b.mine.size, "==", 0, RELAXED, SYSTEM, mask=3),
        lambda b: b.wait_any([b.mine.size, b.mine.ready[0]], "==", 0, RELAXED, SYSTEM),
        lambda b: b.wait_any([b.mine.size, b.mine.ready[1]], "==", 0, RELAXED, SYSTEM),
    )
    assert len(found) == 11
    assert CONSTANT < 0, "no rank is a constant"
