"""What hosts do with the lab's kernels besides `back_to_back` and `isolated`."""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.write import Host

REPLAYS = 2


def different_grids(h: Host) -> None:
    """Back to back, the grid changing from call to call: all blocks, one, half of them, one."""
    blocks = h.config.blocks or 1
    calls = []
    for call, nbytes in enumerate(h.sizes()):
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x, out, blocks=(blocks, 1, -(-blocks // 2), 1)[call % 4])
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


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


def overlapped(h: Host) -> None:
    """Back to back, a launch being placed while its predecessor still runs (programmatic dependent launch)."""
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x, out, overlap=True)
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


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
    "lost_rank": lost_rank,
}
