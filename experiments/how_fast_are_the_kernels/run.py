"""How long does an all-reduce take inside a CUDA graph, against NCCL and torch's symmetric memory?

One process per GPU. Every candidate runs in the same process: a graph of several calls, replayed; the median replay
of the slower rank, divided by the calls. So do the floors (lab/kernels/hip/floors), in the launch shape of ours.
"""

import os

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import argparse
import datetime
import itertools
import json
import platform
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

from lab.kernels.device import describe
from lab.kernels.rank import Rank, connect_in_process
from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.strategy import Band, Plan, Room, default, launch_shape

LIMIT = 64 << 20
SIZES = [1 << 10 << i for i in range(17)]
HERE = Path(__file__).parent
STAY = 2.0  # microseconds for which a floor's kernel stays, so that the next launch is ready by then, as with ours
TRIPS = 500
CALLS = 100  # in a graph


def calls_of(nbytes, small):
    """Calls in a graph: `small` where a call is short, so that the way from replay to replay counts little."""
    return small if nbytes <= 256 << 10 else 20 if nbytes <= 1 << 20 else 5


def time_calls(call, nbytes, small, quick=False):
    """Microseconds per call in a graph; for the other arguments see calls_of."""
    calls = calls_of(nbytes, small)
    replays = 15 if quick else 40
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(stream.cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(calls):
            call(stream.cuda_stream)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    with torch.cuda.stream(stream):
        for _ in range(3):
            graph.replay()
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    mine = torch.tensor([statistics.median(times) * 1000 / calls], device="cuda")
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return round(mine.item(), 2)


def peers(world):
    """name -> function(nbytes) that returns a call; built where the installation has what it needs."""
    name = dist.group.WORLD.group_name
    buffer = symm.empty(LIMIT // 2, dtype=torch.bfloat16, device="cuda")
    symm.rendezvous(buffer, name)
    buffer.zero_()
    plain = torch.zeros(LIMIT // 2, dtype=torch.bfloat16, device="cuda")

    def nccl(nbytes):
        tensor = plain[: nbytes // 2]
        return lambda _: dist.all_reduce(tensor)

    def one_shot(nbytes):
        tensor = buffer[: nbytes // 2]
        return lambda _: torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)

    def two_shot(nbytes):
        tensor = buffer[: nbytes // 2]
        return lambda _: torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", name)

    found = {"NCCL": nccl, "symm_mem one-shot": one_shot, "symm_mem two-shot": two_shot}
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            registered = torch.zeros(LIMIT // 2, dtype=torch.bfloat16, device="cuda")
        backend.register_mem_pool(pool, symm=True)
        found["NCCL symmetric"] = lambda nbytes: lambda _: dist.all_reduce(registered[: nbytes // 2])
        peers.keep = (pool, registered)
    except Exception as error:
        print("NCCL with a registered symmetric pool is not here:", error, flush=True)
    return found


def candidates(nbytes, layout, room, tune):
    """Launches of ours to try for a size, as keys."""
    found = {}
    for algorithm in ("low_latency", "one_shot", "two_shot"):
        if nbytes > layout.capacity(algorithm):
            continue
        for threads in (64, 128, 256, 512) if tune else (256, 512):
            for blocks in (16, 64, 132, 264, 512) if tune else (132, 264):
                for vectors in (1, 2) if tune else (1,):
                    plan = launch_shape(Band(1 << 62, algorithm, threads, blocks, vectors), nbytes, layout.world, room)
                    found[plan] = 0
    return found


def connect(end, world):
    shared = [None] * world
    dist.all_gather_object(shared, end.share())
    end.connect(shared)
    dist.barrier()
    return end


def floors(make_rank, world, small):
    """function(plan, nbytes) -> microseconds that no all-reduce of two ranks can do without, by name.

    empty: launch after launch of an empty kernel.
    hand-over: from the end of a launch to the start of the next one, with the launching itself hidden.
    alone: the same with the input read and the output written: a call without peers.
    flight: a vector from one GPU to the other, seen there.
    push: the whole message written to the other GPU.
    """
    ranks = {
        "empty": connect(make_rank(kernels=["floors/idle"], timeout=0), world),
        "hand-over": connect(make_rank(kernels=["floors/idle"], timeout=STAY / 1e6), world),
        "alone": connect(make_rank(kernels=["floors/carry"], timeout=STAY / 1e6), world),
        "push": connect(make_rank(kernels=["floors/push"]), world),
    }
    players = connect(make_rank(kernels=["floors/flight"]), world)
    tensor = torch.zeros(LIMIT // 2, dtype=torch.bfloat16, device="cuda")

    def launch(rank, kernel, plan, count):
        shape = Plan(kernel, plan.blocks, plan.threads)
        return lambda stream: rank.launch(shape, "bf16", tensor.data_ptr(), tensor.data_ptr(), count, stream)

    trips = time_calls(launch(players, "flight", Plan("flight", 1, 32), TRIPS), 1 << 10, small, quick=True)
    flight = trips / (2 * TRIPS)

    def measured(plan, nbytes):
        found = {}
        for name, rank in ranks.items():
            (kernel, _) = next(iter(rank._kernels))
            found[name] = time_calls(launch(rank, kernel, plan, nbytes // 2), nbytes, small)
        for name in ("hand-over", "alone"):
            found[name] = round(found[name] - STAY, 2)
        found["flight"] = round(flight, 2)
        found["alone + flight"] = round(found["alone"] + flight, 2)
        return found

    return measured


def table(rows):
    """The rows as the README shows them."""
    names = list(rows[0]["peers"])
    own = ["empty", "hand-over", "alone", "flight", "push"]
    head = ["bytes", *names, "ours", "ratio to best", *own, "floor / best", "plan"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        best = min(row["peers"].values())
        floor = max(row["floors"]["alone + flight"], row["floors"]["push"])
        size = f"{row['bytes'] >> 10} Ki" if row["bytes"] < 1 << 20 else f"{row['bytes'] >> 20} Mi"
        cells = [size, *row["peers"].values(), row["us"], f"{row['us'] / best:.2f}"]
        cells += [*[row["floors"][name] for name in own], f"{floor / best:.2f}", row["auto"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def refcheck(end, plan, source, target):
    """The measured launch against NCCL: with two ranks both round the one fp32 sum once, so the bits agree."""
    want = source.clone()
    dist.all_reduce(want)
    target.fill_(float("nan"))
    end.launch(
        plan, "bf16", source.data_ptr(), target.data_ptr(), source.numel(), torch.cuda.current_stream().cuda_stream
    )
    torch.cuda.synchronize()
    assert torch.equal(target, want) if end.layout.world == 2 else torch.allclose(target, want, rtol=0.02, atol=0.02)


def measure(rank, world, arguments):
    vendor, architecture = describe(torch.device("cuda", rank))
    layout = Layout(world, LIMIT, LIMIT if world == 2 else 4 << 20, LIMIT if world == 2 else 4 << 20)

    def make_rank(timeout=20, **options):
        return Rank(
            vendor, architecture, rank, rank, layout, timeout=timeout, grace=10, overlap=arguments.overlap, **options
        )

    end = connect(make_rank(), world)
    floor = floors(make_rank, world, arguments.calls) if world == 2 else None
    strategy = default(architecture, world)
    sms = torch.cuda.get_device_properties(rank).multi_processor_count
    room = Room(MAX_BLOCKS, sms * end.blocks_per_multiprocessor() * 512)
    source = torch.randn(LIMIT // 2, device="cuda").bfloat16()
    target = torch.empty_like(source)
    others = peers(world) if arguments.peers else {}
    rows = []
    for nbytes in arguments.sizes:
        row = {"bytes": nbytes, "peers": {}, "ours": {}}
        for name, make in others.items():
            row["peers"][name] = time_calls(make(nbytes), nbytes, arguments.calls)
        for plan in {strategy.plan(nbytes, layout, room): 0, **candidates(nbytes, layout, room, arguments.tune)}:

            def call(stream, plan=plan, count=nbytes // 2):
                end.launch(plan, "bf16", source.data_ptr(), target.data_ptr(), count, stream)

            label = f"{plan.algorithm} {plan.blocks}x{plan.threads}"
            row["ours"][label] = time_calls(call, nbytes, arguments.calls, quick=arguments.tune)
        plan = strategy.plan(nbytes, layout, room)
        refcheck(end, plan, source[: nbytes // 2], target[: nbytes // 2])
        chosen = f"{plan.algorithm} {plan.blocks}x{plan.threads}"
        row |= {"auto": chosen, "us": row["ours"][chosen], "fastest": min(row["ours"], key=row["ours"].get)}
        for algorithm in ("low_latency", "one_shot", "two_shot"):
            own = {k: v for k, v in row["ours"].items() if k.startswith(algorithm)}
            if own:
                label = min(own, key=own.get)
                row[f"best {algorithm}"] = f"{label.split()[1]} {own[label]}"
        for name, microseconds in row["peers"].items():
            row.setdefault("ratios", {})[name] = round(row["us"] / microseconds, 3)
        if floor:
            row["floors"] = floor(plan, nbytes)
        rows.append(row)
        if rank == 0:
            print({key: value for key, value in row.items() if key != "ours"}, flush=True)
    if rank == 0 and floor and others:
        print(table(rows), flush=True)
    assert not end.waits(), end.waits()
    return rows


def measure_sharing(world, arguments):
    """`world` ranks on one GPU: contention for its multiprocessors and memory, and no link."""
    vendor, architecture = describe(torch.device("cuda", 0))
    layout = Layout(world, LIMIT, 1 << 20, 1 << 20)
    ranks = [Rank(vendor, architecture, 0, r, layout, timeout=20, grace=10) for r in range(world)]
    connect_in_process(ranks)
    room = Room.of_shared_gpu(torch.cuda.get_device_properties(0).multi_processor_count, world)
    sources = [torch.randn(LIMIT // 8, device="cuda").bfloat16() for _ in ranks]
    targets = [torch.empty_like(source) for source in sources]
    streams = [torch.cuda.Stream() for _ in ranks]
    rows = []
    for nbytes in [size for size in arguments.sizes if size <= LIMIT // 4]:
        row = {"bytes": nbytes, "ours": {}}
        for algorithm in ("low_latency", "one_shot", "two_shot"):
            if nbytes > layout.capacity(algorithm):
                continue
            plan = launch_shape(Band(1 << 62, algorithm, 256, 512), nbytes, world, room)
            graphs, calls = [], calls_of(nbytes, 2 * arguments.calls)
            for rank, source, target, stream in zip(ranks, sources, targets, streams, strict=True):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    for _ in range(calls):
                        rank.launch(plan, "bf16", source.data_ptr(), target.data_ptr(), nbytes // 2, stream.cuda_stream)
                graphs.append(graph)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(31)]
            for event in events:
                for graph, stream in zip(graphs, streams, strict=True):
                    with torch.cuda.stream(stream):
                        graph.replay()
                event.record(streams[0])
            torch.cuda.synchronize()
            times = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
            row["ours"][f"{algorithm} {plan.blocks}x{plan.threads}"] = round(statistics.median(times) * 1000 / calls, 2)
        print(row, flush=True)
        rows.append(row)
    assert not any(rank.waits() for rank in ranks)
    save(rows, arguments, f"speed_1_gpu_{world}_ranks.json")


def save(rows, arguments, name):
    report = {
        "machine": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {platform.system()}",
        "date": datetime.date.today().isoformat(),
        "command": command(),
        "torch": torch.__version__,
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        "unit": "microseconds per call, bf16, inside a CUDA graph",
        "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / name).write_text(json.dumps(report, indent=1) + "\n")


def process(rank, world, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
    rows = measure(rank, world, arguments)
    if rank == 0:
        kinds = "_tune" * arguments.tune + "_no_overlap" * (not arguments.overlap)
        calls = "" if arguments.calls == CALLS else f"_{arguments.calls}_calls"
        save(rows, arguments, f"speed_{world}_gpus{kinds}{calls}.json")
    dist.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)  # torch's pool of registered memory outlives NCCL's communicator and would abort in its destructor


def command():
    """How this was started, without the place of the output."""
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    return " ".join([f"python experiments/how_fast_are_the_kernels/{Path(sys.argv[0]).name}", *words])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls in a graph, for messages up to 256 KiB")
    parser.add_argument("--tune", action="store_true", help="try many launch shapes")
    parser.add_argument("--share", type=int, default=0, metavar="RANKS", help="put RANKS ranks on one GPU instead")
    parser.add_argument("--no-overlap", dest="overlap", action="store_false", help="launch only after the predecessor")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the table of a result")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())["rows"]))
        return
    if not torch.cuda.is_available():
        raise SystemExit("this experiment needs a GPU that torch can use; on the CPU: pytest lab/kernels")
    if arguments.share:
        measure_sharing(arguments.share, arguments)
        return
    world = torch.cuda.device_count()
    torch.multiprocessing.spawn(process, args=(world, arguments), nprocs=world)


if __name__ == "__main__":
    main()
