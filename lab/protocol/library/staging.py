"""What a rank of the lab's kernels owns, and where: `lab/kernels/hip/staging.hpp` in the language.

One uncached workspace a rank, mapped by every rank: flags, and slots for `one_shot`, `two_shot` and `low_latency`, two
parities each. Control words are the GPU's own. Slots hold whole vectors of 16 bytes, so messages of any count fit.

Epochs and flags have 64 bits in the kernels and never wrap; here they are words of 32 bits, and no program makes 2**32
calls. The kernels keep `max_blocks` epoch words; here there are as many as the largest grid of the program has blocks,
since a block reads its own word only.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.language.layout import Buffer, View
from lab.protocol.language.owned import Owned
from lab.protocol.write import CACHED, HOST_MAPPED, UNCACHED, AbortWords, Block, Declare, Expr

VECTOR_BYTES = 16
SCATTER, GATHER, PACKET, ENTER, LEAVE = range(5)  # phases of the abort record
PHASES = ("scatter", "gather", "packet", "enter", "leave")
ROW = {SCATTER: 0, ENTER: 0, GATHER: 1, LEAVE: 1}  # of the flags: that of a call's first meeting, and of its second
ALGORITHMS = (
    "one_shot",
    "two_shot",
    "low_latency",
    "reduce_scatter",
    "all_gather",
    "pull",
    "pull_two_stage",
    "add_rmsnorm",
    "add_rmsnorm_two_stage",
)
LOST = 2  # kind of a record
EMPTY, FULL = 0, 1  # stamps of a packet: its words are the sentinel, or none of them is


def staging(m: Declare, communicator: str = "", parts: int = 1) -> None:
    """Flags, slots and control words of one rank, for messages of `parts` times the largest of the configuration.

    The names of one of several communicators' begin with its own.
    """
    vectors = -(-m.max_bytes * parts // VECTOR_BYTES)
    width = VECTOR_BYTES // m.itemsize
    m.words(
        communicator + "flags", m.world, UNCACHED, row=2, block=m.blocks
    )  # [row][block][writer]; a writer's word is its alone
    m.payload(communicator + "scatter", vectors * width, UNCACHED, parity=2, source=m.world)
    m.payload(communicator + "gather", -(-vectors // m.world) * width, UNCACHED, parity=2, source=m.world)
    m.payload(communicator + "packets", vectors * width, UNCACHED, parity=2, source=m.world)
    m.words(communicator + "epoch", m.blocks, CACHED)
    m.words(communicator + "aborted_at", memory=CACHED)
    m.words(communicator + "record", 6, HOST_MAPPED)


@dataclass(frozen=True)
class Workspace:
    """A rank's regions, of the communicator that the launch belongs to."""

    regions: Owned
    communicator: str

    def __getattr__(self, name: str) -> Buffer:
        return getattr(self.regions, self.communicator + name)


def owned(b: Block, owner: int) -> Workspace:
    """The workspace of `owner`."""
    return Workspace(b.on(owner), b.args.get("communicator", ""))


def mine(b: Block) -> Workspace:
    """The workspace and the control words of this rank."""
    return Workspace(b.mine, b.args.get("communicator", ""))


def scatter_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its input, or the owner's part of it, for `owner`."""
    return owned(b, owner).scatter[parity, writer]


def gather_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its reduced part for `owner`."""
    return owned(b, owner).gather[parity, writer]


def packet_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its packets for `owner`."""
    return owned(b, owner).packets[parity, writer]


def vector(b: Block) -> int:
    """Elements of a vector."""
    return VECTOR_BYTES // b.itemsize


def part_of(b: Block, rank: int) -> slice:
    """The elements that `rank` owns in two_shot: whole vectors, as many as any other's or fewer."""
    vectors = -(-b.elements // vector(b))
    part = -(-vectors // b.world) * vector(b)
    return slice(min(rank * part, b.elements), min((rank + 1) * part, b.elements))


def equal_part(elements: int, b: Block, rank: int) -> slice:
    """The elements of `rank` where each rank owns as many."""
    each = elements // b.world
    return slice(rank * each, (rank + 1) * each)


def abort_record(words: AbortWords, communicator: str = "") -> str | None:
    """Decode a rank's record of its first lost wait."""
    kind, algorithm, phase, peer, epoch, block = (words(communicator + "record", k) for k in range(6))
    if kind != LOST:
        return None
    return f"lost: {ALGORITHMS[algorithm]} call {epoch}, phase {PHASES[phase]}, rank {peer} (block {block})"
