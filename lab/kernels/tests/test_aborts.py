"""A peer that never comes, or comes late: a record and an end, never a hang; and back to work after a reset."""

import shutil

import pytest

from lab.kernels.build import HIP
from lab.kernels.host import NEVER, HostRanks
from lab.kernels.tests.scenario import ALGORITHMS, layout, make

BOUND = 40_000  # steps; a call of these scenarios takes a few thousand


@pytest.fixture(scope="module")
def ranks() -> HostRanks:
    return HostRanks(layout(4), timeout=BOUND, grace=BOUND)


def one_call(algorithm: str, calls: int = 1):
    return make(21, 4, calls, algorithms=[algorithm], dtypes=["bf16"], limit=4096, max_blocks=2)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_dead_peer_is_reported_lost(ranks, algorithm, early):
    ranks.reset()
    scenario = one_call(algorithm)
    run, _ = scenario.play(ranks, 3, start_after=[0, 0, NEVER, 0], step_limit=50_000_000, early=early)
    assert run.outcome == "finished"
    for rank in (0, 1, 3):
        (wait,) = run.waits[rank]
        assert (wait.kind, wait.peer, wait.epoch, wait.algorithm) == ("lost", 2, 1, algorithm)
        assert wait.waited > 2 * BOUND
        call = scenario.calls[0]
        assert (wait.blocks, wait.threads, wait.count) == (call.blocks, call.threads, call.inputs[0].size)
    assert not run.waits[2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_late_peer_is_reported_late_and_the_result_is_right(ranks, algorithm):
    ranks.reset()
    run, wrong = one_call(algorithm).play(ranks, 3, start_after=[0, BOUND + BOUND // 2, 0, 0])
    assert run.outcome == "finished"
    assert {wait.kind for waits in run.waits for wait in waits} == {"late"}
    assert all(wait.peer == 1 and BOUND < wait.waited < 2 * BOUND for waits in run.waits for wait in waits)
    assert not [line for line in wrong if "wrong" in line]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_a_loss_nothing_is_touched_until_the_reset(ranks, algorithm, early):
    ranks.reset()
    scenario = one_call(algorithm, calls=3)
    run, wrong = scenario.play(ranks, 5, start_after=[0, 0, 0, NEVER], step_limit=50_000_000, early=early)
    assert run.outcome == "finished"
    assert len(wrong) > 3
    assert all(wait.epoch == 1 for waits in run.waits for wait in waits), "later calls end at once"
    counted = 3 if early else 1  # an early launch takes its number before it can know
    assert all(control.epoch[0] <= counted for control in ranks.controls)

    # The peer comes back without an agreement: it finds nobody, and says so.
    late, _ = scenario.play(ranks, 6, start_after=[NEVER, NEVER, NEVER, 0], step_limit=50_000_000, early=early)
    assert late.waits[3][0].kind == "lost"

    ranks.reset(epoch=1000)
    _, wrong = make(22, 4, 12).play(ranks, 7, start_after=[0, 0, 0, 0], early=early)
    assert not wrong


def test_a_loss_in_the_second_phase_names_it(tmp_path, cache):
    """A peer that pushes its scatter and dies: planted in the source, because a live kernel does not do that."""
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / "two_shot.hip"
    text = path.read_text()
    dying = "advance_epoch(call, turn);\n    if (call.rank == 1) return;"
    assert "advance_epoch(call, turn);" in text
    path.write_text(text.replace("advance_epoch(call, turn);", dying))
    broken = HostRanks(
        layout(4), kernels=["two_shot"], source=tmp_path / "hip", cache=cache, timeout=BOUND, grace=BOUND
    )
    run, _ = one_call("two_shot").play(broken, 1, step_limit=50_000_000)
    assert {(wait.phase, wait.peer) for waits in run.waits for wait in waits} == {("gather", 1)}
