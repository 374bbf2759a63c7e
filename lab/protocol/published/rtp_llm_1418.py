"""rtp-llm#1418: epochs compared as signed numbers.

Epochs only grow, in 32-bit words, and a wait is met when the flag is not less than the epoch. At 2**31 the signed
comparison turns round: a rank that still waits for 2**31 - 1 sees a peer's 2**31 as negative and waits for ever, and
the next wait is met by the old flag. Compared as unsigned numbers, the same happens at 2**32.
Missing: a comparison that is right across the wrap.
Fix: compare the difference, modulo 2**32.
"""

from __future__ import annotations

from lab.protocol.published.shared import only
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol


def memory(m: Declare) -> None:
    """Slots of two parities, the flags and this rank's epoch, as they stand after `epochs_before` calls."""
    m.payload("slot", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flag", m.world, block=m.blocks, initial=m.options["epochs_before"])
    m.words("epoch", m.blocks, initial=m.options["epochs_before"])


@protocol(
    memory=memory,
    blocks=1,
    accepts=only("back_to_back", "isolated"),
    bytes=512,
    calls=2,
    options={"compare": ">=s", "epochs_before": 2**31 - 2},
)
def rtp_llm_1418(b: Block) -> None:
    """One-shot push; `compare` is >=s (signed), >= (unsigned) or >=mod (right)."""
    epoch = b.share(b.leader.load(b.mine.epoch[b.block], RELAXED, DEVICE) + 1)
    p = b.let(epoch % 2)
    b.leader.store(b.mine.epoch[b.block], epoch, RELAXED, DEVICE)

    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[p, b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.block, b.rank], epoch, RELEASE, SYSTEM)

    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.flag[b.block, j], b.options["compare"], epoch, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.slot[p, j][: b.elements] for j in range(b.world)], b.output)
