"""tokenspeed#1017: a shared buffer is overwritten before the peers have read it.

Each rank copies its input into its own shared buffer, raises a "ready" epoch per block and reads every peer's
buffer. There is one buffer, and nothing proves that the peers have read it when the next call overwrites it.
Missing: order from a peer's read in call n to this rank's write in call n + 1.
Fix: a second epoch, "done", which every rank raises after its reads and waits for before it overwrites.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank
from lab.protocol.write import ACQUIRE, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """The shared buffer and the two epochs."""
    m.payload("shared", m.max_elements, UNCACHED)
    flag_per_block_and_rank(m, "ready", "done")


@protocol(memory=memory, blocks=1, bytes=512, calls=2, options={"done_epoch": False})
def tokenspeed_1017(b: Block) -> None:
    """One-shot over shared buffers; without `done_epoch`, a buffer is reused before the peers have consumed it."""
    if b.options["done_epoch"] and b.call > 1:
        b.phase("wait until consumed")
        for j in b.peers:
            b.leader.wait(b.mine.done[b.block, j], ">=", b.call - 1, ACQUIRE, SYSTEM)
        b.barrier()

    b.phase("publish")
    b.copy(b.input, b.mine.shared[: b.elements])
    cross_rank_barrier(b, "ready", b.call)

    b.phase("reduce")
    b.reduce([b.on(j).shared[: b.elements] for j in range(b.world)], b.output)

    if b.options["done_epoch"]:
        b.phase("consumed")
        b.barrier()
        for j in b.peers:
            b.leader.store(b.on(j).done[b.block, b.rank], b.call, RELEASE, SYSTEM)
