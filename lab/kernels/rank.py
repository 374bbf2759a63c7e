"""One rank on a GPU: its workspace, control words and kernels; launches by address, without torch."""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import LabError
from lab.kernels.build import HIP, KERNELS, Artifact, build
from lab.kernels.runtime import bridge, gpu
from lab.kernels.staging import (
    MAX_BLOCKS,
    SENTINEL,
    Call,
    Control,
    Layout,
    Wait,
    WaitRecord,
    decode_records,
)
from lab.kernels.stamps import EVENTS, STAMP
from lab.kernels.strategy import Plan

TICKS_PER_SECOND = {"nvidia": 1_000_000_000, "amd": 100_000_000}  # of lab::wall_clock
ITEMSIZE = {"fp32": 4, "fp16": 2, "bf16": 2}
PLACES = ("input", "output", "count", "trace", "blocks", "threads")  # what differs from launch to launch
AT_ONCE = Call.lets_at_once  # whether the successor may be placed at once
LAST_WAIT = 5.0  # seconds for kernels to end once their waits have been given up


@dataclass(frozen=True)
class Shared:
    """How another process finds a workspace: an IPC handle of the allocation, and where in it the workspace lies."""

    handle: bytes
    offset: int


@dataclass(frozen=True)
class Prepared:
    """A launch but for its addresses and stream: made once for a plan, type and size (`Rank.prepare`)."""

    kernel: int
    blocks: int
    threads: int
    count: int
    at_once: bool


class Rank:
    """A rank's end: create, exchange addresses, `connect`, then `launch` in the same order on every rank.

    The caller's current device stays what it was in every method.

    Attributes:
        address: the workspace as this process sees it.
        waits(): what kernels reported.
    """

    def __init__(
        self,
        vendor: str,
        architecture: str,
        device: int,
        rank: int,
        layout: Layout,
        *,
        timeout: float = 10.0,
        grace: float = 590.0,
        overlap: bool = False,
        early_blocks: int = MAX_BLOCKS,
        rounding: str = "RNE",
        kernels: Sequence[str] = KERNELS,
        source: Path = HIP,
        cache: Path | None = None,
        trace_calls: int = 0,
    ):
        """Allocate and load. What fails on the way gives back what was taken by then.

        Args:
            vendor: "nvidia" or "amd".
            architecture: "sm_90", "gfx942", ...
            device: index of the GPU in this process.
            rank: 0..world-1.
            layout: the same on every rank.
            timeout: seconds after which a wait counts as late.
            grace: further seconds after which it counts as lost and the call is given up.
            overlap: let a launch be placed while its predecessor in the stream still runs (NVIDIA); it touches nothing
                before that has ended.
            early_blocks: a launch of at most so many blocks lets its successor be placed at once, a larger one when it
                waits for no peer any more. At once, both hold room on the GPU while a peer is waited for:
                docs/residency.md says how much must be certain then.
            rounding: of 16-bit results.
            kernels: file stems to load.
            source: folder of the device code.
            cache: folder of compiled files.
            trace_calls: keep the phase stamps of so many launches, the last ones; 0 compiles them out.

        Raises:
            LabError: no runtime or compiler; _runtime.GpuError: a runtime call failed.
        """
        self.layout, self.rank, self.device, self.overlap = layout, rank, device, overlap
        self.early_blocks = early_blocks
        self.gpu, self._cache = gpu(vendor, cache), cache
        self.gpu_error = bridge(cache).GpuError
        self._ticks = TICKS_PER_SECOND[vendor]
        self._mapped = ExitStack()  # peers' memory: to be given back before any rank frees
        self._held = ExitStack()
        self.artifact: Artifact = build(
            architecture,
            world=layout.world,
            rounding=rounding,
            kernels=kernels,
            trace=trace_calls > 0,
            source=source,
            cache=cache,
        )
        try:
            with self.gpu.on(device):
                self._allocate(kernels, trace_calls)
            self.set_bounds(timeout, grace)
            self.reset()
        except BaseException as error:
            try:
                self.close()
            except self.gpu_error as second:
                error.add_note(f"and giving back what had been taken failed: {second}")
            raise

    def _allocate(self, kernels: Sequence[str], trace_calls: int) -> None:
        hold = self._held.callback
        module = self.gpu.load_module(self.artifact.path.read_bytes())
        hold(self.gpu.unload_module, module)
        stems = [Path(kernel).name for kernel in kernels]
        self._kernels = {
            (stem, dtype): self.gpu.kernel(module, f"{stem}_{dtype}") for stem in stems for dtype in ITEMSIZE
        }
        self._event = self.gpu.new_event()
        hold(self.gpu.free_event, self._event)
        self._beside = self.gpu.new_stream()
        hold(self.gpu.free_stream, self._beside)
        self.address = self.gpu.malloc_uncached(self.layout.total_bytes)
        hold(self.gpu.free, self.address)
        self._control = self.gpu.malloc(ctypes.sizeof(Control))
        hold(self.gpu.free, self._control)
        self._host_records, device_records = self.gpu.malloc_host_mapped(2 * ctypes.sizeof(WaitRecord))
        hold(self._free_records)
        self._records = (WaitRecord * 2).from_address(self._host_records)
        self._call = Call(control=self._control, records=device_records, rank=self.rank)
        self._call.place(self.layout)
        self._stamps = np.zeros((trace_calls, MAX_BLOCKS, len(EVENTS)), STAMP)
        self._device_stamps = 0
        if trace_calls:
            self._device_stamps = self.gpu.malloc(self._stamps.nbytes)
            hold(self.gpu.free, self._device_stamps)
            self._call.trace_events = len(EVENTS)
        self._launches = 0

    def _free_records(self) -> None:
        self._records = (WaitRecord * 2).from_buffer_copy(bytes(self._records))  # what was reported stays readable
        self.gpu.free_host(self._host_records)

    def set_bounds(self, timeout: float, grace: float) -> None:
        """Bounds of the launches from now on, in seconds: see `timeout` and `grace` of the class."""
        self._call.timeout, self._call.grace = int(timeout * self._ticks), int(grace * self._ticks)
        self._launcher = self._ready()

    def _ready(self) -> Any:
        places = {name: getattr(Call, name).offset for name in PLACES}
        return bridge(self._cache).Launcher(self.gpu, self.device, bytes(self._call), places | {"flag": AT_ONCE.offset})

    def blocks_per_multiprocessor(self, threads: int = 512) -> int:
        """How many blocks of the most demanding kernel one multiprocessor holds at a time."""
        with self.gpu.on(self.device):
            return min(self.gpu.blocks_per_multiprocessor(kernel, threads) for kernel in self._kernels.values())

    def share(self) -> Shared:
        """What another process needs to reach the workspace."""
        with self.gpu.on(self.device):
            return Shared(*self.gpu.share(self.address))

    def connect(self, addresses: Sequence["int | Shared"]) -> None:
        """Take every rank's workspace, own entry included: an address of this process, or what `share` gave."""
        if len(addresses) != self.layout.world:
            raise LabError("one address per rank is needed", value=len(addresses))
        mapped = []
        with self.gpu.on(self.device):
            for peer, where in enumerate(addresses):
                if peer == self.rank:
                    where = self.address
                elif isinstance(where, Shared):
                    where, base = self.gpu.open_shared(where.handle, where.offset)
                    self._mapped.callback(self.gpu.close_shared, base)
                mapped.append(where)
        self._call.connect(self.rank, mapped)
        self._launcher = self._ready()

    def reset(self, epoch: int = 0) -> None:
        """Empty slots, flags and counters at `epoch`.

        Every rank's kernels must have ended, and none may start before every rank has done this.
        """
        with self.gpu.on(self.device):
            packets = self.layout.packets_offset
            self.gpu.memset(self.address, 0, packets)
            self.gpu.memset(self.address + packets, SENTINEL, self.layout.total_bytes - packets)
            control = Control()
            control.epoch[:] = [epoch] * MAX_BLOCKS
            self.gpu.write(self._control, bytes(control))
            ctypes.memset(self._host_records, 0, 2 * ctypes.sizeof(WaitRecord))
            if self._device_stamps:
                self.gpu.memset(self._device_stamps, 0, self._stamps.nbytes)
            self._launches = 0
            self.gpu.synchronize()

    def epoch(self) -> int:
        """The last finished call. Waits for the device's copies, so not for the hot path."""
        control = bytearray(ctypes.sizeof(Control))
        with self.gpu.on(self.device):
            self.gpu.read(self._control, control)
        return Control.from_buffer(control).epoch[0]

    def prepare(self, plan: Plan, dtype: str, count: int) -> Prepared:
        """What a launch of `plan` needs beside addresses and stream.

        Args:
            plan: algorithm and grid, the same on every rank.
            dtype: "fp32", "fp16" or "bf16".
            count: elements, at least 1; of reduce_scatter and all_gather, those of a part.
        """
        nbytes = count * ITEMSIZE[dtype]
        if not 0 < nbytes <= self.layout.capacity(plan.algorithm):
            raise LabError(
                f"{plan.algorithm} cannot carry this message", value=nbytes,
                hint=f"1 to {self.layout.capacity(plan.algorithm)} bytes",
            )  # fmt: skip
        at_once = self.overlap and plan.blocks <= self.early_blocks
        return Prepared(self._kernels[plan.algorithm, dtype], plan.blocks, plan.threads, count, at_once)

    def start(self, what: Prepared, source: int, target: int, stream: int) -> None:
        """Queue one call on `stream` (an integer handle; 0 for the default stream); nothing is waited for.

        Args:
            what: from `prepare`.
            source: address of the elements.
            target: address of the result; `source` itself, or disjoint from it.
            stream: a stream of this rank's device.
        """
        trace = 0
        if self._device_stamps:
            trace = self._device_stamps + self._launches % len(self._stamps) * self._stamps[0].nbytes
            self._launches += 1
        self._launcher.launch(
            *(what.kernel, what.blocks, what.threads, source, target, what.count),
            *(stream, self.overlap, what.at_once, trace),
        )

    def launch(self, plan: Plan, dtype: str, source: int, target: int, count: int, stream: int) -> None:
        """`prepare` and `start` in one."""
        self.start(self.prepare(plan, dtype, count), source, target, stream)

    def capture_of(self, stream: int) -> int:
        """The number of the capture that `stream` takes part in, 0 for none."""
        return self.gpu.capture_of(stream)

    def order(self, before: int, after: int) -> None:
        """What is queued on stream `after` from now on waits for what is queued on `before` so far."""
        with self.gpu.on(self.device):
            self.gpu.order(self._event, before, after)

    def stamps(self) -> np.ndarray:
        """Phase stamps since the last reset, for `stamps.trace_of`: STAMP (calls, MAX_BLOCKS, len(EVENTS)).

        A captured launch stamps its own place again at every replay. Call it when no kernel runs.

        Raises:
            LabError: `trace_calls` was 0.
        """
        if not self._device_stamps:
            raise LabError("this rank keeps no stamps", hint="Rank(..., trace_calls=n)")
        held = bytearray(self._stamps.nbytes)
        with self.gpu.on(self.device):
            self.gpu.read(self._device_stamps, held)
        found = np.frombuffer(held, STAMP).reshape(self._stamps.shape)
        return found[: min(self._launches, len(found))]

    def waits(self) -> list[Wait]:
        """The late and the lost wait that kernels have reported so far. Reads host memory only."""
        return decode_records(self._records)

    def lost(self) -> bool:
        """Whether a kernel has given up a wait: one look at host memory."""
        return self._records[1].kind != 0

    def abort(self) -> None:
        """Let every running and later call of this rank end at once, without a result, until `reset`.

        Written beside whatever runs, so also while a kernel waits for a peer.
        """
        with self.gpu.on(self.device):
            word = self._control + Control.aborted_at.offset
            self.gpu.write_beside(self._beside, word, bytes(ctypes.c_uint64(1)))

    def drain(self, patience: float, hopeless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until nothing runs on the device. Waits of our kernels are given up after `patience` seconds.

        Args:
            patience: seconds.
            hopeless: asked several times a second; True ends the patience.

        Returns:
            Whether the device came to rest; False when something that is not ours still runs `LAST_WAIT` seconds later.

        Raises:
            _runtime.GpuError: the device reports an error.
        """
        failed: list[BaseException] = []

        def synchronize() -> None:
            try:
                with self.gpu.on(self.device):
                    self.gpu.synchronize()
            except BaseException as error:  # raised below, in the thread that asked
                failed.append(error)

        waiting = threading.Thread(target=synchronize, name="lab drain", daemon=True)
        waiting.start()
        until = time.monotonic() + patience
        while waiting.is_alive() and time.monotonic() < until and not hopeless():
            waiting.join(0.05)
        if waiting.is_alive():
            self.abort()
            waiting.join(LAST_WAIT)
        if failed:
            raise failed[0]
        return not waiting.is_alive()

    def unmap(self) -> None:
        """Give the peers' memory back. No kernel of this rank may be running, and none can start afterwards."""
        with self.gpu.on(self.device), self._mapped:
            pass

    def close(self) -> None:
        """Give everything back. No kernel of any rank may be running, and every peer must have unmapped."""
        with self.gpu.on(self.device), self._held, self._mapped:  # the last one first; each goes on after a failure
            pass


def connect_in_process(ranks: Sequence[Rank]) -> None:
    """Connect all ranks of a collective that live in this process, on one GPU or on several."""
    for rank in ranks:
        for peer in ranks:
            if peer.device != rank.device and not rank.gpu.enable_peer_access(rank.device, peer.device):
                raise LabError(f"GPU {rank.device} cannot reach GPU {peer.device}'s memory")
    for rank in ranks:
        rank.connect([peer.address for peer in ranks])
