"""What a register can hold: what may index a region, what an index can be, and that no value escapes it."""

import random

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.expr import BINARY, MASK, Const, Expr, Reg, Values, binary, enumerate_index, evaluate, range_of
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, SYSTEM, UNCACHED, Block, Declare, Host, protocol
from lab.sim.check import check


def memory(m: Declare) -> None:
    m.words("word", 8)
    m.payload("slots", m.max_elements, UNCACHED, slot=4)


def recorded(text, **changes):
    return protocol(memory=memory, bytes=512, world=1)(text).program(**changes)


def slots_of(program) -> list[int]:
    """The slots that the first copy into `slots` may write."""
    agent = next(agent for agent in program.agents if agent.kind in ("block", "wave"))
    spans = (op.dst for op in agent.ops if getattr(op, "dst", None).__class__.__name__ == "Span")
    span = next(span for span in spans if span.region.name == "slots")
    return sorted({start // span.length for start in enumerate_index(span.start)[1][0]})


# ---- what may index


@pytest.mark.parametrize(
    ("index", "slots"),
    [
        (lambda b, x: b.let(1), [1]),
        (lambda b, x: b.let(b.let(1) + 2), [3]),
        (lambda b, x: b.let(x % 2), [0, 1]),
        (lambda b, x: b.let(1 - b.let(x % 2)), [0, 1]),
        (lambda b, x: b.let(b.let(x % 2) * 2 + 1), [1, 2, 3]),
        (lambda b, x: b.let(x % 2) * 2 + 1, [1, 3]),
        (lambda b, x: b.let(x >> 30), [0, 1, 2, 3]),
        (lambda b, x: x >> 30, [0, 1, 2, 3]),
        (lambda b, x: x // 2**31, [0, 1]),
        (lambda b, x: b.let(x != 0), [0, 1]),
        (lambda b, x: (x != 0) + 2, [2, 3]),
        (lambda b, x: b.share(x % 4), [0, 1, 2, 3]),
        (lambda b, x: b.share(2), [2]),
    ],
)
@pytest.mark.parametrize("waves", [1, 2])
def test_what_is_bounded_may_index(index, slots, waves):
    def copies(b: Block) -> None:
        x = b.leader.load(b.mine.word[0], RELAXED, DEVICE)
        x = b.share(x)
        b.copy(b.input, b.mine.slots[index(b, x)])

    program = recorded(copies, waves=waves)
    compile_tables(program)
    assert slots_of(program) == slots


@pytest.mark.parametrize(
    "index", [lambda b, x: x, lambda b, x: b.let(x + 1), lambda b, x: b.let(x * 2), lambda b, x: b.let(x - 1)]
)
def test_what_is_not_bounded_may_not(index):
    def copies(b: Block) -> None:
        x = b.load(b.mine.word[0], RELAXED, DEVICE)
        b.copy(b.input, b.mine.slots[index(b, x)])

    with pytest.raises(ProtocolError, match=r"test_values.py:\d+: .*without a bound"):
        compile_tables(recorded(copies))


@pytest.mark.parametrize("index", [lambda x: x % 100_000, lambda x: x & MASK, lambda x: (x % 100) * 100 + (x >> 25)])
def test_more_values_than_can_be_laid_out_are_refused(index):
    def copies(b: Block) -> None:
        b.copy(b.input, b.mine.slots[index(b.load(b.mine.word[0], RELAXED, DEVICE))])

    with pytest.raises(ProtocolError, match=r"test_values.py:\d+: the index takes \d+ values .* at most 4096"):
        compile_tables(recorded(copies))


def test_a_register_widens_with_what_it_is_assigned():
    def copies(b: Block) -> None:
        x = b.load(b.mine.word[0], RELAXED, DEVICE)
        which = b.let(0)
        with b.when(x == 7):
            b.assign(which, 3)
        b.copy(b.input, b.mine.slots[which])

    assert slots_of(recorded(copies)) == [0, 1, 2, 3]

    def any_word(b: Block) -> None:
        x = b.load(b.mine.word[0], RELAXED, DEVICE)
        count = b.let(0)
        b.assign(count, count + x)
        b.copy(b.input, b.mine.slots[count])

    with pytest.raises(ProtocolError, match="count without a bound"):
        compile_tables(recorded(any_word))


def test_what_something_relies_on_does_not_widen():
    def by_the_text(b: Block) -> None:
        p = b.let(b.load(b.mine.word[0], RELAXED, DEVICE) % 2)
        b.assign(p, 1 - p)
        b.assign(p, p + 1)

    def by_alignment(b: Block) -> None:
        p = b.let(0)
        b.vector_elements(b.mine.slots[p])
        b.assign(p, 1)

    for text, name in ((by_the_text, "p stays below 2"), (by_alignment, "p stays below 1")):
        with pytest.raises(ProtocolError, match=name):
            recorded(text)


def test_a_handler_that_goes_on_behind_its_wait_changes_what_was_made_there():
    def copies(b: Block) -> None:
        p = b.let(0)
        with b.rescue(lambda: b.assign(p, 3)) as late:
            b.wait(b.mine.word[0], ">=", 1, ACQUIRE, SYSTEM, 4, late)
        q = b.let(p if b.options["same"] else p * 2)
        b.copy(b.input, b.mine.slots[q])

    for same in (False, True):
        found = protocol(memory=memory, bytes=512, world=1, options={"same": same})(copies)
        with pytest.raises(ProtocolError, match="depends on register q without a bound"):
            compile_tables(found.program())

    def aligned(b: Block) -> None:
        p = b.let(0)
        with b.rescue(lambda: b.assign(p, 3)) as late:
            b.wait(b.mine.word[0], ">=", 1, ACQUIRE, SYSTEM, 4, late)
        b.vector_elements(b.mine.slots[b.let(p)])

    with pytest.raises(ProtocolError, match="a register made from p stays below 1"):
        recorded(aligned)

    def directly(b: Block) -> None:
        p = b.let(0)
        with b.rescue(lambda: b.assign(p, 3)) as late:
            b.wait(b.mine.word[0], ">=", 1, ACQUIRE, SYSTEM, 4, late)
        b.copy(b.input, b.mine.slots[p])
        b.store(b.mine.word[0], 1, RELAXED, SYSTEM)

    assert slots_of(recorded(directly)) == [0, 1, 2, 3]


def test_hosts_too():
    def one_of_two(h: Host) -> None:
        which = h.let(1)
        h.store(h.mine.word[which], 1, RELAXED, SYSTEM)
        x, out = h.input(512), h.output(512)
        h.launch(x, out)
        h.sync()
        h.expect(out, x)

    @protocol(memory=memory, bytes=512, world=1, scenarios={"one_of_two": one_of_two})
    def copies(b: Block) -> None:
        b.leader.wait(b.mine.word[1], ">=", 1, RELAXED, SYSTEM)
        b.copy(b.input, b.output)

    assert check(copies, executions=20).ok


# ---- ranges


def grown(rng: random.Random, registers: list[Reg], depth: int) -> Expr:
    if not depth or rng.random() < 0.2:
        return rng.choice([*registers, Const(rng.choice((0, 1, 3, 7, 40, MASK)))])
    op = rng.choice(list(BINARY))
    right: Expr = grown(rng, registers, depth - 1)
    if op in ("%", "//", "<<", ">>"):
        right = Const(rng.choice((1, 2, 5, 31)))
    return binary(op, grown(rng, registers, depth - 1), right)


@pytest.mark.parametrize("seed", range(20))
def test_no_value_leaves_its_range_and_every_address_is_enumerated(seed):
    rng = random.Random(seed)
    for _ in range(100):
        registers = [Reg(0, "a", Values(0, 1)), Reg(1, "b", Values(2, 4)), Reg(2, "c")]
        expr = grown(rng, registers, 3)
        try:
            selector, (words,) = enumerate_index(expr)
        except ValueError:
            selector, words = None, []
        for _ in range(20):
            held = {0: rng.randrange(2), 1: rng.randrange(2, 5), 2: rng.choice((0, 1, 9, MASK, rng.randrange(MASK)))}
            value = evaluate(expr, held)
            assert value in range_of(expr), (str(expr), held)
            if selector is not None:
                assert words[evaluate(selector, held)] == value, (str(expr), held)


# ---- a block alone


def test_a_block_alone_takes_everything_it_is_given():
    """The last block to arrive adds up what all blocks wrote; by its share of the grid it would miss the rest."""

    def copies(b: Block) -> None:
        half = b.elements // 2
        if b.block == 0:
            b.copy(b.input[:half], b.output[:half], vector=8, alone=b.options["alone"])
        else:
            b.reduce([b.input[half:]], b.output[half:], alone=b.options["alone"])

    found = protocol(memory=memory, blocks=2, bytes=4096, world=1, options={"alone": True})(copies)
    assert check(found, executions=20).ok
    assert check(found, found.config(waves=4), executions=20).ok
    assert check(found, found.config(options=(("alone", False),)), executions=20).verdict == "wrong"
