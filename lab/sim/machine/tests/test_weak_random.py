"""What race-free programs may rely on: under weak they do exactly what they do under sc.

A program is *ordered* when one sc execution has no race and no choice of a schedule can change what an operation
reads, by the order that releases and acquires give (not by mere waiting). Then stale reads and late stores have nothing
to show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.protocol.program import Order, Program, Scope
from lab.protocol.tables import compile_tables
from lab.protocol.write import Block
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.determinate import holds_under_every_model
from lab.sim.order.races import find_races
from lab.sim.tests.programs import move, small

BUFFERS = ("D", "E")
_RUNS = 40


@dataclass(frozen=True)
class Step:
    """One operation.

    put, get, copy: payload; flag, await: a grow-only flag of one writer; count, full: a counter of all; note, decide: a
    word as data; fence; drain.
    """

    what: str
    on: str = ""
    other: int = 0
    order: Order = Order.RELAXED
    scope: Scope = Scope.SYSTEM

    def __str__(self) -> str:
        return f"{self.what} {self.on}{self.other} {self.order.name.lower()}@{self.scope.name.lower()}"


Threads = tuple[tuple[int, tuple[Step, ...]], ...]


@st.composite
def programs(draw: st.DrawFn) -> Threads:
    """Two to four blocks on two ranks; most accesses are ordered, some are not."""
    ranks = draw(st.sampled_from(((0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1, 1))))
    kinds = (
        "put",
        "get",
        "copy",
        "flag",
        "flag",
        "await",
        "await",
        "count",
        "full",
        "note",
        "decide",
        "fence",
        "drain",
    )
    strong = draw(st.booleans())
    orders = (Order.ACQ_REL,) if strong else (Order.ACQ_REL, Order.ACQ_REL, Order.RELAXED)
    scopes = (Scope.SYSTEM,) if strong else (Scope.SYSTEM, Scope.SYSTEM, Scope.DEVICE)
    step = st.builds(
        Step,
        st.sampled_from(kinds),
        st.sampled_from(BUFFERS),
        st.integers(0, len(ranks) - 1),
        st.sampled_from(orders),
        st.sampled_from(scopes),
    )
    threads = tuple((rank, tuple(draw(st.lists(step, min_size=1, max_size=5)))) for rank in ranks)
    return tuple((rank, tuple(s for s in own if _can_be_met(s, threads))) for rank, own in threads)


def _can_be_met(step: Step, threads: Threads) -> bool:
    """Whether somebody raises the flag, or enough count, for a wait; true for what is no wait."""
    if step.what == "full":
        return sum(s.what == "count" for _, own in threads for s in own) > step.other
    return step.what != "await" or any(s.what == "flag" for s in threads[step.other][1])


def program_of(threads: Threads) -> Program:
    """All memory is rank 0's."""
    by_rank: dict[int, list[int]] = {0: [], 1: []}
    for index, (rank, _) in enumerate(threads):
        by_rank[rank].append(index)

    def kernel(b: Block) -> None:
        index = by_rank[b.rank][b.block]
        raised = 0
        for step in threads[index][1]:
            raised += step.what == "flag"
            _record(b, step, index, raised, len(threads))

    names = [f"f{k}" for k in range(len(threads))] + ["count", "note", "seen"]
    blocks = {rank: len(own) for rank, own in by_rank.items()}
    return small(kernel, words=names, payload={n: 1 for n in (*BUFFERS, "sink")}, blocks=blocks, elements=1)


def _record(b: Block, step: Step, index: int, raised: int, threads: int) -> None:
    home = b.on(0)
    release, acquire = Order(step.order & Order.RELEASE), Order(step.order & Order.ACQUIRE)
    if step.what == "put":
        move(b, b.input, getattr(home, step.on))
    elif step.what == "get":
        move(b, getattr(home, step.on), b.mine.sink)
    elif step.what == "copy":
        move(b, getattr(home, step.on), getattr(home, "E" if step.on == "D" else "D"))
    elif step.what == "flag":
        b.store(getattr(home, f"f{index}"), raised, release, step.scope)
    elif step.what == "await":
        b.wait(getattr(home, f"f{step.other}"), ">=", 1, acquire, step.scope)
    elif step.what == "count":
        b.add(home.count, 1, step.order, step.scope)
    elif step.what == "full":
        b.wait(home.count, ">=", 1 + step.other, acquire, step.scope)
    elif step.what == "note":
        b.store(home.note, 1 + index, release, step.scope)
    elif step.what == "drain":
        b.drain()
    elif step.what == "fence":
        b.fence(step.order if step.order else Order.ACQ_REL, step.scope)
    else:
        noted = b.load(home.note, acquire, step.scope)
        with b.when(noted == 1 + step.other):
            b.store(home.seen, 1, release, step.scope)


def final(engine: Engine) -> tuple[list[int], ...]:
    return engine.state.word.tolist(), engine.state.cell.tolist(), engine.state.pc.tolist()


_LEFT_OUT = object()


def differing_seed(threads: Threads) -> int | object | None:
    """The seed of a weak execution that ends otherwise than sc, or None; _LEFT_OUT: the program promises nothing."""
    tables = compile_tables(program_of(threads))
    execution = execute(tables)
    if not np.array_equal(execution.state.pc, tables.agent_end) or not holds_under_every_model(execution):
        return _LEFT_OUT
    sc, weak = Engine(tables, "sc"), Engine(tables, "weak")
    sc.follow(np.zeros(0, np.int32))
    for seed in range(_RUNS):
        weak.choices(("random", "pct")[seed % 2], seed)
        if final(weak) != final(sc):
            return seed
    return None


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_an_ordered_program_does_under_weak_what_it_does_under_sc(threads):
    seed = differing_seed(threads)
    assert seed is _LEFT_OUT or seed is None, "\n".join(f"rank {r}: " + "; ".join(map(str, s)) for r, s in threads)


def test_enough_programs_are_ordered_and_the_others_show_it():
    """The property above is not empty: this program is ordered, and each of its weakenings differs."""
    put, flag = Step("put", "D"), Step("flag", order=Order.RELEASE)
    wait, get = Step("await", other=0, order=Order.ACQUIRE), Step("get", "D")
    assert differing_seed(((0, (put, flag)), (1, (wait, get)))) is None
    for weaker_flag, weaker_wait in ((Step("flag"), wait), (flag, Step("await", other=0))):
        threads = ((0, (put, weaker_flag)), (1, (weaker_wait, get)))
        assert differing_seed(threads) is _LEFT_OUT
        assert _differs(threads)


def test_a_word_behind_a_relaxed_flag_is_stale_too():
    """Words never race, but what is decided by one that is read behind a relaxed flag depends on the schedule."""
    threads = (
        (0, (Step("note", order=Order.RELEASE), Step("flag"))),
        (1, (Step("await", other=0), Step("decide", other=0))),
    )
    assert not find_races(compile_tables(program_of(threads))).races
    assert differing_seed(threads) is _LEFT_OUT
    assert _differs(threads)


def _differs(threads: Threads) -> bool:
    tables = compile_tables(program_of(threads))
    sc, weak = Engine(tables, "sc"), Engine(tables, "weak")
    sc.follow(np.zeros(0, np.int32))
    ends = []
    for seed in range(_RUNS):
        weak.choices("random", seed)
        ends.append(final(weak) != final(sc))
    return any(ends) and not all(ends)
