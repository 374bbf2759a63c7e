"""vllm#57059: relaxed start flags, polled at device scope.

A producer kernel writes the input, then the all-reduce raises a start flag on every peer with a relaxed store; the
peers poll it relaxed, at device scope, and read the input. The store does not release the input, the poll does not
acquire it, and a poll at device scope need not look beyond the own GPU's caches.
Missing: release by the owner, acquire by the reader, both at system scope.
Fix: exactly these.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank, in_place, only
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, Block, Declare, protocol


def memory(m: Declare) -> None:
    """The registered input and the flags."""
    m.payload("input", m.max_elements)
    flag_per_block_and_rank(m, "start", "end")


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"in_place": in_place},
    accepts=only("in_place"),
    bytes=512,
    options={"release_acquire": False, "system_scope": False},
)
def vllm_57059(b: Block) -> None:
    """Pull from registered inputs; its start flags order something only with `release_acquire` and `system_scope`."""
    orders = (RELEASE, ACQUIRE) if b.options["release_acquire"] else (RELAXED, RELAXED)
    b.phase("start")
    cross_rank_barrier(b, "start", b.args["round"], *orders, polled_at=SYSTEM if b.options["system_scope"] else DEVICE)

    b.phase("pull")
    b.reduce([b.on(j).input[: b.elements] for j in range(b.world)], b.output)

    b.phase("end")
    cross_rank_barrier(b, "end", b.args["round"])
