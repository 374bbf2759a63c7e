"""flashinfer#4092: a packet that all threads of a block fill, published without a block barrier.

All waves of a block write their share of a packet into the peer's slot; thread 0 then publishes it. It releases what
its own wave has written. The other waves may not have written theirs.
Missing: order from the stores of the other waves to the flag.
Fix: a block barrier before the flag.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank, only
from lab.protocol.write import ACQUIRE, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """Packet slots of two parities and the flags."""
    m.payload("packet", m.max_elements, UNCACHED, parity=2, source=m.world)
    flag_per_block_and_rank(m, "flag")


@protocol(
    memory=memory,
    blocks=1,
    accepts=only("back_to_back", "isolated"),
    bytes=512,
    waves=2,
    options={"block_barrier": False},
)
def flashinfer_4092(b: Block) -> None:
    """One-shot push; without `block_barrier`, thread 0 publishes what other waves have not written yet."""
    p = b.call % 2
    b.phase("fill")
    for j in b.peers:
        b.copy(b.input, b.on(j).packet[p, b.rank][: b.elements])
    if b.options["block_barrier"]:
        b.barrier()
    b.phase("publish")
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.block, b.rank], b.call, RELEASE, SYSTEM)

    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.flag[b.block, j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.packet[p, j][: b.elements] for j in range(b.world)], b.output)
