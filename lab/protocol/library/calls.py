"""What hosts do with the lab's kernels besides `back_to_back` and `isolated`."""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.program import Order
from lab.protocol.write import ACQUIRE, RELAXED, Host

REPLAYS = 2


def _queue(h: Host, grids: bool = False, overlap: bool = False, start: Order = RELAXED) -> None:
    """All calls on the stream; with `grids` on all blocks, one, half of them, one, and so on."""
    blocks = h.config.blocks or 1
    calls = []
    for call, nbytes in enumerate(h.sizes()):
        x, out = h.input(nbytes), h.output(nbytes)
        grid = (blocks, 1, -(-blocks // 2), 1)[call % 4] if grids else None
        h.launch(x, out, blocks=grid, overlap=overlap, start=start)
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


def different_grids(h: Host) -> None:
    """Back to back, the grid changing from call to call: all blocks, one, half of them, one."""
    _queue(h, grids=True)


def overlapped(h: Host) -> None:
    """Back to back, each launch starting while its predecessor runs, and seeing then what that has published."""
    _queue(h, overlap=True, start=ACQUIRE)


def overlapped_grids(h: Host) -> None:
    """As `overlapped`, the grid changing as in `different_grids`."""
    _queue(h, grids=True, overlap=True, start=ACQUIRE)


def overlapped_as_documented(h: Host) -> None:
    """As `overlapped`, but nothing is visible before the wait for the predecessor: all that NVIDIA promises."""
    _queue(h, overlap=True)


def graph(h: Host) -> None:
    """A captured graph of all calls, in place on their buffers, replayed; a kernel before each writes its input."""
    captured = []
    for nbytes in h.sizes():
        x = h.input(nbytes)
        captured.append((x, h.capture(x, x)))
    for _ in range(REPLAYS):
        for x, call in captured:
            h.produce(x)
            h.replay(call)
            h.consume(x)
    h.sync()


def overlapped_graph(h: Host) -> None:
    """As `graph`, each call twice, with another output and then in place: one overlaps the producer, one the other."""
    captured = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        captured.append((x, out, [h.capture(x, to, overlap=True, start=ACQUIRE) for to in (out, x)]))
    for _ in range(REPLAYS):
        for x, out, calls in captured:
            h.produce(x)
            for call in calls:
                h.replay(call)
            h.consume(out)
            h.consume(x)
    h.sync()


def lost_rank(h: Host) -> None:
    """The last rank stops one call early; the others lose it, and their next call is dead and touches nothing."""
    sizes = list(h.sizes())
    for nbytes in sizes[: -1 if h.rank == h.world - 1 else None]:
        h.launch(h.input(nbytes), h.output(nbytes))
    if h.rank != h.world - 1:
        h.launch(h.input(sizes[0]), h.output(sizes[0]))
    h.sync()


CALLS: dict[str, Callable[[Host], None]] = {
    "different_grids": different_grids,
    "graph": graph,
    "overlapped": overlapped,
    "overlapped_grids": overlapped_grids,
    "overlapped_graph": overlapped_graph,
    "overlapped_as_documented": overlapped_as_documented,
    "lost_rank": lost_rank,
}
