"""aiter#3514: no exit barrier after reading the peers' inputs.

Pull, one stage: start flags, then every rank reads the peers' registered input tensors in place. A fast rank leaves
the kernel, and the next kernel on its stream overwrites an input that a slow peer still reads.
Missing: order from a peer's read of the input to its next writer.
Fix: an exit barrier.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank, in_place, only
from lab.protocol.write import Block, Declare, protocol


def memory(m: Declare) -> None:
    """The registered input and the flags."""
    m.payload("input", m.max_elements)
    flag_per_block_and_rank(m, "start", "exit")


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"in_place": in_place},
    accepts=only("in_place"),
    bytes=512,
    options={"exit_barrier": False},
)
def aiter_3514(b: Block) -> None:
    """Pull from registered inputs; without `exit_barrier`, the next kernel may overwrite what a peer still reads."""
    b.phase("start")
    cross_rank_barrier(b, "start", b.args["round"])

    b.phase("pull")
    b.reduce([b.on(j).input[: b.elements] for j in range(b.world)], b.output)

    if b.options["exit_barrier"]:
        b.phase("exit")
        cross_rank_barrier(b, "exit", b.args["round"])
