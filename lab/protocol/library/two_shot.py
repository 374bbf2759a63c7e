"""Two-shot all-reduce: push to each rank its part, reduce the own part, push the result to every peer.

The protocol of `lab/kernels/hip/two_shot.hip`. Thread t of block b handles the same vectors of a part in every step and
on every rank, so meeting the same block of the peers is enough: no barrier across the grid.
"""

from __future__ import annotations

from lab.protocol.library.calls import CALLS
from lab.protocol.library.signal import (
    advance_epoch,
    begin_call,
    exchange_release_acquire,
    let_successor_when_met,
)
from lab.protocol.library.staging import (
    ALGORITHMS,
    GATHER,
    SCATTER,
    abort_record,
    gather_slot,
    part_of,
    scatter_slot,
    staging,
    vector,
)
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
def two_shot(b: Block) -> None:
    """The lab's two_shot: reduce-scatter and all-gather by push, the same block of all ranks meeting after each."""
    algorithm, width = ALGORITHMS.index("two_shot"), vector(b)
    part = [part_of(b, j) for j in range(b.world)]
    size = [p.stop - p.start for p in part]
    mine, own = part[b.rank], size[b.rank]
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input[part[j]], scatter_slot(b, j, turn.parity, b.rank)[: size[j]], width, ragged=True)
    b.phase("exchange")
    lost = exchange_release_acquire(b, turn, algorithm, SCATTER)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()

    b.phase("reduce")  # the sum goes to the peers from registers; here it is read back from the output
    slots = [scatter_slot(b, b.rank, turn.parity, s)[:own] for s in range(b.world)]
    b.reduce([b.input[mine] if s == b.rank else slots[s] for s in range(b.world)], b.output[mine], width, ragged=True)
    for j in b.peers:
        b.copy(b.output[mine], gather_slot(b, j, turn.parity, b.rank)[:own], width, ragged=True)

    b.phase("gather")
    lost = exchange_release_acquire(b, turn, algorithm, GATHER)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("copy out")
    for j in b.peers:
        b.copy(gather_slot(b, b.rank, turn.parity, j)[: size[j]], b.output[part[j]], width, ragged=True)
