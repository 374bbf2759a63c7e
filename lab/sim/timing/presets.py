"""What the timing model assumes about a machine: every parameter with its unit, value and source, a table a preset.

No parameter belongs to a row of the gate table: one preset serves every size, mode and protocol.

What limits the model:

* One block is one thread of control. Its warps or waves do not drift apart, and one loop iteration of a block reads
  at one instant and becomes visible at one instant.
* A latency is a constant times a factor drawn per access (and one per block and launch). Real latencies depend on
  traffic, clocks, refresh, TLBs and placement; only queueing on memory and links is modelled, as servers that take
  bytes in order.
* Caches are not modelled: own-GPU "cached" accesses meet in L2, where a write is visible to every block at once. A
  read cache that keeps an old line would add stale reads that this model does not have.
* Hosts are loops of fixed steps with exponential waits; nothing else runs on the machine.
* Blocks of one launch always fit on the GPU together, and they start in order of their index.
* Own polls and single words take no bandwidth; only payload and stores to other GPUs queue.
* The values were settled with the hardware results in view, one value for all sizes, modes and protocols. So that the
  level of a share agrees is no independent evidence; that it changes with size as it does was not put in.
* Few of the values are measured. "derived" says from what; "assumed" means a round figure of the right size from public
  descriptions of such hardware, not from the machine named. Take shapes and comparisons from the model, not
  nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from lab.errors import LabError, UnknownNameError


@dataclass(frozen=True)
class Value:
    """One parameter: its value and where the value comes from."""

    value: float
    source: str = "assumed"


class Parameter(NamedTuple):
    """One row of a preset's table."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


UNITS: dict[str, tuple[str, str]] = {
    "ranks_per_gpu": ("ranks", "ranks that share one GPU; rank r runs on GPU r // this"),
    "step_ns": ("ns", "issue of one word operation"),
    "barrier_ns": ("ns", "block barrier"),
    "fence_ns": ("ns", "fence once everything before it has arrived"),
    "prologue_ns": ("ns", "start of a payload operation: sizes, pointers, alignment checks"),
    "iteration_ns": ("ns", "address and loop arithmetic of one loop iteration of a payload operation"),
    "l2_read_ns": ("ns", "round trip of a load that this GPU's L2 serves"),
    "uncached_read_ns": ("ns", "round trip of a load from uncached memory of this GPU"),
    "remote_read_ns": ("ns", "round trip of a load from another GPU's memory"),
    "l2_write_ns": ("ns", "from the issue of a store to its visibility in this GPU's L2"),
    "uncached_write_ns": ("ns", "from the issue of a store to its visibility in uncached memory of this GPU"),
    "remote_write_ns": ("ns", "from leaving the GPU to visibility in another GPU's memory"),
    "remote_ack_ns": ("ns", "from leaving the GPU to the acknowledgement that fences and releases wait for"),
    "atomic_ns": ("ns", "round trip of an atomic on this GPU's memory"),
    "poll_gap_ns": ("ns", "between the answer to one poll and the next poll"),
    "access_sigma": ("1", "log-normal spread of each access around its latency"),
    "block_sigma": (
        "1",
        "log-normal spread of the latencies of one block of one launch as a whole (distance to memory)",
    ),
    "cached_gbs": ("GB/s", "L2 bandwidth of one GPU"),
    "uncached_gbs": ("GB/s", "bandwidth of one GPU's uncached memory"),
    "link_gbs": ("GB/s", "bandwidth out of one GPU, and into one GPU"),
    "link_queue_bytes": ("B", "posted stores that may wait for the link before the blocks that issue them stall"),
    "launch_ns": ("ns", "from the host's launch to the start of the kernel on an idle stream"),
    "launch_jitter_ns": ("ns", "mean of the exponential part of that, drawn per rank and launch"),
    "gap_ns": ("ns", "from the end of a kernel to the start of the queued one behind it"),
    "gap_jitter_ns": ("ns", "mean of the exponential part of that, drawn per rank and launch"),
    "dispatch_ns": ("ns", "between the starts of two blocks of a launch"),
    "start_jitter_ns": ("ns", "mean of the exponential delay of one block's start"),
    "host_step_ns": ("ns", "one action of a host: a launch call, a barrier arrival"),
    "host_poll_ns": ("ns", "between two looks of a waiting host"),
    "host_jitter_ns": ("ns", "mean of the exponential delay of a host that leaves a wait"),
}


@dataclass(frozen=True)
class Preset:
    """The timing parameters of one machine. Meanings and units are in `UNITS`; `table()` shows all of it."""

    name: str
    about: str
    ranks_per_gpu: Value
    step_ns: Value
    barrier_ns: Value
    fence_ns: Value
    prologue_ns: Value
    iteration_ns: Value
    l2_read_ns: Value
    uncached_read_ns: Value
    remote_read_ns: Value
    l2_write_ns: Value
    uncached_write_ns: Value
    remote_write_ns: Value
    remote_ack_ns: Value
    atomic_ns: Value
    poll_gap_ns: Value
    access_sigma: Value
    block_sigma: Value
    cached_gbs: Value
    uncached_gbs: Value
    link_gbs: Value
    link_queue_bytes: Value
    launch_ns: Value
    launch_jitter_ns: Value
    gap_ns: Value
    gap_jitter_ns: Value
    dispatch_ns: Value
    start_jitter_ns: Value
    host_step_ns: Value
    host_poll_ns: Value
    host_jitter_ns: Value

    def __post_init__(self) -> None:
        for name in UNITS:
            value = getattr(self, name).value
            positive = name in ("ranks_per_gpu", "cached_gbs", "uncached_gbs", "link_gbs", "host_poll_ns")
            if not 0 <= value < 1e12 or (positive and value <= 0):
                raise LabError(f"{name} of preset {self.name} is out of range", value=value)

    def table(self) -> Iterator[Parameter]:
        """Every parameter: name, value, unit, meaning, source."""
        for name, (unit, meaning) in UNITS.items():
            entry: Value = getattr(self, name)
            yield Parameter(name, entry.value, unit, meaning, entry.source)

    def changed(self, **values: float) -> Preset:
        """A copy with other values, in the units of `UNITS`, whose source is "set by the caller".

        Raises:
            UnknownNameError: There is no such parameter.
            LabError: A value is negative, or zero where that means nothing.
        """
        for name in values:
            if name not in UNITS:
                raise UnknownNameError("timing parameter", name, UNITS)
        given = {name: Value(float(value), "set by the caller") for name, value in values.items()}
        return replace(self, **given)  # type: ignore[arg-type]

    def costs(self) -> Costs:
        """The values alone, as the loop takes them."""
        return Costs(*(float(getattr(self, name).value) for name in Costs._fields))


class Costs(NamedTuple):
    """The values of a `Preset`, in the units of `UNITS`."""

    ranks_per_gpu: float
    step_ns: float
    barrier_ns: float
    fence_ns: float
    prologue_ns: float
    iteration_ns: float
    l2_read_ns: float
    uncached_read_ns: float
    remote_read_ns: float
    l2_write_ns: float
    uncached_write_ns: float
    remote_write_ns: float
    remote_ack_ns: float
    atomic_ns: float
    poll_gap_ns: float
    access_sigma: float
    block_sigma: float
    cached_gbs: float
    uncached_gbs: float
    link_gbs: float
    link_queue_bytes: float
    launch_ns: float
    launch_jitter_ns: float
    gap_ns: float
    gap_jitter_ns: float
    dispatch_ns: float
    start_jitter_ns: float
    host_step_ns: float
    host_poll_ns: float
    host_jitter_ns: float


assert tuple(UNITS) == Costs._fields == tuple(f.name for f in fields(Preset))[2:]

PCIE_V620 = Preset(
    name="pcie_v620",
    about="4 GPUs of the Radeon PRO V620's class, one rank each, over PCIe. Simulated: none of it was measured on one.",
    ranks_per_gpu=Value(1, "reported: 4x V620, tensor parallel 4"),
    step_ns=Value(10),
    barrier_ns=Value(40),
    fence_ns=Value(100),
    prologue_ns=Value(150),
    iteration_ns=Value(40),
    l2_read_ns=Value(150),
    uncached_read_ns=Value(400),
    remote_read_ns=Value(2000),
    l2_write_ns=Value(100),
    uncached_write_ns=Value(250),
    remote_write_ns=Value(900),
    remote_ack_ns=Value(300, "assumed: PCIe writes are posted, so the way to the bus answers, not the target"),
    atomic_ns=Value(300),
    poll_gap_ns=Value(50),
    access_sigma=Value(0.05),
    block_sigma=Value(0.01),
    cached_gbs=Value(1000),
    uncached_gbs=Value(250),
    link_gbs=Value(6.0, "derived: 5.7 ms reported for a two-shot of 20 MiB, which sends 31.5 MB a rank"),
    link_queue_bytes=Value(4096, "assumed: 64 writes of 64 B"),
    launch_ns=Value(8000),
    launch_jitter_ns=Value(2000),
    gap_ns=Value(4000),
    gap_jitter_ns=Value(1000),
    dispatch_ns=Value(20),
    start_jitter_ns=Value(100),
    host_step_ns=Value(3000),
    host_poll_ns=Value(1000),
    host_jitter_ns=Value(3000),
)

H200 = Preset(
    name="h200",
    about="2 GPUs of the H200's class, two ranks each, over NVLink. Simulated; measured rows have the same setting.",
    ranks_per_gpu=Value(2, "how the two-GPU measurements were made"),
    step_ns=Value(10),
    barrier_ns=Value(30),
    fence_ns=Value(300),
    prologue_ns=Value(180, "assumed, with the measured H200 table in view; one value for all sizes"),
    iteration_ns=Value(20),
    l2_read_ns=Value(200),
    uncached_read_ns=Value(220),
    remote_read_ns=Value(1200),
    l2_write_ns=Value(100),
    uncached_write_ns=Value(150),
    remote_write_ns=Value(600),
    remote_ack_ns=Value(1200, "assumed: twice the way, since the target answers"),
    atomic_ns=Value(400),
    poll_gap_ns=Value(20),
    access_sigma=Value(0.1, "assumed, with the measured H200 table in view; one value for all sizes"),
    block_sigma=Value(0.04, "assumed, with the measured H200 table in view; one value for all sizes"),
    cached_gbs=Value(5000),
    uncached_gbs=Value(3000),
    link_gbs=Value(300),
    link_queue_bytes=Value(65536),
    launch_ns=Value(4000),
    launch_jitter_ns=Value(3000),
    gap_ns=Value(1200),
    gap_jitter_ns=Value(300),
    dispatch_ns=Value(10),
    start_jitter_ns=Value(50),
    host_step_ns=Value(2500),
    host_poll_ns=Value(500),
    host_jitter_ns=Value(5000),
)

H200_ONE_GPU = replace(
    H200,
    name="h200_one_gpu",
    about="1 GPU of the H200's class that all four ranks share. Simulated; measured rows have the same setting.",
    ranks_per_gpu=Value(4, "how the one-GPU measurements were made"),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (PCIE_V620, H200, H200_ONE_GPU)}


def preset(name: str | Preset) -> Preset:
    """The preset of that name.

    Raises:
        UnknownNameError: There is none; the hint gives the nearest names.
    """
    if isinstance(name, Preset):
        return name
    if name not in PRESETS:
        raise UnknownNameError("timing preset", name, PRESETS)
    return PRESETS[name]
