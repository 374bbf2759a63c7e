"""The lab's three kernels in one stream, on the staging that they share.

Two parities of a slot are enough for any mix, since every call of every algorithm hears from every peer: see
`lab/kernels/hip/staging.hpp`.
"""

from __future__ import annotations

from lab.protocol.library.calls import CALLS
from lab.protocol.library.low_latency import low_latency
from lab.protocol.library.one_shot import one_shot
from lab.protocol.library.staging import abort_record, staging
from lab.protocol.library.two_shot import two_shot
from lab.protocol.write import KIB, Block, protocol

KERNELS = (low_latency, one_shot, two_shot)
ORDER = "000100201101202102211121222"
"""A de Bruijn sequence: run around, it has every three kernels in a row once."""


@protocol(
    memory=staging,
    blocks=4,
    threads=512,
    scenarios=CALLS,
    abort_record=abort_record,
    scenario="back_to_back",
    bytes=16 * KIB,
    calls=len(ORDER) + 2,
    world=2,
)
def mixed_algorithms(b: Block) -> None:
    """The lab's low_latency, one_shot and two_shot in one stream: after two of any, any third."""
    KERNELS[int(ORDER[(b.call - 1) % len(ORDER)])].kernel(b)
