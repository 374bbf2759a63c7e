"""Are the kernels right on a GPU, in long runs back to back and in graphs, and is the seed's protocol refused?

Parts, each for one GPU and for two: `stress` (long runs and replays), `refused` (the self-test on ours and on the
seed's kernel), `sweep` (wrong calls by size), `communicator` (AllReduce as a user has it, a process per GPU) and
`sanitize` (memcheck and racecheck on `small`). In the first three all ranks live in this process, several to a GPU.
"""

import os

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import argparse
import datetime
import json
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lab.kernels import self_test
from lab.kernels.communicator import AllReduce
from lab.kernels.device import describe
from lab.kernels.rank import Rank, connect_in_process
from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.strategy import Band, Plan, Room, launch_shape

OURS = ("one_shot", "two_shot", "low_latency")
SEED = "tests/seed_two_shot"
PARTS = ("stress", "refused", "communicator", "sanitize", "sweep")
LIMIT = 32 << 20


def make_ranks(world, devices, kernels, small=4 << 20):
    """`small`: the largest message of one_shot and low_latency."""
    alone = len(set(devices[:world])) == world
    vendor, architecture = describe(torch.device("cuda", 0))
    layout = Layout(world, max_bytes=LIMIT, one_shot_bytes=small, packet_bytes=small)
    ranks = [
        Rank(vendor, architecture, devices[r], r, layout, timeout=10, grace=10, overlap=alone, kernels=kernels)
        for r in range(world)
    ]
    connect_in_process(ranks)
    return ranks


def room_of(ranks, devices):
    """What of a rank surely runs at the same time."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    world = len(ranks)
    sharing = max(devices[:world].count(device) for device in set(devices[:world]))
    if sharing > 1:
        return Room.of_shared_gpu(sms, sharing)
    return Room(MAX_BLOCKS, sms * ranks[0].blocks_per_multiprocessor() * 512)


def our_plans(layout, room):
    def plans(nbytes):
        found = []
        for algorithm in OURS:
            if nbytes <= layout.capacity(algorithm):
                for threads, most in ((512, MAX_BLOCKS), (128, 8), (32, 3)):
                    band = Band(1 << 62, algorithm, threads, most)
                    found.append(launch_shape(band, nbytes, layout.world, room))
        return found

    return plans


def seed_plan(nbytes):
    """The seed's own launch geometry."""
    return Plan("seed_two_shot", 4 if nbytes <= 8192 else 16 if nbytes <= 32768 else 32, 256)


class Stress:
    """Calls of one rank, their outputs side by side, so that two kernels compare a whole batch."""

    def __init__(self, rank, cases, inputs):
        self.rank, self.cases = rank, cases
        self.device = torch.device("cuda", rank.device)
        self.stream = torch.cuda.Stream(self.device)
        tests = self_test.LocalTensors(rank, cases, inputs)
        self.inputs = tests.inputs
        offsets, at = [], 0
        for case, expected in zip(cases, tests.expected, strict=True):
            at = -(-at // 16) * 16 + case.skip * expected.element_size()
            offsets.append(at)
            at += expected.numel() * expected.element_size()
        self.output = torch.empty(at + 64, dtype=torch.uint8, device=self.device)
        self.expected = torch.full_like(self.output, self_test.POISON)
        for offset, expected in zip(offsets, tests.expected, strict=True):
            flat = expected.view(torch.uint8)
            self.expected[offset : offset + flat.numel()] = flat
        self.targets = [self.output.data_ptr() + offset for offset in offsets]
        self.offsets = offsets
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        self.judge()  # loads torch's kernels, which must not happen while a peer spins
        self.wrong.zero_()
        torch.cuda.synchronize(self.device)

    def judge(self):
        self.wrong += (self.output != self.expected).sum()

    def step(self):
        """Poison, all calls back to back, compare; everything queued on the rank's stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.output.fill_(self_test.POISON)
            for case, source, target in zip(self.cases, self.inputs, self.targets, strict=True):
                self.rank.launch(case.plan, case.dtype, source.data_ptr(), target, case.count, self.stream.cuda_stream)
            self.wrong += (self.output != self.expected).sum()


def stress(world, devices, calls, replays, seed=11):
    """`calls` per rank in batches of 64 without host synchronisation, then `replays` of a graph of 16 calls."""
    ranks = make_ranks(world, devices, OURS)
    plans = our_plans(ranks[0].layout, room_of(ranks, devices))
    result = {"ranks": world, "gpus": len(set(devices[:world]))}
    start = time.monotonic()
    made = wrong = 0
    while made < calls:
        # New sizes and values every 1600 batches' worth of calls; large messages are rarer.
        cases = self_test.draw_cases(seed + made, world, plans, 4 << 20 if made else 1 << 20, 64)
        inputs = self_test.draw_inputs(cases, world, seed + made)
        every = [Stress(rank, cases, inputs) for rank in ranks]
        for one in every:
            torch.cuda.synchronize(one.device)
        for _ in range(-(-calls // 64 // 4)):
            for one in every:
                one.step()
            made += 64
        for one in every:
            torch.cuda.synchronize(one.device)
            wrong += int(one.wrong)
    result |= {"calls": made, "wrong bytes": wrong, "seconds": round(time.monotonic() - start, 1)}

    start = time.monotonic()
    cases = self_test.draw_cases(seed + 1, world, plans, 1 << 20, 16)
    inputs = self_test.draw_inputs(cases, world, seed + 1)
    every = [Stress(rank, cases, inputs) for rank in ranks]
    graphs = []
    for one in every:
        torch.cuda.synchronize(one.device)
    for one in every:
        with torch.cuda.device(one.device):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=one.stream, capture_error_mode="thread_local"):
                one.step()
            graphs.append(graph)
    for _ in range(replays):
        for one, graph in zip(every, graphs, strict=True):
            with torch.cuda.device(one.device), torch.cuda.stream(one.stream):
                graph.replay()
    wrong = 0
    for one in every:
        torch.cuda.synchronize(one.device)
        wrong += int(one.wrong)
    result |= {"replays": replays, "replayed calls": replays * len(cases), "wrong bytes in replays": wrong}
    result |= {"seconds of replays": round(time.monotonic() - start, 1)}
    result["waits"] = [str(wait) for rank in ranks for wait in rank.waits()]
    for rank in ranks:
        rank.close()
    return result


def refused(world, devices):
    """The self-test on our kernels and on the seed's two-shot, by size of message."""
    found = {}
    ranks = make_ranks(world, devices, OURS)
    outcome = self_test.run(ranks, our_plans(ranks[0].layout, room_of(ranks, devices)), rounds=world + 1)
    found["ours"] = {"calls": outcome.calls, "failures": list(outcome.failures)}
    for rank in ranks:
        rank.close()
    ranks = make_ranks(world, devices, [SEED])
    outcome = self_test.run(ranks, lambda nbytes: [seed_plan(nbytes)], rounds=world + 1, whole=True)
    found["seed's two-shot"] = {"calls": outcome.calls, "failures": list(outcome.failures)}
    for rank in ranks:
        rank.close()
    return found


def sweep(world, devices, sizes, isolated=100, queued=64, trials=5):
    """Wrong calls by message size and kernel, fp16: isolated, and `queued` calls without host synchronisation."""
    ranks = make_ranks(world, devices, [*OURS, SEED], small=LIMIT)
    room = room_of(ranks, devices)
    rows = []
    for nbytes in sizes:
        plans = {"seed_two_shot": seed_plan(nbytes)}
        for algorithm in OURS:
            if nbytes <= ranks[0].layout.capacity(algorithm):
                plans[algorithm] = launch_shape(Band(1 << 62, algorithm, 512, 64), nbytes, world, room)
        distinct = max(1, min(queued, (16 << 20) // nbytes))
        cases = [self_test.Case(seed_plan(nbytes), "fp16", nbytes // 2, 0)] * distinct
        inputs = self_test.draw_inputs(cases, world, 5)
        every = [self_test.LocalTensors(rank, cases, inputs) for rank in ranks]
        for algorithm, plan in plans.items():
            for one in every:
                one.cases = [self_test.Case(plan, "fp16", nbytes // 2, 0)] * distinct
            counts = {"isolated": 0, "queued": 0}
            for call in range(isolated):
                for one in every:
                    one.poison()
                    torch.cuda.synchronize(one.device)
                for one in every:
                    with torch.cuda.device(one.device):
                        one.launch(call % distinct, one.stream.cuda_stream)
                for one in every:
                    torch.cuda.synchronize(one.device)
                bad = False
                for one in every:
                    want = one.expected[call % distinct]
                    bad |= bool((one.outputs[call % distinct].view(torch.int16) != want).any())
                counts["isolated"] += bad
            for _ in range(trials):
                for one in every:
                    one.poison()
                    one.wrong.zero_()
                    torch.cuda.synchronize(one.device)
                for number in range(distinct):
                    for one in every:
                        with torch.cuda.device(one.device):
                            one.launch(number, one.stream.cuda_stream)
                for one in every:
                    torch.cuda.synchronize(one.device)
                for one in every:
                    one.compare()
                    counts["queued"] += int((one.wrong != 0).sum())
            row = {"bytes": nbytes, "algorithm": algorithm, "isolated wrong": f"{counts['isolated']} of {isolated}"}
            row["queued wrong"] = f"{counts['queued']} of {trials * distinct * world}"
            rows.append(row)
            print(row, flush=True)
    for rank in ranks:
        rank.close()
    return rows


def _join(rank, world, port, backend):
    """Make this process one of `world`, on its GPU; returns the device."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=world)
    return device


def in_processes(job, world, *arguments):
    """Run job(rank, world, port, *arguments) in a process per rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(job, args=(world, port, *arguments), nprocs=world)


def _small(rank, world, port):
    """A process per rank: what a sanitizer that lets one kernel of a process run at a time can follow."""
    device = _join(rank, world, port, "gloo")
    vendor, architecture = describe(device)
    layout = Layout(world, 1 << 14, 1 << 14, 1 << 14)
    alone = torch.cuda.device_count() >= world
    end = Rank(vendor, architecture, device.index, rank, layout, timeout=120, grace=60, overlap=alone)
    shared = [None] * world
    dist.all_gather_object(shared, end.share())
    end.connect(shared)
    outcome = self_test.run(
        [end],
        our_plans(layout, Room(8, 8 * 512)),
        max_bytes=1 << 14,
        rounds=1,
        calls=18,
        replays=0,
        barrier=dist.barrier,
    )
    print(f"rank {rank} on GPU {device.index}, launches {'overlap' if alone else 'wait'}: {outcome}", flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    end.close()
    dist.destroy_process_group()


def sanitize(count):
    """memcheck and racecheck on the small case, on the first `count` GPUs; what each tool and each rank said."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return "compute-sanitizer is not installed"
    found = {}
    visible = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))}
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--target-processes", "all", sys.executable, __file__, "--parts", "small"]
        done = subprocess.run(command, env=visible, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).splitlines()
        found[check] = {
            "exit status": done.returncode,
            "summary": [line for line in lines if "SUMMARY" in line],
            "ranks": [line for line in lines if line.startswith("rank ")],
        }
        if done.returncode:
            found[check]["end of output"] = lines[-40:]
    return found


def _communicate(rank, world, port, calls, replays, report):
    """AllReduce with its defaults: launches overlap. Mixed calls, calls that feed each other, replays of both."""
    device = _join(rank, world, port, "cpu:gloo,cuda:nccl")
    start = time.monotonic()
    with AllReduce(dist.new_group(backend="gloo"), device) as reducer:
        result = {"disabled": reducer.disabled, "set-up seconds": round(time.monotonic() - start, 1)}
        plans = our_plans(reducer.layout, reducer.room)
        cases = self_test.draw_cases(3, world, plans, 4 << 20, 64)
        inputs = self_test.draw_inputs(cases, world, 3)
        tests = self_test.LocalTensors(reducer._rank, cases, inputs)
        integers = [torch.randint(-4, 5, (5000,), generator=torch.Generator().manual_seed(r)) for r in range(world)]
        first = integers[rank].bfloat16().to(device)
        last = sum(integers).bfloat16().to(device) * float(world) ** 7
        wrong = torch.zeros((), dtype=torch.int64, device=device)

        def step(few):
            tests.poison()
            for number in range(16 if few else len(cases)):
                reducer.all_reduce(tests.inputs[number], out=tests.outputs[number])
            link = first
            for _ in range(8):  # straight from one call into the next
                link = reducer.all_reduce(link)
            wrong.add_((link != last).sum())
            for number in range(16 if few else len(cases)):
                bits = tests.outputs[number].view(self_test.BIT_TYPES[cases[number].dtype])
                wrong.add_((bits != tests.expected[number]).sum())

        made = 0
        while made < calls:
            step(few=False)
            made += len(cases) + 8
        torch.cuda.synchronize()
        result |= {"calls": made, "wrong elements": int(wrong)}
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step(few=True)
        wrong.zero_()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        result |= {"replays": replays, "replayed calls": 24 * replays, "wrong elements in replays": int(wrong)}
        result |= {"launches overlap": reducer._rank.overlap, "waits": [str(wait) for wait in reducer.check()]}
        every = [None] * world
        dist.all_gather_object(every, result, group=reducer.group)
    if rank == 0:
        report.put(every)
    dist.barrier()
    dist.destroy_process_group()


def communicator(world, calls, replays):
    report = torch.multiprocessing.get_context("spawn").SimpleQueue()
    in_processes(_communicate, world, calls, replays, report)
    return report.get()


def command():
    """How this was started, without the place of the output."""
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    return " ".join(["python experiments/are_the_kernels_right/run.py", *words])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=[*PARTS, "small"], metavar="PART")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this experiment needs a GPU that torch can use; on the CPU: pytest lab/kernels")
    if arguments.parts == ["small"]:
        in_processes(_small, 2)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for count in arguments.gpus:
        if count > torch.cuda.device_count():
            print(f"{count} GPUs are not here")
            continue
        report = {
            "machine": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {platform.system()}",
            "date": datetime.date.today().isoformat(),
            "command": command(),
            "torch": torch.__version__,
            "gpus used": count,
        }
        path = arguments.out / f"right_{count}_gpu{'s' * (count > 1)}.json"
        for name, result in examine(count, arguments):
            report[name] = result
            path.write_text(json.dumps(report, indent=1) + "\n")  # what is known so far


def examine(count, arguments):
    """Yield (what, result) of every part asked for, on `count` GPUs."""
    devices = [rank % count for rank in range(8)]
    if "refused" in arguments.parts:
        found = refused(4, devices)
        for name, outcome in found.items():
            print(count, "GPUs: self-test of", name, outcome["calls"], "calls,", len(outcome["failures"]), "findings")
            print("   ", *outcome["failures"][:3], sep="\n    ", flush=True)
        yield "self-test, 4 ranks", found
    if "stress" in arguments.parts:
        for world in arguments.worlds:
            found = stress(world, devices, arguments.calls, arguments.replays)
            print(found, flush=True)
            yield f"stress, {world} ranks", found
    if "communicator" in arguments.parts and count > 1:
        found = communicator(count, arguments.calls, arguments.replays)
        print("communicator:", found, flush=True)
        yield f"communicator, {count} processes", found
    if "sanitize" in arguments.parts:
        found = sanitize(count)
        print("sanitize:", found, flush=True)
        yield "sanitize, 2 ranks in 2 processes", found
    if "sweep" in arguments.parts:
        sizes = [(4 << 10) << i for i in range(14)]
        for world in (2, 4) if count > 1 else (4,):
            yield f"sweep, {world} ranks", sweep(world, devices, sizes)


if __name__ == "__main__":
    main()
