"""Rows of the fused kernels, the tensor of the residual, and what hosts do with them.

A call writes two tensors: the output, and the residual, which the next call reads and writes again in place.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.library.calls import REPLAYS
from lab.protocol.library.staging import VECTOR_BYTES, staging
from lab.protocol.write import CACHED, Block, Config, Declare, Host


def residual_and_staging(m: Declare) -> None:
    """The residual, a tensor of the model in cached memory, besides what every kernel of the lab has."""
    width = VECTOR_BYTES // m.itemsize
    m.payload("residual", -(-m.max_elements // width) * width, CACHED)
    staging(m, parts=m.world)  # a rank's part is whole rows: up to all of them where there are few


def whole_rows(config: Config) -> str | None:
    """A message is rows of `hidden` elements each, whole vectors."""
    hidden = dict(config.options)["hidden"]
    assert isinstance(hidden, int)
    if hidden < 1 or hidden * config.itemsize % VECTOR_BYTES:
        return f"hidden {hidden} is no whole number of 16-byte vectors"
    odd = [size for size in config.bytes if size % (hidden * config.itemsize)]
    return f"{odd[0]} bytes are no whole rows of {hidden} elements" if odd else None


def row(b: Block, number: int) -> slice:
    """The elements of a row."""
    hidden = b.options["hidden"]
    return slice(number * hidden, (number + 1) * hidden)


def rows_of(b: Block) -> list[slice]:
    """The rows of this block: every b.blocks-th."""
    return [row(b, number) for number in range(b.block, b.elements // b.options["hidden"], b.blocks)]


def _queue(h: Host, grids: bool = False, overlap: bool = False) -> None:
    """For each call a kernel that writes its input, the call, kernels that take both results."""
    blocks = h.config.blocks or 1
    for index, nbytes in enumerate(h.sizes()):
        x, out = h.input(nbytes), h.output(nbytes)
        grid = (blocks, 1, -(-blocks // 2), 1)[index % 4] if grids else None
        h.launch(x, out, blocks=grid, overlap=overlap, args={"lets_at_once": index % 2 == 0})
        h.consume(out)
        h.consume(h.mine.residual[: nbytes // h.config.itemsize])
    h.sync()


def back_to_back(h: Host) -> None:
    """All calls queued, the residual in place; kernels that take the results stand between."""
    _queue(h)


def isolated(h: Host) -> None:
    """A host barrier before and a device sync after every call."""
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.barrier()
        h.launch(x, out)
        h.consume(out)
        h.consume(h.mine.residual[: nbytes // h.config.itemsize])
        h.sync()


def different_grids(h: Host) -> None:
    """As back_to_back, the grid changing from call to call: all blocks, one, half of them, one."""
    _queue(h, grids=True)


def overlapped(h: Host) -> None:
    """As back_to_back, each call placed while the kernel ahead still runs."""
    _queue(h, overlap=True)


def graph(h: Host) -> None:
    """A captured graph of all calls, replayed; a kernel before each writes its input."""
    captured = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        captured.append((x, out, h.capture(x, out)))
    for _ in range(REPLAYS):
        for x, out, call in captured:
            h.produce(x)
            h.replay(call)
            h.consume(out)
            h.consume(h.mine.residual[: x.elements])
    h.sync()


def lost_rank(h: Host) -> None:
    """The last rank stops one call early; the others lose it, and their next call is dead and touches nothing."""
    sizes = list(h.sizes())
    last = h.rank == h.world - 1
    for nbytes in sizes[: -1 if last else None] + ([] if last else sizes[:1]):
        h.launch(h.input(nbytes), h.output(nbytes))
    h.sync()


NORM_CALLS: dict[str, Callable[[Host], None]] = {
    "back_to_back": back_to_back,
    "isolated": isolated,
    "different_grids": different_grids,
    "graph": graph,
    "overlapped": overlapped,
    "lost_rank": lost_rank,
}
