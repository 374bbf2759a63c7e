"""A witness is small and nothing in it can be left out; a race that changes no value has none."""

import numpy as np
import pytest

from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, Host, protocol
from lab.sim.check import check, witnesses
from lab.sim.explain.minimise import _explained, _runs
from lab.sim.explain.replay import digest, replay
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.kinds import key_of
from lab.sim.order.races import find_races


def shown(memory: str = "sc"):
    found = load("seed_two_shot")
    return [
        (key_of(race), pair)
        for race, pair in witnesses(found, found.config(world=3, blocks=3, calls=3, bytes=(16384,)), memory)
    ]


@pytest.mark.parametrize("memory", ["sc", "posted"])
def test_no_part_of_a_witness_can_be_left_out(memory):
    """Its choices are runs of one agent each; without any of them the defect does not show."""
    for key, pair in shown(memory):
        assert pair is not None
        tables = pair.execution.tables
        engine, runs = Engine(tables, memory), _runs(pair.choices)
        for left_out in range(len(runs)):
            kept = np.concatenate([np.zeros(0, np.int32), *runs[:left_out], *runs[left_out + 1 :]])
            _, made = engine.follow(kept)
            assert not engine.wrong or _explained(tables, pair.config, memory, made, key) is None


def test_a_witness_repeats_and_shows_its_own_race():
    for key, pair in shown():
        again = execute(pair.execution.tables, "sc", m.REPLAY, choices=pair.choices)
        assert again.state.counts[m.C_WRONG] == pair.execution.state.counts[m.C_WRONG] > 0
        assert key in {key_of(race) for race in find_races(pair.execution.tables).races}
        assert pair.explainer.race_key(pair.fault) == key


REUSED = ("aiter_3514", "aiter_4084", "aiter_3928", "seed_two_shot")


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("name", REUSED)
def test_the_line_of_every_witness_repeats_it(name, memory):
    protocol = load(name)
    config = protocol.config(world=2, blocks=2, calls=3) if name == "seed_two_shot" else protocol.config()
    small = [witness for _, witness in witnesses(protocol, config, memory) if witness]
    for witness in small:
        again = replay(witness.line(protocol))
        assert again.outcome == "wrong"
        assert again.digest == digest(witness.execution)
    assert small


def test_the_witness_of_a_seed_is_always_the_same():
    one, two = shown(), shown()
    assert [key for key, _ in one] == [key for key, _ in two]
    for (_, a), (_, b) in zip(one, two, strict=True):
        assert a.config == b.config and np.array_equal(a.choices, b.choices)


def memory(declare: Declare) -> None:
    declare.payload("scratch", declare.max_elements, UNCACHED)
    declare.words("turn")


def one_call(h: Host) -> None:
    """No output is compared."""
    h.launch(h.input(256))
    h.sync()


@protocol(memory=memory, blocks=1, bytes=256, world=2, scenarios={"one_call": one_call})
def benign(b):
    """Both ranks write rank 0's scratch, which nobody reads."""
    b.copy(b.input, b.on(0).scratch[: b.elements])
    b.store(b.mine.turn, 1, RELAXED, SYSTEM)


def test_a_race_that_changes_no_value_is_reported_and_said_to_be_benign_so_far():
    tables = compile_tables(benign.program())
    assert len(find_races(tables).races) == 1
    verdict = check(benign, executions=100)
    assert verdict.verdict == "race" and len(verdict.races) == 1
    assert "benign so far" in verdict.effects[0].said


def two_writers(declare: Declare) -> None:
    for name in ("inbox", "slot"):
        declare.payload(name, declare.max_elements, UNCACHED)
    declare.words("sent")
    declare.words("stray")


def rank_0_looks(h: Host) -> None:
    x, out = h.input(256), h.output(256)
    h.launch(x, out)
    h.sync()
    if h.rank == 0:
        h.expect(out, x)


@protocol(memory=two_writers, blocks=1, bytes=256, world=2, scenarios={"rank_0_looks": rank_0_looks})
def stray(b: Block) -> None:
    """Rank 1 sends its input, and then writes into the slot in which rank 0 puts the sum; rank 0 reads after both."""
    if b.rank == 1:
        b.copy(b.input, b.on(0).inbox[: b.elements])
        b.leader.store(b.on(0).sent, 1, RELEASE, SYSTEM)
        b.copy(b.input, b.on(0).slot[: b.elements])
        b.leader.store(b.on(0).stray, 1, RELEASE, SYSTEM)
        return
    b.leader.wait(b.mine.sent, ">=", 1, ACQUIRE, SYSTEM)
    b.reduce([b.input, b.mine.inbox[: b.elements]], b.mine.slot[: b.elements])
    b.leader.wait(b.mine.stray, ">=", 1, ACQUIRE, SYSTEM)
    b.copy(b.mine.slot[: b.elements], b.output)


def test_two_writes_that_nothing_orders_are_shown_by_the_read_after_both():
    """The read is ordered with both; that it sees the wrong one is the fault of the writes' order."""
    verdict = check(stray, executions=100)
    assert verdict.verdict == "wrong" and len(verdict.races) == 1
    assert (verdict.races[0].first.kind, verdict.races[0].second.kind) == ("write", "write")
    assert "wrong values with 1 call" in verdict.effects[0].said
    told = "\n".join(verdict.witness)
    assert "reduce input" in told and "copy input 1 of rank 1 -> slot" in told and "expect output" in told
