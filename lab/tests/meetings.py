"""Made-up traces of blocks that meet, on clocks that are known."""

import numpy as np

from lab.trace import Trace

MEETINGS = {"meet": "meet"}


def met(world: int, calls: int, seed: int, offsets=None, slow: float = 1.0, gap: float = 1000.0) -> Trace:
    """Blocks that push, meet and reduce on one true clock, calls `gap` ns apart; `offsets` are then taken off each
    rank's clock.
    """
    rng = np.random.default_rng(seed)
    rows, now = [], np.zeros(world)
    for call in range(calls):
        for block in range(3):
            begin = now + rng.uniform(0, 50, world)
            pushed = begin + slow * rng.uniform(800, 1200, world)
            left = pushed.max() + rng.uniform(300, 500, world)
            done = left + rng.uniform(900, 1100, world)
            for rank in range(world):
                times = (begin[rank], pushed[rank], left[rank], done[rank])
                for name, first, last in zip(("push", "meet", "reduce"), times[:-1], times[1:], strict=True):
                    rows.append((rank, call, block, name, first, last))
        now = np.full(world, done.max() + gap)
    trace = Trace.of(rows, source="recorded", machine="made", about={})
    return trace.shifted({rank: -offset for rank, offset in (offsets or {}).items()})


def clocked(trace: Trace, clocks) -> Trace:
    """What ranks record whose clocks show `clocks[rank](true time)`."""
    return trace.on_clocks(clocks)


def steady(offset: float, ppm: float):
    """A clock that is `offset` ns ahead at time 0 and runs `ppm` too fast."""
    return lambda true: true * (1 + ppm * 1e-6) + offset


def leave_early(trace: Trace, rank: int, call: int, nanoseconds: float) -> Trace:
    """The trace with a block that leaves its meeting before its time."""
    spans = trace.spans.copy()
    early = np.flatnonzero(
        (spans["rank"] == rank) & (spans["call"] == call) & (spans["block"] == 0) & (spans["phase"] == 1)
    )
    spans["begin"][early] -= nanoseconds
    spans["end"][early] -= nanoseconds
    return Trace(spans, trace.phases, trace.source, trace.machine, trace.about)
