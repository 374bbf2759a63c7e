"""One rank on a GPU: its workspace, control words and kernels; launches by address, without torch."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.errors import LabError
from lab.kernels.build import HIP, KERNELS, Artifact, build
from lab.kernels.runtime import gpu
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


@dataclass(frozen=True)
class Shared:
    """How another process finds a workspace: an IPC handle of the allocation, and where in it the workspace lies."""

    handle: bytes
    offset: int


class Rank:
    """A rank's end: create, exchange addresses, `connect`, then `launch` in the same order on every rank.

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
        timeout: float = 5.0,
        grace: float = 5.0,
        overlap: bool = False,
        early_blocks: int = MAX_BLOCKS,
        rounding: str = "RNE",
        kernels: Sequence[str] = KERNELS,
        source: Path = HIP,
        cache: Path | None = None,
        trace_calls: int = 0,
    ):
        """Allocate and load.

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
        self.gpu = gpu(vendor, cache)
        self._opened: list[int] = []
        self._freed = False
        self.artifact: Artifact = build(
            architecture,
            world=layout.world,
            rounding=rounding,
            kernels=kernels,
            trace=trace_calls > 0,
            source=source,
            cache=cache,
        )
        self.gpu.set_device(device)
        module = self.gpu.load_module(self.artifact.path.read_bytes())
        stems = [Path(kernel).name for kernel in kernels]
        self._kernels = {
            (stem, dtype): self.gpu.kernel(module, f"{stem}_{dtype}") for stem in stems for dtype in ITEMSIZE
        }
        self.address = self.gpu.malloc_uncached(layout.total_bytes)
        self._control = self.gpu.malloc(ctypes.sizeof(Control))
        self._host_records, device_records = self.gpu.malloc_host_mapped(2 * ctypes.sizeof(WaitRecord))
        self._records = (WaitRecord * 2).from_address(self._host_records)
        per_second = TICKS_PER_SECOND[vendor]
        self._call = Call(
            control=self._control,
            records=device_records,
            timeout=int(timeout * per_second),
            grace=int(grace * per_second),
        )
        self._call.place(layout)
        self._stamps = np.zeros((trace_calls, MAX_BLOCKS, len(EVENTS)), STAMP)
        self._device_stamps = self.gpu.malloc(self._stamps.nbytes) if trace_calls else 0
        self._launches = 0
        self.reset()

    def blocks_per_multiprocessor(self, threads: int = 512) -> int:
        """How many blocks of the most demanding kernel one multiprocessor holds at a time."""
        self.gpu.set_device(self.device)
        return min(self.gpu.blocks_per_multiprocessor(kernel, threads) for kernel in self._kernels.values())

    def share(self) -> Shared:
        """What another process needs to reach the workspace."""
        return Shared(*self.gpu.share(self.address))

    def connect(self, addresses: Sequence["int | Shared"]) -> None:
        """Take every rank's workspace, own entry included: an address of this process, or what `share` gave."""
        if len(addresses) != self.layout.world:
            raise LabError("one address per rank is needed", value=len(addresses))
        self.gpu.set_device(self.device)
        mapped = []
        for peer, where in enumerate(addresses):
            if peer == self.rank:
                where = self.address
            elif isinstance(where, Shared):
                where, base = self.gpu.open_shared(where.handle, where.offset)
                self._opened.append(base)
            mapped.append(where)
        self._call.connect(self.rank, mapped)

    def reset(self, epoch: int = 0) -> None:
        """Empty slots, flags and counters at `epoch`.

        Every rank's kernels must have ended, and none may start before every rank has done this.
        """
        self.gpu.set_device(self.device)
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
        self.gpu.set_device(self.device)
        control = bytearray(ctypes.sizeof(Control))
        self.gpu.read(self._control, control)
        return Control.from_buffer(control).epoch[0]

    def launch(self, plan: Plan, dtype: str, source: int, target: int, count: int, stream: int) -> None:
        """Queue one call on `stream` (an integer handle of the current device); nothing is waited for.

        Args:
            plan: algorithm and grid, the same on every rank.
            dtype: "fp32", "fp16" or "bf16".
            source: address of `count` elements.
            target: address of the result; `source` itself, or disjoint from it.
            count: elements, at least 1; of reduce_scatter and all_gather, those of a part.
            stream: 0 for the default stream.
        """
        nbytes = count * ITEMSIZE[dtype]
        if not 0 < nbytes <= self.layout.capacity(plan.algorithm):
            raise LabError(
                f"{plan.algorithm} cannot carry this message", value=nbytes,
                hint=f"1 to {self.layout.capacity(plan.algorithm)} bytes",
            )  # fmt: skip
        call = self._call
        call.input, call.output, call.count = source, target, count
        call.blocks, call.threads = plan.blocks, plan.threads
        call.lets_at_once = plan.blocks <= self.early_blocks
        if self._device_stamps:
            nth = self._launches % len(self._stamps)
            call.trace, call.trace_events = self._device_stamps + nth * self._stamps[0].nbytes, len(EVENTS)
        self._launches += 1
        kernel = self._kernels[plan.algorithm, dtype]
        self.gpu.launch(kernel, plan.blocks, plan.threads, bytes(call), stream, self.overlap)

    def stamps(self) -> np.ndarray:
        """Phase stamps since the last reset, for `stamps.trace_of`: STAMP (calls, MAX_BLOCKS, len(EVENTS)).

        A captured launch stamps its own place again at every replay. Call it when no kernel runs.

        Raises:
            LabError: `trace_calls` was 0.
        """
        if not self._device_stamps:
            raise LabError("this rank keeps no stamps", hint="Rank(..., trace_calls=n)")
        self.gpu.set_device(self.device)
        held = bytearray(self._stamps.nbytes)
        self.gpu.read(self._device_stamps, held)
        found = np.frombuffer(held, STAMP).reshape(self._stamps.shape)
        return found[: min(self._launches, len(found))]

    def waits(self) -> list[Wait]:
        """The late and the lost wait that kernels have reported so far. Reads host memory only."""
        return decode_records(self._records)

    def close(self) -> None:
        """Give everything back. No kernel of any rank may be running."""
        if self._freed:
            return
        self._freed = True
        self.gpu.set_device(self.device)
        for base in self._opened:
            self.gpu.close_shared(base)
        self.gpu.free(self.address)
        self.gpu.free(self._control)
        if self._device_stamps:
            self.gpu.free(self._device_stamps)
        self._records = (WaitRecord * 2)()
        self.gpu.free_host(self._host_records)


def connect_in_process(ranks: Sequence[Rank]) -> None:
    """Connect all ranks of a collective that live in this process, on one GPU or on several."""
    for rank in ranks:
        for peer in ranks:
            if peer.device != rank.device and not rank.gpu.enable_peer_access(rank.device, peer.device):
                raise LabError(f"GPU {rank.device} cannot reach GPU {peer.device}'s memory")
    for rank in ranks:
        rank.connect([peer.address for peer in ranks])
