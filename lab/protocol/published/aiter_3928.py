"""aiter#3928 (the same: vllm#46913, sglang#29508): the round's colour is a kernel argument, and a graph freezes it.

The host advances a colour and passes it to the kernel, which raises flags of that colour and waits for equality. A
captured graph replays the colour that it was captured with: in the second replay the flags of the first still stand,
and the wait passes at once.
Missing: order from the peer's push of this replay to this rank's read; the wait is met by the flag of an old replay.
Fix: the colour lives in device memory. The kernel reads it at its start, and one thread writes back the next one. It
starts at 1, since the flags start at 0.
"""

from __future__ import annotations

from lab.protocol.expr import Const
from lab.protocol.published.shared import only
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, Expr, Host, protocol


def memory(m: Declare) -> None:
    """Slots and flags of two turns, and the colour of each block."""
    m.payload("slot", m.max_elements, UNCACHED, turn=2, source=m.world)
    m.words("flag", m.world, turn=2, block=m.blocks)
    m.words("colour", m.blocks, initial=1)


def replayed(h: Host) -> None:
    """One captured call, replayed once a call of the configuration; its input is written anew before each replay."""
    nbytes = h.config.bytes[0]
    x, out = h.input(nbytes), h.output(nbytes)
    graph = h.capture(x, out, args={"colour": 1})
    for _ in range(h.config.calls):
        h.produce(x)
        h.replay(graph)
        h.consume(out)
    h.sync()


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"replayed": replayed},
    accepts=only("replayed"),
    bytes=512,
    calls=2,
    options={"colour_in_memory": False},
)
def aiter_3928(b: Block) -> None:
    """One-shot push; without `colour_in_memory`, all replays have the colour of the capture."""
    colour: Expr = Const(b.args["colour"])
    if b.options["colour_in_memory"]:
        colour = b.share(b.leader.load(b.mine.colour[b.block], RELAXED, DEVICE))
    turn = colour % 2

    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[turn, b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).flag[turn, b.block, b.rank], colour, RELEASE, SYSTEM)

    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.flag[turn, b.block, j], "==", colour, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.slot[turn, j][: b.elements] for j in range(b.world)], b.output)
    if b.options["colour_in_memory"]:
        b.leader.store(b.mine.colour[b.block], colour + 1, RELAXED, DEVICE)
