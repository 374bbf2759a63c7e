"""Registered tensors, which peers read where they lie, and what hosts do with calls on them.

A pull kernel reads `b.on(j)`'s registered input in place, so its scenarios are about what else touches that: a kernel
ahead that writes it and one behind that writes the next values. They have the names of those in `calls.py` and of the
language's own.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.language.layout import View
from lab.protocol.library.calls import REPLAYS
from lab.protocol.library.staging import VECTOR_BYTES, staging
from lab.protocol.write import CACHED, Block, Buffer, Declare, Host

NAMES = ("first", "second")  # of the tensors that each rank has registered


def registered_and_staging(m: Declare) -> None:
    """Two tensors of the model, in cached memory, besides what every kernel of the lab has."""
    width = VECTOR_BYTES // m.itemsize
    for name in NAMES:
        m.payload(name, -(-m.max_elements // width) * width, CACHED)
    staging(m)


def registered(b: Block, rank: int) -> View:
    """The tensor that `rank` has registered for this call."""
    return getattr(b.on(rank), b.args["registered"])[: b.elements]


def _call(h: Host, index: int) -> tuple[Buffer, dict[str, str]]:
    name = NAMES[index % len(NAMES)]
    return getattr(h.mine, name), {"registered": name}


def _queue(h: Host, grids: bool = False, tensors: int = 2, overlap: bool = False) -> None:
    """For each call a kernel that writes its input, the call, a kernel that takes the result; then both once more."""
    blocks = h.config.blocks or 1
    for index, nbytes in enumerate(h.sizes()):
        x, args = _call(h, index % tensors)
        out = h.output(nbytes)
        grid = (blocks, 1, -(-blocks // 2), 1)[index % 4] if grids else None
        h.produce(x[: nbytes // h.config.itemsize])
        h.launch(x, out, nbytes=nbytes, blocks=grid, overlap=overlap, args={**args, "lets_at_once": index % 2 == 0})
        h.consume(out)
    for name in NAMES:
        h.produce(getattr(h.mine, name))
    h.sync()


def back_to_back(h: Host) -> None:
    """All calls queued; kernels that write their inputs, two tensors in turn, and take the results stand between."""
    _queue(h)


def one_tensor(h: Host) -> None:
    """As back_to_back, all calls on one tensor: the kernel right behind a call writes what its peers may still read."""
    _queue(h, tensors=1)


def isolated(h: Host) -> None:
    """A host barrier before and a device sync after every call."""
    for index, nbytes in enumerate(h.sizes()):
        x, args = _call(h, index)
        out = h.output(nbytes)
        h.barrier()
        h.produce(x[: nbytes // h.config.itemsize])
        h.launch(x, out, nbytes=nbytes, args=args)
        h.consume(out)
        h.sync()


def different_grids(h: Host) -> None:
    """As back_to_back, the grid changing from call to call: all blocks, one, half of them, one."""
    _queue(h, grids=True)


def overlapped(h: Host) -> None:
    """As one_tensor, each call placed while the kernel that writes its input still runs."""
    _queue(h, tensors=1, overlap=True)


def graph(h: Host) -> None:
    """A captured graph of all calls, replayed; a kernel before each writes its input."""
    captured = []
    for index, nbytes in enumerate(h.sizes()):
        x, args = _call(h, index)
        out = h.output(nbytes)
        captured.append((x[: nbytes // h.config.itemsize], out, h.capture(x, out, nbytes=nbytes, args=args)))
    for _ in range(REPLAYS):
        for x, out, call in captured:
            h.produce(x)
            h.replay(call)
            h.consume(out)
    h.sync()


def in_place(h: Host) -> None:
    """Each call's output is its input, one tensor for all of them."""
    for nbytes in h.sizes():
        x, args = _call(h, 0)
        part = x[: nbytes // h.config.itemsize]
        h.produce(part)
        h.launch(x, x, nbytes=nbytes, args=args)
        h.consume(part)
    h.sync()


def lost_rank(h: Host) -> None:
    """The last rank stops one call early; the others lose it, and their next call is dead and touches nothing."""
    sizes = list(h.sizes())
    last = h.rank == h.world - 1
    for index, nbytes in enumerate(sizes[: -1 if last else None] + ([] if last else sizes[:1])):
        x, args = _call(h, index)
        h.launch(x, h.output(nbytes), nbytes=nbytes, args=args)
    h.sync()


REGISTERED_CALLS: dict[str, Callable[[Host], None]] = {
    "back_to_back": back_to_back,
    "one_tensor": one_tensor,
    "isolated": isolated,
    "different_grids": different_grids,
    "graph": graph,
    "overlapped": overlapped,
    "lost_rank": lost_rank,
}
