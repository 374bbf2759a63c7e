# ruff: noqa: E501 - a fault is one line, old text beside new
"""The pull kernels on the CPU host: bit-equal to the push kernels' reference, between kernels that write the inputs."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from lab.kernels.build import HIP
from lab.kernels.host import NEVER, Collective, HostRanks
from lab.kernels.reference import BITS, all_reduce_bits
from lab.kernels.tests.scenario import DTYPES, layout, random_bits

PULLS = ("pull", "pull_two_stage")
WRITER = "tests/write_input"
WORLDS = (2, 3, 4, 8)
GUARD = 4  # vectors behind a tensor that must stay as they are


def tensor(n: int, dtype: str, offset: int = 0) -> np.ndarray:
    """n elements on a 16-byte boundary, `offset` vectors into their allocation."""
    raw = np.zeros(n * np.dtype(BITS[dtype]).itemsize + 16 * (offset + GUARD + 1), np.uint8)
    first = -raw.ctypes.data % 16 + 16 * offset
    return raw[first : first + n * np.dtype(BITS[dtype]).itemsize].view(BITS[dtype])


@dataclass
class Model:
    """What a model does on every rank: a kernel writes the registered input, a call reduces it, over and over."""

    launches: list[Collective] = field(default_factory=list)
    outputs: list[Sequence[np.ndarray]] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)

    def play(self, ranks: HostRanks, seed: int, **options) -> list[str]:
        run = ranks.run(self.launches, seed=seed, **options)
        wrong = [] if run.outcome == "finished" else [run.outcome]
        wrong += [str(wait) for waits in run.waits for wait in waits]
        for call, (outputs, expected) in enumerate(zip(self.outputs, self.expected, strict=True)):
            for rank, output in enumerate(outputs):
                bad = int(np.count_nonzero(output != expected))
                if bad:
                    wrong.append(f"call {call} n={expected.size} rank {rank}: {bad} wrong")
        return wrong


def model(seed: int, world: int, calls: int, algorithms: Sequence[str], limit: int = 4096) -> Model:
    """One registered buffer or two in turn, written anew before every call that reads it; sizes and grids change."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(DTYPES))
    itemsize = np.dtype(BITS[dtype]).itemsize
    registered = [[tensor(limit // itemsize, dtype, rank % 3) for rank in range(world)] for _ in range(1 + seed % 2)]
    made = Model()
    for call in range(calls):
        algorithm = str(rng.choice(algorithms))
        n = int(np.exp(rng.uniform(0, np.log(limit / itemsize)))) or 1
        inputs = [held[:n] for held in registered[call % len(registered)]]
        fresh = [tensor(n, dtype) for _ in range(world)]
        for values in fresh:
            values[:] = random_bits(rng, dtype, n)
        in_place = algorithm == "pull_two_stage" and rng.random() < 0.3
        outputs = [tensor(n, dtype, 1)[:n] for _ in range(world)]
        grid = int(rng.integers(1, 3, endpoint=True)), 32
        made.launches.append(Collective("write_input", dtype, fresh, inputs, 1, 32))
        made.launches.append(Collective(algorithm, dtype, inputs, inputs if in_place else outputs, *grid))
        if in_place:  # the next kernel takes the result away
            made.launches.append(Collective("write_input", dtype, inputs, outputs, 1, 32))
        made.outputs.append(outputs)
        made.expected.append(all_reduce_bits(fresh, dtype))
    return made


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", PULLS)
def test_bits_are_those_of_push_whatever_writes_the_input_before_and_after(algorithm, world):
    ranks = HostRanks(layout(world), kernels=[algorithm, WRITER])
    for seed in range(8):
        assert not model(seed, world, 8, [algorithm]).play(ranks, seed, weak=bool(seed % 2), early=seed % 3 == 0)


def test_pull_and_push_share_one_staging():
    """Two parities are enough for any mix: every call of every algorithm hears from every peer."""
    algorithms = ["one_shot", "two_shot", "low_latency", *PULLS]
    ranks = HostRanks(layout(3), kernels=[*algorithms, WRITER])
    for seed in range(12):
        assert not model(seed, 3, 16, algorithms).play(ranks, seed, weak=bool(seed % 2), early=seed % 3 == 0)


@pytest.mark.parametrize("algorithm", PULLS)
def test_an_output_may_lie_anywhere_and_nothing_beside_it_is_written(algorithm):
    ranks = HostRanks(layout(3), kernels=[algorithm])
    rng = np.random.default_rng(0)
    for n in (1, 7, 8, 100, 777):
        inputs = [tensor(n, "bf16") for _ in range(3)]
        for mine in inputs:
            mine[:] = random_bits(rng, "bf16", n)
        around = [np.full(n + 40, 0xA5A5, np.uint16) for _ in range(3)]
        outputs = [held[17 : 17 + n] for held in around]
        assert ranks.run([Collective(algorithm, "bf16", inputs, outputs, 2, 32)], seed=n).outcome == "finished"
        for held in around:
            assert (held[17 : 17 + n] == all_reduce_bits(inputs, "bf16")).all()
            assert (held[:17] == 0xA5A5).all() and (held[17 + n :] == 0xA5A5).all()


@pytest.mark.parametrize("algorithm", PULLS)
def test_a_peer_that_never_comes_is_named_and_the_output_is_no_sum(algorithm):
    ranks = HostRanks(layout(3), kernels=[algorithm], timeout=20_000, grace=20_000)
    inputs, outputs = [tensor(64, "bf16") for _ in range(3)], [tensor(64, "bf16") for _ in range(3)]
    call = Collective(algorithm, "bf16", inputs, outputs, 2, 32)
    run = ranks.run([call], seed=1, start_after=[0, 0, NEVER])
    for rank in (0, 1):
        (wait,) = [wait for wait in run.waits[rank] if wait.kind == "lost"]
        assert (wait.algorithm, wait.phase, wait.peer) == (algorithm, "enter", 2)
        assert (outputs[rank] == 0x7FC0).all()


@dataclass(frozen=True)
class Fault:
    """`old` in `file` becomes `new`; `weak`: seen only when payload stores may be delayed."""

    name: str
    file: str
    old: str
    new: str
    algorithms: tuple[str, ...] = PULLS
    weak: bool = False


ONE, TWO = ("pull",), ("pull_two_stage",)
FAULTS = (
    Fault("reads before the peers have come", "signal.hpp", "call, turn, algorithm, phase, arrived, missing)) lost", "call, turn, algorithm, phase, [] { return true; }, missing)) lost"),
    Fault("leaves while peers still read", "pull.hip", "    leave_drained_system(call, turn, Algorithm::pull);\n", "", ONE),
    Fault("leaves by the flags of the entry", "signal.hpp", "phase == Phase::gather || phase == Phase::leave ? 1 : 0", "phase == Phase::gather ? 1 : 0", ONE),
    Fault("no meeting between the stages", "pull_two_stage.hip", "exchange_release_acquire(call, turn, Algorithm::pull_two_stage, Phase::gather)", "true", TWO),
    Fault("stages meet by the flags of the entry", "signal.hpp", "phase == Phase::gather || phase == Phase::leave ? 1 : 0", "phase == Phase::leave ? 1 : 0", TWO),
    Fault("reduced part not drained before the flag", "signal.hpp", "block_barrier_draining();", "block_barrier();", TWO, True),
    Fault("peers read from another slot than the owner's", "pull_two_stage.hip", "load_bypass(reduced_part(call, k), 0, i)", "load_bypass(gather_slot(call, k, 0, call.rank), 0, i)", TWO),
    Fault("every peer's term from the own input", "meeting.hpp", "call.registered[other_rank(call, j)]", "call.input", ONE),
    Fault("terms in the order of the links", "meeting.hpp", "call.registered[other_rank(call, j)]", "call.registered[peer_after(call, j + 1)]", ONE),
    Fault("another part than the own", "pull_two_stage.hip", "first + i < last ? first + i : last", "i < last ? i : last", TWO),
    Fault("all blocks share block 0's flags", "signal.hpp", "row, block_index(),", "row, 0,"),
    Fault("flag of the call before will do", "signal.hpp", ">= turn.epoch;", ">= turn.epoch - 1;"),
)  # fmt: skip


def found_in(ranks: HostRanks, algorithms: Sequence[str], weak: bool) -> bool:
    for seed in range(40):
        ranks.reset()
        if model(seed, 3, 10, algorithms).play(ranks, seed, weak=weak, early=seed % 2 == 0, step_limit=3_000_000):
            return True
    return False


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found(fault, tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / fault.file
    assert fault.old in path.read_text(), f"{fault.file} has no {fault.old!r} any more"
    path.write_text(path.read_text().replace(fault.old, fault.new))
    ranks = HostRanks(layout(3), kernels=[*fault.algorithms, WRITER], source=tmp_path / "hip", cache=cache)
    assert found_in(ranks, fault.algorithms, weak=True)
    if fault.weak:
        assert not found_in(ranks, fault.algorithms, weak=False), "a host in program order cannot see this one"
