"""The seed's two-shot with its two defects repaired and nothing else changed.

D1 is closed by giving the reduce the thread-to-element mapping of the push that reads it: every thread pushes what it
reduced itself, so no other block is involved. D2 is closed by a region of its own for the allgather.
"""

from __future__ import annotations

from lab.protocol.seed.seed_rdna_ar import (
    ALLGATHER,
    ALLGATHER_FLAG,
    GRID_BARRIER,
    SCATTER,
    SCATTER_FLAG,
    SECOND_GRID_BARRIER,
    abort_record,
    announce,
    copy,
    grid,
    parts,
    self_test,
    self_test_fits,
    staging_and_flags,
    terms,
)
from lab.protocol.write import ACQUIRE, DEVICE, KIB, UNCACHED, Block, Declare, protocol


def with_gather(m: Declare) -> None:
    """The seed's memory and one more staging region, for the allgather."""
    staging_and_flags(m)
    m.payload("gather", m.max_elements, UNCACHED, parity=2, source=m.world)


@protocol(
    memory=with_gather,
    blocks=grid,
    scenarios={"self_test": self_test},
    accepts=self_test_fits,
    abort_record=abort_record,
    options={"pace": 0},
    bytes=64 * KIB,
    world=4,
    scenario="back_to_back",
)
def repaired_two_shot(b: Block) -> None:
    """rdna_ar two-shot, repaired: one mapping for reduce and push, and an allgather region of its own."""
    chunk, size = parts(b)
    mine, own = chunk[b.rank], slice(size[b.rank])
    seq = b.share(b.leader.load(b.mine.seqbuf, ACQUIRE, DEVICE, "seqbuf") + 1)
    p = b.let(seq % 2)
    q = 1 - p

    b.phase("scatter")
    for j in b.peers:
        copy(b, b.input[chunk[j]], b.on(j).staging[p, b.rank][: size[j]])
    b.barrier()
    announce(b, b.mine.arrive[p], seq, SCATTER, [], (GRID_BARRIER, SCATTER_FLAG), publish=True)

    b.phase("reduce")
    slots = [b.on(j).gather[p, b.rank][own] for j in b.peers]
    vector = b.vector_elements(b.output[mine], *slots) if not b.options["pace"] else 1
    b.reduce(terms(b, p, own, mine), b.output[mine], vector)

    b.phase("allgather")
    for slot in slots:
        b.copy(b.output[mine], slot, vector)
    b.barrier()
    both = [b.mine.arrive[p], b.mine.arrive[q]]
    announce(b, b.mine.arrive[q], seq, ALLGATHER, both, (SECOND_GRID_BARRIER, ALLGATHER_FLAG), publish=False)

    b.phase("copy out")
    for j in b.peers:
        copy(b, b.mine.gather[p, j][: size[j]], b.output[chunk[j]])
