"""vllm#2760: one-byte flags that share a word, and no fence between a partial result and its signal.

Two stages: every rank reduces its part of the peers' registered inputs into a partial result, signals, and gathers
the partial results. Eight one-byte flags share eight bytes that the owner polls whole; a peer raises its own byte
only. Nothing orders the partial result with the byte.
Missing: release of the partial result before the signal, acquire after the poll.
Fix: a 32-bit word a peer, stored with release and polled with acquire.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank, in_place, only
from lab.protocol.write import RELAXED, SYSTEM, UNCACHED, Block, Declare, protocol

STAGES = ("start", "reduced")


def memory(m: Declare) -> None:
    """The registered input, the partial result, and both kinds of signals: eight bytes, or a word a peer."""
    m.payload("input", m.max_elements)
    m.payload("partial", m.max_elements, UNCACHED)
    m.words("bytes", 2, stage=len(STAGES), block=m.blocks)
    flag_per_block_and_rank(m, *STAGES)


def byte_barrier(b: Block, stage: int, turn: int) -> None:
    """Raise the own byte of every peer's eight to `turn`, then poll the own eight until every peer's byte is there."""
    b.barrier()
    for j in b.peers:
        b.leader.add(b.on(j).bytes[stage, b.block, b.rank // 4], 1 << 8 * (b.rank % 4), RELAXED, SYSTEM)
    for half in range(2):
        due = sum(turn << 8 * (j % 4) for j in b.peers if j // 4 == half)
        b.leader.wait(b.mine.bytes[stage, b.block, half], "==", due, RELAXED, SYSTEM)
    b.barrier()


def signal(b: Block, stage: int) -> None:
    """Meet the peers at a stage."""
    if b.options["word_per_peer"]:
        cross_rank_barrier(b, STAGES[stage], b.args["round"])
    else:
        byte_barrier(b, stage, b.args["round"])


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"in_place": in_place},
    accepts=only("in_place"),
    bytes=512,
    options={"word_per_peer": False},
)
def vllm_2760(b: Block) -> None:
    """Two-stage pull; without `word_per_peer`, its signals are relaxed bytes of a shared word."""
    n = b.elements // b.world
    chunk = [slice(j * n, (j + 1) * n if j < b.world - 1 else b.elements) for j in range(b.world)]
    mine = chunk[b.rank]
    signal(b, 0)
    b.phase("reduce own part")
    b.reduce([b.on(j).input[mine] for j in range(b.world)], b.mine.partial[mine])
    signal(b, 1)
    b.phase("gather")
    for j in range(b.world):
        b.copy(b.on(j).partial[chunk[j]], b.output[chunk[j]])
