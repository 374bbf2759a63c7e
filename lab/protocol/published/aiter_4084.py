"""aiter#4084: instead of an exit barrier, keep the input alive until the next call's start barrier.

Pull without an exit barrier, as in aiter#3514. There the input returns to the pool when the call ends, and the next
kernel on the stream writes there. Kept until the next call has passed its start barrier, it is overwritten only
after every peer has started that call, hence has ended this one. That is enough exactly when the start barrier
releases and acquires: relaxed, it proves nothing (option `relaxed_start`).
Missing: order from a peer's read of an input to the reuse of its memory.
Fix: two inputs in turn, so that an input is written again only after the call between.
"""

from __future__ import annotations

from lab.protocol.published.shared import cross_rank_barrier, flag_per_block_and_rank, only
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, Block, Declare, Host, protocol


def memory(m: Declare) -> None:
    """Two registered inputs and the flags."""
    m.payload("input", m.max_elements, buffer=2)
    flag_per_block_and_rank(m, "start")


def pool(h: Host) -> None:
    """Inputs come from a pool: of one buffer if a call frees its input, of two if the next call still holds it."""
    for index, nbytes in enumerate(h.sizes()):
        buffer = index % 2 if h.options["keep_input"] else 0
        out = h.output(nbytes)
        h.produce(h.mine.input[buffer])
        h.launch(output=out, nbytes=nbytes, args={"buffer": buffer, "round": index + 1})
        h.consume(out)
    h.sync()


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"pool": pool},
    accepts=only("pool"),
    bytes=512,
    calls=2,
    options={"keep_input": False, "relaxed_start": False},
)
def aiter_4084(b: Block) -> None:
    """Pull without an exit barrier; right only with `keep_input` and a start barrier that releases and acquires."""
    b.phase("start")
    orders = (RELAXED, RELAXED) if b.options["relaxed_start"] else (RELEASE, ACQUIRE)
    cross_rank_barrier(b, "start", b.args["round"], *orders)

    b.phase("pull")
    b.reduce([b.on(j).input[b.args["buffer"]][: b.elements] for j in range(b.world)], b.output)
