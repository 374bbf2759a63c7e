"""Memory model weak: visibility, waves, late stores, replay, and what it finds and does not accuse.

The cases of `docs/memory_models.md` that litmus text cannot say are built here by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from lab.errors import LabError
from lab.protocol.expr import word
from lab.protocol.language.record import span_of
from lab.protocol.library import load
from lab.protocol.program import WHOLE, Cache, Cond, Memory, Move, Order, Scope, WaitStamp
from lab.protocol.published import ENTRIES, ORDER
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    BLOCK,
    CACHED,
    DEVICE,
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
from lab.sim.explain.replay import replay
from lab.sim.machine import interleaved as m
from lab.sim.machine import weak_state
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.machine.tests.test_litmus import OUTCOMES, all_outcomes, tables

RUNS = 400
CASES: dict[str, Protocol] = {}
ROWS = [row for rows in tables() for row in rows if "may" in row.cells]


@cache
def ends(name: str, memory: str = "weak") -> frozenset[str]:
    """How executions of a case end: right, wrong, hang."""
    engine = Engine(compile_tables(CASES[name].program()), memory)
    found = set()
    for scheduler in ("random", "pct"):
        totals = engine.batch(scheduler, 0, RUNS)
        found |= {"wrong"} if totals[m.T_WRONG] else set()
        found |= {"hang"} if totals[m.T_HANGS] else set()
        failing = max(totals[m.T_WRONG], totals[m.T_HANGS])
        found |= {"right"} if failing < totals[m.T_RUNS] else set()
    return frozenset(found)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_case(row):
    assert ends(str(row)) == set(row["may"].split(", ")), row["why"]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_sc_shows_less(row):
    """Every case that may go wrong or hang only because of visibility or order is right under sc."""
    assert ends(str(row), "sc") <= ends(str(row))


def test_the_document_has_every_case():
    assert {str(row) for row in ROWS} == CASES.keys()


# ---- what must become visible: packets and flags


def one_launch(h: Host) -> None:
    """One launch a rank; nobody compares anything."""
    h.launch(h.input(4), None)


def send(b: Block, to: int, access: Cache = Cache.CACHED) -> None:
    """A packet of data and stamp into the memory of rank `to`."""
    fields = {"dst": span_of(b.on(to).packet), "sources": (span_of(b.input),), "mapping": WHOLE}
    b._emit(Move, **fields, cache=access, stamp=word(1))


def poll(b: Block) -> None:
    """Wait for the packet in the own memory."""
    fields = {"span": span_of(b.mine.packet), "mapping": WHOLE, "cond": Cond.EQ, "value": word(1)}
    b._emit(WaitStamp, **fields, bound=None, on_timeout=None)


def packets(
    name: str,
    memory: Memory = CACHED,
    to: int = 1,
    access: Cache = Cache.CACHED,
    after: Callable[[Block], None] = lambda b: None,
    helper: Callable[[Block], None] = lambda b: None,
    stays: bool = True,
) -> None:
    """Block 0 of rank 0 sends, does `after`, and stays until it is answered; block 1 of rank `to` polls."""

    def declare(d: Declare) -> None:
        d.words("turn")
        d.words("answer")
        d.payload("packet", 2, memory)

    def kernel(b: Block) -> None:
        if (b.rank, b.block) == (0, 0):
            send(b, to, access)
            after(b)
            if stays:
                b.wait(b.mine.answer, ">=", 1, ACQUIRE, SYSTEM)
        elif (b.rank, b.block) == (to, 1):
            poll(b)
            b.store(b.on(0).answer, 1, RELEASE, SYSTEM)
        elif b.rank == 0:
            helper(b)
            b.wait(b.mine.answer, ">=", 1, ACQUIRE, SYSTEM)

    def no_answer_is_no_mistake(h: Host) -> None:
        if h.rank == 0:
            h.store(h.mine.turn, 0, RELAXED, SYSTEM)
        one_launch(h)

    scenarios = {"once": no_answer_is_no_mistake}
    CASES[name] = protocol(memory=declare, blocks=2, scenarios=scenarios, bytes=4)(kernel)


def fence(order: Order, scope: Scope) -> Callable[[Block], None]:
    return lambda b: b.fence(order, scope)


def hand_over(b: Block) -> None:
    b.store(b.mine.turn, 1, RELEASE, DEVICE)


def take_over(b: Block) -> None:
    b.wait(b.mine.turn, ">=", 1, ACQUIRE, DEVICE)
    b.fence(RELEASE, SYSTEM)


packets("packet, cached")
packets("packet, cached, release at system scope after it", after=fence(RELEASE, SYSTEM))
packets("packet, cached, release at device scope after it", after=fence(RELEASE, DEVICE))
packets("packet, cached, acquire fence after it", after=fence(ACQUIRE, SYSTEM))
packets("packet, cached, release of another block that does not cover it", helper=fence(RELEASE, SYSTEM))
packets("packet, cached, release of another block that covers it", after=hand_over, helper=take_over)
packets("packet, cached, the kernel ends", stays=False)
packets("packet, cached, bypassing store", access=Cache.BYPASS)
packets("packet, uncached", UNCACHED)
packets("packet, cached, inside the rank", to=0)


def flags(name: str, memory: Memory, stored: Scope, polled: Scope, to: int = 1, released: bool = False) -> None:
    """Block 0 of rank 0 raises a flag and stays until it is answered; block 1 of rank `to` polls it."""

    def declare(d: Declare) -> None:
        d.words("flag", memory=memory)
        d.words("answer")

    def kernel(b: Block) -> None:
        if (b.rank, b.block) == (0, 0):
            b.store(b.on(to).flag, 1, RELAXED, stored)
            if released:
                b.fence(RELEASE, SYSTEM)
            b.wait(b.mine.answer, ">=", 1, ACQUIRE, SYSTEM)
        elif (b.rank, b.block) == (to, 1):
            b.wait(b.mine.flag, ">=", 1, RELAXED, polled)
            b.store(b.on(0).answer, 1, RELEASE, SYSTEM)

    CASES[name] = protocol(memory=declare, blocks=2, scenarios={"once": one_launch}, bytes=4)(kernel)


flags("flag, cached, system scope", CACHED, SYSTEM, SYSTEM)
flags("flag, cached, stored at device scope", CACHED, DEVICE, SYSTEM)
flags("flag, cached, stored at device scope, release after it", CACHED, DEVICE, SYSTEM, released=True)
flags("flag, cached, polled at device scope", CACHED, SYSTEM, DEVICE)
flags("flag, cached, device scope inside the rank", CACHED, DEVICE, DEVICE, to=0)
flags("flag, cached, polled at block scope inside the rank", CACHED, DEVICE, BLOCK, to=0)
flags("flag, uncached, device scope", UNCACHED, DEVICE, DEVICE)
flags("flag, uncached, polled at block scope", UNCACHED, SYSTEM, BLOCK)


# ---- waves of a block


def waves(
    name: str, publish: Callable[[Block], None], receive: Callable[[Block], None], memory: Memory = UNCACHED
) -> None:
    """A push of one slot by two waves, and a reduce by two waves; the text between is the case."""

    def declare(d: Declare) -> None:
        d.payload("slot", d.max_elements, memory, source=d.world)
        d.words("flag", d.world)

    def kernel(b: Block) -> None:
        for j in b.peers:
            b.copy(b.input, b.on(j).slot[b.rank][: b.elements])
        publish(b)
        receive(b)
        b.reduce([b.input if j == b.rank else b.mine.slot[j][: b.elements] for j in range(b.world)], b.output)

    CASES[name] = protocol(memory=declare, blocks=1, waves=2, bytes=512)(kernel)


def raise_flags(b: Block, order: Order) -> None:
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.rank], b.call, order, SYSTEM)


def await_flags(b: Block) -> None:
    for j in b.peers:
        b.leader.wait(b.mine.flag[j], ">=", b.call, ACQUIRE, SYSTEM)


def barrier_then_release(b: Block) -> None:
    b.barrier()
    raise_flags(b, RELEASE)


def release_alone(b: Block) -> None:
    raise_flags(b, RELEASE)


def barrier_then_fence(b: Block) -> None:
    b.barrier()
    b.leader.fence(RELEASE, SYSTEM)
    raise_flags(b, RELAXED)


def fence_then_barrier(b: Block) -> None:
    b.leader.fence(RELEASE, SYSTEM)
    b.barrier()
    raise_flags(b, RELAXED)


def fences_of_all_then_barrier(b: Block) -> None:
    b.fence(RELEASE, SYSTEM)
    b.barrier()
    raise_flags(b, RELAXED)


def await_then_barrier(b: Block) -> None:
    await_flags(b)
    b.barrier()


waves("waves, barrier, release by the leader", barrier_then_release, await_then_barrier)
waves("waves, release by the leader without a barrier", release_alone, await_then_barrier)
waves("waves, barrier, fence by the leader, relaxed flag", barrier_then_fence, await_then_barrier)
waves("waves, fence by the leader, barrier, relaxed flag", fence_then_barrier, await_then_barrier)
waves("waves, fences of all, barrier, relaxed flag", fences_of_all_then_barrier, await_then_barrier)
waves("waves, acquire by the leader without a barrier", barrier_then_release, await_flags)


def meet(*, drain: str = "all", first: str = "drain", publish: Order | None = None) -> Callable[[Block], None]:
    """A bare barrier, who drains, which comes first, what the leader releases before its relaxed flag."""

    def kernel(b: Block) -> None:
        for what in ("drain", "barrier") if first == "drain" else ("barrier", "drain"):
            if what == "barrier":
                b.bare_barrier()
            elif drain != "nobody":
                (b if drain == "all" else b.leader).drain()
        if publish is not None:
            b.leader.fence(publish, SYSTEM)
        raise_flags(b, RELAXED)

    return kernel


def drain_alone(b: Block) -> None:
    b.drain()
    raise_flags(b, RELAXED)


def await_then_bare_barrier(b: Block) -> None:
    await_flags(b)
    b.bare_barrier()


def poll_then_fences(b: Block) -> None:
    for j in b.peers:
        b.leader.wait(b.mine.flag[j], ">=", b.call, RELAXED, SYSTEM)
    b.bare_barrier()
    b.fence(ACQUIRE, SYSTEM)


waves("waves, drained by all, bare barrier, relaxed flag", meet(), await_then_barrier)
waves("waves, bare barrier, fence by the leader", meet(drain="nobody", publish=RELEASE), await_then_barrier)
waves("waves, drained by the leader alone, bare barrier", meet(drain="leader"), await_then_barrier)
waves("waves, drained by all, no barrier", drain_alone, await_then_barrier)
waves("waves, bare barrier, then drained by all", meet(first="barrier"), await_then_barrier)
waves("waves, cached slots drained by all, bare barrier", meet(), await_then_barrier, CACHED)
waves("waves, cached slots drained by all, fence by the leader", meet(publish=RELEASE), await_then_barrier, CACHED)
waves("waves, acquire by the leader, bare barrier", barrier_then_release, await_then_bare_barrier)
waves("waves, polled by the leader, bare barrier, fences of all", meet(), poll_then_fences)


# ---- payload under way


def handed_on(name: str, release: Order, acquire: Order) -> None:
    """Rank 1 writes its values into rank 0's buffer, then rank 0 its own; all ranks are due to find rank 0's."""

    def declare(d: Declare) -> None:
        d.payload("buffer", 2, UNCACHED)
        d.words("turn")

    def kernel(b: Block) -> None:
        if b.rank == 1:
            b.copy(b.input, b.on(0).buffer)
            b.store(b.on(0).turn, 1, release, SYSTEM)
        else:
            b.wait(b.mine.turn, ">=", 1, acquire, SYSTEM)
            b.copy(b.input, b.mine.buffer)

    def scenario(h: Host) -> None:
        x = h.input(4)
        h.launch(x, None)
        h.sync()
        h.barrier()
        if h.rank == 0:
            h.expect(h.mine.buffer, x, of=[0])

    CASES[name] = protocol(memory=declare, blocks=1, scenarios={"once": scenario}, bytes=4)(kernel)


handed_on("two writers, release and acquire between them", RELEASE, ACQUIRE)
handed_on("two writers, relaxed flag between them", RELAXED, RELAXED)


# ---- litmus: what RC11 says


@pytest.mark.parametrize("row", [row for row in OUTCOMES if row["RC11"] != "-"], ids=str)
def test_weak_is_rc11(row):
    assert row["weak"] == row["RC11"]


@pytest.mark.parametrize("row", OUTCOMES, ids=str)
def test_weak_shows_what_the_other_models_show(row):
    """But for one line: under posted a device release inside a rank overtakes a store into another (AMDGPU: never)."""
    for memory in ("sc", "posted"):
        if row[memory] == "allowed" and str(row) != "Two blocks of a rank, data on another, device scope":
            assert row["weak"] == "allowed"
    wide = all_outcomes(row["program"], row["where"], "weak")
    assert all(outcome in wide for outcome in all_outcomes(row["program"], row["where"], "sc"))


# ---- the catalogue and the seeds


@pytest.mark.parametrize("found", [e for e in ENTRIES if e.group == ORDER], ids=lambda e: e.protocol)
def test_a_defect_of_memory_order_gives_wrong_values_or_a_hang(found):
    for seed in (0, 1000, 2000):
        protocol, config = found.defective()
        verdict = check(protocol, config, memory="weak", executions=100, seed=seed, minimise=False)
        assert verdict.verdict in ("wrong", "hang") and verdict.failing
        protocol, config = found.fixed()
        verdict = check(protocol, config, memory="weak", executions=400, seed=seed, minimise=False)
        assert verdict.ok and not verdict.failing


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("seed_one_shot", {"world": 2, "calls": 3, "blocks": 2, "bytes": (2048,)}),
        ("seed_one_shot", {"world": 4, "calls": 2, "bytes": (8192,)}),
        ("repaired_two_shot", {"world": 2, "calls": 3, "blocks": 2, "bytes": (2048, 4096)}),
        ("repaired_two_shot", {"world": 3, "calls": 2, "bytes": (8194,)}),
    ],
)
def test_what_is_right_is_never_accused(name, changes):
    protocol = load(name)
    engine = Engine(compile_tables(protocol.program(protocol.config(**changes))), "weak")
    for scheduler in ("random", "pct"):
        totals = engine.batch(scheduler, 0, 300)
        assert not totals[m.T_WRONG] and not totals[m.T_HANGS] and not totals[m.T_ABORTS]


def test_what_it_finds_is_explained_and_replayed():
    protocol = load("iris_462")
    verdict = check(protocol, memory="weak", executions=100)
    assert verdict.verdict == "wrong" and verdict.memory == "weak"
    assert verdict.means and verdict.witness
    again = replay(verdict.schedule)
    assert again.outcome == "wrong"
    assert again.digest == replay(verdict.schedule).digest


def test_a_hang_by_invisibility_is_replayed():
    protocol = load("rccl_1932")
    verdict = check(protocol, memory="weak", executions=50, minimise=False)
    assert verdict.verdict == "hang" and verdict.hang
    assert replay(verdict.schedule).hang == verdict.hang


# ---- schedules


def small_tables(name: str = "seed_two_shot", **changes: object) -> Tables:
    protocol = load(name)
    return compile_tables(protocol.program(protocol.config(**{"world": 2, "blocks": 2, "calls": 2, **changes})))


@pytest.mark.parametrize(("name", "early"), [("seed_two_shot", 0), ("seed_two_shot", 1 << 27), ("rccl_1932", 0)])
def test_choices_replay_bit_identically(name, early):
    given = small_tables(name, **({"bytes": (2048,)} if name == "seed_two_shot" else {"blocks": 1}))
    engine = Engine(given, "weak")
    others = 0
    for seed in range(40):
        for scheduler in ("random", "pct"):
            choices = engine.choices(scheduler, seed, early)
            others += int(np.sum(choices > 2 * len(given.agent_start) + given.program.world**2))
            words, cells = engine.state.word.copy(), engine.state.cell.copy()
            recorded = execute(given, "weak", m.REPLAY, choices=choices)
            assert recorded.outcome != m.DIVERGED
            assert np.array_equal(recorded.log.choice[: len(choices)], choices)
            assert np.array_equal(recorded.state.word, words) and np.array_equal(recorded.state.cell, cells)
    assert others, "no execution made a choice of its own"


def test_a_choice_that_is_not_there_diverges_or_is_left_out():
    engine = Engine(small_tables(bytes=(2048,)), "weak")
    nonsense = np.array([10**6, -1, 0], np.int32)
    assert engine.follow(nonsense, m.REPLAY)[0] == m.DIVERGED
    assert engine.follow(nonsense, m.TOLERANT)[0] == m.DONE


def test_run_on_makes_first_choices_only():
    engine = Engine(small_tables(bytes=(2048,)), "weak")
    choices = engine.choices("run_on", 0)
    assert choices.max() < len(engine.tables.agent_start)
    sc = Engine(engine.tables, "sc")
    assert np.array_equal(sc.choices("run_on", 0), choices)
    assert np.array_equal(sc.state.cell, engine.state.cell) and np.array_equal(sc.state.word, engine.state.word)


def test_a_bounded_wait_gives_up_rather_than_hang():
    def declare(d: Declare) -> None:
        d.words("flag", memory=CACHED)
        d.words("gave_up")

    def kernel(b: Block) -> None:
        if b.rank == 0:
            b.store(b.on(1).flag, 1, RELAXED, DEVICE)
            b.wait(b.mine.flag, ">=", 1, ACQUIRE, SYSTEM, 10, lambda: b.store(b.mine.gave_up, 1, RELAXED, SYSTEM))
        else:
            b.wait(b.mine.flag, ">=", 1, ACQ_REL, SYSTEM, 10, lambda: b.store(b.mine.gave_up, 1, RELAXED, SYSTEM))

    made = protocol(memory=declare, blocks=1, scenarios={"once": one_launch}, bytes=4)(kernel)
    totals = Engine(compile_tables(made.program()), "weak").batch("random", 0, 100)
    assert totals[m.T_ABORTS] == 100 and totals[m.T_HANGS] == 0


def test_a_program_that_is_too_large_says_what_to_do(monkeypatch):
    monkeypatch.setattr(weak_state, "MEMORY_LIMIT", 1000)
    with pytest.raises(LabError) as refused:
        Engine(small_tables(bytes=(2048,)), "weak")
    assert "too large for memory model weak" in str(refused.value) and "fewer" in str(refused.value)
