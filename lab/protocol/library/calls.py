"""What hosts do with the lab's kernels besides `back_to_back` and `isolated`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.protocol.language.launch import Launch
from lab.protocol.language.layout import Buffer
from lab.protocol.program import Order
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, Block, Host

REPLAYS = 2
FOREIGN_BYTES = 512


@dataclass(frozen=True)
class Collective:
    """What a call is: the output that it needs for an input of so many bytes, and what has to be in there."""

    output: Callable[[Host, int], Buffer]
    expect: Callable[[Host, Buffer, Buffer], None]


def _all(h: Host, nbytes: int) -> Buffer:
    return h.output(nbytes)


def _sum(h: Host, out: Buffer, x: Buffer) -> None:
    h.expect(out, x)


ALL_REDUCE = Collective(_all, _sum)


@dataclass(frozen=True)
class Queue:
    """All calls on one stream without host synchronisation, each with its own buffers.

    Attributes:
        of: The collective.
        grids: Whether the grid changes from call to call: all blocks, one, half of them, one.
        early: Whether the n-th launch may start while the one ahead runs.
        lets: Whether the n-th launch lets its successor start at once, else when it has met its peers.
        start: What the start of such a launch orders: nothing, as documented, or what was released before it.
    """

    of: Collective
    grids: bool = False
    early: Callable[[int], bool] = lambda call: False
    lets: Callable[[int], bool] = lambda call: True
    start: Order = Order.RELAXED

    def __call__(self, h: Host) -> None:
        """Queue the calls, wait for them, look at every output."""
        blocks = h.config.blocks or 1
        calls = []
        for call, nbytes in enumerate(h.sizes()):
            x, out = h.input(nbytes), self.of.output(h, nbytes)
            grid = (blocks, 1, -(-blocks // 2), 1)[call % 4] if self.grids else None
            early = self.early(call)
            start = self.start if early else Order.RELAXED
            h.launch(x, out, blocks=grid, overlap=early, start=start, args={"lets_at_once": self.lets(call)})
            calls.append((x, out))
        h.sync()
        for x, out in calls:
            self.of.expect(h, out, x)


def _every(call: int) -> bool:
    return True


def _none(call: int) -> bool:
    return False


def _even(call: int) -> bool:
    return call % 2 == 0


def _not_every_third(call: int) -> bool:
    return call % 3 != 1


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
    captured: list[tuple[Buffer, Buffer, list[Launch]]] = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        calls = [
            h.capture(x, to, overlap=True, args={"lets_at_once": _even(len(captured) + k)})
            for k, to in enumerate((out, x))
        ]
        captured.append((x, out, calls))
    for _ in range(REPLAYS):
        for x, out, calls in captured:
            h.produce(x)
            for call in calls:
                h.replay(call)
            h.consume(out)
            h.consume(x)
    h.sync()


def lets_at_once_and_waits(b: Block) -> None:
    """Another library's kernel, which lets its successor start before all else."""
    b.let_successor_start()
    b.wait_previous()


def never_lets(b: Block) -> None:
    """Another library's kernel, behind which a launch starts when it has ended."""
    b.wait_previous()


def lets_fences_and_waits(b: Block) -> None:
    """As `lets_at_once_and_waits`, and it passes on what its start has seen."""
    b.fence(ACQ_REL, DEVICE)
    b.let_successor_start()
    b.wait_previous()


def overlapped_neighbours(h: Host) -> None:
    """Calls that start early behind kernels of other libraries, which let their successor start at once or never."""
    foreign = (lets_at_once_and_waits, never_lets, lets_fences_and_waits)
    calls = []
    for call, nbytes in enumerate(h.sizes()):
        x, out = h.input(nbytes), h.output(nbytes)
        for kernel in (foreign[call % 3], foreign[(call + 1) % 3])[: 1 + call % 2]:
            h.launch(kernel=kernel, nbytes=FOREIGN_BYTES, blocks=1, overlap=call % 4 != 3)
        h.launch(x, out, overlap=True, args={"lets_at_once": _even(call)})
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


def _lost_rank(of: Collective) -> Callable[[Host], None]:
    def lost_rank(h: Host) -> None:
        """The last rank stops one call early; the others lose it, and their next call is dead and touches nothing."""
        sizes = list(h.sizes())
        for nbytes in sizes[: -1 if h.rank == h.world - 1 else None]:
            h.launch(h.input(nbytes), of.output(h, nbytes))
        if h.rank != h.world - 1:
            h.launch(h.input(sizes[0]), of.output(h, sizes[0]))
        h.sync()

    return lost_rank


def queues(of: Collective) -> dict[str, Callable[[Host], None]]:
    """The scenarios of one stream that any collective has."""
    return {
        "different_grids": Queue(of, grids=True),
        "overlapped": Queue(of, early=_every),
        "overlapped_when_met": Queue(of, early=_every, lets=_none),
        "overlapped_grids": Queue(of, grids=True, early=_every, lets=_even),
        "overlapped_in_part": Queue(of, early=_not_every_third, lets=_even),
        "overlapped_and_seen": Queue(of, early=_every, lets=_even, start=ACQUIRE),
        "lost_rank": _lost_rank(of),
    }


CALLS: dict[str, Callable[[Host], None]] = {
    **queues(ALL_REDUCE),
    "graph": graph,
    "overlapped_graph": overlapped_graph,
    "overlapped_neighbours": overlapped_neighbours,
}
