"""mori#494: a signal that is set to 1 and cleared to 0, and waiters for equality.

Block 0 meets the other ranks for the whole grid, then tells the other blocks by writing 1 to a word, which it clears
at its end. They wait until the word is 1. A block that looks only after the clear waits for ever, and where nothing
orders the clear of one call with the set of the next, it undoes that set.
Missing: order from the last look at the 1 to its clear, and from the clear to the next set.
Fix: a value that only grows, and a wait for "at least".
"""

from __future__ import annotations

from lab.protocol.published.shared import only
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """Shared buffers of two parities, the counter of blocks, the flags of the ranks, and the word of block 0."""
    m.payload("shared", m.max_elements, UNCACHED, parity=2)
    m.words("arrived")
    m.words("flag", m.world)
    m.words("go")


@protocol(
    memory=memory,
    blocks=2,
    accepts=only("back_to_back", "isolated"),
    world=1,
    bytes=1024,
    calls=2,
    options={"grow_only": False},
)
def mori_494(b: Block) -> None:
    """One-shot whose block 0 meets the ranks for all blocks; without `grow_only`, its signal to them can be lost."""
    shared = b.call % 2
    b.phase("publish")
    b.copy(b.input, b.mine.shared[shared][: b.elements])
    b.barrier()
    b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)

    b.phase("barrier")
    if b.block == 0:
        b.leader.wait(b.mine.arrived, ">=", b.call * b.blocks, ACQUIRE, DEVICE)
        for j in b.peers:
            b.leader.store(b.on(j).flag[b.rank], b.call, RELEASE, SYSTEM)
        for j in b.peers:
            b.leader.wait(b.mine.flag[j], ">=", b.call, ACQUIRE, SYSTEM)
        b.leader.store(b.mine.go, b.call if b.options["grow_only"] else 1, RELEASE, DEVICE)
    elif b.options["grow_only"]:
        b.leader.wait(b.mine.go, ">=", b.call, ACQUIRE, DEVICE)
    else:
        b.leader.wait(b.mine.go, "==", 1, ACQUIRE, DEVICE)
    b.barrier()

    b.phase("reduce")
    b.reduce([b.on(j).shared[shared][: b.elements] for j in range(b.world)], b.output)
    if b.block == 0 and not b.options["grow_only"]:
        b.leader.store(b.mine.go, 0, RELAXED, DEVICE)
