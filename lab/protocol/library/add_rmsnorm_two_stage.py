"""All-reduce + residual addition + RMSNorm in one launch, for many tokens: in two stages, as in two_shot.

The protocol of `lab/kernels/hip/add_rmsnorm_two_stage.hip`; what `add_rmsnorm.py` says of arithmetic holds here, too.
Each rank owns rows; the same block of all ranks handles the same rows of every part.
"""

from __future__ import annotations

from lab.protocol.library.rows import NORM_CALLS, residual_and_staging, row, whole_rows
from lab.protocol.library.signal import advance_epoch, begin_call, exchange_release_acquire, let_successor_when_met
from lab.protocol.library.staging import (
    ALGORITHMS,
    GATHER,
    SCATTER,
    abort_record,
    gather_slot,
    scatter_slot,
    vector,
)
from lab.protocol.write import KIB, Block, Buffer, View, protocol


def copy(b: Block, source: View | Buffer, dst: View) -> None:
    """By all threads of this block."""
    b.copy(source, dst, vector(b), ragged=True, alone=True)


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
def add_rmsnorm_two_stage(b: Block) -> None:
    """The lab's add_rmsnorm in two stages: scatter rows, the owner adds, gather the new residual, normalise."""
    algorithm, tokens = ALGORITHMS.index("add_rmsnorm_two_stage"), b.elements // b.options["hidden"]
    each = -(-tokens // b.world)
    parts = [
        [(i, j * each + i) for i in range(b.block, each, b.blocks) if j * each + i < tokens] for j in range(b.world)
    ]
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("scatter")
    for j in b.peers:
        for i, token in parts[j]:
            copy(b, b.input[row(b, token)], scatter_slot(b, j, turn.parity, b.rank)[row(b, i)])
    b.phase("exchange")
    lost = exchange_release_acquire(b, turn, algorithm, SCATTER)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()

    b.phase("reduce")  # the new residual goes to the peers from registers; here it is read back from its tensor
    for i, token in parts[b.rank]:
        slots = [scatter_slot(b, b.rank, turn.parity, s)[row(b, i)] for s in range(b.world)]
        terms = [b.input[row(b, token)] if s == b.rank else slots[s] for s in range(b.world)]
        b.reduce(terms, b.mine.residual[row(b, token)], vector(b), ragged=True, alone=True)
        for j in b.peers:
            copy(b, b.mine.residual[row(b, token)], gather_slot(b, j, turn.parity, b.rank)[row(b, i)])
        b.barrier()  # the row's squares, summed over the block
        b.barrier()
        copy(b, b.mine.residual[row(b, token)], b.output[row(b, token)])

    b.phase("gather")
    lost = exchange_release_acquire(b, turn, algorithm, GATHER)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("copy out")
    for j in b.peers:
        for i, token in parts[j]:
            copy(b, gather_slot(b, b.rank, turn.parity, j)[row(b, i)], b.mine.residual[row(b, token)])
            b.barrier()
            b.barrier()
            copy(b, b.mine.residual[row(b, token)], b.output[row(b, token)])
