"""What a rank of the lab's kernels owns, and where: `lab/kernels/hip/staging.hpp` in the language.

One uncached workspace a rank, mapped by every rank: flags, and slots for `one_shot`, `two_shot` and `low_latency`, two
parities each. Control words are the GPU's own. Slots hold whole vectors of 16 bytes, so messages of any count fit.

Epochs and flags have 64 bits in the kernels and never wrap; here they are words of 32 bits, and no program makes 2**32
calls. The kernels keep `max_blocks` epoch words; here there are as many as the largest grid of the program has blocks,
since a block reads its own word only.
"""

from __future__ import annotations

from lab.protocol.language.layout import View
from lab.protocol.write import CACHED, HOST_MAPPED, UNCACHED, AbortWords, Block, Declare, Expr

VECTOR_BYTES = 16
SCATTER, GATHER, PACKET = range(3)  # phases of the abort record; the first two are the rows of the flags as well
PHASES = ("scatter", "gather", "packet")
ALGORITHMS = ("one_shot", "two_shot", "low_latency")
LOST = 2  # kind of a record
EMPTY, FULL = 0, 1  # stamps of a packet: its words are the sentinel, or none of them is


def staging(m: Declare) -> None:
    """Flags, slots and control words of one rank."""
    vectors = -(-m.max_bytes // VECTOR_BYTES)
    width = VECTOR_BYTES // m.itemsize
    m.words("flags", m.world, UNCACHED, row=2, block=m.blocks)  # [row][block][writer]; a writer's word is its alone
    m.payload("scatter", vectors * width, UNCACHED, parity=2, source=m.world)
    m.payload("gather", -(-vectors // m.world) * width, UNCACHED, parity=2, source=m.world)
    m.payload("packets", vectors * width, UNCACHED, parity=2, source=m.world)
    m.words("epoch", m.blocks, CACHED)
    m.words("aborted_at", memory=CACHED)
    m.words("record", 6, HOST_MAPPED)


def scatter_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its input, or the owner's part of it, for `owner`."""
    return b.on(owner).scatter[parity, writer]


def gather_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its reduced part for `owner`."""
    return b.on(owner).gather[parity, writer]


def packet_slot(b: Block, owner: int, parity: Expr, writer: int) -> View:
    """Where `writer` puts its packets for `owner`."""
    return b.on(owner).packets[parity, writer]


def vector(b: Block) -> int:
    """Elements of a vector."""
    return VECTOR_BYTES // b.itemsize


def part_of(b: Block, rank: int) -> slice:
    """The elements that `rank` owns in two_shot: whole vectors, as many as any other's or fewer."""
    vectors = -(-b.elements // vector(b))
    part = -(-vectors // b.world) * vector(b)
    return slice(min(rank * part, b.elements), min((rank + 1) * part, b.elements))


def abort_record(words: AbortWords) -> str | None:
    """Decode a rank's record of its first lost wait."""
    kind, algorithm, phase, peer, epoch, block = (words("record", k) for k in range(6))
    if kind != LOST:
        return None
    return f"lost: {ALGORITHMS[algorithm]} call {epoch}, phase {PHASES[phase]}, rank {peer} (block {block})"
