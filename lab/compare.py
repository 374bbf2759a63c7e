"""Traces side by side: phase durations, skew of the ranks, the first phase that differs.

print(compare(Trace.load("simulated.npz"), align(Trace.load("recorded.npz"), MEETINGS["two_shot"]).trace).table)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lab.alignment import Alignment, align
from lab.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CALL", "Alignment", "Comparison", "align", "compare", "durations", "skew"]

CALL = "whole call"
_LOW, _HIGH = 10, 90  # percentiles: the middle 80 % of a phase's durations


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
