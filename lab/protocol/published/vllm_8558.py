"""vllm#8558: start and end flags that are set to 1 and reset by the other phase.

Each sync raises the peers' flags of its phase, resets the own flags of the other phase and waits for the own flags
of its phase. A fast peer reaches the second sync and raises its flag there before the slow rank has reset it: the
reset erases the flag, and the slow rank waits for ever.
Missing: order from the reset of a flag to the next time that a peer raises it.
Fix: counters that only grow, in two sets that alternate. With one set (`counters="one set"`) and a wait for
equality, a fast peer can still overwrite a value that nobody has seen.
"""

from __future__ import annotations

from lab.protocol.published.shared import flag_per_block_and_rank, in_place, only
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, Block, Declare, protocol

PHASES = ("start", "end")


def memory(m: Declare) -> None:
    """The registered input, the flags of both phases, and the counters that replace them."""
    m.payload("input", m.max_elements)
    flag_per_block_and_rank(m, *PHASES)
    m.words("count", m.blocks)
    m.words("seen", m.world, set=2, block=m.blocks)


def flag_sync(b: Block, phase: int) -> None:
    """Raise, reset, wait."""
    b.barrier()
    for j in b.peers:
        b.leader.store(getattr(b.on(j), PHASES[phase])[b.block, b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.store(getattr(b.mine, PHASES[1 - phase])[b.block, j], 0, RELAXED, SYSTEM)
    for j in b.peers:
        b.leader.wait(getattr(b.mine, PHASES[phase])[b.block, j], "==", 1, ACQUIRE, SYSTEM)
    b.barrier()


def counter_sync(b: Block) -> None:
    """Count this block's syncs, store the count in every peer's set, and wait for the same count from every peer."""
    count = b.share(b.leader.load(b.mine.count[b.block], RELAXED, DEVICE) + 1)
    chosen = count % 2 if b.options["counters"] == "two sets" else 0
    b.leader.store(b.mine.count[b.block], count, RELAXED, DEVICE)
    for j in b.peers:
        b.leader.store(b.on(j).seen[chosen, b.block, b.rank], count, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.seen[chosen, b.block, j], "==", count, ACQUIRE, SYSTEM)
    b.barrier()


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"in_place": in_place},
    accepts=only("in_place"),
    bytes=512,
    options={"counters": "none"},
)
def vllm_8558(b: Block) -> None:
    """Pull between two syncs; `counters` is none (flags that are reset), "one set" or "two sets"."""
    b.phase("start")
    flag_sync(b, 0) if b.options["counters"] == "none" else counter_sync(b)
    b.phase("pull")
    b.reduce([b.on(j).input[: b.elements] for j in range(b.world)], b.output)
    b.phase("end")
    flag_sync(b, 1) if b.options["counters"] == "none" else counter_sync(b)
