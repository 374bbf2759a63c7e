"""A communicator on a machine without a GPU: the real bridge and Rank on `stand_in_hip.c`, tensors on the CPU."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.kernels.build import Artifact
from lab.kernels.runtime import bridge


def library(folder: Path) -> tuple[ctypes.CDLL, object]:
    """(the stand-in with its own functions, a Gpu on it)."""
    path = folder / "libstandin.so"
    if not path.exists():
        made = folder / f"made{os.getpid()}.so"
        source = Path(__file__).with_name("stand_in_hip.c")
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-w", "-pthread", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        made.rename(path)
    loaded = ctypes.CDLL(str(path))
    loaded.stand_in_log.restype = ctypes.c_char_p
    loaded.stand_in_live.restype = ctypes.c_long
    return loaded, bridge().Gpu("amd", ["libnot-there.so", str(path)], [])


LIMIT = 120  # seconds; a process that hangs says where and ends


class Device:
    """Stands for lab.kernels.device.Device: rank r sits on GPU r, with as many multiprocessors as an H200."""

    vendor, architecture = "amd", "gfx942"
    current = 0  # the current stream

    def __init__(self, device):
        self.index = self.rank

    def place(self, cache):
        from lab.kernels.device import Place

        return Place("here", f"gpu {self.index}", f"0000:{self.index + 16:02x}:00.0")

    def multiprocessors(self):
        return 132

    def stream(self):
        return type(self).current


def install(rank: int, folder: Path | None = None):
    """Let this process's communicators use the stand-in; returns (its library, the Device class in use)."""
    import lab.kernels.communicator as communicator
    import lab.kernels.rank as rank_module

    folder = folder or Path(tempfile.mkdtemp())
    loaded, gpu = library(folder)
    code = folder / f"code{rank}"
    code.write_bytes(b"code object")
    rank_module.build = lambda *_, **__: Artifact(code, "none", (), cached=True)
    rank_module.gpu = communicator.gpu = lambda vendor, cache=None: gpu
    here = type("Here", (Device,), {"rank": rank})
    communicator.Device = here
    return loaded, here


def lose(reducer, peer: int = 1) -> None:
    """Write what a kernel writes when it gives up a wait for `peer`."""
    record = reducer._rank._records[1]
    record.peer, record.epoch, record.algorithm, record.phase = peer, 7, 2, 2
    record.kind = 2


def _process(rank: int, job, world: int, port: int, folder: str) -> None:
    import torch.distributed as dist

    faulthandler.dump_traceback_later(LIMIT, exit=True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    job(rank, dist.group.WORLD, Path(folder))
    with contextlib.suppress(RuntimeError):  # a job may have killed a peer
        dist.barrier()  # neither rank tears its connections down while the other still uses them
    gc.collect()
    # Gloo's threads may outlive the group; leaving without the interpreter's own teardown keeps them from aborting it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def spawn(job, world: int = 2) -> None:
    """Run job(rank, group, folder) in a process per rank."""
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        library(Path(folder))
        torch.multiprocessing.spawn(_process, args=(job, world, port, folder), nprocs=world)
