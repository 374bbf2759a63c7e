"""What the race check calls right is right under the weaker models too: orders and scopes are all one may rely on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lab.protocol.program import Order, Scope
from lab.protocol.tables import compile_tables
from lab.sim.machine.engines import Engine
from lab.sim.machine.interleaved import REPLAY
from lab.sim.order.determinate import why_not_determinate
from lab.sim.order.races import find_races
from lab.sim.order.straight import straighten
from lab.sim.search.rows import RowSearch
from lab.sim.search.states import FINISHED, N_STATES
from lab.sim.tests.flag_programs import BUFFERS, WORDS, Step, Threads, programs, spread_program_of, text
from lab.sim.tests.programs import as_waves

HOMES = st.fixed_dictionaries({name: st.integers(0, 2) for name in (*WORDS, *BUFFERS)})


def check_models(threads: Threads, homes: dict[str, int], memory: str, runs: int = 25, waves: bool = False) -> bool:
    """Compare what an execution leaves under `memory` with sc, where the race check promises one outcome.

    `waves`: the agents of a rank are waves of one block.
    """
    program = spread_program_of(threads, homes)
    tables = compile_tables(as_waves(program) if waves else program)
    report = find_races(tables)
    finished = (report.execution.state.pc >= tables.agent_end).all()
    if report.races or not finished or why_not_determinate(report.execution, False):
        return False
    expected = report.execution.state.cell.copy()
    engine = Engine(tables, memory)
    for seed in range(runs):
        engine.choices(("random", "pct")[seed % 2], seed)
        assert np.array_equal(engine.state.cell, expected), f"{memory}, seed {seed}, homes {homes}\n{text(threads)}"
    return True


@settings(max_examples=250)
@given(programs(narrow=False), HOMES)
def test_without_a_race_posted_leaves_what_sc_leaves(threads, homes):
    check_models(threads, homes, "posted")


@pytest.mark.slow
@settings(max_examples=4000)
@given(programs(most=12, narrow=False), HOMES)
def test_without_a_race_posted_leaves_what_sc_leaves_on_thousands(threads, homes):
    check_models(threads, homes, "posted", 60)


@settings(max_examples=250)
@given(programs(), HOMES)
def test_without_a_race_waves_leave_under_posted_what_they_leave_under_sc(threads, homes):
    check_models(threads, homes, "posted", waves=True)


@pytest.mark.slow
@settings(max_examples=4000)
@given(programs(most=12), HOMES)
def test_without_a_race_waves_leave_under_posted_what_they_leave_under_sc_on_thousands(threads, homes):
    check_models(threads, homes, "posted", 60, waves=True)


@pytest.mark.parametrize("waves", [False, True])
def test_most_programs_are_promised_one_outcome(waves):
    """The properties above would hold of programs that all race."""
    promised = []

    @settings(max_examples=150, database=None, phases=[Phase.generate])
    @given(programs(narrow=waves), HOMES)
    def collect(threads, homes):
        promised.append(check_models(threads, homes, "posted", 1, waves))

    collect()
    assert sum(promised) > len(promised) / 3


HANDED_ON = (
    (0, (Step("put", "D"), Step("store", "x", 1, order=Order.RELEASE, scope=Scope.DEVICE))),
    (
        0,
        (
            Step("wait", "x", 1, order=Order.ACQUIRE, scope=Scope.DEVICE),
            Step("store", "y", 1, order=Order.RELEASE),
        ),
    ),
    (2, (Step("wait", "y", 1, order=Order.ACQUIRE), Step("get", "D"))),
)


@pytest.mark.parametrize("memory", ["posted", "weak"])
def test_what_one_block_hands_to_another_is_released_with_it(memory):
    """Block 0 stores to rank 1 and tells block 1 at device scope; block 1 tells rank 2, which reads what rank 1 got."""
    assert check_models(HANDED_ON, {"D": 1, "E": 0, "x": 0, "y": 2, "z": 0}, memory, 60)


def _waves(*first: Step, **words: int) -> tuple[Threads, dict[str, int]]:
    """Wave 1 runs `first` and meets wave 0, which then tells rank 2; rank 2 reads what rank 1 got."""
    met = {"order": Order.ACQ_REL, "scope": Scope.BLOCK}
    threads = (
        (0, (Step("wait", "x", 1, **met), Step("add", "y", 1, order=Order.RELEASE))),
        (0, (*first, Step("add", "x", 1, **met))),
        (2, (Step("wait", "y", 1, order=Order.ACQUIRE), Step("get", "D"))),
    )
    return threads, {"D": 1, "E": 0, "x": 0, "y": 2, "z": 0} | words


@pytest.mark.parametrize("memory", ["posted", "weak"])
def test_what_one_wave_hands_to_another_is_released_with_it(memory):
    """The flag is an addition, which no link holds up behind the stores."""
    threads, homes = _waves(Step("put", "D"))
    assert check_models(threads, homes, memory, 60, waves=True)


def test_a_read_does_not_pass_what_another_wave_stored_before_the_barrier():
    met = {"order": Order.ACQ_REL, "scope": Scope.BLOCK}
    threads = (
        (0, (Step("wait", "x", 1, **met), Step("get", "D"))),
        (0, (Step("put", "D"), Step("add", "x", 1, **met))),
    )
    assert check_models(threads, {"D": 1, "E": 0, "x": 0, "y": 0, "z": 0}, "posted", 60, waves=True)


@pytest.mark.parametrize("writer", [0, 1])
@pytest.mark.parametrize("form", ["full", "reduced by the text", "reduced by the must order"])
def test_what_a_wave_did_not_hand_over_is_not_released_by_another(form, writer):
    """Without the barrier the read of rank 2 may be early: a search shows both ends, reduced or not."""
    ((_, tells), (_, stores), reader), homes = _waves(Step("put", "D"))
    waves = ((0, tells[1:]), (0, stores[:1]))
    threads = (*(waves if writer else waves[::-1]), reader)
    tables = compile_tables(as_waves(spread_program_of(threads, homes)))
    assert find_races(tables).races
    straight = straighten(tables, "posted") if form == "reduced by the must order" else None
    found = RowSearch(tables, "posted", straight, form != "full", stop=False)
    assert found.advance(100_000, None) == FINISHED
    engine, ends = Engine(tables, "posted"), set()
    for row in range(int(found.rows.counts[N_STATES])):
        path = found.rows.path(row)
        engine.follow(path, REPLAY, len(path))
        if not engine.movable():
            ends.add(tuple(engine.state.cell.tolist()))
    assert len(ends) == 2
