"""Traces side by side: clocks aligned, phase durations, skew of the ranks, the first phase that differs.

    print(compare(Trace.load("simulated.npz"), align(Trace.load("recorded.npz"), MEETINGS["two_shot"]).trace).table)

No global clock is needed. A phase in which blocks meet bounds the offsets: no block leaves it before the same block of
every peer has entered it, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lab.errors import LabError
from lab.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

CALL = "whole call"
_LOW, _HIGH = 10, 90  # percentiles: the middle 80 % of a phase's durations


@dataclass(frozen=True)
class Alignment:
    """A trace on one clock.

    Attributes:
        trace: The trace, shifted by `offsets`.
        offsets: Nanoseconds added to the clock of each rank; the first rank's is 0.
        uncertainty: Half the width of the interval in which each rank's offset must lie, in nanoseconds.
    """

    trace: Trace
    offsets: dict[int, float]
    uncertainty: dict[int, float]


def align(trace: Trace, meetings: Mapping[str, str]) -> Alignment:
    """Bring the ranks of a trace onto one clock.

    Every pair (later, earlier) of `meetings` says that no block ends phase `later` before the same block of every peer
    has begun phase `earlier` of the same call. Each such pair of times bounds the difference of two clocks from one
    side (as in NTP, RFC 5905, section 8, with one message each way); the middle of what all bounds leave is taken.

    Args:
        trace: The trace.
        meetings: {later phase: earlier phase}, for instance {"exchange": "exchange"}.

    Raises:
        LabError: No choice of clocks meets all bounds, so that a block left a meeting before a peer had come; or two
            ranks never meet.
    """
    ranks = trace.ranks
    bound = np.full((len(ranks), len(ranks)), np.inf)
    np.fill_diagonal(bound, 0.0)
    for later, earlier in meetings.items():
        ends, begins = _by_block(trace, later, "end"), _by_block(trace, earlier, "begin")
        for i, waiter in enumerate(ranks):
            for j, peer in enumerate(ranks):
                if i != j:
                    # offset[peer] - offset[waiter] is at most this
                    bound[i, j] = min(bound[i, j], _least_gap(ends[waiter], begins[peer]))
    for k in range(len(ranks)):  # shortest paths (Floyd-Warshall): all bounds that follow from others
        bound = np.minimum(bound, bound[:, k : k + 1] + bound[k : k + 1, :])
    if np.any(np.diag(bound) < 0):
        raise LabError(
            "no clocks fit this trace: a block left a meeting before a peer's same block had entered it",
            value=f"by {-np.diag(bound).min():.0f} ns",
            hint="either the kernel let it through, or the phases named in `meetings` are not meetings",
        )
    if not np.all(np.isfinite(bound[0]) & np.isfinite(bound[:, 0])):
        raise LabError("two ranks of the trace never meet, so their clocks cannot be compared")
    # Both extreme solutions meet all bounds, and so does their middle: the bounds are convex.
    most, least = bound[0], -bound[:, 0]
    offsets = {rank: float(most[i] + least[i]) / 2 for i, rank in enumerate(ranks)}
    uncertainty = {rank: float(most[i] - least[i]) / 2 for i, rank in enumerate(ranks)}
    return Alignment(trace.shifted(offsets), offsets, uncertainty)


def _by_block(trace: Trace, phase: str, side: str) -> dict[int, dict[tuple[int, int], float]]:
    """Per rank, {(call, block): time} of one side of a phase."""
    found: dict[int, dict[tuple[int, int], float]] = {rank: {} for rank in trace.ranks}
    for span in trace.of_phase(phase):
        found[int(span["rank"])][int(span["call"]), int(span["block"])] = float(span[side])
    return found


def _least_gap(ends: dict[tuple[int, int], float], begins: dict[tuple[int, int], float]) -> float:
    common = ends.keys() & begins.keys()
    return min((ends[key] - begins[key] for key in common), default=np.inf)


def durations(trace: Trace) -> pd.DataFrame:
    """One row a phase of a block: rank, call, block, phase, us; and one row a block of a call, phase `CALL`."""
    import pandas as pd

    spans = trace.spans
    rows = pd.DataFrame(
        {
            "rank": spans["rank"],
            "call": spans["call"],
            "block": spans["block"],
            "phase": np.array(trace.phases, object)[spans["phase"]] if len(spans) else [],
            "begin": spans["begin"],
            "end": spans["end"],
        }
    )
    whole = rows.groupby(["rank", "call", "block"], as_index=False).agg(begin=("begin", "min"), end=("end", "max"))
    both = pd.concat([rows, whole.assign(phase=CALL)], ignore_index=True)
    both["us"] = (both["end"] - both["begin"]) / 1e3
    return both.drop(columns=["begin", "end"])


def skew(trace: Trace) -> np.ndarray:
    """Microseconds between the first and the last rank to begin each call: float64 (calls,), of an aligned trace."""
    spans = trace.spans
    per_call = []
    for call in np.unique(spans["call"]):
        here = spans[spans["call"] == call]
        starts = [float(here["begin"][here["rank"] == rank].min()) for rank in np.unique(here["rank"])]
        per_call.append((max(starts) - min(starts)) / 1e3)
    return np.array(per_call)


@dataclass(frozen=True)
class Comparison:
    """Two traces, phase by phase.

    Attributes:
        table: One row a phase, then `CALL` and "skew of ranks"; columns `<name>_us` (median), `<name>_low`,
            `<name>_high` (the middle 80 %) of both, and `ratio` of the medians, second over first.
        first_difference: The first phase, in the kernel's order, whose middle 80 % do not overlap; None: all do.
        missing: Phases that only one of the two has.
    """

    table: pd.DataFrame
    first_difference: str | None
    missing: tuple[str, ...]


def compare(first: Trace, second: Trace, names: tuple[str, str] | None = None) -> Comparison:
    """Put two traces side by side; `names` are what the columns are called, by default their sources."""
    import pandas as pd

    called = names or ((first.source, second.source) if first.source != second.source else ("first", "second"))
    common = [phase for phase in first.phases if phase in second.phases]
    columns: dict[str, list[float]] = {}
    for name, trace in zip(called, (first, second), strict=True):
        by_phase = durations(trace).groupby("phase")["us"]
        samples = [by_phase.get_group(phase).to_numpy() for phase in [*common, CALL]] + [skew(trace)]
        columns[f"{name}_us"] = [float(np.median(sample)) for sample in samples]
        columns[f"{name}_low"] = [float(np.percentile(sample, _LOW)) for sample in samples]
        columns[f"{name}_high"] = [float(np.percentile(sample, _HIGH)) for sample in samples]
    table = pd.DataFrame(columns, index=[*common, CALL, "skew of ranks"])
    one, two = called
    with np.errstate(divide="ignore", invalid="ignore"):
        table["ratio"] = table[f"{two}_us"] / table[f"{one}_us"]
    apart = (table[f"{one}_low"] > table[f"{two}_high"]) | (table[f"{two}_low"] > table[f"{one}_high"])
    differing = [phase for phase in common if apart[phase]]
    missing = tuple(sorted(set(first.phases) ^ set(second.phases)))
    return Comparison(table, differing[0] if differing else None, missing)
