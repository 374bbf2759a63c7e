"""Two-stage pull: meet, reduce the own part of every peer's input, meet, read the peers' reduced parts.

The protocol of `lab/kernels/hip/pull_two_stage.hip`. A reduced part lies in its owner's own gather slot, which no
pushing kernel uses; it is written again behind the entry of a later call, when every peer has ended this one.
"""

from __future__ import annotations

from lab.protocol.language.layout import View
from lab.protocol.library.meeting import enter_release_acquire_system
from lab.protocol.library.registered import REGISTERED_CALLS, in_place, registered, registered_and_staging
from lab.protocol.library.signal import advance_epoch, begin_call, exchange_release_acquire, let_successor_when_met
from lab.protocol.library.staging import ALGORITHMS, GATHER, abort_record, part_of, vector
from lab.protocol.write import KIB, Block, protocol


def reduced_part(b: Block, rank: int) -> View:
    """Where `rank` puts what it has reduced."""
    part = part_of(b, rank)
    return b.on(rank).gather[0, rank][: part.stop - part.start]


@protocol(
    memory=registered_and_staging,
    blocks=4,
    threads=512,
    scenarios={**REGISTERED_CALLS, "in_place": in_place},
    abort_record=abort_record,
    bytes=64 * KIB,
    calls=3,
    world=4,
)
def pull_two_stage(b: Block) -> None:
    """The lab's two-stage pull: reduce the own part of the peers' inputs, meet, take the peers' parts."""
    algorithm, width, out = ALGORITHMS.index("pull_two_stage"), vector(b), b.output[: b.elements]
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("enter")
    lost = enter_release_acquire_system(b, turn, algorithm)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()

    b.phase("reduce")  # the sum goes to both from registers; here the output is read back from the slot
    mine = part_of(b, b.rank)
    b.reduce([registered(b, s)[mine] for s in range(b.world)], reduced_part(b, b.rank), width, ragged=True)
    b.copy(reduced_part(b, b.rank), out[mine], width, ragged=True)

    b.phase("gather")
    lost = exchange_release_acquire(b, turn, algorithm, GATHER)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("copy out")
    for j in b.peers:
        b.copy(reduced_part(b, j), out[part_of(b, j)], width, ragged=True)
