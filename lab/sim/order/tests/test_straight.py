"""The straight form: what has one, what it says, and that its walkers make schedules of the program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lab.protocol.tables import compile_tables
from lab.sim.bench.models import tables_of
from lab.sim.explore.straight_run import R_DEVIATED, R_FIRST, Runner, rows_of
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute
from lab.sim.order.events import NotStraightError
from lab.sim.order.races import find_races
from lab.sim.order.straight import Straight, straighten
from lab.sim.search.one_schedule import one_schedule
from lab.sim.search.search import INTERLEAVED
from lab.sim.tests.search_programs import Step, build, tidy_programs, wild_programs

MODELS = [
    ("two_phase", 2, 2, {}),
    ("two_phase", 3, 4, {}),
    ("two_phase", 3, 3, {"gather": "shared"}),
    ("two_phase", 3, 2, {"order": "relaxed"}),
    ("lagging", 3, 6, {}),
]
some = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
PUT_A = Step("put", "A", 0, 1)


def replayed(straight: Straight, choices: np.ndarray) -> m.State:
    """The machine's state after the choices, which must be a complete schedule."""
    static = straight.execution.static
    state, log = m.new_state(static, straight.tables.registers), m.new_log(static, m.LEVEL_NONE)
    outcome = m.run(static, state, log, m.REPLAY, choices=choices)
    assert outcome == m.DONE and state.counts[m.C_STEPS] == len(choices) == straight.steps
    return state


@pytest.mark.parametrize("memory", INTERLEAVED)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_threads_are_ranks_and_links(model, memory):
    name, world, calls, options = model
    straight = straighten(tables_of(name, world, calls, **options), memory)
    links = 0 if memory == "sc" else len(np.unique(straight.entity[straight.entity >= 2 * world]))
    assert straight.threads <= world + links
    assert straight.steps == straight.execution.steps
    assert straight.racy == (options.get("gather") == "shared" or name == "lagging")
    np.testing.assert_array_equal(np.sort(straight.event), np.arange(straight.steps))


@pytest.mark.parametrize("memory", INTERLEAVED)
@pytest.mark.parametrize("scheduler", ["random", "pct"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_schedules_replay_on_the_machine(model, scheduler, memory):
    name, world, calls, options = model
    straight = straighten(tables_of(name, world, calls, **options), memory)
    due = replayed(straight, straight.schedule(straight.lengths())).cell.copy()
    for fuse, all_checks in ((False, True), (False, False), (True, False)):
        runner = Runner(rows_of(straight, fuse, all_checks))
        for seed in range(6):
            state = replayed(straight, runner.choices(scheduler, seed))
            if not runner.batch(scheduler, seed, 1)[R_DEVIATED]:
                np.testing.assert_array_equal(state.cell, due)
                assert bool(state.counts[m.C_WRONG]) == straight.wrong


@pytest.mark.parametrize("scheduler", ["random", "pct"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_seed_is_one_schedule_in_every_batch(model, scheduler):
    name, world, calls, options = model
    runner = Runner(rows_of(straighten(tables_of(name, world, calls, **options), "posted")))
    alone = [runner.batch(scheduler, seed, 1)[R_DEVIATED] for seed in range(3, 16)]
    together = runner.batch(scheduler, 3, 13)
    assert together[R_DEVIATED] == sum(alone)
    assert together[R_FIRST] == (3 + alone.index(1) if any(alone) else -1)


def test_random_schedules_are_spread():
    straight = straighten(tables_of("two_phase", 3, 1))
    runner = Runner(rows_of(straight, fuse=False))
    made = {tuple(runner.choices("random", seed)) for seed in range(100)}
    assert len(made) == 100


def test_pct_finds_the_lagging_rank():
    """Finding 4 of the measurements: with waits as guards, PCT finds it with a probability that does not depend on
    the distance."""
    for depth_of_ring in (4, 8):
        calls = depth_of_ring + 3
        tables = tables_of("lagging", 3, calls, depth=depth_of_ring)
        good = next(
            e for e in (execute(tables, policy=m.RANDOM, seed=k) for k in range(99)) if not e.state.counts[m.C_WRONG]
        )
        runner = Runner(rows_of(straighten(tables, "sc", good)))
        found = runner.batch("pct", 0, 400, depth=2)
        assert found[R_DEVIATED] > 40
        assert runner.wrong("pct", int(found[R_FIRST]), depth=2)


@pytest.mark.parametrize(
    ("threads", "blocks", "memory", "reason"),
    [
        # An equal store by somebody else lets the waiter pass before the first one has published anything.
        (
            {
                (0, 0): [PUT_A, Step("store", "x", 0, 1, 1)],
                (0, 1): [Step("store", "x", 0, 1, 1)],
                (1, 0): [Step("wait >=", "x")],
            },
            {0: 2, 1: 1},
            "sc",
            "written by several agents",
        ),
        # Two additions of which the larger alone is enough.
        (
            {
                (0, 0): [PUT_A, Step("count", "y", 0)],
                (0, 1): [Step("count", "x", 0, 2)],
                (0, 2): [Step("await count", "x", 0, 2)],
            },
            {0: 3, 1: 1},
            "sc",
            "meets a wait depends",
        ),
        (
            {(0, 0): [Step("store", "x", 0, 1)], (1, 0): [Step("branch", "x", 0)]},
            {0: 1, 1: 1},
            "sc",
            "when it is read depends",
        ),
        (
            {(0, 0): [Step("wait >=", "x")], (1, 0): [Step("wait >=", "y"), Step("store", "x")]},
            {0: 1, 1: 1},
            "sc",
            "did not end",
        ),
        ({(0, 0): [Step("bounded", "x", 0, 2)], (1, 0): [Step("store", "x")]}, {0: 1, 1: 1}, "sc", "gave up"),
        (
            {(0, 0): [Step("put", "A", 1)], (0, 1): [Step("put", "B", 1)], (1, 0): []},
            {0: 2, 1: 1},
            "posted",
            "post to the link",
        ),
    ],
)
def test_what_is_not_straight(threads, blocks, memory, reason):
    if reason == "did not end":
        threads = {**threads, (0, 0): [Step("wait >=", "x"), Step("store", "y")]}
    with pytest.raises(NotStraightError, match=reason):
        straighten(compile_tables(build(threads, 2, blocks)), memory)


def test_one_schedule_agrees_on_the_models():
    for name, world, calls, options in (*MODELS, ("two_phase", 8, 4, {})):
        tables = tables_of(name, world, calls, **options)
        found = find_races(tables).pairs[:, :2]
        verdict = one_schedule(tables)
        assert verdict.races() == len(found)
        assert {tuple(p) for p in verdict.racing().tolist()} == {tuple(p) for p in found.tolist()}


@some
@given(program=tidy_programs() | wild_programs())
def test_one_schedule_agrees_with_the_race_check(program):
    tables = compile_tables(program)
    for seed in range(2):
        execution = execute(tables, policy=m.RANDOM, seed=seed)
        found = (
            find_races(tables, execution).pairs[:, :2].tolist()
        )  # twice where each of two steps writes what both read
        verdict = one_schedule(tables, execution)
        assert verdict.races() == len(found)
        assert {tuple(pair) for pair in verdict.racing().tolist()} == {tuple(pair) for pair in found}
