"""rccl#1932: packets of data and flag in cached memory that is never written back.

Low latency: four bytes of data and four of flag in one eight-byte store, so that the flag cannot arrive before the
data and no order is needed. The stores go to memory that the sender's GPU caches, and nothing ever writes them back:
the peer polls for ever.
Missing: visibility, not order. Every interleaving of a memory that is always up to date is right; only a memory
model with write-back caches can show the hang.
Fix: uncached memory (`uncached`), or a release after the stores (`release`).
"""

from __future__ import annotations

from lab.protocol.published.shared import only
from lab.protocol.write import CACHED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """Packet slots of two parities."""
    kind = UNCACHED if m.options["uncached"] else CACHED
    m.payload("packet", m.max_elements, kind, parity=2, source=m.world)


@protocol(
    memory=memory,
    blocks=1,
    accepts=only("back_to_back", "isolated"),
    bytes=4,
    dtype="fp32",
    options={"uncached": False, "release": False},
)
def rccl_1932(b: Block) -> None:
    """One-shot in packets; its stores become visible only with `uncached` memory or a `release` after them."""
    p = b.call % 2
    b.phase("send")
    for j in b.peers:
        b.copy(b.input, b.on(j).packet[p, b.rank][: b.elements], stamp=b.call)
    if b.options["release"]:
        b.fence(RELEASE, SYSTEM)

    b.phase("receive")
    for j in b.peers:
        b.wait_stamps(b.mine.packet[p, j][: b.elements], "==", b.call)
    b.reduce([b.input if j == b.rank else b.mine.packet[p, j][: b.elements] for j in range(b.world)], b.output)
