"""A peer that never comes, or comes late: a record and an end, never a hang; and back to work after a reset."""

import shutil

import numpy as np
import pytest

from lab.kernels.build import HIP
from lab.kernels.host import NEVER, HostRanks
from lab.kernels.tests.scenario import ALGORITHMS, PARTED, layout, make, make_parts

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
    assert [scenario.not_nan(0, rank) for rank in (0, 1, 3)] == [0, 0, 0]


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
    assert all(control.epoch[0] <= 1 for control in ranks.controls)
    assert [scenario.not_nan(call, rank) for call in range(3) for rank in range(3)] == [0] * 9

    # A graph that is replayed after the loss: nobody looks at the records, so the outputs have to say it.
    again, _ = scenario.play(ranks, 8, start_after=[0, 0, 0, NEVER], step_limit=50_000_000, early=early)
    assert again.outcome == "finished"
    assert [scenario.not_nan(call, rank) for call in range(3) for rank in range(3)] == [0] * 9

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
    scenario = one_call("two_shot")
    run, _ = scenario.play(broken, 1, step_limit=50_000_000)
    assert {(wait.phase, wait.peer) for waits in run.waits for wait in waits} == {("gather", 1)}
    (call,), (due,) = scenario.calls, scenario.expected
    vectors = -(-call.inputs[0].size // 8)
    part = -(-vectors // 4) * 8  # elements
    for rank in (0, 2, 3):
        own = slice(rank * part, (rank + 1) * part)
        got = call.outputs[rank]
        assert np.array_equal(got[own], due[rank][own]), "what was reduced before the loss is right"
        nan = (got & 0x7FFF) > 0x7F80
        nan[own] = True
        assert nan.all(), "and nothing but NaN is beside it"


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("algorithm", PARTED)
def test_lost_parts_are_nan(ranks, algorithm, early):
    ranks.reset()
    scenario = make_parts(3, 4, 3, algorithms=[algorithm])
    for _ in range(2):  # the second time behind the loss
        run, _ = scenario.play(ranks, 5, start_after=[0, 0, 0, NEVER], step_limit=50_000_000, early=early)
        assert run.outcome == "finished"
        assert {wait.algorithm for waits in run.waits for wait in waits} == {algorithm}
        for call, collective in enumerate(scenario.calls):
            each = min(collective.inputs[0].size, collective.outputs[0].size)
            kept = each if algorithm == "all_gather" else 0  # its own part, which it had to the last
            assert all(scenario.not_nan(call, rank) <= kept for rank in range(3))
