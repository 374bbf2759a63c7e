"""Reduce-scatter: push to each rank its part, meet, reduce the own part. The first half of two_shot.

The protocol of `lab/kernels/hip/reduce_scatter.hip`. The input is one part a rank, the output this rank's.
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
    SCATTER,
    abort_record,
    equal_part,
    scatter_slot,
    staging,
    vector,
)
from lab.protocol.write import KIB, Block, Config, Host, protocol


def equal_parts(config: Config) -> str | None:
    """Refuse what cannot be cut into a part for each rank."""
    uneven = [n for n in config.bytes if n % (config.world * config.itemsize)]
    return f"{uneven[0]} bytes are not a whole number of elements for each of {config.world} ranks" if uneven else None


def own_part(h: Host, nbytes: int) -> Buffer:
    """The output: a part."""
    return h.output(nbytes // h.world)


def expect_own_part(h: Host, out: Buffer, x: Buffer) -> None:
    """The sum of everybody's part for this rank."""
    each = x.elements // h.world
    h.expect(out, x[h.rank * each : (h.rank + 1) * each])


REDUCE_SCATTER = Collective(own_part, expect_own_part)
SCENARIOS: dict[str, Callable[[Host], None]] = {"queued": Queue(REDUCE_SCATTER), **queues(REDUCE_SCATTER)}


@protocol(
    memory=staging,
    blocks=4,
    threads=512,
    scenarios=SCENARIOS,
    abort_record=abort_record,
    scenario="queued",
    accepts=equal_parts,
    bytes=64 * KIB,
    calls=3,
    world=4,
)
def reduce_scatter(b: Block) -> None:
    """The lab's reduce_scatter: each rank's part of the input to it, the same block of all ranks meeting after."""
    algorithm, width = ALGORITHMS.index("reduce_scatter"), vector(b)
    part = [equal_part(b.elements, b, j) for j in range(b.world)]
    each = b.elements // b.world
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("scatter")
    for j in b.peers:
        b.copy(b.input[part[j]], scatter_slot(b, j, turn.parity, b.rank)[:each], width, ragged=True)
    b.phase("exchange")
    lost = exchange_release_acquire(b, turn, algorithm, SCATTER)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()
    let_successor_when_met(b)

    b.phase("reduce")
    slots = [scatter_slot(b, b.rank, turn.parity, s)[:each] for s in range(b.world)]
    terms = [b.input[part[b.rank]] if s == b.rank else slots[s] for s in range(b.world)]
    b.reduce(terms, b.output, width, ragged=True)
