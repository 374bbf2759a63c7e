"""rdna_ar, false wedge: a bound on polls mistakes a late peer for a lost write.

Every wait gives up after a number of polls and reports the peer's flag as lost. Polls pass in no known time, and a
peer may be late for reasons outside the kernel: its host has not launched yet. The kernel then gives up a call in
which nothing was wrong.
Missing: time. The flag would have come.
Fix: a bound in seconds; and when it passes, look at what the peer says that it has sent, so that "late" is told from
"lost".
Option `lost_by` drops the flags of that rank, to see that a true loss is still reported.
"""

from __future__ import annotations

from functools import partial

from lab.protocol.published.shared import only
from lab.protocol.write import (
    ACQUIRE,
    HOST_MAPPED,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    AbortWords,
    Block,
    Declare,
    Host,
    protocol,
)

SPIN_CAP, SECONDS = 2_000_000, 30.0
LOST, LATE = 1, 2


def memory(m: Declare) -> None:
    """Slots of two parities, flags, what this rank has sent to whom, and the report."""
    m.payload("slot", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flag", m.world, block=m.blocks)
    m.words("sent", m.blocks)
    m.words("report", 2, HOST_MAPPED)


def abort_record(words: AbortWords) -> str | None:
    """Decode the report: what happened, and which peer."""
    what, peer = words("report", 0), words("report", 1)
    return None if not what else f"peer {peer} {'has sent a flag that is lost' if what == LOST else 'is late'}"


def report_is_read(h: Host) -> None:
    """Back to back; the caller reads the report before it trusts its outputs."""
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x, out)
        calls.append((x, out))
    h.sync()
    aborted = h.load(h.mine.report[0], ACQUIRE, SYSTEM)
    with h.when(aborted == 0):
        for x, out in calls:
            h.expect(out, x)


def give_up(b: Block, j: int, distinguish: bool) -> None:
    """Report peer `j` and return without an output."""
    b.leader.store(b.mine.report[1], j, RELAXED, SYSTEM)
    b.leader.store(b.mine.report[0], LOST, RELEASE, SYSTEM)
    if distinguish:
        sent = b.leader.load(b.on(j).sent[b.block], ACQUIRE, SYSTEM)
        with b.leader.when(sent < b.call):
            b.leader.store(b.mine.report[0], LATE, RELEASE, SYSTEM)
    b.ret()


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"report_is_read": report_is_read},
    accepts=only("report_is_read"),
    abort_record=abort_record,
    bytes=512,
    options={"wall_clock": False, "lost_by": -1},
)
def rdna_ar_false_wedge(b: Block) -> None:
    """One-shot push; without `wall_clock`, its bound on polls gives up a peer that is only late."""
    p, in_seconds = b.call % 2, b.options["wall_clock"]
    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[p, b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        if b.rank != b.options["lost_by"]:
            b.leader.store(b.on(j).flag[b.block, b.rank], b.call, RELEASE, SYSTEM)
    b.leader.store(b.mine.sent[b.block], b.call, RELEASE, SYSTEM)

    b.phase("reduce")
    bound = {"seconds": SECONDS} if in_seconds else {"bound": SPIN_CAP}
    for j in b.peers:
        on_timeout = partial(give_up, b, j, in_seconds)
        b.leader.wait(b.mine.flag[b.block, j], ">=", b.call, ACQUIRE, SYSTEM, on_timeout=on_timeout, **bound)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.slot[p, j][: b.elements] for j in range(b.world)], b.output)
