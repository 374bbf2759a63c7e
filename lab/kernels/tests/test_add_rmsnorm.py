# ruff: noqa: E501 - a fault is one line, old text beside new
"""The fused kernels on the CPU host: bit-equal to the reference, wherever they round and however many tokens there are."""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from lab.kernels.build import HIP
from lab.kernels.host import NEVER, Collective, HostRanks, Normed
from lab.kernels.norm_reference import Points, add_rmsnorm_bits
from lab.kernels.reference import BITS, narrow
from lab.kernels.rows import threads_for
from lab.kernels.staging import Layout
from lab.kernels.tests.scenario import random_bits
from lab.sim.rounding import arithmetic
from lab.sim.rounding.modes import RoundMode

FUSED = ("add_rmsnorm", "add_rmsnorm_two_stage")
ALL_POINTS = tuple(Points(*bits) for bits in itertools.product((False, True), repeat=4))


def layout(world: int) -> Layout:
    return Layout(world, max_bytes=1 << 17, one_shot_bytes=1 << 16, packet_bytes=1 << 16)


def finite(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    """Normal values of several sizes: one NaN or infinity would make a whole row NaN and hide all else."""
    values = np.ldexp(rng.standard_normal(n).astype(np.float32), rng.integers(-3, 4))
    return values.astype(np.float16).view(np.uint16) if dtype == "fp16" else narrow(values, dtype)


def unaligned(shape: tuple[int, ...], dtype: str, skew: int) -> np.ndarray:
    """An array `skew` elements beside a 16-byte boundary."""
    size = int(np.prod(shape))
    raw = np.zeros(size * np.dtype(BITS[dtype]).itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 16 + skew * np.dtype(BITS[dtype]).itemsize
    return raw[first : first + size * np.dtype(BITS[dtype]).itemsize].view(BITS[dtype]).reshape(shape)


@dataclass
class Fused:
    """One call, what it must give, and what it gave."""

    call: Collective
    output: np.ndarray
    residual: np.ndarray

    def wrong(self) -> list[str]:
        assert self.call.norm is not None
        pairs = zip(self.call.outputs, self.call.norm.new_residuals, strict=True)
        return [
            f"{self.call.algorithm} {self.call.dtype} {self.output.shape} rank {rank}: {what} differs in {bad}"
            for rank, (out, residual) in enumerate(pairs)
            for what, got, want in (("output", out, self.output), ("residual", residual, self.residual))
            if (bad := int(np.count_nonzero(got != want.reshape(-1))))
        ]


def fused(
    rng: np.random.Generator,
    world: int,
    algorithm: str,
    *,
    tokens: int,
    hidden: int,
    points: Points,
    dtype: str = "bf16",
    threads: int | None = None,
    blocks: int = 2,
    in_place: bool = False,
    skew: int = 0,
    eps: float = 1e-6,
    values=finite,
) -> Fused:
    """A call on random values."""
    shape = (tokens, hidden)

    def made(*shape: int) -> np.ndarray:
        held = unaligned(shape, dtype, skew)
        held[:] = values(rng, dtype, int(np.prod(shape))).reshape(shape)
        return held

    inputs = [made(*shape) for _ in range(world)]
    residual, weight = made(*shape), finite(rng, dtype, hidden)
    residuals = [residual.copy() if not skew else made(*shape) for _ in range(world)]
    for held in residuals:
        held[:] = residual
    wanted = add_rmsnorm_bits(inputs, residual, weight, dtype, points, eps=eps)
    outputs = [np.full(tokens * hidden, 0xFFFF, BITS[dtype]) for _ in range(world)]
    new = [held.reshape(-1) if in_place else np.full(tokens * hidden, 0xFFFF, BITS[dtype]) for held in residuals]
    norm = Normed([held.reshape(-1) for held in residuals], new, [weight] * world, points, eps)
    threads = threads or threads_for(hidden, np.dtype(BITS[dtype]).itemsize)
    flat = [held.reshape(-1) for held in inputs]
    return Fused(Collective(algorithm, dtype, flat, outputs, blocks, threads, norm), *wanted)


def play(ranks: HostRanks, calls: Sequence[Fused], seed: int, **options) -> list[str]:
    run = ranks.run([made.call for made in calls], seed=seed, **options)
    wrong = [] if run.outcome == "finished" else [run.outcome]
    wrong += [str(wait) for waits in run.waits for wait in waits]
    return wrong + [found for made in calls for found in made.wrong()]


def some(seed: int, world: int, algorithms: Sequence[str], calls: int = 4) -> list[Fused]:
    """Calls of several shapes, types and grids, in place and not, aligned and not."""
    rng = np.random.default_rng(seed)
    return [
        fused(
            rng, world, str(rng.choice(algorithms)), tokens=int(rng.integers(1, 6)),
            hidden=int(rng.choice([8, 64, 100, 500])), points=ALL_POINTS[rng.integers(16)],
            dtype=str(rng.choice(["bf16", "fp16", "fp32"])), blocks=int(rng.integers(1, 4)), in_place=bool(rng.random() < 0.5),
            skew=int(rng.choice([0, 0, 1, 3])), threads=int(rng.choice([32, 64])), eps=float(rng.choice([1e-6, 0.1])),
            values=random_bits if rng.random() < 0.2 else finite,
        )
        for _ in range(calls)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> dict[int, HostRanks]:
    return {world: HostRanks(layout(world), kernels=FUSED) for world in (2, 3, 4)}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("algorithm", FUSED)
def test_bits_are_those_of_the_reference(ranks, algorithm, world):
    for seed in range(5):
        assert not play(ranks[world], some(seed, world, [algorithm]), seed, weak=bool(seed % 2), early=seed % 3 == 0)


@pytest.mark.parametrize("points", ALL_POINTS, ids=lambda points: f"{points.word():04b}")
@pytest.mark.parametrize("algorithm", FUSED)
def test_every_choice_of_points(ranks, algorithm, points):
    rng = np.random.default_rng(points.word())
    calls = [
        fused(rng, 3, algorithm, tokens=4, hidden=hidden, points=points, dtype=dtype, threads=32)
        for dtype, hidden in itertools.product(("bf16", "fp16"), (64, 100))
    ]
    assert not play(ranks[3], calls, seed=points.word())


@pytest.mark.parametrize("hidden", [1, 7, 8, 1000, 2048, 5120, 16384])
def test_any_length_of_a_row(hidden):
    """The longest row fills what a block can hold; the shortest is no whole vector."""
    rng = np.random.default_rng(hidden)
    ranks = HostRanks(layout(2), kernels=FUSED)
    for algorithm in FUSED:
        made = fused(rng, 2, algorithm, tokens=2, hidden=hidden, points=Points(), blocks=1)
        assert not play(ranks, [made], seed=0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_bits_of_a_row_depend_on_neither_batch_nor_threads_nor_grid_nor_form(dtype):
    """Batch-invariant: the same row alone, among others, in both kernels, in blocks of every size that can hold it."""
    rng = np.random.default_rng(3)
    world, hidden = 3, 500
    row = [finite(rng, dtype, hidden) for _ in range(world)]
    residual, weight = finite(rng, dtype, hidden), finite(rng, dtype, hidden)
    ranks = HostRanks(layout(world), kernels=FUSED)
    seen = set()
    shapes = [(1, 1, 32), (1, 1, 64), (2, 2, 128), (5, 2, 256), (7, 3, 512), (9, 1, 32)]
    for algorithm, points, (tokens, blocks, threads) in itertools.product(
        FUSED, (Points(), Points(False, False)), shapes
    ):
        place = int(rng.integers(tokens))
        made = fused(
            rng, world, algorithm, tokens=tokens, hidden=hidden, points=points, dtype=dtype, threads=threads,
            blocks=blocks,
        )  # fmt: skip
        norm = made.call.norm
        for rank in range(world):
            made.call.inputs[rank].reshape(tokens, hidden)[place] = row[rank]
            norm.residuals[rank].reshape(tokens, hidden)[place] = residual
            norm.weights[rank][:] = weight
        assert ranks.run([made.call], seed=tokens).outcome == "finished"
        for rank in range(world):
            outputs = (made.call.outputs[rank], norm.new_residuals[rank])
            seen.add((points, *(out.reshape(tokens, hidden)[place].tobytes() for out in outputs)))
    assert len(seen) == 2, "one result for each choice of points"


def adversarial(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    """Ties, cancellation, subnormals, infinities, NaN and whole rows of zeros, of 16-bit types."""
    one = {"bf16": 0x3F80, "fp16": 0x3C00}[dtype]
    largest = {"bf16": 0x7F7F, "fp16": 0x7BFF}[dtype]
    words = np.array([0, 0x8000, 1, 0x8001, one, one | 0x8000, one + 1, largest, largest | 0x8000], np.uint16)
    words = np.concatenate([words, [largest + 1, (largest + 1) | 0x8000, 0x7FFF, 0xFFFF]]).astype(np.uint16)
    kinds = (
        lambda: rng.choice(words, n),
        lambda: rng.choice(words[:7], n),  # finite and small: sums that cancel and that tie
        lambda: rng.choice(words[2:4], n),  # subnormals alone
        lambda: np.zeros(n, np.uint16),
    )
    return kinds[rng.integers(len(kinds))]()


@pytest.mark.parametrize("algorithm", FUSED)
def test_adversarial_values(ranks, algorithm):
    rng = np.random.default_rng(0)
    for seed in range(24):
        made = fused(
            rng, 3, algorithm, tokens=3, hidden=64, points=ALL_POINTS[seed % 16], dtype=("bf16", "fp16")[seed % 2],
            threads=32, eps=(1e-6, 0.0)[seed % 3 == 0], values=adversarial,
        )  # fmt: skip
        assert not play(ranks[3], [made], seed=seed)


def test_a_chain_of_steps_on_one_residual(ranks):
    """Both forms in one stream, the residual in place from call to call, as the layers of a model use them."""
    rng = np.random.default_rng(1)
    world, shape = 2, (3, 64)
    residual, weight = finite(rng, "bf16", 192), finite(rng, "bf16", 64)
    held = [residual.copy() for _ in range(world)]
    calls, outputs, wanted = [], [], residual.reshape(shape)
    for step in range(8):
        inputs = [finite(rng, "bf16", 192) for _ in range(world)]
        out = [np.zeros(192, np.uint16) for _ in range(world)]
        norm = Normed(held, held, [weight] * world, Points())
        calls.append(Collective(FUSED[step % 2], "bf16", inputs, out, 2, 32, norm))
        expected, wanted = add_rmsnorm_bits([x.reshape(shape) for x in inputs], wanted, weight, "bf16", Points())
        outputs.append((out, expected.reshape(-1)))
    for seed in range(4):
        for mine in held:
            mine[:] = residual
        assert ranks[2].run(calls, seed=seed, weak=bool(seed % 2), early=seed > 1).outcome == "finished"
        assert all((got == expected).all() for out, expected in outputs for got in out)
        assert all((mine == wanted.reshape(-1)).all() for mine in held)


@pytest.mark.parametrize("algorithm", FUSED)
def test_a_peer_that_never_comes_is_named_and_nothing_looks_like_a_result(algorithm):
    ranks = HostRanks(layout(3), kernels=FUSED, timeout=20_000, grace=20_000)
    made = fused(np.random.default_rng(0), 3, algorithm, tokens=4, hidden=64, points=Points(), threads=32)
    run = ranks.run([made.call], seed=1, start_after=[0, 0, NEVER])
    for rank in (0, 1):
        (wait,) = [wait for wait in run.waits[rank] if wait.kind == "lost"]
        assert (wait.algorithm, wait.peer) == (algorithm, 2)
        assert (made.call.outputs[rank] == 0x7FC0).all() and (made.call.norm.new_residuals[rank] == 0x7FC0).all()


@dataclass(frozen=True)
class Fault:
    """`old` in `file` becomes `new`; `weak`: seen only when payload stores may be delayed."""

    name: str
    file: str
    old: str
    new: str
    algorithms: tuple[str, ...] = FUSED
    weak: bool = False


FEW, MANY = ("add_rmsnorm",), ("add_rmsnorm_two_stage",)
FAULTS = (
    Fault("row summed before all threads have theirs", "norm.hpp", "    sums.of_thread[t] = own;\n    block_barrier();", "    sums.of_thread[t] = own;"),
    Fault("total read before it is there", "norm.hpp", "    block_barrier();\n    float at[32];", "    float at[32];"),
    Fault("elements beyond the end of a row counted", "norm.hpp", "if (rows.whole || u64(i)", "if (true || u64(i)"),
    Fault("own vectors in another order", "norm.hpp", "(held.squares[0] + held.squares[2]) + (held.squares[1] + held.squares[3])", "(held.squares[0] + held.squares[1]) + (held.squares[2] + held.squares[3])"),
    Fault("sum not rounded where it should be", "norm.hpp", "if (call.norm.points & sum_rounded)", "if (false)"),
    Fault("norm of what is not stored", "norm.hpp", "call.norm.points & norm_of_stored ? widened<T>(stored) : sums", "sums"),
    Fault("weight counts from 0", "norm.hpp", "call.norm.points & weight_plus_one ? 1.0f : 0.0f", "0.0f"),
    Fault("eps outside of the root", "norm.hpp", "square_root(mean + call.norm.eps)", "(square_root(mean) + call.norm.eps)"),
    Fault("residual of the row before", "add_rmsnorm.hip", "call.norm.residual, rows.of(row), v)", "call.norm.residual, rows.of(row > 0 ? row - 1 : 0), v)", FEW),
    Fault("packets of another row", "add_rmsnorm.hip", "{row * rows.vectors + i, call.threads,", "{i, call.threads,", FEW),
    Fault("packets not given back", "packets.hpp", "if (n < expected.count) store_bypass(", "if (false) store_bypass(", FEW),
    Fault("packets given back that were not taken", "packets.hpp", "if (n < expected.count) store_bypass(slots.base, slots.of[j] + expected.packet(n), empty)", "store_bypass(slots.base, slots.of[j] + expected.first + n * expected.step, empty)", FEW),
    Fault("rows scattered without draining", "signal.hpp", "block_barrier_draining();", "block_barrier();", MANY, True),
    Fault("stages meet by the flags of the first", "signal.hpp", "phase == Phase::gather || phase == Phase::leave ? 1 : 0", "0", MANY),
    Fault("normalised rows over the residual's", "add_rmsnorm_two_stage.hip", "(parts.each + i) * rows.vectors + v,", "i * rows.vectors + v,", MANY),
    Fault("owner adds the residual of another row", "add_rmsnorm_two_stage.hip", "load_vector<T, Shape>(call.norm.residual, rows.of(row), v)", "load_vector<T, Shape>(call.norm.residual, rows.of(0), v)", MANY),
)  # fmt: skip


def found_in(ranks: HostRanks, algorithms: Sequence[str], weak: bool) -> bool:
    for seed in range(30):
        ranks.reset()
        many = {"tokens": 16, "hidden": 500, "points": Points(), "dtype": "fp32", "threads": 32}
        rows = fused(np.random.default_rng(seed), 3, algorithms[seed % len(algorithms)], **many)
        calls = [*some(seed, 3, algorithms, calls=6), rows]  # where one row in twenty shows the order of its sum
        if play(ranks, calls, seed, weak=weak, early=seed % 2 == 0, step_limit=3_000_000):
            return True
    return False


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found(fault, tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / fault.file
    assert fault.old in path.read_text(), f"{fault.file} has no {fault.old!r} any more"
    path.write_text(path.read_text().replace(fault.old, fault.new))
    ranks = HostRanks(layout(3), kernels=fault.algorithms, source=tmp_path / "hip", cache=cache)
    assert found_in(ranks, fault.algorithms, weak=True)
    if fault.weak:
        assert not found_in(ranks, fault.algorithms, weak=False), "a host in program order cannot see this one"


@pytest.mark.parametrize("mode", ["RTZ", "RNA", "RU", "RD", "RAZ", "RTO"])
def test_every_mode_of_rounding(mode):
    """Each build rounds everywhere as its mode says."""
    ranks = HostRanks(layout(2), kernels=FUSED, rounding=mode)
    rng = np.random.default_rng(0)
    for algorithm, dtype, points in itertools.product(FUSED, ("bf16", "fp16"), ALL_POINTS[::5]):
        made = fused(rng, 2, algorithm, tokens=3, hidden=100, points=points, dtype=dtype, threads=32)
        norm = made.call.norm
        rows = [x.reshape(3, 100) for x in made.call.inputs]
        wanted = add_rmsnorm_bits(
            rows, norm.residuals[0].reshape(3, 100), norm.weights[0], dtype, points,
            rounder=lambda values, kind: arithmetic.narrow(values, kind, RoundMode(mode)),
        )  # fmt: skip
        assert not play(ranks, [Fused(made.call, *wanted)], seed=0)
