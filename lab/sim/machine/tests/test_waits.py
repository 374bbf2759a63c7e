"""Waits, locks and updates run as they are written, under every memory model and by every search."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.check import check
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.determinate import why_not_determinate
from lab.sim.order.races import find_races
from lab.sim.search.search import search
from lab.sim.tests.programs import move, small

MODELS = m.MEMORY_MODELS


def message(wait: Callable[[Block], None], stores: tuple[int, ...] = (1,)) -> Tables:
    """Rank 0 stores into a flag of rank 1, one value after the other; rank 1 waits."""

    def kernel(b: Block) -> None:
        if b.rank == 0:
            for value in stores:
                b.store(b.on(1).flag, value, RELEASE, SYSTEM)
        else:
            b.store(b.mine.abort, 0, RELAXED, SYSTEM)  # an agent that has done something hangs, others never began
            wait(b)

    return compile_tables(small(kernel, words=("flag", "epoch", "abort")))


def word_of(engine: Engine, name: str) -> int:
    """What a word of rank 0 holds in the end."""
    region = next(r for r in engine.tables.program.regions if (r.name, r.rank) == (name, 0))
    return int(engine.state.word[engine.tables.word_base[region.id]])


def ends(tables: Tables, memory: str) -> set[int]:
    """How executions end: DONE, HANG, over every schedule."""
    engine = Engine(tables, memory)
    schedules, complete = every_schedule(engine)
    assert complete
    return {engine.follow(choices, m.REPLAY)[0] for choices in schedules}


@pytest.mark.parametrize("memory", MODELS)
@pytest.mark.parametrize(
    ("wait", "stores", "outcomes"),
    [
        (lambda b: b.wait(b.mine.flag, "<", 1, ACQUIRE, SYSTEM), (1,), {m.DONE, m.HANG}),
        (lambda b: b.wait(b.mine.flag, "<", 2, ACQUIRE, SYSTEM), (1,), {m.DONE}),
        (lambda b: b.wait(b.mine.flag, "<=", 0, ACQUIRE, SYSTEM), (1, 0), {m.DONE}),
        (lambda b: b.wait(b.mine.flag, ">", 1, ACQUIRE, SYSTEM), (1, 2), {m.DONE}),
        (lambda b: b.wait(b.mine.flag, ">", 2, ACQUIRE, SYSTEM), (1, 2), {m.HANG}),
        (lambda b: b.wait(b.mine.flag, "==", 3, ACQUIRE, SYSTEM, mask=0xFF), (0x703,), {m.DONE}),
        (lambda b: b.wait(b.mine.flag, "==", 3, ACQUIRE, SYSTEM, mask=0x101), (0x703,), {m.HANG}),
        (lambda b: b.wait_until(b.mine.flag, lambda w: ((w - 5) & 0xFFFF) < 0x8000, ACQUIRE, SYSTEM), (5,), {m.DONE}),
        (lambda b: b.wait_until(b.mine.flag, lambda w: ((w - 5) & 0xFFFF) < 0x8000, ACQUIRE, SYSTEM), (4,), {m.HANG}),
        (lambda b: b.wait_until(b.mine.flag, lambda w: (w ^ 1) == 0, ACQUIRE, SYSTEM), (1,), {m.DONE}),
        (lambda b: b.wait_any([b.mine.abort, b.mine.flag], "==", 1, ACQUIRE, SYSTEM), (1,), {m.DONE}),
        (lambda b: b.wait_any([b.mine.abort, b.mine.flag], "==", 2, ACQUIRE, SYSTEM), (1,), {m.HANG}),
        (lambda b: b.wait_any([b.mine.abort, b.mine.flag], "==", 1, ACQUIRE, SYSTEM, mask=1), (3,), {m.DONE}),
        (lambda b: b.cas_until(b.mine.flag, 1, 2, ACQ_REL, SYSTEM), (1,), {m.DONE}),
        (lambda b: b.cas_until(b.mine.flag, 3, 2, ACQ_REL, SYSTEM), (1,), {m.HANG}),
    ],
)
def test_how_it_ends(memory, wait, stores, outcomes):
    tables = message(wait, stores)
    assert ends(tables, memory) == outcomes
    found = search(tables, memory, stop=False)
    assert found.complete and found.hang == (m.HANG in outcomes)


@pytest.mark.parametrize("memory", MODELS)
def test_an_epoch_in_a_register_is_part_of_the_condition(memory):
    def wait(b: Block) -> None:
        b.store(b.mine.epoch, 1, RELAXED, SYSTEM)
        epoch = b.load(b.mine.epoch, RELAXED, SYSTEM)
        b.wait_until(b.mine.flag, lambda w: ((w - epoch) & 0xFFFF) < 0x8000, ACQUIRE, SYSTEM)

    assert ends(message(wait, (0x8000,)), memory) == {m.DONE}
    assert ends(message(wait, (0x8001,)), memory) == {m.HANG}  # 2**15 ahead is behind
    assert ends(message(wait, (0x10002,)), memory) == {m.DONE}


def contended(order_in, order_out, scope=DEVICE, contenders: int = 2):
    """Blocks that take a lock, add what the payload holds to it, and give the lock back."""

    def memory(d: Declare) -> None:
        d.words("lock")
        d.payload("slot", d.max_elements, UNCACHED)

    def kernel(b: Block) -> None:
        b.leader.cas_until(b.mine.lock, 0, 1, order_in, scope)
        b.copy(b.input, b.mine.slot, alone=True)
        b.copy(b.mine.slot, b.output, alone=True)
        b.leader.store(b.mine.lock, 0, order_out, scope)

    def scenario(h) -> None:
        for k in range(contenders):
            x, out = h.input(64), h.output(64)
            h.launch(x, out, stream=k, blocks=1)
            h.consume(out, stream=k)
        h.sync(0)

    made = protocol(memory=memory, blocks=1, bytes=64, world=1, scenarios={"streams": scenario})(kernel)
    return made


@pytest.mark.parametrize("memory", MODELS)
def test_a_lock_keeps_its_contenders_apart(memory):
    made = contended(ACQUIRE, RELEASE)
    tables = compile_tables(made.program())
    for scheduler in ("random", "pct"):
        assert not Engine(tables, memory).batch(scheduler, 0, 200)[m.T_HANGS]
    assert not check(made, made.config(), memory=memory, executions=100).races


@pytest.mark.parametrize("orders", [(RELAXED, RELEASE), (ACQUIRE, RELAXED)])
def test_a_relaxed_lock_orders_nothing(orders):
    made = contended(*orders)
    assert check(made, made.config(), executions=100, minimise=False).races


def test_who_gets_the_lock_is_open():
    tables = compile_tables(contended(ACQUIRE, RELEASE).program())
    assert why_not_determinate(execute(tables), False) is not None


@pytest.mark.parametrize("memory", MODELS)
def test_a_lock_that_gives_up(memory):
    def kernel(b: Block) -> None:
        if b.rank == 1:
            b.store(b.mine.flag, 0, RELAXED, SYSTEM)
            b.cas_until(b.mine.flag, 7, 2, ACQ_REL, SYSTEM, seconds=1.0, on_timeout=b.ret)

    tables = compile_tables(small(kernel, words=("flag",)))
    assert Engine(tables, memory).batch("random", 0, 10)[m.T_ABORTS] == 10


@pytest.mark.parametrize("memory", MODELS)
def test_updates_of_several_lose_nothing(memory):
    """Three blocks count modulo 4 in a loop around cas: in the end each counted."""

    def kernel(b: Block) -> None:
        b.update(b.on(0).flag, lambda old: (old + 3) % 4, RELAXED, SYSTEM)

    tables = compile_tables(small(kernel, words=("flag",), world=3))
    engine = Engine(tables, memory)
    for seed in range(50):
        engine.choices(("random", "pct")[seed % 2], seed)
        assert word_of(engine, "flag") == 9 % 4


@pytest.mark.parametrize(
    ("fn", "first", "value", "left"),
    [("min", 5, 3, 3), ("and", 6, 3, 2), ("xor", 6, 3, 5), ("max", 5, 9, 9), ("or", 4, 3, 7), ("exchange", 4, 3, 3)],
)
@pytest.mark.parametrize("memory", MODELS)
def test_what_a_read_modify_write_leaves(memory, fn, first, value, left):
    def kernel(b: Block) -> None:
        if b.rank == 0:
            b.store(b.mine.flag, first, RELAXED, SYSTEM)
            b.rmw(fn, b.mine.flag, value, RELAXED, SYSTEM)

    engine = Engine(compile_tables(small(kernel, words=("flag",))), memory)
    engine.choices("random", 0)
    assert word_of(engine, "flag") == left


@pytest.mark.parametrize("aborts", [False, True])
def test_any_of_acquires_from_the_word_that_met_it(aborts):
    """The abort word says nothing of the payload: who goes on by it reads what nobody published."""

    def kernel(b: Block) -> None:
        if b.rank == 0:
            if aborts:
                b.store(b.on(1).abort, 1, RELAXED, SYSTEM)
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).ready, 1, RELEASE, SYSTEM)
        else:
            b.wait_any([b.mine.ready, b.mine.abort], "==", 1, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    tables = compile_tables(small(kernel, words=("ready", "abort"), payload={"D": 4, "sink": 4}))
    racing = [bool(find_races(tables, execute(tables, policy=m.RANDOM, seed=seed)).races) for seed in range(40)]
    assert any(racing) == aborts and not all(racing)
