"""One-shot all-reduce: push the whole input to every peer, meet, reduce everything locally.

The protocol of `lab/kernels/hip/one_shot.hip`.
"""

from __future__ import annotations

from lab.protocol.library.calls import CALLS
from lab.protocol.library.signal import (
    advance_epoch,
    begin_call,
    exchange_release_acquire,
    let_successor_when_met,
)
from lab.protocol.library.staging import ALGORITHMS, SCATTER, abort_record, scatter_slot, staging, vector
from lab.protocol.write import KIB, Block, protocol


@protocol(
    memory=staging,
    blocks=4,
    threads=512,
    scenarios=CALLS,
    abort_record=abort_record,
    scenario="back_to_back",
    bytes=64 * KIB,
    calls=3,
    world=4,
)
def one_shot(b: Block) -> None:
    """The lab's one_shot: push the input to every peer, meet the same block of every peer, sum in rank order."""
    algorithm, n, width = ALGORITHMS.index("one_shot"), b.elements, vector(b)
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input, scatter_slot(b, j, turn.parity, b.rank)[:n], width, ragged=True)
    b.phase("exchange")
    lost = exchange_release_acquire(b, turn, algorithm, SCATTER)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("reduce")
    terms = [b.input if s == b.rank else scatter_slot(b, b.rank, turn.parity, s)[:n] for s in range(b.world)]
    b.reduce(terms, b.output, width, ragged=True)
