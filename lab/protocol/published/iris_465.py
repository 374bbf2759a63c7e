"""iris#465: the value of a lock is the constant 1.

Locks as in iris#462. Nobody zeroes them between calls, so in the second call the 1 of the first passes.
Missing: order from the owner's tile of call n + 1 to the peer's read of it; the poll is met by the unlock of call n.
Fix: unlock with the number of the call.
"""

from __future__ import annotations

from lab.protocol.published.iris_462 import lock_and_read, memory
from lab.protocol.published.shared import only
from lab.protocol.write import SYSTEM, Block, protocol


@protocol(
    memory=memory,
    blocks=1,
    scenario="isolated",
    accepts=only("isolated"),
    bytes=512,
    calls=2,
    options={"call_number": False},
)
def iris_465(b: Block) -> None:
    """One-shot behind locks; without `call_number`, the lock of the call before is still open."""
    lock_and_read(b, b.call if b.options["call_number"] else 1, SYSTEM)
