"""aiter#2890: a relaxed barrier at the end of a kernel that stored into the peers' memory.

Kernel 1 reduces its part of the peers' inputs, stores it into the scratch of every rank and ends with a relaxed
barrier. Kernel 2 reads its own scratch. The kernel boundary orders a rank's own kernels; the stores of the peers are
ordered by the barrier or by nothing.
Missing: release of the peers' stores at the end of their kernel 1, acquire before the own kernel 2.
Fix: a closing barrier that releases and acquires.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank, only
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, UNCACHED, Block, Declare, Host, protocol


def memory(m: Declare) -> None:
    """The registered input, the scratch that all ranks write, and the flags."""
    m.payload("input", m.max_elements)
    m.payload("scratch", m.max_elements, UNCACHED)
    flag_per_block_and_rank(m, "start", "end")


def two_kernels(h: Host) -> None:
    """Each call is kernel 1, which fills the scratch, and kernel 2, which reads it."""
    for index, nbytes in enumerate(h.sizes()):
        out = h.output(nbytes)
        h.produce(h.mine.input)
        h.launch(nbytes=nbytes, args={"round": index + 1})
        h.launch(output=out, nbytes=nbytes, kernel=read_scratch)
        h.consume(out)
    h.sync()


def read_scratch(b: Block) -> None:
    """Kernel 2: in reality a normalisation; here a copy."""
    b.phase("read scratch")
    b.copy(b.mine.scratch[: b.elements], b.output, vector=8)


@protocol(
    memory=memory,
    blocks=2,
    scenarios={"two_kernels": two_kernels},
    accepts=only("two_kernels"),
    bytes=2048,
    options={"release_acquire": False},
)
def aiter_2890(b: Block) -> None:
    """Kernel 1: own part into every rank's scratch; without `release_acquire`, its last barrier orders nothing."""
    n = b.elements // b.world
    mine = slice(b.rank * n, (b.rank + 1) * n if b.rank < b.world - 1 else b.elements)
    cross_rank_barrier(b, "start", b.args["round"])
    b.phase("reduce")
    for k in range(b.world):
        b.reduce([b.on(j).input[mine] for j in range(b.world)], b.on(k).scratch[mine])
    b.phase("end")
    orders = (RELEASE, ACQUIRE) if b.options["release_acquire"] else (RELAXED, RELAXED)
    cross_rank_barrier(b, "end", b.args["round"], *orders)
