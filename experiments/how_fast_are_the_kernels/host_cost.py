"""How long does the host take to queue an all-reduce, without a GPU? On a runtime that does nothing.

Two processes, gloo, tensors on the CPU, and the whole launch path down to the runtime's launch function, which is the
stand-in's (lab/kernels/tests/stand_in_hip.c). What a real driver takes for a launch comes on top, for every library.
"""

import statistics
import time

import torch
import torch.distributed as dist

from lab.kernels.communicator import AllReduce
from lab.kernels.tests.stand_in import install, spawn

ROUNDS, CALLS = 9, 5000


def microseconds(call):
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return round(statistics.median(times[1:]), 2)


def job(rank, group, folder):
    library, _ = install(rank, folder)
    library.stand_in_silent(1)
    with AllReduce(group, torch.device("cpu"), test=False) as reducer:
        if rank == 0:
            x = torch.ones(2048, dtype=torch.bfloat16)
            y = torch.empty_like(x)
            calls = {
                "all_reduce(x)": lambda: reducer.all_reduce(x),
                "all_reduce(x, out=y)": lambda: reducer.all_reduce(x, out=y),
                "torch.ops.lab.all_reduce": lambda: torch.ops.lab.all_reduce(x, reducer.name),
                "torch.empty_like": lambda: torch.empty_like(x),
                "torch.mul(x, x, out=y)": lambda: torch.mul(x, x, out=y),
            }
            for name, call in calls.items():
                print(f"{name}: {microseconds(call)} us", flush=True)
        dist.barrier(group)


if __name__ == "__main__":
    spawn(job)
