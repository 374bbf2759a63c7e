"""The kernels' phase stamps as a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lab.errors import LabError
from lab.kernels.staging import ALGORITHMS
from lab.trace import Trace

STAMP = np.dtype([("ticks", np.uint64), ("what", np.uint64)])
"""lab::TraceEvent."""
EVENTS = ("begin", "pushed", "exchanged", "reduced", "gathered", "end")
"""The order of lab::Event."""
PHASES: dict[str, tuple[tuple[str, str], ...]] = {
    "one_shot": (("pushed", "scatter"), ("exchanged", "exchange"), ("end", "reduce")),
    "two_shot": (
        ("pushed", "scatter"),
        ("exchanged", "exchange"),
        ("reduced", "reduce"),
        ("gathered", "gather"),
        ("end", "copy out"),
    ),
    "low_latency": (("pushed", "push"), ("end", "receive")),
    "reduce_scatter": (("pushed", "scatter"), ("exchanged", "exchange"), ("end", "reduce")),
    "all_gather": (("pushed", "push"), ("exchanged", "exchange"), ("end", "copy out")),
    "add_rmsnorm": (("pushed", "push"), ("end", "receive")),
    "add_rmsnorm_two_stage": (
        ("pushed", "scatter"),
        ("exchanged", "exchange"),
        ("reduced", "reduce"),
        ("gathered", "gather"),
        ("end", "copy out"),
    ),
    "pull": (("exchanged", "enter"), ("reduced", "reduce"), ("end", "leave")),
    "pull_two_stage": (("exchanged", "enter"), ("reduced", "reduce"), ("gathered", "gather"), ("end", "copy out")),
}
"""The stamps of each kernel after `begin`, with the phase that each of them ends, as its protocol names it."""
MEETINGS: dict[str, dict[str, str]] = {
    "one_shot": {"exchange": "exchange"},
    "two_shot": {"exchange": "exchange", "gather": "gather"},
    "low_latency": {"receive": "push"},
    "reduce_scatter": {"exchange": "exchange"},
    "all_gather": {"exchange": "exchange"},
    "add_rmsnorm": {"receive": "push"},
    "add_rmsnorm_two_stage": {"exchange": "exchange", "gather": "gather"},
    "pull": {"enter": "enter", "leave": "leave"},
    "pull_two_stage": {"enter": "enter", "gather": "gather"},
}
"""Which phase no block ends before the same block of every peer has begun which; see `lab.compare.align`.

In low_latency the data is the meeting, so a block without a vector meets nobody: trace messages that fill the grid.
"""


def trace_of(
    stamps: np.ndarray, ticks_per_second: float, *, machine: str, about: Mapping[str, object] | None = None
) -> Trace:
    """The phases behind stamps that kernels left.

    Args:
        stamps: STAMP array (ranks, calls, blocks, len(EVENTS)); zero where nothing was stamped.
        ticks_per_second: Of the clock that stamped.
        machine: Where it ran.
        about: What else a reader wants to know.

    Raises:
        LabError: A stamp is not of this layout, belongs to another block, or a block stamped some of its phases only.
    """
    if stamps.ndim != 4 or stamps.dtype != STAMP or stamps.shape[3] != len(EVENTS):
        raise LabError("stamps have another shape", value=(stamps.shape, str(stamps.dtype)))
    nanoseconds = 1e9 / ticks_per_second
    rows = []
    # float64 counts nanoseconds since 1970 in steps of 256, so the first stamp of all becomes zero
    first = int(stamps["ticks"][stamps["ticks"] != 0].min(initial=np.iinfo(np.uint64).max))
    for rank, call, block in np.argwhere(np.any(stamps["ticks"] != 0, axis=3)):
        ticks, what = stamps[rank, call, block]["ticks"], stamps[rank, call, block]["what"]
        stamped = np.flatnonzero(ticks)
        algorithm, epoch = _decoded(what[stamped], int(block), stamped)
        begin = int(ticks[0]) - first if ticks[0] else None
        for event, phase in PHASES[algorithm]:
            stamp = int(ticks[EVENTS.index(event)])
            if begin is None or not stamp:
                raise LabError(f"rank {rank}, block {block} of call {epoch} has no stamp '{event}'", value=algorithm)
            end = stamp - first
            rows.append((int(rank), epoch, int(block), phase, begin * nanoseconds, end * nanoseconds))
            begin = end
    return Trace.of(rows, source="recorded", machine=machine, about=about)


def _decoded(what: np.ndarray, block: int, events: np.ndarray) -> tuple[str, int]:
    """Algorithm and epoch (its low 32 bits) that all stamps of a block agree on."""
    epochs, algorithms = np.unique(what >> np.uint64(32)), np.unique(what >> np.uint64(8) & np.uint64(0xFF))
    blocks, stamped = np.unique(what >> np.uint64(16) & np.uint64(0xFFFF)), what & np.uint64(0xFF)
    one = len(epochs) == len(algorithms) == len(blocks) == 1 and int(blocks[0]) == block
    if not one or np.any(stamped != events) or ALGORITHMS[int(algorithms[0])] not in PHASES:
        raise LabError("stamps of a block do not belong together", value=[hex(int(word)) for word in what])
    return ALGORITHMS[int(algorithms[0])], int(epochs[0])
