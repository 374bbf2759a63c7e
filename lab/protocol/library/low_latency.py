"""Low-latency all-reduce: the data is its own flag. One phase, no fence, no flag, no meeting of blocks.

The protocol of `lab/kernels/hip/low_latency.hip`. A packet that has arrived differs from the sentinel in every word:
here its stamp is FULL, and EMPTY where the reader has put the sentinel back. The writer comes again two calls later,
behind that store. A thread checks each of its words; here an agent waits for those of all its threads.
"""

from __future__ import annotations

from functools import partial

from lab.protocol.library.calls import CALLS
from lab.protocol.library.signal import SECONDS, Turn, advance_epoch, begin_call, write_record
from lab.protocol.library.staging import ALGORITHMS, EMPTY, FULL, PACKET, abort_record, packet_slot, staging, vector
from lab.protocol.write import KIB, Block, protocol


def vectors_of_a_round(b: Block) -> list[slice]:
    """The elements that the grid handles in each iteration of its loop, a vector a thread."""
    stride = b.blocks * b.threads * vector(b)
    return [slice(lo, min(lo + stride, b.elements)) for lo in range(0, b.elements, stride)]


def push(b: Block, turn: Turn, v: slice) -> None:
    """Vectors v of my input to my slot on every peer."""
    for j in b.peers:
        b.copy(b.input[v], packet_slot(b, j, turn.parity, b.rank)[v], vector(b), stamp=FULL, ragged=True)


def receive_and_sum(b: Block, turn: Turn, v: slice) -> None:
    """Take every peer's vectors v from my slots, sum, give the slots back."""

    def lose(peer: int) -> None:
        write_record(b, b, turn, ALGORITHMS.index("low_latency"), PACKET, peer)
        b.ret()

    slots = {j: packet_slot(b, b.rank, turn.parity, j)[v] for j in b.peers}
    for j in b.peers:
        b.wait_stamps(slots[j], "!=", EMPTY, vector(b), seconds=SECONDS, on_timeout=partial(lose, j), ragged=True)
    b.reduce([b.input[v] if s == b.rank else slots[s] for s in range(b.world)], b.output[v], vector(b), ragged=True)
    for j in b.peers:
        b.clear(slots[j], EMPTY, vector(b), ragged=True)


@protocol(
    memory=staging,
    blocks=4,
    threads=256,
    scenarios=CALLS,
    abort_record=abort_record,
    scenario="back_to_back",
    bytes=64 * KIB,
    calls=3,
    world=4,
)
def low_latency(b: Block) -> None:
    """The lab's low_latency: push packets, take those of the peers as they arrive, empty their slots."""
    rounds = vectors_of_a_round(b)
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("push")
    push(b, turn, rounds[0])
    b.barrier()  # every thread of the block has read the epoch word
    advance_epoch(b, turn)

    b.phase("receive")  # the next vectors are pushed before each wait, to keep the link busy
    for v, following in zip(rounds, [*rounds[1:], None], strict=True):
        if following is not None:
            push(b, turn, following)
        receive_and_sum(b, turn, v)
