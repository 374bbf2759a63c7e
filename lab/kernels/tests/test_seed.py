"""The protocol that was replaced is wrong on the host too, in both of its ways."""

import pytest

from lab.kernels.host import HostRanks
from lab.kernels.tests.scenario import layout, make


@pytest.fixture(scope="module")
def ranks() -> HostRanks:
    return HostRanks(layout(4), kernels=["tests/seed_two_shot", "two_shot"])


def failures(ranks, blocks: int, calls: int, algorithm: str = "seed_two_shot") -> int:
    count = 0
    for seed in range(20):
        ranks.reset()
        scenario = make(seed, 4, calls, algorithms=[algorithm], max_blocks=1, threads=32, whole=True)
        for call in scenario.calls:
            object.__setattr__(call, "blocks", blocks)
        run, wrong = scenario.play(ranks, seed)
        assert run.outcome == "finished"
        count += bool(wrong)
    return count


def test_one_call_with_several_blocks_is_wrong(ranks):
    assert failures(ranks, blocks=4, calls=1) > 0


def test_one_block_is_right_in_one_call_and_wrong_across_calls(ranks):
    assert failures(ranks, blocks=1, calls=1) == 0
    assert failures(ranks, blocks=1, calls=6) > 0


def test_its_replacement_is_right(ranks):
    assert failures(ranks, blocks=4, calls=6, algorithm="two_shot") == 0
