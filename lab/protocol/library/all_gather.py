"""All-gather: push the own part to every peer, meet, copy theirs out. The second half of two_shot.

The protocol of `lab/kernels/hip/all_gather.hip`. The input is this rank's part, the output everybody's.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.language.layout import Buffer
from lab.protocol.library.calls import Collective, Queue, queues
from lab.protocol.library.signal import (
    advance_epoch,
    begin_call,
    exchange_release_acquire,
    let_successor_when_met,
)
from lab.protocol.library.staging import (
    ALGORITHMS,
    GATHER,
    abort_record,
    gather_slot,
    staging,
    vector,
)
from lab.protocol.write import KIB, Block, Declare, Host, protocol


def parts_in_gather(m: Declare) -> None:
    """The staging of a message of all parts, so that a part of `max_bytes` fits a gather slot."""
    staging(m, parts=m.world)


def every_part(h: Host, nbytes: int) -> Buffer:
    """The output: a part of each rank."""
    return h.output(nbytes * h.world)


def expect_every_part(h: Host, out: Buffer, x: Buffer) -> None:
    """Each rank's input in its place."""
    for j in range(h.world):
        h.expect(out[j * x.elements : (j + 1) * x.elements], x, of=[j])


ALL_GATHER = Collective(every_part, expect_every_part)
SCENARIOS: dict[str, Callable[[Host], None]] = {"queued": Queue(ALL_GATHER), **queues(ALL_GATHER)}


@protocol(
    memory=parts_in_gather,
    blocks=4,
    threads=512,
    scenarios=SCENARIOS,
    abort_record=abort_record,
    scenario="queued",
    bytes=16 * KIB,
    calls=3,
    world=4,
)
def all_gather(b: Block) -> None:
    """The lab's all_gather: the own part to every peer and to the output, the same block of all ranks meeting after."""
    algorithm, width, each = ALGORITHMS.index("all_gather"), vector(b), b.elements
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("push")
    for j in b.peers:
        b.copy(b.input, gather_slot(b, j, turn.parity, b.rank)[:each], width, ragged=True)
    b.copy(b.input, b.output[b.rank * each : (b.rank + 1) * each], width, ragged=True)
    b.phase("exchange")
    lost = exchange_release_acquire(b, turn, algorithm, GATHER)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("copy out")
    for j in b.peers:
        slot = gather_slot(b, b.rank, turn.parity, j)[:each]
        b.copy(slot, b.output[j * each : (j + 1) * each], width, ragged=True)
