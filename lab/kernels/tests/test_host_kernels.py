"""The kernels on the CPU host: every algorithm, type and number of ranks, bit-equal to the reference."""

import itertools

import numpy as np
import pytest

from lab.kernels.host import Collective, HostRanks
from lab.kernels.reference import BITS, all_reduce_bits
from lab.kernels.staging import MAX_BLOCKS
from lab.kernels.tests.scenario import ALGORITHMS, DTYPES, PARTED, chain, layout, make, make_parts, mixed, random_bits

WORLDS = (2, 3, 4, 8)


@pytest.fixture(scope="module")
def ranks() -> dict[int, HostRanks]:
    return {world: HostRanks(layout(world)) for world in WORLDS}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_kernel_type_and_world(ranks, algorithm, dtype, world):
    ranks[world].reset()
    scenario = make(world, world, 12, algorithms=[algorithm], dtypes=[dtype])
    for seed in range(4):
        _, wrong = scenario.play(ranks[world], seed, weak=bool(seed % 2))
        assert not wrong


@pytest.mark.parametrize("world", WORLDS)
def test_mixed_calls_back_to_back(ranks, world):
    ranks[world].reset()
    for seed in range(6):
        for early in (False, True):
            _, wrong = make(100 + seed, world, 16).play(ranks[world], seed, early=early)
            assert not wrong


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", PARTED)
def test_parts_of_any_count_and_place(ranks, algorithm, world):
    ranks[world].reset()
    for seed in range(4):
        scenario = make_parts(seed, world, 12, algorithms=[algorithm])
        _, wrong = scenario.play(ranks[world], seed, weak=bool(seed % 2), early=seed > 1)
        assert not wrong


@pytest.mark.parametrize("world", WORLDS)
def test_all_collectives_in_one_stream(ranks, world):
    ranks[world].reset()
    for seed in range(4):
        scenario = mixed(make(200 + seed, world, 8), make_parts(seed, world, 8))
        _, wrong = scenario.play(ranks[world], seed, early=bool(seed % 2))
        assert not wrong


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("world", WORLDS)
def test_each_call_sums_what_the_one_before_it_gave(ranks, world, early):
    ranks[world].reset()
    for seed in range(6):
        _, wrong = chain(world, seed).play(ranks[world], seed, early=early)
        assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "mixed"])
def test_seeds_0_to_99(ranks, algorithm, world):
    ranks[world].reset()
    for seed in range(100):
        scenario = make(seed, world, 16, algorithms=ALGORITHMS if algorithm == "mixed" else [algorithm])
        for weak, early in itertools.product((False, True), repeat=2):
            _, wrong = scenario.play(ranks[world], seed, weak=weak, early=early)
            assert not wrong, f"seed {seed}, weak={weak}, early={early}"


@pytest.mark.parametrize("epoch", [2**32 - 4, 2**31 - 4, 2**63 - 4])
def test_counters_pass_the_word_boundaries(ranks, epoch):
    ranks[4].reset(epoch)
    _, wrong = make(5, 4, 12).play(ranks[4], 1)
    assert not wrong
    assert ranks[4].controls[0].epoch[:] == [epoch + 12] * MAX_BLOCKS


def test_one_rank_far_behind(ranks):
    ranks[3].reset()
    scenario = make(9, 3, 12)
    for slow in range(3):
        delays = [0, 0, 0]
        delays[slow] = 200_000
        _, wrong = scenario.play(ranks[3], slow, start_after=delays)
        assert not wrong


def test_bits_depend_on_neither_algorithm_nor_rank_nor_size(ranks):
    rng = np.random.default_rng(3)
    n = 1501
    inputs = [random_bits(rng, "bf16", n) for _ in range(4)]
    seen = set()
    for algorithm in ALGORITHMS:
        for length in (n, 700):
            part = [mine[:length].copy() for mine in inputs]
            outputs = [np.zeros(length, np.uint16) for _ in part]
            ranks[4].reset()
            ranks[4].run([Collective(algorithm, "bf16", part, outputs, 2, 32)], seed=0)
            seen |= {output[:700].tobytes() for output in outputs}
    assert len(seen) == 1


def test_same_seed_same_steps(ranks):
    scenario = make(1, 4, 8)
    runs = []
    for _ in range(2):
        ranks[4].reset()
        runs.append(scenario.play(ranks[4], seed=77)[0].steps)
    assert runs[0] == runs[1]


def test_a_rank_order_sum_differs_from_another_order():
    """The reference can tell the order of the sum: else 'bit-equal' would say little."""
    rng = np.random.default_rng(0)
    inputs = [random_bits(rng, "fp32", 2000) for _ in range(4)]
    turned = inputs[1:] + inputs[:1]
    assert (all_reduce_bits(inputs, "fp32") != all_reduce_bits(turned, "fp32")).any()
    assert inputs[0].dtype == BITS["fp32"]
