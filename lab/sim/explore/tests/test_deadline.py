"""A check keeps to its time in every phase, says what it left out, and keeps what it found when Ctrl-C comes."""

from __future__ import annotations

import time

import pytest

from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.sim import check as checks
from lab.sim.check import check
from lab.sim.explain import minimise
from lab.sim.explain.minimise import smallest_witness
from lab.sim.explain.report import report
from lab.sim.explore.deadline import Deadline
from lab.sim.order.kinds import key_of
from lab.sim.order.races import find_races

SEED = load("seed_two_shot")
CONFIG = SEED.config(world=2, blocks=2, calls=2, bytes=(4096,))
LEFT_OUT = "was not looked for to the end"


def test_a_deadline_counts_down_and_may_be_none():
    until = Deadline(0.05)
    assert 0 < until.left <= 0.05 and not until.passed and 0 < until.part(0.5) <= 0.025
    time.sleep(0.06)
    assert until.passed and until.left == 0 == until.part(1.0)
    never = Deadline(None)
    assert not never.passed and never.part(0.5) is None and never.left == float("inf")


def test_without_time_the_races_are_still_named_and_what_was_left_out_is_said():
    verdict = check(SEED, CONFIG, executions=10**9, deadline=1e-6, repair_seconds=10)
    assert len(verdict.races) == 2 and verdict.executions < 10**6
    assert sum(LEFT_OUT in effect.said for effect in verdict.effects) == 2
    assert verdict.witness == () and verdict.repairs == ()
    assert "no change of the text tried: the deadline of 1e-06 s had passed" in verdict.repairs_tried
    assert "stopped early: deadline of 1e-06 s" in verdict.proof and "no single change that" not in report(verdict)


def test_exploration_leaves_time_for_the_witnesses():
    check(SEED, CONFIG, executions=10)  # compiles
    started = time.perf_counter()
    verdict = check(SEED, CONFIG, executions=10**9, deadline=6.0)
    assert time.perf_counter() - started < 12
    assert "stopped early: deadline of 6 s, of which a part is kept for the witnesses" in verdict.proof
    assert verdict.witness and all("lab replay" in effect.said for effect in verdict.effects)


class Passes(Deadline):
    """Passed at the second look."""

    def __init__(self) -> None:
        super().__init__(None)
        self.looks = 0

    @property
    def passed(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_witness_search_stops_at_its_deadline_with_the_smallest_found_until_then():
    """It passes as soon as a first witness is there: the configuration is not made smaller then."""
    key = key_of(find_races(compile_tables(SEED.program(CONFIG))).races[0])
    whole, early = smallest_witness(SEED, CONFIG, "sc", key), smallest_witness(SEED, CONFIG, "sc", key, 0, Passes())
    assert early.config == CONFIG and whole.config != CONFIG
    assert smallest_witness(SEED, CONFIG, "sc", key, 0, Deadline(0)) is None


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "what"),
    [(checks, "why_not_determinate"), (checks, "plan_of"), (checks, "smallest_witness"), (minimise, "plan_of")],
    ids=["determinacy", "plan", "witness", "inside the witness"],
)
def test_ctrl_c_in_any_phase_keeps_the_races(where, what, monkeypatch):
    monkeypatch.setattr(where, what, interrupt)
    verdict = check(SEED, CONFIG, executions=100, repair_seconds=10)
    assert verdict.interrupted and len(verdict.races) == 2
    assert verdict.verdict in ("race", "wrong") and verdict.repairs_tried == ""
    assert any(LEFT_OUT in effect.said for effect in verdict.effects)


def test_ctrl_c_in_the_exploration_keeps_what_was_found_and_ends_the_check():
    explored = []

    def progress(found):
        explored.append(found.executions)
        if found.wrong:
            raise KeyboardInterrupt

    verdict = check(SEED, CONFIG, executions=10**6, progress=progress)
    assert verdict.interrupted and verdict.failing and verdict.executions == explored[-1]


def test_each_phase_is_told():
    told: list[str] = []
    check(SEED, CONFIG, executions=50, schedulers=("random", "exhaustive"), phase=told.append)
    order = ["race check", "exploration", "search of all schedules"]
    order += [f"smallest witness of race {number} of 2" for number in (1, 2)]
    assert [what for what in dict.fromkeys(told) if what in order] == order
