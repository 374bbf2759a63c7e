"""What the machine must do that no litmus line shows: payload on links, packets, hosts, words beyond 32 bits, PCT."""

import numpy as np
import pytest

from lab.errors import LabError
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM
from lab.sim.bench.models import tables_of
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.tests.programs import move, small

DATA = {"D": 4, "E": 4, "sink": 4}


def sinks(kernel, memory: str, rank: int = 1, **options) -> set[str]:
    """What `sink` of a rank can hold in the end: the name of what filled it."""
    program = small(kernel, payload=DATA, **options)
    tables = compile_tables(program)
    engine = Engine(tables, memory)
    schedules, complete = every_schedule(engine, limit=20_000)
    assert complete
    cells = {(r.rank, r.name): tables.cells_of(r) for r in program.regions if r.kind == "payload"}
    known = {int(tables.cell_initial[span][0]): f"{name} of rank {owner}" for (owner, name), span in cells.items()}
    found = set()
    for choices in schedules:
        engine.follow(choices, m.REPLAY)
        found.add(known[int(engine.state.cell[cells[rank, "sink"]][0])])
    return found


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_an_agent_reads_back_the_payload_that_it_stored(memory):
    """Program order: a read of remote payload does not overtake the agent's own posted store to it."""

    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            move(b, b.on(1).D, b.mine.sink)

    assert sinks(kernel, memory, rank=0) == {"input 1 of rank 0"}


@pytest.mark.parametrize(("order", "stale"), [(RELAXED, True), (RELEASE, False)])
def test_payload_may_arrive_after_a_flag_on_another_link(order, stale):
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.store(b.on(2).x, 1, order, SYSTEM)
        elif b.rank == 2:
            b.wait(b.mine.x, ">=", 1, ACQUIRE, SYSTEM)
            move(b, b.on(1).D, b.mine.sink)

    new, old = {"input 1 of rank 0"}, {"D of rank 1"}
    assert sinks(kernel, "posted", rank=2, words=["x"], world=3) == (new | old if stale else new)
    assert sinks(kernel, "sc", rank=2, words=["x"], world=3) == new


def test_payload_and_flag_of_one_link_arrive_in_order():
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 1, RELAXED, SYSTEM)
        else:
            b.wait(b.mine.x, ">=", 1, RELAXED, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert sinks(kernel, "posted", words=["x"]) == {"input 1 of rank 0"}


def test_the_sources_of_a_posted_copy_are_read_when_it_is_issued():
    """Overwriting the source later does not change what is under way."""

    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.mine.E)
            move(b, b.mine.E, b.on(1).D)
            move(b, b.mine.D, b.mine.E)
            b.store(b.on(1).x, 1, RELAXED, SYSTEM)
        else:
            b.wait(b.mine.x, ">=", 1, RELAXED, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert sinks(kernel, "posted", words=["x"]) == {"input 1 of rank 0"}


# ---- words


@pytest.mark.parametrize(
    ("start", "fn", "value", "result"),
    [
        (0xFFFF_FFFF, "add", 2, 1),
        (1, "sub", 2, 0xFFFF_FFFF),
        (5, "max", 9, 9),
        (9, "max", 5, 9),
        (0b1010, "or", 0b0110, 0b1110),
        (5, "exchange", 9, 9),
    ],
)
def test_read_modify_writes_wrap_at_32_bits(start, fn, value, result):
    def kernel(b):
        if b.rank == 0:
            b.store(b.mine.x, start, RELAXED, SYSTEM)
            old = b.rmw(fn, b.mine.x, value, RELAXED, SYSTEM)
            b.store(b.mine.y, old, RELAXED, SYSTEM)

    program = small(kernel, words=["x", "y"])
    execution = execute(compile_tables(program))
    x, y = (int(execution.tables.word_base[r.id]) for r in program.regions if r.rank == 0 and r.name in "xy")
    assert (execution.state.word[x], execution.state.word[y]) == (result, start)


@pytest.mark.parametrize(
    ("cond", "value", "met"),
    [
        ("==", 3, True),
        ("==", 4, False),
        ("!=", 4, True),
        ("!=", 3, False),
        (">=", 3, True),
        (">=", 4, False),
        (">=", 0xFFFF_FFFF, False),
        (">=s", 0xFFFF_FFFF, True),  # -1
        (">=s", 4, False),
        (">=mod", 0xFFFF_FFF0, True),  # 3 is 19 after it, across the wrap
        (">=mod", 4, False),
        (">=mod", 0x8000_0004, True),
        (">=mod", 0x8000_0003, False),  # exactly 2**31 after it
        (">=mod", 0x7000_0000, False),
        ("sum<=", 3, True),
        ("sum<=", 2, False),
        ("sum<=", 0xFFFF_FFFF, False),
    ],
)
def test_wait_conditions(cond, value, met):
    def kernel(b):
        b.store(b.mine.x, 3, RELAXED, SYSTEM)
        b.wait(b.mine.x, cond, value, RELAXED, SYSTEM)

    assert execute(compile_tables(small(kernel, words=["x"]))).outcome == (m.DONE if met else m.HANG)


def test_operators_are_those_of_32_bit_words():
    from lab.protocol.expr import BINARY, MASK, Const, Reg, binary, evaluate

    numbers = (0, 1, 5, 31, 32, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
    cases = [(op, a, b) for op in BINARY for a in numbers for b in numbers if b or op not in ("%", "//")]
    results = {}

    def kernel(b):
        if b.rank:
            return
        for op, left, right in chunk:
            register = b.let(left, "left")
            b.assign(b.let(0, "r"), 0)
            b.store(b.mine.x, binary(op, register, right), RELAXED, SYSTEM)

    for at in range(0, len(cases), 30):
        chunk = cases[at : at + 30]
        execution = execute(compile_tables(small(kernel, words=["x"])))
        stored = execution.log.value[: execution.steps].tolist()
        for case, value in zip(chunk, stored, strict=True):
            results[case] = value
    for (op, a, b), value in results.items():
        assert value == BINARY[op](a, b) & MASK == evaluate(binary(op, Reg(0, "r"), Const(b)), {0: a}), (op, a, b)
    assert len(results) == len(cases) > 900


# ---- packets


def test_a_packet_arrives_whole():
    """Data and stamp are one store: who sees the stamp sees the data, on any link."""

    def kernel(b):
        if b.rank == 0:
            b.copy(b.input, b.on(1).D, stamp=7)
        else:
            b.wait_stamps(b.mine.D, "==", 7)
            b.copy(b.mine.D, b.mine.sink)

    assert sinks(kernel, "sc") == sinks(kernel, "posted") == {"input 1 of rank 0"}


def test_a_stamp_that_is_overwritten_can_be_missed():
    """As with words: the poll that would have seen it may come too late, and then the wait hangs."""

    def kernel(b):
        if b.rank == 0:
            b.copy(b.input, b.on(1).D, stamp=1)
            b.copy(b.input, b.on(1).D, stamp=2)
        else:
            b.load(b.mine.x, RELAXED, SYSTEM)
            b.wait_stamps(b.mine.D, "==", 1)

    engine = Engine(compile_tables(small(kernel, words=["x"], payload=DATA)))
    ends = {engine.follow(choices, m.REPLAY)[0] for choices in every_schedule(engine)[0]}
    assert ends == {m.DONE, m.HANG}


# ---- runs


def test_a_hang_is_told_from_the_end():
    def kernel(b):
        b.load(b.mine.x, RELAXED, SYSTEM)
        b.wait(b.mine.x, ">=", 1, ACQUIRE, SYSTEM)
        b.store(b.on(1 - b.rank).x, 1, RELEASE, SYSTEM)

    assert execute(compile_tables(small(kernel, words=["x"]))).outcome == m.HANG


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@pytest.mark.parametrize("scheduler", ["random", "pct", "run_on"])
def test_a_seed_decides_the_run(memory, scheduler):
    def kernel(b):
        for _ in range(4):
            b.store(b.on(1 - b.rank).x, 1 + b.rank, RELAXED, SYSTEM)
            b.load(b.mine.x, RELAXED, SYSTEM)

    engine = Engine(compile_tables(small(kernel, words=["x"])), memory)
    runs = [engine.choices(scheduler, seed) for seed in (1, 1, 2, 3, 4)]
    assert np.array_equal(runs[0], runs[1])
    assert len({tuple(run.tolist()) for run in runs}) == (1 if scheduler == "run_on" else len(runs) - 1)


# ---- PCT


def test_pct_finds_the_lagging_rank_whatever_the_distance():
    """With waits as guards, a third of the priorities starve rank 2; each change of priority may let it go again."""
    runs = 3000
    for ring, least in ((8, (0.30, 0.23, 0.20)), (16, (0.30, 0.19, 0.16))):
        engine = Engine(tables_of("lagging", 3, ring + 4, depth=ring))
        found = [engine.batch("pct", 0, runs, pct_depth=depth)[m.T_WRONG] / runs for depth in (1, 2, 3)]
        assert found[0] < 0.36 and found[1] < 0.28 and found[2] < 0.25
        assert found[0] > least[0] and found[1] > least[1] and found[2] > least[2]


def test_pct_at_depth_one_never_changes_a_priority():
    """Two agents of four independent steps each: without a change of priority one runs to its end before the other."""

    def kernel(b):
        for _ in range(4):
            b.store(b.mine.x, 1, RELAXED, SYSTEM)

    engine = Engine(compile_tables(small(kernel, words=["x"])))
    switches = {
        depth: {int(np.count_nonzero(np.diff(engine.choices("pct", k, 0, depth)))) for k in range(200)}
        for depth in (1, 2, 5)
    }
    assert switches[1] == {1} and max(switches[2]) == 2 and max(switches[5]) > 2


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_a_seed_decides_the_run_alone_or_in_a_batch(memory):
    """What a batch saw under a seed is what the seed shows again when it runs alone."""
    engine = Engine(tables_of("lagging", 3, 8, depth=4), memory)
    for depth in (1, 4):
        alone = sum(int(engine.batch("pct", seed, 1, pct_depth=depth)[m.T_WRONG]) for seed in range(60))
        assert engine.batch("pct", 0, 60, pct_depth=depth)[m.T_WRONG] == alone > 0


def test_a_depth_below_one_is_refused():
    with pytest.raises(LabError, match="no such depth"):
        Engine(tables_of("lagging", 3, 5)).batch("pct", 0, 1, pct_depth=0)
