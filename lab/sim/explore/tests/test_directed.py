"""Directed schedules do what they say, find each published race at once, and leave correct protocols alone."""

from __future__ import annotations

import numpy as np
import pytest

from lab.protocol.library import load
from lab.protocol.published import ENTRIES
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED, protocol
from lab.sim.bench.first_failure import first_failures
from lab.sim.check import check
from lab.sim.explain import minimise
from lab.sim.explain.minimise import smallest_witness
from lab.sim.explain.tests.test_minimise import benign
from lab.sim.explore import directed
from lab.sim.explore.directed import DIRECTED, Plan, plan_for, plan_of
from lab.sim.explore.executor import Threads
from lab.sim.explore.explore import explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.kinds import key_of
from lab.sim.order.races import find_races


def seed_two_shot(**changes):
    found = load("seed_two_shot")
    config = found.config(**{"world": 2, "blocks": 2, "calls": 2, "bytes": (4096,)} | changes)
    return compile_tables(found.program(config))


def steps_of(execution) -> dict[int, int]:
    return {int(row): step for step, row in enumerate(execution.log.op[: execution.steps]) if row >= 0}


# ---- what a schedule does


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_each_pair_happens_in_the_order_that_its_schedule_asks_for(memory):
    """Late: after the other. Swapped: right after it. Judged by rows, which tell the operations of two runs apart."""
    tables = seed_two_shot()
    plan = plan_of(tables, memory)
    recorded = find_races(tables, execute(tables, memory)).execution
    engine, turned = Engine(tables, memory), 0
    for number, turn in enumerate(plan.turns):
        if turn.base or turn.bent != directed._NOT_BENT or recorded.log.op[[turn.held, turn.other]].min() < 0:
            continue
        held, other = (int(recorded.log.op[step]) for step in (turn.held, turn.other))
        _, choices = engine.follow(plan.choices(number))
        at = steps_of(execute(tables, memory, m.REPLAY, choices=choices))
        assert at[held] > at[other]
        if turn.move == directed._SWAPPED:
            assert at[held] == at[other] + 1
            turned += 1
        elif turn.held < turn.other:
            between = [row for row, step in at.items() if at[other] < step < at[held]]
            assert between, "what is late is later than right after"
    assert turned > 2


def test_a_plan_takes_every_kind_of_race_in_turn_and_keeps_its_bound():
    tables = seed_two_shot()
    kinds = {key_of(race) for race in find_races(tables).races}
    plan = plan_of(tables, limit=51)
    assert len(plan) == 51 and set(plan.races) == kinds and len(kinds) == 2
    assert min(plan.tried().values()) > 10 and sum(plan.tried().values()) == 51
    assert list(plan.tried(4).values()) == [2, 2]
    one = plan_of(tables, races=[plan.races[1]], limit=51)
    assert one.races == (plan.races[1],) and {turn.race for turn in one.turns} == {0}
    assert plan.turns == plan_of(tables, limit=51).turns


def test_every_pair_is_turned_both_ways_when_the_bound_allows():
    tables = seed_two_shot()
    pairs = find_races(tables).pairs[:, :2]
    plan = plan_for(execute(tables), pairs, limit=10**6)
    late = {(turn.held, turn.other) for turn in plan.turns if turn.move == directed._LATE}
    assert late == {tuple(pair) for pair in pairs.tolist()} | {tuple(pair[::-1]) for pair in pairs.tolist()}


def detour_memory(declare):
    declare.payload("inbox", declare.max_elements, UNCACHED, source=declare.world)
    declare.words("ready", declare.world, UNCACHED)
    declare.words("via")


@protocol(memory=detour_memory, blocks=1, bytes=256, world=3)
def detour(b):
    """Rank 1 hears of rank 0's data from rank 2, to which rank 0 says it with a relaxed store."""
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank])
    b.barrier()
    if b.rank == 0:
        b.leader.store(b.on(2).via, b.call, RELAXED, SYSTEM)
    if b.rank == 2:
        b.leader.wait(b.mine.via, ">=", b.call, ACQUIRE, SYSTEM)
        b.leader.store(b.on(1).ready[0], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        if (b.rank, j) != (0, 1):
            b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j] for j in range(b.world)], b.output)


def test_under_posted_the_arrival_of_a_store_is_late_without_its_agent():
    """Holding back the agent holds back its flag too, so only a late arrival shows this one."""
    tables = compile_tables(detour.program())
    assert find_races(tables).races
    plan, engine = plan_of(tables, "posted"), Engine(tables, "posted")
    recorded = execute(tables, "posted").log.op
    ends = [plan.batch(engine, k, 1)[:, m.T_WRONG].any() for k in range(len(plan))]
    wrong = [turn for turn, ended in zip(plan.turns, ends, strict=True) if ended and turn.base == 0]
    assert wrong and all(recorded[turn.held] == -1 for turn in wrong)
    sc = plan_of(tables, "sc")
    assert len(sc) and not sc.batch(Engine(tables, "sc"), 0, len(sc))[:, m.T_WRONG].any()


# ---- what it finds


# The directed execution, counted from 1, by which every published race has failed.
LATEST = {"sc": 3, "posted": 3, "weak": 4}


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_directed_schedules_meet_a_published_race_sooner_than_random_ones(memory):
    published = {}
    for entry in ENTRIES:
        made, config = entry.defective()
        published[entry.id] = compile_tables(made.program(config))
    found = list(first_failures(published, memory))
    assert len(found) >= 10
    for one in found:
        assert one.executions[DIRECTED] <= LATEST[memory], one
    mean = {name: np.mean([one.executions[name] for one in found]) for name in found[0].executions}
    assert mean[DIRECTED] < mean["pct"] < mean["random"]


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_the_directed_schedules_alone_give_each_published_race_its_witness(memory, monkeypatch):
    """With no random execution to fall back on."""
    monkeypatch.setattr(minimise, "_SEARCH", 0)
    shown = 0
    for entry in ENTRIES:
        made, config = entry.defective()
        if entry.expected(memory) != {"wrong"}:
            continue
        for race in find_races(compile_tables(made.program(config))).races:
            witness = smallest_witness(made, config, memory, key_of(race))
            assert witness is not None, (entry.id, race.missing)
            shown += 1
    assert shown >= 8


@pytest.mark.parametrize("name", ["seed_one_shot", "repaired_two_shot"])
def test_a_program_without_races_has_no_directed_executions(name):
    found = load(name)
    config = found.config(world=2, blocks=2, calls=2, bytes=(4096,))
    assert plan_of(compile_tables(found.program(config))) == Plan()
    verdict = check(found, config, executions=100)
    assert verdict.ok and verdict.executions == 100
    assert "0 directed, 50 random, 50 pct" in verdict.proof


def test_a_race_that_changes_no_value_says_how_many_executions_tried_to_make_it():
    verdict = check(benign, executions=100)
    assert verdict.verdict == "race" and "(12 turned it round)" in verdict.effects[0].said
    assert "benign so far" in verdict.effects[0].said and verdict.effects[0].turned == 12
    assert "12 directed" in verdict.proof
    assert "directed" not in check(benign, executions=100, schedulers=("random",)).proof


# ---- in an exploration


def test_what_the_plan_leaves_goes_to_the_other_schedulers():
    tables = compile_tables(benign.program())
    planned = len(plan_of(tables))
    found = explore(tables, schedulers=(DIRECTED, "random", "pct"), executions=301)
    assert found.by_scheduler == {DIRECTED: planned, "random": 145, "pct": 144} and planned == 12
    few = explore(tables, schedulers=("pct", DIRECTED), executions=11)
    assert few.by_scheduler == {"pct": 6, DIRECTED: 5}
    assert sum(outcomes.executions for outcomes in few.turned.values()) == 5
    alone = explore(tables, schedulers=(DIRECTED,), executions=301)
    assert alone.executions == planned and alone.failing == 0


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_directed_executions_do_not_depend_on_who_runs_them_and_their_failure_repeats(memory):
    tables = seed_two_shot()
    one, two = (explore(tables, memory, (DIRECTED,), 90, 7, executor=who) for who in (None, Threads(2)))
    assert (one.executions, one.wrong, one.ops, one.turned) == (two.executions, two.wrong, two.ops, two.turned)
    assert one.failure[:2] == two.failure[:2] and np.array_equal(one.failure[2], two.failure[2])
    assert execute(tables, memory, m.REPLAY, choices=one.failure[2]).state.counts[m.C_WRONG]
