"""pytorch#137257: one-shot over peer-mapped buffers without a closing barrier.

Each rank copies its input into its own buffer, meets the others at a barrier and reads all buffers. The barrier is a
pad per peer that the sender turns from 0 to 1 and the receiver from 1 to 0. After the reads there is no barrier.
Missing: order from a peer's read in call n to this rank's copy into the buffer in call n + 1.
Fix: a closing barrier.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, Block, Declare, protocol


def memory(m: Declare) -> None:
    """The peer-mapped buffer and a pad per block and peer."""
    m.payload("buffer", m.max_elements)
    flag_per_block_and_rank(m, "pad")


def pad_barrier(b: Block) -> None:
    """Put a signal on every peer's pad, then take the signal of every peer off the own pads."""
    b.barrier()
    for j in b.peers:
        pad = b.on(j).pad[b.block, b.rank]
        b.leader.wait(pad, "==", 0, RELAXED, SYSTEM)
        b.leader.cas(pad, 0, 1, RELEASE, SYSTEM)
    for j in b.peers:
        pad = b.mine.pad[b.block, j]
        b.leader.wait(pad, "==", 1, ACQUIRE, SYSTEM)
        b.leader.cas(pad, 1, 0, RELAXED, SYSTEM)
    b.barrier()


@protocol(memory=memory, blocks=1, bytes=512, calls=2, options={"closing_barrier": False})
def pytorch_137257(b: Block) -> None:
    """One-shot; without `closing_barrier`, the next call's copy overwrites what a peer still reads."""
    b.phase("copy in")
    b.copy(b.input, b.mine.buffer[: b.elements])
    pad_barrier(b)

    b.phase("reduce")
    b.reduce([b.on(j).buffer[: b.elements] for j in range(b.world)], b.output)

    if b.options["closing_barrier"]:
        b.phase("close")
        pad_barrier(b)
