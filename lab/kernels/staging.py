"""The host's mirror of hip/staging.hpp: where things lie in a rank's workspace, and the kernel argument."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from lab.errors import LabError

MAX_RANKS = 8
MAX_BLOCKS = 512
VECTOR = 16  # bytes
FLAG_BYTES = 2 * MAX_BLOCKS * MAX_RANKS * 8
SENTINEL = 0xFF  # every byte of an empty packet slot

# the order of lab::Algorithm
ALGORITHMS = (
    "one_shot",
    "two_shot",
    "low_latency",
    "seed_two_shot",
    "reduce_scatter",
    "all_gather",
    "pull",
    "pull_two_stage",
    "add_rmsnorm",
    "add_rmsnorm_two_stage",
)
PHASES = ("scatter", "gather", "packet", "own_grid", "enter", "leave")  # the order of lab::Phase
LARGEST_PULL = (1 << 32) - VECTOR  # a peer's vector is found by a 32-bit offset; nothing is staged
KINDS = ("none", "late", "lost")  # the order of lab::Kind


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Layout:
    """Offsets and strides in bytes of the regions of a workspace; the same on every rank.

    Attributes:
        world: ranks, 2..8.
        max_bytes: largest message of two_shot.
        one_shot_bytes: largest message of one_shot.
        packet_bytes: largest message of low_latency.
    """

    world: int
    max_bytes: int
    one_shot_bytes: int
    packet_bytes: int

    def __post_init__(self):
        if not 2 <= self.world <= MAX_RANKS:
            raise LabError("world is out of range", value=self.world, hint="use 2 to 8 ranks")
        if min(self.max_bytes, self.one_shot_bytes, self.packet_bytes) < VECTOR:
            raise LabError("a region is smaller than one vector", value=self, hint="give 16 bytes or more")

    @property
    def part_bytes(self) -> int:
        """A rank's part of the largest two_shot message."""
        vectors = -(-self.max_bytes // VECTOR)
        return -(-vectors // self.world) * VECTOR

    @property
    def scatter_offset(self) -> int:
        """Where the slots for inputs start."""
        return FLAG_BYTES

    @property
    def scatter_stride(self) -> int:
        """Bytes from one slot for inputs to the next."""
        return _up(max(self.part_bytes, self.one_shot_bytes), 256)

    @property
    def gather_offset(self) -> int:
        """Where the slots for two_shot's reduced parts start."""
        return self.scatter_offset + 2 * self.world * self.scatter_stride

    @property
    def gather_stride(self) -> int:
        """Bytes from one slot for reduced parts to the next."""
        return _up(self.part_bytes, 256)

    @property
    def packets_offset(self) -> int:
        """Where low_latency's slots start."""
        return self.gather_offset + 2 * self.world * self.gather_stride

    @property
    def packets_stride(self) -> int:
        """Bytes from one of low_latency's slots to the next."""
        return _up(self.packet_bytes, 256)

    @property
    def total_bytes(self) -> int:
        """Size of a workspace."""
        return self.packets_offset + 2 * self.world * self.packets_stride

    def capacity(self, algorithm: str) -> int:
        """Largest message in bytes that `algorithm` can carry; of reduce_scatter and all_gather, a rank's part."""
        own = {
            "one_shot": self.one_shot_bytes,
            "low_latency": self.packet_bytes,
            "reduce_scatter": self.part_bytes,
            "all_gather": self.part_bytes,
            "pull": LARGEST_PULL,
        }
        return own.get(algorithm, self.max_bytes)


class Control(ctypes.Structure):
    """lab::Control: words of one GPU."""

    _fields_ = [
        ("epoch", ctypes.c_uint64 * MAX_BLOCKS),
        ("aborted_at", ctypes.c_uint64),
        ("claimed_late", ctypes.c_uint64),
        ("seed_words", ctypes.c_uint64 * 8),
    ]


class WaitRecord(ctypes.Structure):
    """lab::WaitRecord: what a kernel reports about a wait that passed its bound."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("kind", "algorithm", "phase", "peer", "epoch", "block", "thread", "blocks", "threads"),
            *("count", "waited", "seen"),
        )
    ]


class Norm(ctypes.Structure):
    """lab::Norm: what add_rmsnorm does besides the all-reduce."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("residual", "residual_out", "weight")),
        *((name, ctypes.c_uint32) for name in ("hidden", "points")),
        ("eps", ctypes.c_float),
    ]


class Call(ctypes.Structure):
    """lab::Call: the kernel argument."""

    _fields_ = [
        ("workspace", ctypes.c_uint64 * MAX_RANKS),
        *((name, ctypes.c_uint64) for name in ("input", "output", "control", "records", "trace", "count")),
        *((name, ctypes.c_uint64) for name in ("timeout", "grace", "scatter_offset", "scatter_stride")),
        *((name, ctypes.c_uint64) for name in ("gather_offset", "gather_stride")),
        *((name, ctypes.c_uint64) for name in ("packets_offset", "packets_stride")),
        *((name, ctypes.c_uint32) for name in ("rank", "blocks", "threads", "trace_events")),
        *((name, ctypes.c_uint32) for name in ("rounding_seed", "lets_at_once")),
        ("registered", ctypes.c_uint64),
        ("norm", Norm),
    ]

    def connect(self, rank: int, workspaces: Sequence[int]) -> None:
        """Fill in rank and workspaces, given by rank: the kernel wants them in the order in which it pushes."""
        self.rank = rank
        for k in range(len(workspaces)):
            self.workspace[k] = workspaces[(rank + k) % len(workspaces)]

    def place(self, layout: Layout) -> None:
        """Fill in the offsets and strides."""
        for region in ("scatter", "gather", "packets"):
            for what in ("offset", "stride"):
                setattr(self, f"{region}_{what}", getattr(layout, f"{region}_{what}"))


@dataclass(frozen=True)
class Wait:
    """A decoded WaitRecord.

    Attributes:
        kind: "late" (it came, after the bound; the result is right) or "lost" (it never came; no result).
        peer: the rank that was waited for.
        waited: clock ticks; nanoseconds on NVIDIA, 10 ns on AMD, scheduler steps on the host.
        seen: the flag's value at the last look; for packets, the sentinel.
    """

    kind: str
    algorithm: str
    phase: str
    peer: int
    epoch: int
    block: int
    thread: int
    blocks: int
    threads: int
    count: int
    waited: int
    seen: int

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.algorithm} call {self.epoch}, phase {self.phase}, rank {self.peer} after "
            f"{self.waited} ticks (block {self.block} of {self.blocks}, thread {self.thread} of {self.threads}, "
            f"{self.count} elements, flag seen {self.seen})"
        )


def decode_records(records: "ctypes.Array[WaitRecord]") -> list[Wait]:
    """The waits that a rank's two records hold: at most one late, one lost."""
    found = []
    for record in records:
        if record.kind:
            values = {name: int(getattr(record, name)) for name, _ in WaitRecord._fields_}
            values["kind"] = KINDS[record.kind]
            values["algorithm"] = ALGORITHMS[record.algorithm]
            values["phase"] = PHASES[record.phase]
            found.append(Wait(**values))
    return found
