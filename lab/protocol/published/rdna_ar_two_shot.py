"""rdna_ar two-shot, D1 and D2: the two defects of the seed, each with what repairs it and nothing around them.

Scatter by push, reduce the own part, allgather by push. `lab.protocol.seed_rdna_ar` is the kernel as it is; this is its core.

D1. The reduce maps one element to a thread, the push that follows maps a vector of eight, and only a block barrier stands between
them: a block pushes elements that other blocks reduce.
Missing: order from another block's reduce to this block's push.
Fix: a grid barrier; or the mapping of the push in the reduce too, so that a block pushes what it reduced itself.

D2. The allgather slot of call n is the scatter slot of call n + 1.
Missing: order from a peer's copy out of the slot in call n to this rank's scatter into it in call n + 1.
Fix: a region of its own for the allgather.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, KIB, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """Slots of both parities, an allgather region that only the fix uses, flags, and a counter of blocks."""
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.payload("gather", m.max_elements, UNCACHED, parity=2, source=m.world)
    flag_per_block_and_rank(m, "scattered", "gathered")
    m.words("arrived")


def grid_barrier(b: Block, turn: int) -> None:
    """All blocks of this rank, for the `turn`-th time."""
    b.barrier()
    b.leader.add(b.mine.arrived, 1, ACQ_REL, DEVICE)
    b.leader.wait(b.mine.arrived, ">=", turn * b.blocks, ACQUIRE, DEVICE)
    b.barrier()


def two_shot(b: Block, grid: bool, one_mapping: bool, own_region: bool) -> None:
    """The text that both defects share; all three flags false is the defective kernel."""
    n, p = b.elements // b.world, b.call % 2
    chunk = [slice(j * n, (j + 1) * n if j < b.world - 1 else b.elements) for j in range(b.world)]
    size = [c.stop - c.start for c in chunk]
    mine, own = chunk[b.rank], slice(size[b.rank])
    slot = [b.on(j).gather[p, b.rank] if own_region else b.on(j).staging[1 - p, b.rank] for j in range(b.world)]
    gathered = [b.mine.gather[p, j] if own_region else b.mine.staging[1 - p, j] for j in range(b.world)]

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input[chunk[j]], b.on(j).staging[p, b.rank][: size[j]])
    cross_rank_barrier(b, "scattered", b.call)

    b.phase("reduce")
    terms = [b.input[mine] if j == b.rank else b.mine.staging[p, j][own] for j in range(b.world)]
    b.reduce(terms, b.output[mine], vector=8 if one_mapping else 1)
    grid_barrier(b, 2 * b.call - 1) if grid else b.barrier()

    b.phase("allgather")
    for j in b.peers:
        b.copy(b.output[mine], slot[j][own], vector=8)
    grid_barrier(b, 2 * b.call)
    cross_rank_barrier(b, "gathered", b.call)

    b.phase("copy out")
    for j in b.peers:
        b.copy(gathered[j][: size[j]], b.output[chunk[j]])
