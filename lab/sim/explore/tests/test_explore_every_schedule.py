"""`every_schedule` visits all schedules, and replays and timeouts behave where a wait can lose what it waited for."""

import numpy as np
import pytest

from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, SYSTEM
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.tests.programs import litmus, outcomes, small


def test_independent_agents_have_all_interleavings():
    engine = Engine(compile_tables(litmus("0: x = 1; y = 1; z = 1 | 1: a = x; b = y; c = z", "x@0 y@0 z@0").program))
    schedules, complete = every_schedule(engine)
    assert complete and len(schedules) == 20  # (3 + 3 choose 3)
    assert len({tuple(s.tolist()) for s in schedules}) == 20


def test_the_limit_is_kept_and_said():
    engine = Engine(compile_tables(litmus("0: x = 1; y = 1; z = 1 | 1: a = x; b = y; c = z", "x@0 y@0 z@0").program))
    schedules, complete = every_schedule(engine, limit=7)
    assert len(schedules) == 7 and not complete


def test_a_toggle_that_is_overwritten_before_the_waiter_looks_ends_the_search():
    found = outcomes(litmus("0: x = 1; x = 2 | 1: await x == 1; y = 1", "x@0 y@0"), "sc")
    assert sorted(outcome["y"] for outcome in found) == [0, 1]


def gives_up(b):
    """Rank 1 waits for x == 1, which rank 0 overwrites; it gives up if it comes too late."""
    if b.rank == 0:
        b.store(b.on(1).x, 1, RELAXED, SYSTEM)
        b.store(b.on(1).x, 2, RELAXED, SYSTEM)
    else:
        b.wait(b.mine.x, "==", 1, ACQUIRE, SYSTEM, bound=10, on_timeout=lambda: b.store(b.mine.y, 1, RELAXED, SYSTEM))


def test_a_wait_that_gives_up_is_one_of_the_schedules():
    engine = Engine(compile_tables(small(gives_up, words=["x", "y"])))
    schedules, complete = every_schedule(engine)
    ends = []
    for choices in schedules:
        assert engine.follow(choices, m.REPLAY)[0] == m.DONE
        ends.append(engine.timeouts)
    assert complete and sorted(set(ends)) == [0, 1]


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_a_run_that_polled_in_vain_can_be_repeated(memory):
    """Polling without success is no step; a timeout after it must not be refused when the steps are repeated."""
    engine = Engine(compile_tables(small(gives_up, words=["x", "y"])), memory)
    gave_up = 0
    for seed in range(60):
        choices = engine.choices("random", seed)
        timeouts, memory_at_end = engine.timeouts, engine.state.word.copy()
        outcome, made = engine.follow(choices, m.REPLAY)
        assert outcome == m.DONE and np.array_equal(made, choices)
        assert engine.timeouts == timeouts and np.array_equal(engine.state.word, memory_at_end)
        gave_up += timeouts
    assert 0 < gave_up < 60


def test_early_timeouts_are_not_always_those_of_the_first_agent():
    def kernel(b):
        if b.rank < 2:
            b.wait(
                b.mine.x, ">=", 1, ACQUIRE, SYSTEM, bound=10, on_timeout=lambda: b.store(b.mine.y, 1, RELAXED, SYSTEM)
            )
            return
        for _ in range(20):
            b.store(b.mine.x, 1, RELAXED, SYSTEM)
        for rank in range(2):
            b.store(b.on(rank).x, 1, RELAXED, SYSTEM)

    program = small(kernel, words=["x", "y"], world=3)
    engine = Engine(compile_tables(program))
    words = [int(engine.tables.word_base[r.id]) for r in program.regions if r.name == "y" and r.rank < 2]
    gave_up = np.zeros(2, int)
    for seed in range(500):
        engine.choices("random", seed, early_timeout=int(0.02 * 2**32))
        gave_up += engine.state.word[words]
    assert gave_up.min() > gave_up.max() / 2 > 20
