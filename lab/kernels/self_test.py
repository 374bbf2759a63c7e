"""A self-test that can see: what the seed's could not, it looks for.

Random values (an index error shows), poisoned outputs (an unwritten or stale element shows), calls back to back
without a host synchronisation (a slot overwritten too early shows), sizes, types, algorithms and grids mixed, the
largest message among them, one rank in turn held back (skew is forced and not waited for), and graph replay. What is
due is rounded as the kernels round. Every rank runs every case, also after one has failed; the findings of all ranks
are then put together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lab.errors import LabError
from lab.kernels.rank import ITEMSIZE, Rank
from lab.kernels.reference import BITS, all_reduce_bits
from lab.kernels.strategy import Plan

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BIT_TYPES = {"fp32": torch.int32, "fp16": torch.int16, "bf16": torch.int16}
POISON = 0x7B
USUAL_BYTES = 1 << 20
PERIOD = 65537  # values after which a drawn input repeats: a prime, so that no offset that a mistake makes hides in it


@dataclass(frozen=True)
class Case:
    """One call of the test: the same on every rank."""

    plan: Plan
    dtype: str
    count: int
    skip: int  # elements between an aligned address and the tensors' start


@dataclass(frozen=True)
class Outcome:
    """What the test found on the local ranks: one line per kind of failure; calls made per rank."""

    failures: tuple[str, ...]
    calls: int


def sum_in_rank_order(inputs: Sequence[torch.Tensor], rounding: str = "RNE", epoch: int = 0) -> torch.Tensor:
    """The reference: the fp32 sum in rank order, rounded once as the kernels do.

    Args:
        inputs: per rank, on one device.
        rounding: one of build.ROUNDINGS.
        epoch: number of the call: with SR the bits depend on it.
    """
    if rounding == "RNE":
        total = inputs[0].float()
        for term in inputs[1:]:
            total = total + term.float()
        return total.to(inputs[0].dtype)
    dtype = next(name for name, kind in TORCH_TYPES.items() if kind == inputs[0].dtype)
    held = [term.cpu().contiguous().view(BIT_TYPES[dtype]).numpy().view(BITS[dtype]).reshape(-1) for term in inputs]
    bits = all_reduce_bits(held, dtype, rounding, epoch=epoch)
    signed = torch.from_numpy(bits.view(np.int32 if dtype == "fp32" else np.int16))
    return signed.view(inputs[0].dtype).view(inputs[0].shape).to(inputs[0].device)


def draw_inputs(cases: Sequence[Case], world: int, seed: int) -> list[list[torch.Tensor]]:
    """Per case, every rank's input on the CPU: the same on every rank, different for every case and rank."""
    drawn = []
    for number, case in enumerate(cases):
        drawn.append([])
        for peer in range(world):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number * 1009 + peer)
            values = torch.randn(min(case.count, PERIOD), generator=generator).to(TORCH_TYPES[case.dtype])
            drawn[-1].append(values.repeat(-(-case.count // PERIOD))[: case.count])
    return drawn


class LocalTensors:
    """A rank's inputs, outputs and expected outputs for a list of cases, and a stream to run them on."""

    def __init__(
        self, rank: Rank, cases: Sequence[Case], inputs: Sequence[Sequence[torch.Tensor]], rounding: str = "RNE"
    ):
        self.rank = rank
        self.rounding, self._every = rounding, inputs
        self.device = torch.device("cuda", rank.device)
        self.stream = torch.cuda.Stream(self.device)
        self.cases = cases
        self.inputs, self.outputs, self.buffers, self.expected = [], [], [], []
        for case, every in zip(cases, inputs, strict=True):
            held = torch.empty(case.skip + case.count, dtype=TORCH_TYPES[case.dtype], device=self.device)
            held[case.skip :] = every[rank.rank].to(self.device)
            buffer = torch.empty_like(held)
            self.inputs.append(held[case.skip :])
            self.buffers.append(buffer)
            self.outputs.append(buffer[case.skip :])
            self.expected.append(self._due(case, every, epoch=0))
        self.wrong = torch.zeros(len(cases), dtype=torch.int64, device=self.device)

    def _due(self, case: Case, every: Sequence[torch.Tensor], epoch: int) -> torch.Tensor:
        held = [term.to(self.device) for term in every] if self.rounding == "RNE" else every
        return sum_in_rank_order(held, self.rounding, epoch).to(self.device).view(BIT_TYPES[case.dtype])

    def expect_calls_from(self, epoch: int) -> None:
        """Say that the cases are calls epoch, epoch + 1, ...: with SR what is due depends on it."""
        if self.rounding == "SR":
            numbered = enumerate(zip(self.cases, self._every, strict=True))
            self.expected = [self._due(case, every, epoch + number) for number, (case, every) in numbered]

    def poison(self) -> None:
        """Fill the outputs with bytes that no call gives."""
        for buffer in self.buffers:
            buffer.view(torch.uint8).fill_(POISON)

    def launch(self, number: int, stream: int) -> None:
        """Queue case `number` on a stream of the current device."""
        case = self.cases[number]
        source, target = self.inputs[number], self.outputs[number]
        self.rank.launch(case.plan, case.dtype, source.data_ptr(), target.data_ptr(), case.count, stream)

    def compare(self) -> None:
        """Count, per case, whether any bit of the output is wrong; stays on the GPU."""
        for number, case in enumerate(self.cases):
            bits = self.outputs[number].view(BIT_TYPES[case.dtype])
            self.wrong[number] += (bits != self.expected[number]).any()


def run(
    ranks: Sequence[Rank],
    plans: Callable[[int], Sequence[Plan]],
    *,
    max_bytes: int = 1 << 20,
    rounds: int = 8,
    calls: int = 24,
    replays: int = 20,
    seed: int = 1,
    whole: bool = False,
    rounding: str = "RNE",
    barrier: Callable[[], object] = lambda: None,
) -> Outcome:
    """Run the test on the ranks of this process.

    Args:
        ranks: this process's ranks: one, or all of them when they live in one process.
        plans: message size in bytes to the launches to try for it; the same on every rank.
        max_bytes: largest message; sizes are drawn up to 1 MiB of it, and it comes itself once a round.
        rounds: lists of calls, each with one more rank held back.
        calls: calls of a round, queued back to back.
        replays: replays of a graph that holds one round's calls.
        seed: of sizes and values; the same on every rank.
        whole: only aligned messages whose parts are whole vectors, as the seed's kernel needs.
        rounding: of the kernels, one of build.ROUNDINGS.
        barrier: waits for the other processes' hosts; nothing to wait for when all ranks are here.

    Raises:
        _runtime.GpuError, torch errors: a launch failed. Wrong results are returned, not raised.
    """
    world = ranks[0].layout.world
    failures: dict[str, int] = {}
    made = 0
    for rank in ranks:  # its first launch loads it, which must not happen while a peer spins
        with torch.cuda.device(rank.device):
            torch.cuda._sleep(1)
    for round_ in range(rounds):
        cases = draw_cases(seed + round_, world, plans, min(max_bytes, USUAL_BYTES), calls, whole)
        if max_bytes > USUAL_BYTES:
            cases.insert(calls // 2, largest_case(seed + round_, plans, max_bytes))
        inputs = draw_inputs(cases, world, seed + round_)
        locals_ = [LocalTensors(rank, cases, inputs, rounding) for rank in ranks]
        slow = round_ % (world + 1)  # world: nobody is held back
        for local in locals_:
            local.expect_calls_from(local.rank.epoch() + 1)
            local.poison()
            torch.cuda.synchronize(local.device)
        barrier()
        for local in locals_:
            if local.rank.rank == slow:
                with torch.cuda.device(local.device), torch.cuda.stream(local.stream):
                    torch.cuda._sleep(20_000_000)  # cycles: about 10 ms
        for number in range(len(cases)):
            for local in locals_:
                with torch.cuda.device(local.device):
                    if local.rank.rank == (slow + 1) % world and number % 7 == 3:
                        with torch.cuda.stream(local.stream):
                            torch.cuda._sleep(40_000)
                    local.launch(number, local.stream.cuda_stream)
        made += len(cases)
        _judge(locals_, failures, f"round {round_}, rank {slow} late" if slow < world else f"round {round_}")
        if round_ == rounds - 1 and replays:
            barrier()
            made += _replay(locals_, replays, failures)
    for rank in ranks:
        for wait in rank.waits():
            failures[f"rank {rank.rank} {wait}"] = 1
    return Outcome(tuple(f"{what} ({times})" for what, times in failures.items()), made)


def draw_cases(
    seed: int, world: int, plans: Callable[[int], Sequence[Plan]], max_bytes: int, calls: int, whole: bool = False
) -> list[Case]:
    """Cases with sizes from 16 bytes to `max_bytes`, even in their logarithm; the arguments are those of `run`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    cases = []
    while len(cases) < calls:
        dtype = ("fp32", "fp16", "bf16")[draw(3)]
        itemsize = ITEMSIZE[dtype]
        exponent = float(torch.rand((), generator=generator))
        nbytes = int(16 * (max_bytes / 16) ** exponent)
        count = max(nbytes // itemsize, 1)
        if whole:
            unit = world * 16 // itemsize
            count = max(count // unit, 1) * unit
        choices = plans(count * itemsize)
        if choices:
            skip = 0 if whole or draw(4) else draw(16 // itemsize)
            cases.append(Case(choices[draw(len(choices))], dtype, count, skip))
    return cases


def largest_case(seed: int, plans: Callable[[int], Sequence[Plan]], max_bytes: int) -> Case:
    """A case of `max_bytes`, to the last element; type and launch change with the seed."""
    dtype = ("fp32", "fp16", "bf16")[seed % 3]
    count = max_bytes // ITEMSIZE[dtype]
    choices = plans(count * ITEMSIZE[dtype])
    if not choices:
        raise LabError("no launch carries the largest message", value=max_bytes, hint="lower max_bytes")
    return Case(choices[seed // 3 % len(choices)], dtype, count, 0)


def _judge(locals_: Sequence[LocalTensors], failures: dict[str, int], what: str) -> None:
    for local in locals_:
        torch.cuda.synchronize(local.device)
    for local in locals_:
        local.wrong.zero_()
        local.compare()
        for number in local.wrong.nonzero().flatten().tolist():
            case = local.cases[number]
            line = f"rank {local.rank.rank}, {what}: {case.plan.algorithm} is wrong"
            failures[line] = failures.get(line, 0) + int(local.wrong[number])


def _replay(locals_: Sequence[LocalTensors], replays: int, failures: dict[str, int]) -> int:
    """Capture the round's calls in one graph per rank and replay it, ranks drifting freely between comparisons."""
    graphs = []
    for local in locals_:
        with torch.cuda.device(local.device):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=local.stream, capture_error_mode="thread_local"):
                for number in range(len(local.cases)):
                    local.launch(number, local.stream.cuda_stream)
            graphs.append(graph)
    for start in range(0, replays, 5):
        for local in locals_:
            ahead = min(5, replays - start) - 1  # what is compared is what the last one gives
            local.expect_calls_from(local.rank.epoch() + 1 + ahead * len(local.cases))
            local.poison()
            torch.cuda.synchronize(local.device)
        for _ in range(min(5, replays - start)):
            for local, graph in zip(locals_, graphs, strict=True):
                with torch.cuda.device(local.device), torch.cuda.stream(local.stream):
                    graph.replay()
        _judge(locals_, failures, "graph replay")
    return replays * len(locals_[0].cases)
