"""ROCm/aiter#6918: the IPC handle of a pool opens the whole allocation, and the tensor's offset in it is taken as 0.

A tensor from a caching allocator seldom begins where its allocation begins. The handle that a rank sends opens the
allocation; without the offset the peers read whatever lies at its start.
Missing: an address. Every access is ordered.
Fix: send the base's handle and the offset.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank, publish_and_pull
from lab.protocol.write import Block, Declare, protocol


def memory(m: Declare) -> None:
    """An allocation whose second half is the tensor."""
    m.payload("pool", 2 * m.max_elements)
    flag_per_block_and_rank(m, "start", "end")


@protocol(memory=memory, blocks=1, bytes=512, options={"send_offset": False})
def aiter_6918(b: Block) -> None:
    """Pull from a tensor in a pool; without `send_offset`, the peers read the start of the pool."""
    offset = b.max_elements
    sent = offset if b.options["send_offset"] else 0
    seen = [offset if j == b.rank else sent for j in range(b.world)]
    publish_and_pull(b, [b.on(j).pool[seen[j] : seen[j] + b.elements] for j in range(b.world)])
