"""What does an all-reduce add to the kernels that a model has around it?

Chains in a CUDA graph: a kernel and an all-reduce in turn, less the chain of the kernel alone. The kernel is nothing
(back to back), an ordinary `torch.mul`, one that lets its successor start at once, or `torch.mm`; ours in three modes.
One process per GPU with peers, or with --share several ranks on one GPU, in one process: contention and no link, and no
NCCL, which refuses two ranks on one GPU.
"""

import os

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from run import LIMIT, peers, save

from lab.kernels.communicator import _describe
from lab.kernels.rank import Rank, connect_in_process
from lab.kernels.staging import Layout
from lab.kernels.strategy import Plan, Room, default

HIDDEN = 5120
TOKENS = (1, 8, 25, 64, 128)
SIZES = (1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
REPLAYS = 40
STAY = 3e-6  # seconds that the kernel stays which lets its successor start at once
MODES = {  # of ours: arguments of Rank
    "at once": {"overlap": True},
    "when met": {"overlap": True, "early_blocks": 0},
    "no overlap": {"overlap": False},
}
Step = Callable[[], object]


@dataclass
class Side:
    """One rank: its ends by mode, a kernel that lets its successor start at once, its stream and buffers."""

    ends: dict[str, Rank]
    pdl: Rank
    stream: torch.cuda.Stream
    source: torch.Tensor
    target: torch.Tensor
    plan: Callable[[int], Plan]

    def reduce(self, mode: str, nbytes: int) -> Step:
        """Ours, as a step on the side's stream."""
        plan, addresses = self.plan(nbytes), (self.source.data_ptr(), self.target.data_ptr())
        return lambda: self.ends[mode].launch(plan, "bf16", *addresses, nbytes // 2, self.stream.cuda_stream)

    def between(self, setting: str, nbytes: int) -> Step | None:
        """The kernel of a setting; None for nothing."""
        if setting == "back to back":
            return None
        if setting == "torch.mul":
            part = self.target[: nbytes // 2]
            return lambda: torch.mul(part, 1.0, out=self.source[: nbytes // 2])
        if setting == "lets at once":
            addresses = (self.source.data_ptr(), self.target.data_ptr())
            return lambda: self.pdl.launch(Plan("idle", 1, 32), "bf16", *addresses, 8, self.stream.cuda_stream)
        tokens = nbytes // (2 * HIDDEN)
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        weight = torch.randn(HIDDEN, HIDDEN, device="cuda").bfloat16()
        out = self.source[: tokens * HIDDEN].view(tokens, HIDDEN)
        return lambda: torch.mm(x, weight, out=out)


def seconds_of(sides: list[Side], steps: list[list[Step]], calls: int) -> float:
    """Microseconds for one round of each side's steps, in graphs that hold `calls` rounds; the median replay."""
    graphs = []
    for side, own in zip(sides, steps, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side.stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                for step in own:
                    step()
        graphs.append(graph)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    for event in events:
        for side, graph in zip(sides, graphs, strict=True):
            with torch.cuda.stream(side.stream):
                graph.replay()
        event.record(sides[0].stream)
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in itertools.pairwise(events[3:])]
    mine = torch.tensor([statistics.median(times) * 1000 / calls])
    if dist.is_initialized():
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)  # on CPU tensors: gloo
    return mine.item()


def host_time(call: Step, calls: int = 200) -> float:
    """Microseconds of host time to queue a call, the device far behind or idle."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return round(took * 1e6 / calls, 1)


def measure(sides: list[Side], others: dict, calls: int) -> list[dict]:
    """A row for each setting and size."""
    cases = [(s, n) for s in ("back to back", "torch.mul", "lets at once") for n in SIZES]
    cases += [("torch.mm", tokens * HIDDEN * 2) for tokens in TOKENS]
    rows = []
    for setting, nbytes in cases:
        kernels = [side.between(setting, nbytes) for side in sides]
        ahead = [[kernel] if kernel else [] for kernel in kernels]
        for kernel in filter(None, kernels):
            kernel()  # what a library sets up at its first call does not belong in a graph
        torch.cuda.synchronize()
        alone = seconds_of(sides, ahead, calls) if all(ahead) else 0.0
        row = {"setting": setting, "bytes": nbytes, "kernel alone": round(alone, 2), "ours": {}, "peers": {}}
        for mode in MODES:
            steps = [[*own, side.reduce(mode, nbytes)] for own, side in zip(ahead, sides, strict=True)]
            row["ours"][mode] = round(seconds_of(sides, steps, calls) - alone, 2)
        for name, make in others.items():
            call = make(nbytes)
            with torch.cuda.stream(sides[0].stream):
                for _ in range(3):
                    call(0)
            torch.cuda.synchronize()
            row["peers"][name] = round(seconds_of(sides, [[*ahead[0], lambda call=call: call(0)]], calls) - alone, 2)
        if others:
            best = min(row["peers"].values())
            row["ratio to best peer"] = {mode: round(us / best, 2) for mode, us in row["ours"].items()}
        rows.append(row)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(row, flush=True)
    return rows


def eager(side: Side, others: dict) -> dict:
    """Host time of a call at 4 KiB."""
    row = {"setting": "eager, host time", "bytes": 4096, "peers": {}}
    row["ours"] = {mode: host_time(side.reduce(mode, 4096)) for mode in MODES}
    row["torch.mul"] = host_time(lambda: torch.mul(side.target[:2048], 1.0, out=side.source[:2048]))
    for name, make in others.items():
        call = make(4096)
        row["peers"][name] = host_time(lambda call=call: call(0))
    return row


def make_ranks(device: int, rank: int, world: int, limit: int) -> dict[str, Rank]:
    """A rank's ends: one for each mode, and the kernel that lets its successor start at once."""
    vendor, architecture = _describe(torch.device("cuda", device))
    layout = Layout(world, limit, limit, limit)
    common = (vendor, architecture, device, rank, layout)
    ends = {mode: Rank(*common, timeout=20, grace=10, **options) for mode, options in MODES.items()}
    return ends | {"pdl": Rank(*common, timeout=STAY, kernels=["floors/idle"], overlap=True)}


def side_of(ranks: dict[str, Rank], room: Room) -> Side:
    """A rank's side; all its ends are connected."""
    first = ranks["no overlap"]
    strategy = default(_describe(torch.device("cuda", first.device))[1], first.layout.world)
    source = torch.randn(LIMIT // 8, device="cuda").bfloat16()
    plan = lambda nbytes: strategy.plan(nbytes, first.layout, room)  # noqa: E731
    ends = {mode: ranks[mode] for mode in MODES}
    return Side(ends, ranks["pdl"], torch.cuda.Stream(), source, torch.empty_like(source), plan)


def share(world: int, arguments: argparse.Namespace) -> None:
    """All ranks on one GPU, in this process."""
    every = [make_ranks(0, rank, world, 8 << 20) for rank in range(world)]
    for name in every[0]:
        connect_in_process([ranks[name] for ranks in every])
    room = Room.of_shared_gpu(torch.cuda.get_device_properties(0).multi_processor_count, 2 * world)
    sides = [side_of(ranks, room) for ranks in every]
    rows = measure(sides, {}, arguments.calls)
    assert not any(end.waits() for side in sides for end in side.ends.values())
    save(rows, arguments, f"chains_1_gpu_{world}_ranks.json")


def process(rank: int, world: int, arguments: argparse.Namespace) -> None:
    """One rank on a GPU of its own, with the peers that this installation has."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29512", RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
    ranks = make_ranks(rank, rank, world, LIMIT if world == 2 else 4 << 20)
    for end in ranks.values():
        shared = [None] * world
        dist.all_gather_object(shared, end.share())
        end.connect(shared)
    sms = torch.cuda.get_device_properties(rank).multi_processor_count
    most = ranks["no overlap"].blocks_per_multiprocessor()
    side, others = side_of(ranks, Room(512, sms * most * 512)), peers(world)
    rows = [*measure([side], others, arguments.calls), eager(side, others)]
    if rank == 0:
        print(rows[-1], flush=True)
        save(rows, arguments, f"chains_{world}_gpus.json")
    assert not any(end.waits() for end in side.ends.values())
    dist.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)  # see run.py


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=0, metavar="RANKS", help="put RANKS ranks on one GPU instead")
    parser.add_argument("--calls", type=int, default=40, help="rounds in a graph")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this experiment needs a GPU that torch can use; on the CPU: pytest lab/kernels")
    if arguments.share:
        share(arguments.share, arguments)
        return
    world = torch.cuda.device_count()
    torch.multiprocessing.spawn(process, args=(world, arguments), nprocs=world)


if __name__ == "__main__":
    main()
