"""Exhaustive search against itself without reduction, against the general machine, and against random schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lab.errors import LabError, UnknownNameError
from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.sim.bench.models import tables_of, two_phase
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.events import NotStraightError
from lab.sim.order.races import find_races
from lab.sim.order.straight import straighten
from lab.sim.search import states, walks
from lab.sim.search.canonical import WeakSearch
from lab.sim.search.rows import RowSearch
from lab.sim.search.search import INTERLEAVED, INTERRUPTED, SearchResult, search
from lab.sim.tests.programs import as_waves, without
from lab.sim.tests.search_programs import Step, build, tidy_programs, wild_programs

FEW = settings(max_examples=90, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))


def truth(
    tables: Tables, memory: str, early: bool = False
) -> tuple[RowSearch | WeakSearch, tuple[bool, bool, bool]] | None:
    """All states of the engine, without any reduction; None: too many."""
    found: RowSearch | WeakSearch
    if memory == "weak":
        found = WeakSearch(tables, False, False, None, early)
    else:
        found = RowSearch(tables, memory, None, False, False, None, early)
    if found.advance(20_000, None) == states.LIMIT:
        return None
    counts = found.rows.counts
    return found, (counts[states.N_WRONG] > 0, counts[states.N_HANGS] > 0, counts[states.N_ABORTS] > 0)


def flags(result: SearchResult) -> tuple[bool, bool, bool]:
    return result.wrong, result.hang, result.abort


def replay(tables: Tables, memory: str, choices: np.ndarray) -> tuple[int, m.State]:
    engine = Engine(tables, memory)
    return engine.follow(choices, m.REPLAY)[0], engine.state


def agree(program: Program, memory: str) -> None:
    """One schedule, random schedules, the reduced search and the search of every state tell one story."""
    tables = compile_tables(program)
    known = truth(tables, memory)
    if known is None:
        return
    full, is_so = known
    assert flags(search(tables, memory, stop=False)) == is_so
    first = search(tables, memory)
    assert first.failed == any(is_so)
    if first.choices is not None:
        outcome, state = replay(tables, memory, first.choices)
        assert outcome != m.DIVERGED
        assert state.counts[m.C_WRONG] or outcome == m.HANG or state.counts[m.C_TIMEOUTS]
    impatient = truth(tables, memory, True)
    if impatient is not None:
        assert flags(search(tables, memory, stop=False, early_timeouts=True)) == impatient[1]
        assert all(b or not a for a, b in zip(is_so, impatient[1], strict=True))
    engine = Engine(tables, memory)
    for scheduler in ("random", "pct", "run_on"):
        totals = engine.batch(scheduler, 0, 16)
        assert totals[m.T_WRONG] == 0 or is_so[0]
        assert totals[m.T_HANGS] == 0 or is_so[1]
        assert totals[m.T_ABORTS] == 0 or is_so[2]
    if memory == "weak":
        one_schedule(tables, is_so)
    else:
        counted(tables, memory, full, is_so)


def one_schedule(tables: Tables, is_so: tuple[bool, bool, bool]) -> None:
    """Where one sc execution is said to stand for all under weak, it does."""
    execution = execute(tables)
    racy = bool(find_races(tables, execution).races)
    if not racy and why_not_determinate(execution, racy) is None and holds_under_every_model(execution):
        assert is_so == (execution.state.counts[m.C_WRONG] > 0, False, False)


def counted(tables: Tables, memory: str, full: RowSearch, is_so: tuple[bool, bool, bool]) -> None:
    """Where a program is straight, its counters are its states, and one schedule says whether it is wrong."""
    try:
        straight = straighten(tables, memory)
    except NotStraightError:
        return
    assert not is_so[1] and not is_so[2]
    if not straight.racy:
        assert is_so[0] == straight.wrong
        counted = search(tables, memory, reduce=False, stop=False)
        assert counted.engine == "counters" and counted.complete
        assert counted.states == full.rows.counts[states.N_STATES]
        # With waves the search of counters also examines steps that the machine holds back: see `Straight.held_pairs`.
        waves = any(agent.kind == "wave" for agent in tables.program.agents)
        assert waves or counted.transitions == full.rows.counts[states.N_TRANSITIONS]
        engine = Engine(tables, memory)
        walked = walks.begin(straight)
        for _ in range(200 if waves else 0):
            if walked.done:
                break
            choices = straight.schedule(walked.counter)
            assert engine.follow(choices, m.REPLAY, len(choices))[0] == m.STEP_LIMIT or len(choices) == straight.steps
            walked.advance(1)
    execution = execute(tables)
    if memory == "sc" and not find_races(tables, execution).races and why_not_determinate(execution, False) is None:
        # Where one execution without a race is said to stand for all, there is none by the order that waits force.
        assert not straight.racy


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@FEW
@given(program=tidy_programs())
def test_verdicts_agree(memory, program):
    agree(program, memory)


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@FEW
@given(program=wild_programs())
def test_verdicts_agree_on_anything(memory, program):
    agree(program, memory)


@FEW
@given(program=tidy_programs() | wild_programs())
def test_verdicts_agree_with_waves(program):
    agree(as_waves(program), "posted")


@pytest.mark.slow
@MANY
@given(program=tidy_programs() | wild_programs())
def test_verdicts_agree_with_waves_at_length(program):
    agree(as_waves(program), "posted")


@pytest.mark.slow
@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@MANY
@given(program=tidy_programs())
def test_verdicts_agree_at_length(memory, program):
    agree(program, memory)


@pytest.mark.slow
@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
@MANY
@given(program=wild_programs())
def test_verdicts_agree_on_anything_at_length(memory, program):
    agree(program, memory)


def test_order_by_additions_that_happened_to_follow_each_other_is_none():
    """The first execution orders the two writes of A by the second thread's last addition; another does not."""
    adds = [Step("count", "x", 1, 1, 1)] * 2
    first = [Step("put", "A", 0, 1), Step("count", "x", 1, 1, 1)]
    tables = compile_tables(build({(0, 0): first, (1, 0): [*adds, Step("put", "A", 0, 1)]}, 2, {0: 1, 1: 1}))
    orders = [execute(tables, policy=m.RANDOM, seed=seed) for seed in range(30)]
    silent = [e for e in orders if not find_races(tables, e).races]
    assert 0 < len(silent) < len(orders)
    for execution in silent:
        assert "races in another" in (why_not_determinate(execution, False) or "")


def _mutants() -> list[tuple[int, int]]:
    program = two_phase.program(two_phase.config(world=2, calls=2, bytes=(32,)))
    return [
        (a.id, k)
        for a in program.agents
        if a.rank == 0
        for k, op in enumerate(a.ops)
        if op.phase not in ("launch", "host")
    ]


@pytest.mark.parametrize("memory", INTERLEAVED)
def test_reduction_keeps_the_verdict_of_every_mutant(memory):
    """Each operation of one rank dropped in turn: hangs, wrong values, and what is redundant."""
    program = two_phase.program(two_phase.config(world=2, calls=2, bytes=(32,)))
    seen = set()
    for agent, position in _mutants():
        tables = compile_tables(without(program, agent, position))
        known = truth(tables, memory)
        assert known is not None
        assert flags(search(tables, memory, stop=False)) == known[1], (agent, position)
        assert search(tables, memory).failed == any(known[1])
        seen.add(known[1])
    assert len(seen) >= 2  # wrong, hang


@pytest.mark.parametrize("memory", INTERLEAVED)
def test_a_correct_program_is_covered(memory):
    tables = tables_of("two_phase", 3, 2)
    short, full = search(tables, memory), search(tables, memory, reduce=False)
    assert short.complete and full.complete and not short.failed and not full.failed
    assert short.states < full.states and short.choices is None
    assert "all" in full.covered and full.bytes_per_state < 24


def test_failures_come_with_a_schedule():
    hang = build(
        {(0, 0): [Step("wait >=", "x"), Step("store", "y")], (1, 0): [Step("wait >=", "y"), Step("store", "x")]},
        2,
        {0: 1, 1: 1},
    )
    abort = build({(0, 0): [Step("bounded", "x", 0, 2)], (1, 0): [Step("store", "x")]}, 2, {0: 1, 1: 1})
    for program, what in ((hang, "hang"), (abort, "abort")):
        tables = compile_tables(program)
        found = search(tables)
        assert found.failed and getattr(found, what) and not found.complete
        outcome, state = replay(tables, "sc", found.choices)
        assert outcome == m.HANG if what == "hang" else state.counts[m.C_TIMEOUTS]


def test_bounded_waits_may_be_impatient():
    """Nothing hangs, so that a bound on polls is reached only by a wait that is merely late."""
    program = build({(0, 0): [Step("bounded", "x", 0, 1)], (1, 0): [Step("store", "x", 0, 1)]}, 2, {0: 1, 1: 1})
    tables = compile_tables(program)
    patient, impatient = search(tables), search(tables, early_timeouts=True)
    assert patient.complete and not patient.failed and "bounded waits give up only" in patient.covered
    assert impatient.abort
    assert replay(tables, "sc", impatient.choices)[1].counts[m.C_TIMEOUTS]


def test_the_lagging_rank_is_found_at_once():
    for memory in m.MEMORY_MODELS:
        tables = tables_of("lagging", 3, 12, depth=10)
        found = search(tables, memory)
        assert found.wrong and found.choices is not None
        assert replay(tables, memory, found.choices)[1].counts[m.C_WRONG]


@pytest.mark.parametrize("limit", [{"limit_states": 500}, {"deadline": 0.0}])
@pytest.mark.parametrize(
    ("engine", "tables", "options"),
    [
        ("counters", tables_of("two_phase", 3, 2), {"reduce": False}),
        ("rows", tables_of("two_phase", 2, 4, gather="shared"), {"reduce": False, "stop": False}),
    ],
)
def test_a_stopped_search_goes_on_where_it_was(engine, tables, options, limit, tmp_path):
    whole = search(tables, **options)
    assert whole.engine == engine and whole.complete
    place = tmp_path / "search.npz"
    part = search(tables, **options, **limit, checkpoint=place)
    for _ in range(200):
        if part.complete:
            break
        assert part.stopped and part.states < whole.states and place.exists() and "not covered" in part.covered
        part = search(
            tables,
            **options,
            checkpoint=place,
            **({"limit_states": part.states + 700} if "limit_states" in limit else {}),
        )
    assert (part.states, part.transitions, flags(part)) == (whole.states, whole.transitions, flags(whole))


def test_no_memory_at_all_is_a_limit_too():
    tables = tables_of("two_phase", 3, 2, gather="shared")
    for limit in (0, 1):
        part = search(tables, reduce=False, stop=False, memory_limit=limit)
        assert not part.complete and part.stopped is not None


def test_memory_limit_ends_with_a_partial_result(tmp_path):
    tables = tables_of("two_phase", 3, 2, gather="shared")
    place = tmp_path / "search.npz"
    part = search(tables, reduce=False, stop=False, memory_limit=2_000_000, checkpoint=place)
    assert not part.complete and "memory limit" in part.stopped
    assert part.bytes_per_state * part.states <= 2_000_000
    whole, gone_on = (
        search(tables, reduce=False, stop=False),
        search(tables, reduce=False, stop=False, checkpoint=place),
    )
    assert (whole.states, whole.transitions, flags(whole)) == (gone_on.states, gone_on.transitions, flags(gone_on))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_is_refused_in_plain_words(tmp_path, content):
    place = tmp_path / "part.npz"
    place.write_bytes(content)
    with pytest.raises(LabError, match="the checkpoint cannot be read") as refused:
        search(tables_of("two_phase", 3, 2), reduce=False, checkpoint=place)
    assert "it is damaged, or no checkpoint" in str(refused.value) and "pickle" not in str(refused.value)


def test_checkpoints_of_other_searches_are_refused(tmp_path):
    place = tmp_path / "search.npz"
    search(tables_of("two_phase", 3, 2), reduce=False, limit_states=10, checkpoint=place)
    with pytest.raises(LabError, match="another search"):
        search(tables_of("two_phase", 3, 1), reduce=False, checkpoint=place)
    place.write_bytes(b"no")
    with pytest.raises(LabError, match="cannot be read"):
        search(tables_of("two_phase", 3, 2), reduce=False, checkpoint=place)


@pytest.mark.parametrize("tables", [tables_of("two_phase", 4, 2), tables_of("two_phase", 4, 2, gather="shared")])
def test_ctrl_c_keeps_what_was_found(tables):
    def interrupt(found: SearchResult) -> None:
        raise KeyboardInterrupt

    found = search(tables, "posted", reduce=False, stop=False, progress=interrupt)
    assert found.stopped == INTERRUPTED and not found.complete and found.states > 1000


def test_an_unknown_memory_model_is_refused():
    with pytest.raises(UnknownNameError):
        search(tables_of("two_phase", 2, 1), "strong")
