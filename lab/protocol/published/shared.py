"""What several of the published protocols share: a cross-rank barrier, hosts that reuse an input, refusals."""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.expr import Expr
from lab.protocol.program import Order, Scope
from lab.protocol.write import ACQUIRE, RELEASE, SYSTEM, Block, Config, Declare, Host, View


def flag_per_block_and_rank(m: Declare, *names: str) -> None:
    """Flag regions: one word a (block, source rank); the rank of that number is the only one to write it."""
    for name in names:
        m.words(name, m.world, block=m.blocks)


def cross_rank_barrier(
    b: Block,
    flags: str,
    epoch: Expr | int,
    release: Order = RELEASE,
    acquire: Order = ACQUIRE,
    polled_at: Scope = SYSTEM,
) -> None:
    """Barrier between the blocks of this index on all ranks: flag every peer, wait for every peer's flag, grow-only."""
    b.barrier()
    for j in b.peers:
        b.leader.store(getattr(b.on(j), flags)[b.block, b.rank], epoch, release, SYSTEM)
    for j in b.peers:
        b.leader.wait(getattr(b.mine, flags)[b.block, j], ">=", epoch, acquire, polled_at)
    b.barrier()


def publish_and_pull(b: Block, buffers: list[View]) -> None:
    """A sound one-shot over one buffer a rank, `buffers` by rank: the input into the own one, then the sum of all."""
    b.phase("publish")
    b.copy(b.input, buffers[b.rank])
    cross_rank_barrier(b, "start", b.call)
    b.phase("pull")
    b.reduce(list(buffers), b.output[: b.elements])
    cross_rank_barrier(b, "end", b.call)


def in_place(h: Host) -> None:
    """A kernel writes each input into one registered buffer, and the next input after the last call.

    The kernel finds the number of the call, counted from 1, in `b.args["round"]`.
    """
    for index, nbytes in enumerate(h.sizes()):
        out = h.output(nbytes)
        h.produce(h.mine.input)
        h.launch(h.mine.input, out, nbytes=nbytes, args={"round": index + 1})
        h.consume(out)
    h.produce(h.mine.input)
    h.sync()


def only(*scenarios: str) -> Callable[[Config], str | None]:
    """Refuse every scenario but these, for kernels that read buffers which only these fill."""

    def refusal(config: Config) -> str | None:
        return None if config.scenario in scenarios else f"its scenario is {' or '.join(scenarios)}"

    return refusal
