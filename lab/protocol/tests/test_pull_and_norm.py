"""The protocols of pull and of add_rmsnorm: right in every scenario, each part needed, and what a weak meeting does."""

import pytest

from lab.protocol.library import load
from lab.sim.change.mutate import judge, mutants
from lab.sim.check import check

PULL = ("pull", "pull_two_stage")
FUSED = ("add_rmsnorm", "add_rmsnorm_two_stage")
SCENARIOS = {
    **dict.fromkeys(PULL, ("back_to_back", "one_tensor", "isolated", "different_grids", "graph", "overlapped")),
    **dict.fromkeys(FUSED, ("back_to_back", "isolated", "different_grids", "graph", "overlapped")),
}
SIZES = {**dict.fromkeys(PULL, (2048, 1002, 34)), **dict.fromkeys(FUSED, (2048, 512, 1536))}
EVERYWHERE = "so it stands for every schedule, and for every memory model that keeps release and acquire"


def verdict_of(name: str, memory: str = "sc", **config):
    """A check with little exploration: what counts is the proof."""
    found = load(name)
    return check(found, found.config(**{"blocks": 2, "bytes": SIZES[name], **config}), memory=memory, executions=16)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("name", [*PULL, *FUSED])
def test_they_hold_at_every_world(name, world):
    verdict = verdict_of(name, world=world)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("memory", ["posted", "weak"])
@pytest.mark.parametrize("name,scenario", [(name, scenario) for name in SCENARIOS for scenario in SCENARIOS[name]])
def test_they_hold_in_every_scenario(name, scenario, memory):
    verdict = verdict_of(name, memory, world=3, scenario=scenario)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


def test_the_two_stage_pull_may_work_in_place():
    verdict = verdict_of("pull_two_stage", "weak", world=3, scenario="in_place")
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("name", [*PULL, *FUSED])
def test_they_hold_when_a_block_is_several_waves(name):
    verdict = verdict_of(name, world=2, waves=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict
    assert "threads of a block" not in verdict.proof


@pytest.mark.parametrize("name", [*PULL, *FUSED])
def test_a_lost_rank_is_recorded_and_later_calls_touch_nothing(name):
    verdict = verdict_of(name, world=3, scenario="lost_rank", calls=3)
    phase = {"add_rmsnorm": "packet", "add_rmsnorm_two_stage": "scatter"}.get(name, "enter")
    assert verdict.verdict == "abort" and not verdict.races
    assert f"lost: {name} call 3, phase {phase}, rank 2" in verdict.abort


@pytest.mark.parametrize("name", [*PULL, *FUSED])
def test_every_mutant_is_caught_or_proved_to_be_slack(name):
    outcomes = [judge(mutant) for mutant in mutants(load(name).program(world=2, blocks=2, bytes=(2048,), calls=3))]
    assert [f"{o.mutant.what} {o.mutant.line}" for o in outcomes if o.state == "survived"] == []
    assert sum(o.state == "caught" for o in outcomes) >= 5


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
def test_a_relaxed_meeting_is_a_race_whether_or_not_the_reads_bypass_caches(memory, cached):
    """Bypass is no order: what decides is the meeting, and where that orders, a cached read is as good."""
    options = {"start": "relaxed", "cached": cached}
    verdict = verdict_of("pull", memory, world=2, options=options)
    assert verdict.verdict in ("race", "wrong") and verdict.races
    assert {verdict.races[0].first.phase, verdict.races[0].second.phase} == {"produce", "reduce"}
    assert verdict_of("pull", memory, world=2, options={"cached": cached}).verdict == "ok"


def test_a_relaxed_meeting_gives_stale_elements_under_weak():
    verdict = verdict_of("pull", "weak", world=2, options={"start": "relaxed"})
    assert "initial contents" in str(verdict)


def test_without_the_second_meeting_the_next_kernel_overwrites_what_is_read():
    bad = verdict_of("pull", world=2, scenario="one_tensor", options={"leave": False})
    assert bad.verdict == "wrong" and any(race.second.phase == "produce" for race in bad.races)
