"""All-reduce + residual addition + RMSNorm in one launch, for few tokens: packets, as in low_latency.

The protocol of `lab/kernels/hip/add_rmsnorm.hip`. What is added and normalised is a thread's own and orders nothing:
here the sums go to the tensor of the new residual, and from there, behind the block barriers of a row's sum, to the
output, so that both are checked against the sum over the ranks. A block does whole rows, one after the other.
"""

from __future__ import annotations

from functools import partial

from lab.protocol.library.rows import NORM_CALLS, residual_and_staging, rows_of, whole_rows
from lab.protocol.library.signal import SECONDS, Turn, advance_epoch, begin_call, write_record
from lab.protocol.library.staging import ALGORITHMS, EMPTY, FULL, PACKET, abort_record, packet_slot, vector
from lab.protocol.write import KIB, Block, protocol


def push_row(b: Block, turn: Turn, row: slice) -> None:
    """A row of my input to my slot on every peer."""
    for j in b.peers:
        slot = packet_slot(b, j, turn.parity, b.rank)[row]
        b.copy(b.input[row], slot, vector(b), stamp=FULL, ragged=True, alone=True)


def receive_row(b: Block, turn: Turn, row: slice) -> None:
    """The sums of a row's vectors as they arrive, to the new residual; the slots are given back."""

    def lose(peer: int) -> None:
        write_record(b, b, turn, ALGORITHMS.index("add_rmsnorm"), PACKET, peer)
        b.ret()

    slots = {j: packet_slot(b, b.rank, turn.parity, j)[row] for j in b.peers}
    for j in b.peers:
        b.wait_stamps(
            slots[j], "!=", EMPTY, vector(b), seconds=SECONDS, on_timeout=partial(lose, j), ragged=True, alone=True
        )
    terms = [b.input[row] if s == b.rank else slots[s] for s in range(b.world)]
    b.reduce(terms, b.mine.residual[row], vector(b), ragged=True, alone=True)
    for j in b.peers:
        b.clear(slots[j], EMPTY, vector(b), ragged=True, alone=True)


@protocol(
    memory=residual_and_staging,
    blocks=2,
    threads=128,
    scenarios=NORM_CALLS,
    accepts=whole_rows,
    abort_record=abort_record,
    options={"hidden": 256},
    bytes=2 * KIB,
    calls=3,
    world=4,
)
def add_rmsnorm(b: Block) -> None:
    """The lab's add_rmsnorm: push rows as packets, add those of the peers as they arrive, normalise."""
    mine = rows_of(b)
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("push")
    if mine:
        push_row(b, turn, mine[0])
    b.barrier()  # every thread of the block has read the epoch word
    advance_epoch(b, turn)

    b.phase("receive")  # the next row is pushed before each wait, to keep the link busy
    for place, row in enumerate(mine):
        for following in mine[place + 1 : place + 2]:
            push_row(b, turn, following)
        receive_row(b, turn, row)
        b.barrier()  # the row's squares, summed over the block
        b.barrier()
        b.copy(b.mine.residual[row], b.output[row], vector(b), ragged=True, alone=True)
