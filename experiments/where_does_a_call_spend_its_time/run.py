"""Record the phases of back-to-back calls on the GPUs at hand: one trace a kernel and message size.

All ranks live in this process: one a GPU where there are several, else two on the one GPU.
"""

import os

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import argparse
import datetime
from pathlib import Path

import numpy as np
import torch

from lab.kernels.device import describe
from lab.kernels.rank import TICKS_PER_SECOND, Rank, connect_in_process
from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.stamps import trace_of
from lab.kernels.strategy import Band, Room, launch_shape

CASES = (
    ("low_latency", 4 << 10),
    ("low_latency", 64 << 10),
    ("one_shot", 64 << 10),
    ("one_shot", 1 << 20),
    ("two_shot", 64 << 10),
    ("two_shot", 1 << 20),
)
HERE = Path(__file__).parent
WARM_UP, CALLS, THREADS, LIMIT = 20, 40, 512, 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this experiment needs a GPU that torch can use; on the CPU: HostRanks(..., trace=True)")
    gpus = torch.cuda.device_count()
    world = max(2, gpus)
    machine = f"{gpus} x {torch.cuda.get_device_name()}"
    layout = Layout(world, LIMIT, LIMIT, LIMIT)
    devices = [torch.device("cuda", rank % gpus) for rank in range(world)]
    vendor, architecture = describe(devices[0])
    ranks = [
        Rank(vendor, architecture, device.index, rank, layout, timeout=20, grace=10, trace_calls=CALLS)
        for rank, device in enumerate(devices)
    ]
    connect_in_process(ranks)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    room = Room(MAX_BLOCKS, sms * 2048) if gpus == world else Room.of_shared_gpu(sms, world)
    buffers = [torch.randn(LIMIT // 2, device=device).bfloat16() for device in devices]
    streams = [torch.cuda.Stream(device) for device in devices]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for algorithm, nbytes in CASES:
        plan = launch_shape(Band(1 << 62, algorithm, THREADS, 64), nbytes, world, room)
        for rank in ranks:
            rank.reset()
        for _ in range(WARM_UP + CALLS):
            for rank, buffer, stream in zip(ranks, buffers, streams, strict=True):
                torch.cuda.set_device(rank.device)
                rank.launch(plan, "bf16", buffer.data_ptr(), buffer.data_ptr(), nbytes // 2, stream.cuda_stream)
        for device in devices:
            torch.cuda.synchronize(device)
        assert not any(rank.waits() for rank in ranks), [rank.waits() for rank in ranks]
        about = {
            "algorithm": algorithm,
            "bytes": nbytes,
            "dtype": "bf16",
            "world": world,
            "blocks": plan.blocks,
            "threads": plan.threads,
            "date": datetime.date.today().isoformat(),
            "command": "python experiments/where_does_a_call_spend_its_time/run.py",
            "torch": torch.__version__,
        }
        stamps = np.stack([rank.stamps() for rank in ranks])
        trace = trace_of(stamps, TICKS_PER_SECOND[vendor], machine=machine, about=about)
        trace.save(arguments.out / f"{algorithm}_{nbytes >> 10}_kib_{gpus}_gpus.npz")
        print(algorithm, nbytes, f"{plan.blocks}x{plan.threads}", len(trace.spans), "spans", flush=True)
    for rank in ranks:
        rank.close()


if __name__ == "__main__":
    main()
