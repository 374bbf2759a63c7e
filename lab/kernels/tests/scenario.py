"""Back-to-back calls of mixed algorithm, type, size, alignment and grid, with what each must give."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.kernels.host import Collective, HostRanks, HostRun
from lab.kernels.reference import BITS, all_reduce_bits
from lab.kernels.staging import Layout

ALGORITHMS = ("one_shot", "two_shot", "low_latency")
PARTED = ("reduce_scatter", "all_gather")
DTYPES = ("fp32", "fp16", "bf16")
GUARD = 64  # bytes on both sides of an output that must stay as they are
POISON = 0xA5


def layout(world: int, limit: int = 1 << 14) -> Layout:
    return Layout(world, max_bytes=limit, one_shot_bytes=limit, packet_bytes=limit)


@dataclass
class Scenario:
    calls: list[Collective]
    expected: list[list[np.ndarray]]  # of each call, by rank
    buffers: list[np.ndarray]  # the bytes around each output; None for in-place calls

    def poison(self) -> None:
        for buffer in self.buffers:
            buffer[:] = POISON
        for call, saved in zip(self.calls, self.saved_inputs, strict=True):
            for mine, original in zip(call.inputs, saved, strict=True):
                mine[:] = original

    def __post_init__(self):
        self.saved_inputs = [[mine.copy() for mine in call.inputs] for call in self.calls]

    def wrong(self) -> list[str]:
        """What differs from the reference, empty when nothing does."""
        found = []
        for i, (call, expected) in enumerate(zip(self.calls, self.expected, strict=True)):
            for rank, (output, due) in enumerate(zip(call.outputs, expected, strict=True)):
                bad = int(np.count_nonzero(output != due))
                if bad:
                    found.append(f"call {i} {call.algorithm} {call.dtype} n={due.size} rank {rank}: {bad} wrong")
        for i, buffer in enumerate(self.buffers):
            if (buffer[:GUARD] != POISON).any() or (buffer[-GUARD:] != POISON).any():
                found.append(f"guard of output {i} overwritten")
        return found

    def not_nan(self, call: int, rank: int) -> int:
        """Elements of an output that are not NaN."""
        output, dtype = self.calls[call].outputs[rank], self.calls[call].dtype
        magnitude = output & np.iinfo(BITS[dtype]).max // 2
        return int(np.count_nonzero(magnitude <= {"fp32": 0x7F800000, "fp16": 0x7C00, "bf16": 0x7F80}[dtype]))

    def play(self, ranks: HostRanks, seed: int, **options) -> tuple[HostRun, list[str]]:
        self.poison()
        run = ranks.run(self.calls, seed=seed, **options)
        wrong = self.wrong()
        if run.outcome != "finished":
            wrong.append(run.outcome)
        wrong += [str(wait) for waits in run.waits for wait in waits]
        return run, wrong


def random_bits(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    """Normal values with zeros, infinities, NaNs, subnormals and the packet sentinel among them."""
    values = np.ldexp(rng.standard_normal(n).astype(np.float32), rng.integers(-3, 4))
    bits = {
        "fp32": lambda: values.view(np.uint32),
        "fp16": lambda: values.astype(np.float16).view(np.uint16),
        "bf16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16),
    }[dtype]().copy()
    special = rng.random(n) < 0.02
    kind = BITS[dtype]
    bits[special] = rng.integers(0, np.iinfo(kind).max, special.sum(), endpoint=True, dtype=kind)
    bits[rng.random(n) < 0.02] = np.iinfo(kind).max  # pairs of these are the sentinel in 16-bit types
    return bits


def make(
    seed: int,
    world: int,
    calls: int,
    *,
    algorithms: Sequence[str] = ALGORITHMS,
    dtypes: Sequence[str] = DTYPES,
    limit: int = 1 << 14,
    threads: int = 32,
    max_blocks: int = 3,
    whole: bool = False,
) -> Scenario:
    """`whole`: only aligned messages whose parts are whole vectors, as the seed's kernel needs."""
    rng = np.random.default_rng(seed)
    collectives, expected, buffers = [], [], []
    for _ in range(calls):
        algorithm, dtype = str(rng.choice(algorithms)), str(rng.choice(dtypes))
        itemsize = np.dtype(BITS[dtype]).itemsize
        most = min(limit, layout(world).capacity(algorithm))
        n = int(min(np.exp(rng.uniform(0, np.log(limit))), most)) // itemsize or 1
        if whole:
            unit = world * 16 // itemsize
            n = max(n // unit, 1) * unit
        inputs, outputs = [], []
        in_place = rng.random() < 0.25
        for _rank in range(world):
            skew_in, skew_out = (0, 0) if whole or rng.random() < 0.5 else rng.integers(0, 16 // itemsize, 2) * itemsize
            mine = _view(n * itemsize, int(skew_in), n, dtype)[1]
            mine[:] = random_bits(rng, dtype, n)
            buffer, output = _view(n * itemsize, int(skew_out), n, dtype)
            inputs.append(mine)
            if in_place:
                outputs.append(mine)
            else:
                outputs.append(output)
                buffers.append(buffer)
        expected.append([all_reduce_bits(inputs, dtype)] * world)
        collectives.append(
            Collective(algorithm, dtype, inputs, outputs, int(rng.integers(1, max_blocks, endpoint=True)), threads)
        )
    return Scenario(collectives, expected, buffers)


def chain(world: int, seed: int, calls: int = 6, limit: int = 2048) -> Scenario:
    """Each call sums what the call before it gave, in place, in random order of algorithms and grids."""
    rng = np.random.default_rng(seed)
    held = [_view(limit, 0, limit // 2, "bf16")[1] for _ in range(world)]
    for mine in held:
        mine[:] = random_bits(rng, "bf16", mine.size)
    collectives, values = [], [mine.copy() for mine in held]
    for _ in range(calls):
        values = [all_reduce_bits(values, "bf16")] * world
        shape = int(rng.integers(1, 3, endpoint=True)), 32
        collectives.append(Collective(str(rng.choice(ALGORITHMS)), "bf16", held, held, *shape))
    return Scenario(collectives, [[values[0]] * world] * calls, [])


def make_parts(
    seed: int,
    world: int,
    calls: int,
    *,
    algorithms: Sequence[str] = PARTED,
    limit: int = 1 << 12,
    max_blocks: int = 3,
) -> Scenario:
    """Calls of reduce_scatter and all_gather: parts of any count, alignment and place, also of the tensor itself."""
    rng = np.random.default_rng(seed)
    collectives, expected, buffers = [], [], []
    for _ in range(calls):
        algorithm, dtype = str(rng.choice(algorithms)), str(rng.choice(DTYPES))
        itemsize = np.dtype(BITS[dtype]).itemsize
        each = int(np.exp(rng.uniform(0, np.log(limit // world)))) // itemsize or 1
        if rng.random() < 0.3:
            each = -(-each // 8) * 8  # every part is whole vectors
        scatters, in_place = algorithm == "reduce_scatter", rng.random() < 0.25
        inputs, outputs = [], []
        for rank in range(world):
            skew_in, skew_out = (0, 0) if rng.random() < 0.5 else rng.integers(0, 16 // itemsize, 2) * itemsize
            sizes = (each * world, each) if scatters else (each, each * world)
            mine = _view(sizes[0] * itemsize, int(skew_in), sizes[0], dtype)[1]
            buffer, output = _view(sizes[1] * itemsize, int(skew_out), sizes[1], dtype)
            if in_place and scatters:
                output = mine[rank * each : (rank + 1) * each]
            elif in_place:
                mine = output[rank * each : (rank + 1) * each]
            mine[:] = random_bits(rng, dtype, mine.size)
            inputs.append(mine)
            outputs.append(output)
            if not in_place:
                buffers.append(buffer)
        total = all_reduce_bits(inputs, dtype) if scatters else np.concatenate(inputs)
        due = [total[rank * each : (rank + 1) * each] if scatters else total for rank in range(world)]
        expected.append([part.copy() for part in due])
        shape = int(rng.integers(1, max_blocks, endpoint=True)), 32
        collectives.append(Collective(algorithm, dtype, inputs, outputs, *shape))
    return Scenario(collectives, expected, buffers)


def mixed(first: Scenario, second: Scenario) -> Scenario:
    """Both in one stream, call by call in turn."""
    turns = [*zip(first.calls, first.expected, strict=True)], [*zip(second.calls, second.expected, strict=True)]
    both = [call for pair in zip(*turns, strict=True) for call in pair]
    return Scenario([call for call, _ in both], [due for _, due in both], [*first.buffers, *second.buffers])


def _view(nbytes: int, skew: int, n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    raw = np.zeros(nbytes + 2 * GUARD + 32, np.uint8)
    start = -raw.ctypes.data % 16 + GUARD + skew
    buffer = raw[start - GUARD : start + nbytes + GUARD]
    return buffer, buffer[GUARD : GUARD + nbytes].view(BITS[dtype])
