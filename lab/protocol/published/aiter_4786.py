"""aiter#4786: a flag of another GPU polled at device scope, and a cache-bypassing store with no fence before the flag.

Push: payload into the peers' slots with stores that bypass the cache, then a flag. The receiver polls the flag at
device scope: it may look at an old copy in its own GPU's cache for a long time. Nothing makes the payload arrive
before the flag.
Missing: a fence between payload and flag; system scope on the poll.
Fix: both.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank, only
from lab.protocol.write import (
    ACQUIRE,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Cache,
    Declare,
    protocol,
)


def memory(m: Declare) -> None:
    """Slots of two parities and the flags."""
    m.payload("slot", m.max_elements, UNCACHED, parity=2, source=m.world)
    flag_per_block_and_rank(m, "flag")


@protocol(
    memory=memory,
    blocks=1,
    accepts=only("back_to_back", "isolated"),
    bytes=512,
    options={"fence": False, "system_scope": False},
)
def aiter_4786(b: Block) -> None:
    """One-shot push; needs `fence` before its flags and `system_scope` on its polls."""
    p = b.call % 2
    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[p, b.rank][: b.elements], cache=Cache.BYPASS)
    b.barrier()
    if b.options["fence"]:
        b.leader.fence(RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.block, b.rank], b.call, RELAXED, SYSTEM)

    b.phase("reduce")
    for j in b.peers:
        scope = SYSTEM if b.options["system_scope"] else DEVICE
        b.leader.wait(b.mine.flag[b.block, j], ">=", b.call, ACQUIRE, scope)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.slot[p, j][: b.elements] for j in range(b.world)], b.output)
