"""Pull all-reduce: meet, read every peer's input where it lies and reduce, meet again.

The protocol of `lab/kernels/hip/pull.hip`. Its options take away what the kernel has, to see what it is for:

    lab check pull --memory weak --set start=relaxed               # races, and stale elements
    lab check pull --memory weak --set start=relaxed --set cached=True   # the same: bypassing caches is no order
    lab check pull --memory weak --set cached=True                 # ok: the meeting orders a cached read, too
    lab check pull --set leave=False --scenario one_tensor         # the next kernel writes what peers still read
"""

from __future__ import annotations

from lab.protocol.library.meeting import enter_relaxed_system, enter_release_acquire_system, leave_drained_system
from lab.protocol.library.registered import REGISTERED_CALLS, registered, registered_and_staging
from lab.protocol.library.signal import advance_epoch, begin_call, let_successor_when_met
from lab.protocol.library.staging import ALGORITHMS, abort_record, vector
from lab.protocol.write import KIB, Block, Cache, protocol


@protocol(
    memory=registered_and_staging,
    blocks=4,
    threads=512,
    scenarios=REGISTERED_CALLS,
    abort_record=abort_record,
    options={"start": "release_acquire", "cached": False, "leave": True},
    bytes=64 * KIB,
    calls=3,
    world=4,
)
def pull(b: Block) -> None:
    """The lab's pull: meet the same block of every peer, sum their inputs in rank order, meet again."""
    algorithm = ALGORITHMS.index("pull")
    turn = begin_call(b)
    with b.when(turn.dead):
        b.ret()

    b.phase("enter")
    enter = enter_relaxed_system if b.options["start"] == "relaxed" else enter_release_acquire_system
    lost = enter(b, turn, algorithm)
    advance_epoch(b, turn)
    with b.when(lost != 0):
        b.ret()

    b.phase("reduce")
    access = Cache.CACHED if b.options["cached"] else Cache.BYPASS
    b.reduce([registered(b, s) for s in range(b.world)], b.output, vector(b), access, ragged=True)

    if b.options["leave"]:
        b.phase("leave")
        leave_drained_system(b, turn, algorithm)
        let_successor_when_met(b)
