"""Exhaustive search under weak: against depth-first replay, against itself unreduced, limits, and what it covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lab.protocol.program import Scope
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED
from lab.sim.bench.models import tables_of
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.tests.test_litmus import OUTCOMES
from lab.sim.search import canonical as search_weak
from lab.sim.search import canonical_key as weak_key
from lab.sim.search import states
from lab.sim.search.canonical import WeakSearch
from lab.sim.search.search import search
from lab.sim.tests.programs import litmus, small
from lab.sim.tests.weak_programs import Step, Threads, program_of, threads

FEW = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=6000, deadline=None, suppress_health_check=list(HealthCheck))
End = tuple[int, bytes, bytes, bytes]  # outcome, registers, words, cells


def searched(
    tables: Tables, reduce: bool, early: bool = False, limit: int = 30_000
) -> tuple[set[End], tuple[bool, ...]] | None:
    """How executions end, and whether some are wrong, hang, abort; None: too many states."""
    found = WeakSearch(tables, reduce, False, None, early, keep=True)
    if found.advance(limit, None) == states.LIMIT:
        return None
    ends = {_end(tables, e.outcome, e.registers, e.words, e.cells) for e in found.ends()}
    return ends, tuple(bool(found.rows.counts[k]) for k in (states.N_WRONG, states.N_HANGS, states.N_ABORTS))


def replayed(tables: Tables, limit: int) -> set[End] | None:
    """The ends of all schedules, each run from the start."""
    engine = Engine(tables, "weak")
    schedules, complete = every_schedule(engine, limit)
    if not complete:
        return None
    found = set()
    for choices in schedules:
        outcome, _ = engine.follow(choices, m.REPLAY)
        found.add(_end(tables, outcome, engine.state.registers, engine.state.word, engine.state.cell))
    return found


def _end(tables: Tables, outcome: int, registers: np.ndarray, words: np.ndarray, cells: np.ndarray) -> End:
    return outcome, registers[:, : tables.registers].tobytes(), words.tobytes(), cells.tobytes()


def agree(tables: Tables, schedules: int = 1000) -> None:
    """Replay of every schedule (if there are not too many), the whole search and the reduced one end alike."""
    whole = searched(tables, False)
    if whole is None:
        return
    assert searched(tables, True) == whole
    known = replayed(tables, schedules)
    assert known is None or whole[0] == known
    impatient = searched(tables, False, True)
    assert impatient is None or searched(tables, True, True) == impatient


@pytest.mark.parametrize("row", OUTCOMES, ids=str)
def test_litmus_lines_end_as_replay_says(row):
    tables = compile_tables(litmus(row["program"], row["where"]).program)
    known = replayed(tables, 20_000)
    assert known is not None
    for reduce in (False, True):
        found = searched(tables, reduce)
        assert found is not None and found[0] == known


@FEW
@given(threads())
def test_random_programs_end_as_replay_says(given):
    agree(compile_tables(program_of(given)))


@pytest.mark.slow
@MANY
@given(threads(10))
def test_random_programs_end_as_replay_says_at_length(given):
    agree(compile_tables(program_of(given)), 1000)


# ---- what the reduction must not lose: each of these differs when the rule it is named after is left out


def _step(kind: str, **fields: object) -> Step:
    plain = {"name": "x", "where": 0, "value": 1, "order": RELAXED, "scope": SYSTEM, "bypass": False}
    return Step(kind, **{**plain, **fields})  # type: ignore[arg-type]


def _sum_of_words() -> Tables:
    """Rank 1 may miss x == 1 only if its sum was met before rank 0 stored the second part, which it then reads too."""
    writer = (_step("store pair", value=2), _step("store"), _step("store pair", value=1, order=RELEASE))
    reader = (_step("sum", value=2, order=ACQUIRE), _step("load"))
    return compile_tables(program_of(Threads(((0, writer), (1, reader)), UNCACHED)))


def _a_word_of_many_messages() -> Tables:
    """A load may read each of 18 messages, but chooses among 16 at most."""

    def kernel(b):
        if b.rank == 0:
            for k in range(17):
                b.store(b.on(0).x, 1 + k, RELAXED, SYSTEM)
        else:
            with b.when(b.load(b.on(0).x, RELAXED, SYSTEM) == 3):
                b.store(b.on(1).x, 1, RELAXED, SYSTEM)

    return compile_tables(small(kernel, words=["x"]))


def _what_becomes_visible() -> Tables:
    """Rank 0 may miss x == 1 for ever, but only if the release makes x == 2 visible before it looks."""

    def kernel(b):
        if b.rank == 0:
            b.wait(b.mine.x, "==", 1, RELAXED, SYSTEM)
        else:
            b.store(b.on(0).x, 1, RELAXED, SYSTEM)
            b.store(b.on(0).x, 2, RELAXED, Scope.DEVICE)
            b.fence(RELEASE, SYSTEM)

    return compile_tables(cached(kernel))


def cached(kernel):
    """As `small`, with a word x that caches hold."""
    from lab.protocol.program import Memory
    from lab.protocol.write import protocol
    from lab.sim.tests.programs import bare

    def scenario(h):
        h.store(h.mine.x, 0, RELAXED, SYSTEM)
        h.launch(h.input(4), None)

    made = protocol(
        memory=lambda d: d.words("x", memory=Memory.CACHED), blocks=1, scenarios={"once": scenario}, bytes=4
    )(kernel)
    return bare(made.program(made.config(world=2)))


def _payload_under_way() -> Tables:
    """What rank 0's copy finds decides what it copies."""
    mine = (_step("put", name="y", value=1), _step("copy", where=1), _step("load"))
    other = (_step("put", name="y", value=2), _step("put", name="y", where=1, value=1))
    return compile_tables(program_of(Threads(((0, mine), (1, other)), UNCACHED)))


def _two_adds() -> Tables:
    return compile_tables(litmus("0: a = x + 1 | 1: b = x + 1; x = 5", "x@0").program)


RULES = {
    "reads": (_two_adds, lambda s, o, fixed: not s.reads & o.writes),
    "sums": (_sum_of_words, lambda s, o, fixed: not s.writes & o.reads & fixed),
    "many": (_a_word_of_many_messages, lambda s, o, fixed: not s.writes & o.reads & fixed),
    "visible": (_what_becomes_visible, lambda s, o, fixed: -1 not in s.reads & o.writes),
    "payload": (_payload_under_way, lambda s, o, fixed: not (s.cells_written | s.cells_read)),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_reduction_is_needed(rule, monkeypatch):
    tables, kept = RULES[rule][0](), RULES[rule][1]
    agree(tables, 20_000)
    whole = search_weak._conflict

    def without(fixed):
        conflict = whole(fixed)
        return lambda step, other: kept(step, other, fixed) and conflict(step, other)

    monkeypatch.setattr(search_weak, "_conflict", without)
    assert searched(tables, True) != searched(tables, False)


# ---- keys


def test_a_loaded_state_is_packed_as_the_same_row():
    """The canonical form is one: what is made of a row packs to that row, from end to end of many programs."""
    for k, (reduce, keep) in enumerate(((False, False), (False, True), (True, False))):
        found = WeakSearch(
            tables_of("two_phase", 2, 1, gather="shared", order="relaxed"), reduce, False, None, keep=keep
        )
        found.advance(3000, None)
        for state in range(0, int(found.rows.counts[states.N_STATES]), 7 + k):
            found._load(state)
            length = weak_key.pack(found.static, found.state, found.future, found.room, found.scratch)
            lo, hi = found.rows.offset[state : state + 2]
            assert np.array_equal(found.scratch[:length], found.rows.arena[lo:hi])


def test_what_is_over_is_forgotten():
    """Once both have met, how they got there is no difference any more."""
    text = "0: x = 1 release; await y >= 1 acquire; z = 1 | 1: y = 1 release; await x >= 1 acquire"
    tables = compile_tables(litmus(text, "x@1 y@0 z@0").program)
    found = WeakSearch(tables, False, False)
    found.advance(1000, None)
    ends = [s for s in range(int(found.rows.counts[states.N_STATES])) if found._load(s) or not found._moves()]
    assert len(ends) == 1


# ---- limits


def test_a_stopped_search_goes_on_where_it_was(tmp_path):
    tables = tables_of("two_phase", 2, 2, gather="shared", order="relaxed")
    whole = search(tables, "weak", stop=False)
    assert whole.complete and whole.wrong and whole.engine == "canonical rows" and whole.states > 200
    place, limit = tmp_path / "search.npz", whole.states // 4
    part = search(tables, "weak", stop=False, limit_states=limit, checkpoint=place)
    stops = 0
    while not part.complete:
        stops += 1
        assert part.stopped == f"limit of {limit} states" and "not covered" in part.covered and stops < 50
        limit += whole.states // 4
        part = search(tables, "weak", stop=False, limit_states=limit, checkpoint=place)
    assert stops >= 2
    counts = ("states", "transitions", "wrong", "hang", "abort", "covered")
    assert all(getattr(part, name) == getattr(whole, name) for name in counts)


def test_a_memory_limit_ends_with_a_partial_result():
    tables = tables_of("two_phase", 3, 2, order="relaxed")
    part = search(tables, "weak", stop=False, memory_limit=8_000_000)
    assert not part.complete and "memory limit" in part.stopped and "not covered" in part.covered
    assert part.bytes_per_state * part.states <= 8_000_000


def test_ctrl_c_keeps_what_was_found():
    def interrupt(found):
        raise KeyboardInterrupt

    found = search(tables_of("two_phase", 3, 2, order="relaxed"), "weak", stop=False, progress=interrupt)
    assert found.stopped == "Ctrl-C" and not found.complete and found.states > 1000


def test_failures_come_with_a_schedule_that_repeats_them():
    for options, calls in (({"gather": "shared"}, 2), ({"order": "relaxed"}, 1)):
        tables = tables_of("two_phase", 2, calls, **options)
        found = search(tables, "weak")
        assert found.wrong and found.choices is not None and not found.complete
        engine = Engine(tables, "weak")
        outcome, made = engine.follow(found.choices, m.REPLAY)
        assert outcome != m.DIVERGED and engine.wrong
        assert np.array_equal(made[: len(found.choices)], found.choices)


def test_a_hang_that_is_only_possible_comes_with_its_schedule():
    tables = compile_tables(cached_flag())
    found = search(tables, "weak")
    assert found.hang and not found.wrong
    assert Engine(tables, "weak").follow(found.choices, m.REPLAY)[0] == m.HANG
    assert not search(tables, "sc").hang


def cached_flag():
    """Rank 1 stores, and nothing ever writes its cache back."""

    def kernel(b):
        if b.rank == 0:
            b.wait(b.mine.x, ">=", 1, ACQUIRE, SYSTEM)
        else:
            b.store(b.on(0).x, 1, RELAXED, Scope.DEVICE)

    return cached(kernel)


def test_a_program_ordered_by_releases_needs_one_schedule():
    found = search(tables_of("two_phase", 3, 2), "weak")
    assert found.complete and not found.failed and found.engine == "one schedule"
    assert "nobody can read anything stale" in found.covered
    assert search(tables_of("two_phase", 3, 2, order="relaxed"), "weak").wrong


def test_a_word_of_many_messages_is_said_to_be_cut_short():
    found = search(_a_word_of_many_messages(), "weak", stop=False)
    assert found.complete and "written 17 times" in found.covered
