"""Packets: data that carries its flag. Who may read it, who may overwrite it, and that `weak` agrees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.protocol.language.record import condition, span_of
from lab.protocol.program import Move, Order, Program, Scope, WaitStamp
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.check import check
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.interleaved import RANDOM
from lab.sim.order.clocks import Clocks, clocks
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.races import accesses, conflicts, find_races
from lab.sim.order.straight import straighten
from lab.sim.search.canonical import WeakSearch
from lab.sim.search.search import search
from lab.sim.search.states import FINISHED
from lab.sim.tests.programs import WHOLE, move, small

# ---- a protocol of packets, as a text


def inbox(m: Declare) -> None:
    m.payload("inbox", m.max_elements, UNCACHED, parity=m.options["parities"], source=m.world)


OPTIONS = {"parities": 2, "clear": True, "wait": True, "clear_late": False, "same_stamp": True}


@protocol(memory=inbox, blocks=2, threads=64, bytes=1024, calls=4, world=2, options=OPTIONS)
def packets(b: Block) -> None:
    """Push packets, take them as they arrive, and put `empty` (0) back; or number the calls and clear nothing."""
    o = b.options
    p, stamp = b.call % o["parities"], 1 if o["same_stamp"] else b.call
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[p, b.rank], 8, stamp=stamp)
    for j in b.peers:
        if o["wait"]:
            b.wait_stamps(b.mine.inbox[p, j], "==", stamp, 8)
    b.reduce([b.input if j == b.rank else b.mine.inbox[p, j] for j in range(b.world)], b.output, 8)
    if o["clear"]:
        for j in b.peers:
            b.clear(b.mine.inbox[p, j], 0, 8)


def in_turn(m: Declare) -> None:
    m.payload("buf", m.max_elements, UNCACHED, turn=3, source=m.world)


@protocol(memory=in_turn, blocks=1, bytes=512, calls=5, world=2, options={"turns": 3})
def three_buffers(b: Block) -> None:
    """Push, take, and clear what the call before took; with two turns the peer may have sent there again."""
    now, old = (call % b.options["turns"] for call in (b.call, b.call - 1))
    for j in b.peers:
        b.copy(b.input, b.on(j).buf[now, b.rank], stamp=1)
    for j in b.peers:
        b.wait_stamps(b.mine.buf[now, j], ">=", 1)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.buf[now, j] for j in range(b.world)], b.output)
    for j in b.peers:
        b.clear(b.mine.buf[old, j], stamp=0)


def verdict_of(memory: str = "weak", world: int = 2, calls: int = 4, **options):
    config = packets.config(world=world, calls=calls, options=options)
    return check(packets, config, memory=memory, executions=64)


EVERYWHERE = "and for every memory model that keeps release and acquire"


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("options", [{}, {"clear": False, "same_stamp": False}], ids=["cleared", "numbered"])
def test_two_parities_and_one_proof(options, memory):
    """The packet of a peer's next call says that it has ended this one: kernel boundaries are the fences."""
    verdict = verdict_of(memory, 3, **options)
    assert verdict.verdict == "ok", verdict
    assert EVERYWHERE in verdict.proof


def test_packets_read_without_waiting_race():
    verdict = verdict_of(wait=False)
    assert verdict.verdict == "wrong"
    assert any((r.first.kind, r.second.kind) == ("write", "read") for r in verdict.races)


def test_one_parity_is_overwritten_before_it_is_read():
    verdict = verdict_of(parities=1, clear=False, same_stamp=False)
    assert verdict.verdict in ("wrong", "hang")
    kinds = {frozenset((r.first.kind, r.second.kind)) for r in verdict.races}
    assert {frozenset(("write", "wait")), frozenset(("write", "read"))} <= kinds
    race = next(r for r in verdict.races if "read" in (r.first.kind, r.second.kind))
    assert "inbox[parity 0, source" in race.region and "nothing makes" in race.missing


def test_an_empty_put_back_with_one_parity_races_with_the_next_packet():
    verdict = verdict_of(parities=1)
    assert verdict.verdict in ("wrong", "hang")
    assert any(
        {r.first.kind, r.second.kind} == {"write"} and "clear" in r.first.text + r.second.text for r in verdict.races
    )


def test_the_same_stamp_again_without_clearing_is_taken_for_the_old_packet():
    verdict = verdict_of(clear=False)
    assert verdict.verdict == "wrong"
    assert any("read" in (r.first.kind, r.second.kind) for r in verdict.races)


# ---- order through packets, one rule at a time


def box(push, take, **more) -> Program:
    """Rank 0 runs `push`, rank 1 `take`; one packet cell P, payload D, all of rank 1."""

    def kernel(b: Block) -> None:
        (push if b.rank == 0 else take)(b, b.on(1))

    return small(kernel, words=("f",), payload={"P": 1, "D": 1, "out": 1}, elements=1, **more)


def packet(b: Block, dst, stamp: int = 1) -> None:
    b._emit(Move, dst=span_of(dst), sources=(span_of(b.input),), mapping=WHOLE, stamp=_word(stamp))


def clear(b: Block, dst) -> None:
    b._emit(Move, dst=span_of(dst), sources=(), mapping=WHOLE, stamp=_word(0))


def _word(value: int):
    from lab.protocol.expr import word

    return word(value)


def poll(b: Block, span, cond: str = "==", value: int = 1) -> None:
    b._emit(WaitStamp, span=span_of(span), mapping=WHOLE, cond=condition(cond), value=_word(value))


def racing(program: Program) -> set[str]:
    """The regions that race."""
    return {race.region.split(" of ")[0] for race in find_races(compile_tables(program)).races}


def sends(release: bool):
    def push(b, home):
        move(b, b.input, home.D)
        if release:
            b.fence(RELEASE, SYSTEM)
        packet(b, home.P)

    return push


def takes(acquire: bool):
    def take(b, home):
        poll(b, home.P)
        if acquire:
            b.fence(ACQUIRE, SYSTEM)
        move(b, home.P, home.out)
        move(b, home.D, b.input)

    return take


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("acquire", [False, True])
def test_a_packet_gives_its_data_and_through_fences_order(release, acquire):
    assert racing(box(sends(release), takes(acquire))) == (set() if release and acquire else {"D"})


@pytest.mark.parametrize(("release", "acquire"), [(RELEASE, ACQUIRE), (RELEASE, RELAXED), (RELAXED, ACQUIRE)])
@pytest.mark.parametrize("then", ["read", "clear", "plain data"])
def test_what_one_block_waited_for_another_knows_through_release_and_acquire(then, release, acquire):
    """Coherence: what the poll happens before comes after the packet, in its cells and there alone."""

    def push(b, home):
        move(b, b.input, home.D)
        packet(b, home.P)

    def take(b, home):
        if b.block == 0:
            poll(b, home.P)
            b.store(home.f, 1, release, SYSTEM)
        else:
            b.wait(home.f, ">=", 1, acquire, SYSTEM)
            if then == "clear":
                clear(b, home.P)
            else:
                move(b, home.P if then == "read" else home.D, home.out)

    ordered = (release, acquire) == (RELEASE, ACQUIRE)
    assert racing(box(push, take, blocks={0: 1, 1: 2})) == (
        {"D"} if then == "plain data" else set() if ordered else {"P"}
    )


def test_coherence_goes_on_from_packet_to_packet():
    """Block 0 sends the first packet, block 1 sees it and sends the second; who sees that and clears is after both."""

    def push(b, home):
        if b.block == 0:
            packet(b, home.P, 1)
        else:
            poll(b, home.P, "==", 1)
            packet(b, home.P, 2)

    def take(b, home):
        poll(b, home.P, "==", 2)
        clear(b, home.P)

    # The second packet may unmeet the first wait of another block only; here nobody else waits for the first.
    assert racing(box(push, take, blocks={0: 2, 1: 1})) == set()


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
def test_three_buffers_in_turn_are_cleared_by_the_call_after_the_one_that_reads(memory):
    """The packet of call 3 was waited for in call 3; call 4, which clears it, comes after by the kernel boundary."""
    verdict = check(three_buffers, memory=memory, executions=64)
    assert verdict.verdict == "ok" and not verdict.races, verdict
    two = find_races(compile_tables(three_buffers.program(three_buffers.config(options=(("turns", 2),)))))
    assert {(race.first.kind, race.second.kind) for race in two.races} == {("write", "write")}


@pytest.mark.parametrize(("cond", "waits_too"), [("==", True), (">=", False)])
def test_a_second_packet_races_with_the_read_and_with_a_wait_that_it_unmeets(cond, waits_too):
    def push(b, home):
        packet(b, home.P, 1)
        packet(b, home.P, 2)

    def take(b, home):
        poll(b, home.P, cond, 1)
        move(b, home.P, home.out)

    races = find_races(compile_tables(box(push, take))).races
    kinds = {frozenset((r.first.kind, r.second.kind)) for r in races}
    # Under `==` the first execution hangs before the wait, so it is one that lets the reader go first that shows both.
    if not waits_too:
        assert kinds == {frozenset(("write", "read"))}
    tables = compile_tables(box(push, take))
    found = {
        frozenset((r.first.kind, r.second.kind))
        for seed in range(16)
        for r in find_races(tables, execute(tables, policy=1, seed=seed)).races
    }
    assert (frozenset(("write", "wait")) in found) == waits_too


def test_an_answer_lets_the_writer_come_again():
    """Read, then a released flag, then the next packet: nothing races, and one execution says so for all."""

    def push(b, home):
        packet(b, home.P, 1)
        b.wait(home.f, ">=", 1, ACQUIRE, SYSTEM)
        packet(b, home.P, 2)

    def take(order):
        def taking(b, home):
            poll(b, home.P, "==", 1)
            move(b, home.P, home.out)
            b.store(home.f, 1, order, SYSTEM)
            poll(b, home.P, "==", 2)
            move(b, home.P, home.out)

        return taking

    tables = compile_tables(box(push, take(RELEASE)))
    execution = execute(tables)
    assert not find_races(tables, execution).races
    assert why_not_determinate(execution, False) is None and holds_under_every_model(execution)
    for memory in ("sc", "posted"):
        straight = straighten(tables, memory)
        assert not straight.racy
        counters, full = (search(tables, memory, reduce=reduce) for reduce in (False, True))
        assert counters.complete and full.complete and not counters.failed and not full.failed
    assert racing(box(push, take(RELAXED))) == {"P"}


def test_a_wait_for_the_initial_stamp_joins_nothing():
    def push(b, home):
        packet(b, home.P, 1)

    def take(b, home):
        poll(b, home.P, ">=", 0)
        move(b, home.P, home.out)

    assert racing(box(push, take)) == {"P"}


# ---- against the memory model


@dataclass(frozen=True)
class Step:
    """One operation: push, poll, get, clear a packet slot; put, read plain payload; flag, await; fence."""

    what: str
    slot: int = 0
    other: int = 0
    stamp: int = 1
    order: Order = Order.RELAXED
    scope: Scope = Scope.SYSTEM

    def __str__(self) -> str:
        return f"{self.what} {self.slot}/{self.other}/{self.stamp} {self.order.name.lower()}@{self.scope.name.lower()}"


Threads = tuple[tuple[int, tuple[Step, ...]], ...]
SLOTS = 2
_RUNS = 40


@st.composite
def programs(draw: st.DrawFn) -> Threads:
    """Two or three blocks on two ranks; waits that nobody can meet are left out."""
    ranks = draw(st.sampled_from(((0, 1), (0, 0, 1), (0, 1, 1))))
    kinds = ("push", "push", "poll", "poll", "take", "take", "clear", "put", "read", "flag", "await", "fence")
    step = st.builds(
        Step,
        st.sampled_from(kinds),
        st.integers(0, SLOTS - 1),
        st.integers(0, len(ranks) - 1),
        st.integers(1, 2),
        st.sampled_from((Order.ACQ_REL, Order.ACQ_REL, Order.RELAXED)),
        st.sampled_from((Scope.SYSTEM, Scope.SYSTEM, Scope.DEVICE)),
    )
    threads = tuple((rank, tuple(draw(st.lists(step, min_size=1, max_size=6)))) for rank in ranks)
    return tuple((rank, tuple(s for s in own if _can_be_met(s, threads))) for rank, own in threads)


def _can_be_met(step: Step, threads: Threads) -> bool:
    every = [s for _, own in threads for s in own]
    if step.what in ("poll", "take"):
        return any(s.what == "push" and (s.slot, s.stamp) == (step.slot, step.stamp) for s in every)
    return step.what != "await" or any(s.what == "flag" for s in threads[step.other][1])


def program_of(threads: Threads) -> Program:
    """All memory is rank 0's; what a thread reads goes into a place of its own each time, so that the end shows it."""
    by_rank: dict[int, list[int]] = {0: [], 1: []}
    for index, (rank, _) in enumerate(threads):
        by_rank[rank].append(index)

    def kernel(b: Block) -> None:
        home, index = b.on(0), by_rank[b.rank][b.block]
        raised = 0
        for place, step in enumerate(threads[index][1]):
            release, acquire = Order(step.order & Order.RELEASE), Order(step.order & Order.ACQUIRE)
            slot, sink = home.box[step.slot], home.sink[index * 6 + place]
            if step.what == "push":
                packet(b, slot, step.stamp)
            elif step.what == "clear":
                clear(b, slot)
            elif step.what in ("poll", "take"):
                poll(b, slot, "==", step.stamp)
                if step.what == "take":
                    move(b, slot, sink)
            elif step.what == "put":
                move(b, b.input, home.D)
            elif step.what == "read":
                move(b, home.D, sink)
            elif step.what == "flag":
                raised += 1
                b.store(getattr(home, f"f{index}"), raised, release, step.scope)
            elif step.what == "await":
                b.wait(getattr(home, f"f{step.other}"), ">=", 1, acquire, step.scope)
            else:
                b.fence(step.order if step.order else Order.ACQ_REL, step.scope)

    return small(
        kernel,
        words=[f"f{k}" for k in range(len(threads))],
        payload={"box": (SLOTS, 1), "D": 1, "sink": (6 * len(threads), 1)},
        blocks={rank: len(own) for rank, own in by_rank.items()},
        elements=1,
    )


def final(engine: Engine) -> tuple[list[int], ...]:
    return engine.state.word.tolist(), engine.state.cell.tolist(), engine.state.pc.tolist()


def text(threads: Threads) -> str:
    return "\n".join(f"rank {rank}: " + "; ".join(map(str, own)) for rank, own in threads)


def differs(threads: Threads, memory: str) -> bool | None:
    """Whether some execution ends otherwise than the one that was proved to stand for all; None: none was."""
    tables = compile_tables(program_of(threads))
    execution = execute(tables)
    if find_races(tables, execution).races or why_not_determinate(execution, False) is not None:
        return None
    if memory == "weak" and not holds_under_every_model(execution):
        return None
    first, engine = Engine(tables, "sc"), Engine(tables, memory)
    first.follow(np.zeros(0, np.int32))
    for seed in range(_RUNS):
        engine.choices(("random", "pct")[seed % 2], seed)
        if final(engine) != final(first):
            return True
    return False


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
def test_what_is_proved_of_packets_holds_in_every_execution(memory):
    counts = {True: 0, False: 0, None: 0}

    @settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def prop(threads):
        found = differs(threads, memory)
        counts[found] += 1
        assert found is not True, text(threads)

    prop()
    assert counts[False] > 50, counts


def test_every_race_of_packets_shows_somewhere():
    """Not empty the other way: of racing programs, a good part ends in more than one way under weak."""
    counts = [0, 0]

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def prop(threads):
        tables = compile_tables(program_of(threads))
        if not any("box" in race.region for race in find_races(tables).races):
            return
        engine, ends = Engine(tables, "weak"), set()
        for seed in range(_RUNS):
            engine.choices(("random", "pct")[seed % 2], seed)
            ends.add(str(final(engine)))
        counts[len(ends) > 1] += 1

    prop()
    assert counts[1] > counts[0], counts


# ---- against a graph


def racing_by_graph(tables: Tables, execution: Execution) -> set[tuple[int, int]]:
    """The pairs of steps that race, with the order in each cell as a set of edges, closed by set union.

    Edges: happens-before, and from a packet to the wait that joins it and to all that the wait happens before.
    """
    found = clocks(execution)
    cells, steps, writes = accesses(tables, execution)
    pairs = set()
    for cell in {*cells.tolist(), *found.polls[:, 1].tolist()}:
        own: dict[int, bool] = {}
        for step, write in zip(steps[cells == cell].tolist(), writes[cells == cell].tolist(), strict=True):
            own[step] = own.get(step, False) or write
        waits = {int(step): int(packet) for step, at, packet in found.polls if at == cell}
        nodes = sorted({*own, *waits})
        after = {a: {b for b in nodes if a < b and happens_before(found, a, b)} for a in nodes}
        for wait, packet in waits.items():
            if packet >= 0:
                after[packet] |= {wait} | after[wait]
        for middle in nodes:
            for a in nodes:
                if middle in after[a]:
                    after[a] |= after[middle]
        for a, b in combinations(nodes, 2):
            apart = (own.get(a) or own.get(b)) and found.chain[a] != found.chain[b] and b not in after[a]
            if apart and not any(_stays_met(tables, execution, found, *pair, own, waits) for pair in ((a, b), (b, a))):
                pairs.add((a, b))
    return pairs


def happens_before(found: Clocks, a: int, b: int) -> bool:
    return bool(found.rows[b, found.chain[a]] >= found.time[a])


def _stays_met(tables, execution, found, write: int, wait: int, own: dict[int, bool], waits: dict[int, int]) -> bool:
    """Whether `wait` is one, all of them here for `==`, and `write` leaves it met."""
    if wait not in waits or not own.get(write):
        return False
    return found.stamp[write] < 0 or found.stamp[write] == found.wanted[wait]


def test_races_of_packets_are_those_of_the_graph():
    counts = [0, 0]

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def prop(threads):
        tables = compile_tables(program_of(threads))
        for seed in range(2):
            execution = execute(tables, policy=RANDOM, seed=seed)
            pairs = {(int(a), int(b)) for a, b in conflicts(tables, execution, clocks(execution))[:, :2]}
            assert pairs == racing_by_graph(tables, execution), text(threads)
            counts[bool(pairs)] += 1

    prop()
    assert min(counts) > 50, counts


def test_where_only_coherence_orders_two_accesses_a_search_of_weak_finds_no_other_end():
    ends_of_those = []

    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def prop(threads):
        tables = compile_tables(program_of(threads))
        execution = execute(tables)
        if find_races(tables, execution).races or why_not_determinate(execution, False) is not None:
            return
        if not holds_under_every_model(execution) or not _by_coherence_alone(tables, execution):
            return
        search_of_weak = WeakSearch(tables, reduce=True, stop=False, keep=True)
        if search_of_weak.advance(3_000, None) != FINISHED:
            return
        ends = {tuple(end.cells.tolist()) for end in search_of_weak.ends()}
        assert len(ends) == 1, text(threads)
        ends_of_those.append(ends)

    prop()
    assert len(ends_of_those) > 10


def _by_coherence_alone(tables: Tables, execution: Execution) -> bool:
    """Whether two accesses of a cell by different agents, one of them a write, have no order by happens-before."""
    found = clocks(execution)
    cells, steps, writes = accesses(tables, execution)
    for cell in set(cells.tolist()):
        own = sorted(zip(steps[cells == cell].tolist(), writes[cells == cell].tolist(), strict=True))
        for (a, one), (b, two) in combinations(own, 2):
            if (one or two) and found.chain[a] != found.chain[b] and not happens_before(found, a, b):
                return True
    return False
