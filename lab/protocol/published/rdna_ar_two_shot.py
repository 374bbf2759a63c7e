"""rdna_ar two-shot, D1 and D2: the two defects of the seed, each with what repairs it and nothing around them.

Scatter by push, reduce the own part, allgather by push. `lab.protocol.seed.seed_rdna_ar` is the kernel as it is; this
is its core.

D1. The reduce maps one element to a thread, the push that follows maps a vector of eight, and only a block barrier
stands between them: a block pushes elements that other blocks reduce.
Missing: order from another block's reduce to this block's push.
Fix: a grid barrier; or the mapping of the push in the reduce too, so that a block pushes what it reduced itself.

D2. The allgather slot of call n is the scatter slot of call n + 1.
Missing: order from a peer's copy out of the slot in call n to this rank's scatter into it in call n + 1.
Fix: a region of its own for the allgather.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, KIB, UNCACHED, Block, Declare, protocol

SCATTER, REDUCE, ALLGATHER = range(3)


def memory(m: Declare) -> None:
    """Slots of both parities, an allgather region that only the repair uses, flags, and counters of blocks by phase."""
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.payload("gather", m.max_elements, UNCACHED, parity=2, source=m.world)
    flag_per_block_and_rank(m, "scattered", "gathered")
    m.words("arrived", 3)


def grid_barrier(b: Block, phase: int) -> None:
    """All blocks of this rank."""
    b.barrier()
    b.leader.add(b.mine.arrived[phase], 1, ACQ_REL, DEVICE)
    b.leader.wait(b.mine.arrived[phase], ">=", b.call * b.blocks, ACQUIRE, DEVICE)
    b.barrier()


def two_shot(b: Block, between: bool, one_mapping: bool, own_region: bool) -> None:
    """Both kernels. `between`: a grid barrier between reduce and push. `own_region`: slots for the allgather alone."""
    n, p = b.elements // b.world, b.call % 2
    chunk = [slice(j * n, (j + 1) * n if j < b.world - 1 else b.elements) for j in range(b.world)]
    part = [slice(c.stop - c.start) for c in chunk]
    mine = chunk[b.rank]

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input[chunk[j]], b.on(j).staging[p, b.rank][part[j]])
    grid_barrier(b, SCATTER)
    cross_rank_barrier(b, "scattered", b.call)

    b.phase("reduce")
    terms = [b.input[mine] if j == b.rank else b.mine.staging[p, j][part[b.rank]] for j in range(b.world)]
    b.reduce(terms, b.output[mine], vector=8 if one_mapping else 1)
    if between:
        grid_barrier(b, REDUCE)
    b.barrier()

    b.phase("allgather")
    for j in b.peers:
        slot = b.on(j).gather[p, b.rank] if own_region else b.on(j).staging[1 - p, b.rank]
        b.copy(b.output[mine], slot[part[b.rank]], vector=8)
    grid_barrier(b, ALLGATHER)
    cross_rank_barrier(b, "gathered", b.call)

    b.phase("copy out")
    for j in b.peers:
        slot = b.mine.gather[p, j] if own_region else b.mine.staging[1 - p, j]
        b.copy(slot[part[j]], b.output[chunk[j]])


@protocol(memory=memory, blocks=2, bytes=2 * KIB, options={"grid_barrier": False, "one_mapping": False})
def rdna_ar_d1(b: Block) -> None:
    """A block barrier where a grid barrier is needed, unless the reduce has the mapping of the push."""
    two_shot(b, b.options["grid_barrier"], b.options["one_mapping"], own_region=True)


@protocol(memory=memory, blocks=1, bytes=512, calls=2, options={"own_region": False})
def rdna_ar_d2(b: Block) -> None:
    """Without `own_region`, the allgather slots of a call are the scatter slots of the next."""
    two_shot(b, between=True, one_mapping=False, own_region=b.options["own_region"])
