"""Do the kernels on a GPU, and those on the CPU host, give the simulator's bits in every rounding mode?

Two runs in each mode and 16-bit type, with every kernel, on 4 ranks: a residual stream of 16 steps (both roundings of
a step are made by kernels), and sums of adversarial inputs. The results hold a SHA-256 of every step's bits;
`lab/tests/test_rounding_on_h200.py` makes the same inputs, computes the bits with the simulator and compares.

Inputs come from the raw integers of PCG64, so they depend on no library's way to draw a normal.
"""

import os

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import argparse
import datetime
import hashlib
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lab.kernels.build import ALL_REDUCE as KERNELS
from lab.kernels.build import ROUNDINGS, build, compiler_of
from lab.kernels.reference import narrow, widen
from lab.kernels.staging import Layout

WORLD = 4
STEPS = 16
SIZE = 65536
ADVERSARIAL_SIZE = 65539  # no multiple of a vector, and every second row is unaligned
ROLLS = 4  # the adversarial rows begin with another rank each time: the order of the sum matters
KEY = 77  # of the stochastic rounding
DTYPES = ("bf16", "fp16")
NEGATIVE_ZERO = 0x8000  # x + -0 is x, also for x = -0
LAYOUT = Layout(WORLD, max_bytes=1 << 18, one_shot_bytes=1 << 18, packet_bytes=1 << 18)


# ---- inputs


def raw(seed, *shape):
    return np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape)


def bell(seed, *shape):
    """Sums of four 16-bit integers, centred: standard deviation 1.15, exact in fp32."""
    whole = raw(seed, *shape, 1).view(np.uint16).sum(axis=-1, dtype=np.int32) - 4 * 32768 + 2
    return whole.astype(np.float32) / np.float32(32768)


def stream(dtype):
    """Contributions uint16[steps, ranks, n] and the first residual uint16[n], 1.5 times as wide as an update."""
    return narrow(bell(1, STEPS, WORLD, SIZE), dtype), narrow(3 * bell(2, SIZE), dtype)


def adversarial(dtype):
    """uint16[rolls, ranks, n]: any pattern, ties, cancellation, overflow, infinities and NaN, subnormals."""
    fraction, top = {"bf16": (7, 255), "fp16": (10, 31)}[dtype]
    word = raw(3 if dtype == "bf16" else 4, WORLD, ADVERSARIAL_SIZE)
    rows = word.astype(np.uint16)  # kind 0: any pattern
    chosen = word >> np.uint64(32)
    sign = ((word >> np.uint64(16)).astype(np.uint16)) & 0x8000
    kind = raw(5, ADVERSARIAL_SIZE) % 6

    def choose(values):
        return np.array(values, np.uint16)[chosen % len(values)]

    # 1: half a step beside a number, and what is too small to see or just breaks the tie
    exponent = fraction + 2 + chosen[0] % (top - fraction - 2)
    half = (exponent - fraction - 1 << fraction).astype(np.uint16)
    breaker = np.where(exponent > fraction + 5, exponent - fraction - 5 << fraction, 1).astype(np.uint16)
    number = (exponent << fraction).astype(np.uint16) | rows[0] & ((1 << fraction) - 1) | sign[0]
    beside = [np.where(chosen[r] % 3 == 0, breaker, chosen[r] % 3 - 1).astype(np.uint16) | sign[r] for r in (2, 3)]
    ties = np.stack([number, half | sign[1], *beside])
    # 2: pairs that cancel, or nearly
    near = np.stack([rows[0], rows[0] ^ 0x8000, rows[2], (rows[2] ^ 0x8000) + (chosen[3] % 2).astype(np.uint16)])
    # 3: about the largest number, with quarters, halves and wholes of its last place
    last = top - 1 - fraction
    largest = (top << fraction) - 1
    large = choose([largest, largest - 1, *((last - k) << fraction for k in range(3)), 0]) | sign
    # 4: infinities, quiet and signalling NaN with payloads, zeros, one
    infinity = top << fraction
    payloads = [infinity | 1 << fraction - 1, infinity | 3, 0xFFFF, 0x7FFF]
    special = choose([infinity, infinity | 0x8000, *payloads, 0, 0x8000, 0, 0x8000, 15 << 10, 1])
    # 5: subnormals and the smallest normals
    small = rows & ((2 << fraction) - 1) | sign
    for number, values in enumerate((ties, near, large, special, small), 1):
        rows = np.where(kind == number, values, rows)
    return np.stack([np.roll(rows, roll, axis=0) for roll in range(ROLLS)])


def digest(*arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).astype("<u2", copy=False))
    return found.hexdigest()


# ---- the calls: the same list for the host and for a GPU; `rows` are arrays or tensors


def stream_calls(x, start, zeros, sums, residuals):
    """Two calls a step: the sum of the contributions, then residual + sum, by the same kernel.

    A rank's second call needs nothing but its own earlier results: rank 0 gives its residual, rank 1 its sum, the
    others negative zeros. So all calls can be queued back to back.
    """
    for step in range(STEPS):
        yield x[step], sums[step]
        before = residuals[step - 1][0] if step else start
        yield [before, sums[step][1], zeros, zeros], residuals[step]


class OnHost:
    def __init__(self, mode):
        from lab.kernels.host import HostRanks

        self.ranks = HostRanks(LAYOUT, rounding=mode)

    def put(self, array):
        return array.copy()

    take = put

    def play(self, kernel, dtype, calls):
        from lab.kernels.host import Collective

        self.ranks.reset()
        every = [Collective(kernel, dtype, list(rows), list(outputs), 4, 32) for rows, outputs in calls]
        ended = self.ranks.run(every, seed=0, weak=False, rounding_seed=KEY)
        return [ended.outcome] * (ended.outcome != "finished") + [str(w) for waits in ended.waits for w in waits]

    def close(self):
        pass


class OnGpu:
    def __init__(self, mode):
        import torch

        from lab.kernels.rank import Rank, connect_in_process
        from lab.kernels.strategy import Room

        self.torch = torch
        vendor, architecture = gpu()
        self.ranks = [
            Rank(vendor, architecture, 0, rank, LAYOUT, timeout=10, grace=10, rounding=mode) for rank in range(WORLD)
        ]
        connect_in_process(self.ranks)
        for rank in self.ranks:
            rank._call.rounding_seed = KEY
        self.streams = [torch.cuda.Stream() for _ in self.ranks]
        self.room = Room.of_shared_gpu(torch.cuda.get_device_properties(0).multi_processor_count, WORLD)

    def put(self, array):
        return self.torch.from_numpy(array.view(np.int16)).cuda()

    def take(self, tensor):
        return tensor.cpu().numpy().view(np.uint16)

    def play(self, kernel, dtype, calls):
        """All calls of all ranks are queued before any result is looked at."""
        from lab.kernels.strategy import Band, launch_shape

        calls = list(calls)
        self.torch.cuda.synchronize()
        for rank in self.ranks:
            rank.reset()
        for rows, outputs in calls:
            count = rows[0].numel()
            plan = launch_shape(Band(1 << 62, kernel, 256, 64), 2 * count, WORLD, self.room)
            for rank, row, output, queue in zip(self.ranks, rows, outputs, self.streams, strict=True):
                rank.launch(plan, dtype, row.data_ptr(), output.data_ptr(), count, queue.cuda_stream)
        self.torch.cuda.synchronize()
        return [str(wait) for rank in self.ranks for wait in rank.waits()]

    def close(self):
        for rank in self.ranks:
            rank.close()


def gpu():
    import torch

    from lab.kernels.device import describe

    return describe(torch.device("cuda", 0))


# ---- the report


def metrics(residual, shadow, dtype):
    """Percent after the last step, against the stream in fp64, as `lab drift` has them."""
    wide = widen(residual, dtype).astype(np.float64)
    square, difference = np.sum(shadow * shadow), wide - shadow
    return {
        "drift": 100 * float(np.sqrt(np.sum(difference * difference) / square)),
        "gain": 100 * float(np.sum(difference * shadow) / square),
        "norm": 100 * float(np.sqrt(np.sum(wide * wide) / square) - 1),
    }


def rows_of(machine, mode):
    """A row for each type and kernel, and the outputs of rank 0 by (type, kernel)."""
    for dtype in DTYPES:
        x, start = stream(dtype)
        hard = adversarial(dtype)
        shadow = widen(start, dtype).astype(np.float64)
        for step in x:
            for term in step:
                shadow += widen(term, dtype)
        held = [machine.put(array) for array in (x, start, np.full(SIZE, NEGATIVE_ZERO, np.uint16), hard)]
        for kernel in KERNELS:
            sums, residuals, hard_sums = (machine.put(np.zeros_like(array)) for array in (x, x, hard))
            problems = machine.play(kernel, dtype, stream_calls(*held[:3], sums, residuals))
            problems += machine.play(kernel, dtype, zip(held[3], hard_sums, strict=True))
            outputs = [machine.take(array) for array in (sums, residuals, hard_sums)]
            problems += [
                f"{name}: ranks differ in {np.count_nonzero(array != array[:, :1])} elements"
                for name, array in zip(("sums", "residuals", "adversarial"), outputs, strict=True)
                if (array != array[:, :1]).any()
            ]
            sums, residuals, hard_sums = (array[:, 0] for array in outputs)
            yield {
                "kernel": kernel, "dtype": dtype, "mode": mode, "problems": problems,
                "percent": metrics(residuals[-1], shadow, dtype),
                "stream": [digest(sums[step], residuals[step]) for step in range(STEPS)],
                "adversarial": [digest(bits) for bits in hard_sums],
            }, (sums, residuals, hard_sums)  # fmt: skip


def differences(row, others):
    """The first step that differs, by part, from the row of the same kernel, type and mode."""
    (theirs,) = (other for other in others if all(other[word] == row[word] for word in ("kernel", "dtype", "mode")))
    found = {}
    for part in ("stream", "adversarial"):
        for step, (mine, other) in enumerate(zip(row[part], theirs[part], strict=True)):
            if mine != other:
                found.setdefault(part, step)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=["host", "gpu"], default="gpu")
    parser.add_argument("--against", type=Path, help="results to compare with; bits of the first difference are kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if arguments.target == "host":
        target, kind, name = "host", OnHost, f"CPU host, {platform.machine()}"
    else:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("this needs a GPU that torch can use; for the CPU: --target host")
        target, kind, name = gpu()[1], OnGpu, torch.cuda.get_device_name()
    with ThreadPoolExecutor() as pool:  # all modes are compiled at the same time
        list(pool.map(lambda mode: build(target, world=WORLD, rounding=mode), ROUNDINGS))
    inputs = {dtype: {"stream": digest(*stream(dtype)), "adversarial": digest(adversarial(dtype))} for dtype in DTYPES}
    report = {
        "machine": name,
        "date": datetime.date.today().isoformat(),
        "command": f"python experiments/do_the_rounding_modes_agree/run.py --target {arguments.target}",
        "compiler": compiler_of(target),
        "key of the stochastic rounding": KEY,
        "numpy": np.__version__,
        "inputs": inputs,
        "rows": [],
    }
    other = json.loads(arguments.against.read_text()) if arguments.against else None
    if other and other["inputs"] != inputs:
        print("the inputs differ from those of", arguments.against)
    kept, good = {}, True
    arguments.out.mkdir(parents=True, exist_ok=True)
    for mode in ROUNDINGS:
        machine = kind(mode)
        for row, outputs in rows_of(machine, mode):
            report["rows"].append(row)
            differing = differences(row, other["rows"]) if other else {}
            said = row["problems"] + [f"{part}: differs from step {step} on" for part, step in differing.items()]
            for part, step in differing.items():
                arrays = outputs[:2] if part == "stream" else outputs[2:]
                kept["_".join((row["dtype"], row["kernel"], mode, part, str(step)))] = np.stack(
                    [array[step] for array in arrays]
                )
            good &= not said
            percent = ", ".join(f"{word} {value:+.4f} %" for word, value in row["percent"].items())
            print(mode, row["dtype"], row["kernel"], percent, *(said or ["ok"]), sep="  ", flush=True)
        machine.close()
        (arguments.out / f"{target}.json").write_text(json.dumps(report, indent=1) + "\n")
    if kept:
        np.savez_compressed(arguments.out / f"{target}_differences.npz", **kept)
    print("agree" if good else "DIFFERENCES", flush=True)


if __name__ == "__main__":
    main()
