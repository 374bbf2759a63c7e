"""Two traces side by side: the lanes of one call of each, and how long each phase takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.compare import durations
from lab.plots.style import GROUND, LINE, TEXT, phase_inks
from lab.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LANES = 8  # lanes of a rank that are drawn; evenly chosen among its blocks


def phases_figure(traces: Sequence[Trace], titles: Sequence[str] | None = None, call: int | None = None) -> Figure:
    """Draw traces below one another: on the left a call's lanes on one time axis, on the right all durations by phase.

    Args:
        traces: Aligned traces (`lab.compare.align`).
        titles: One each; None: source and machine.
        call: Which call's lanes; None: the one in the middle of each trace.
    """
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(phase for trace in traces for phase in trace.phases))
    inks = {name: ink.light for name, ink in phase_inks(names).items()}
    with sns.axes_style("white"), mpl.rc_context({"axes.edgecolor": TEXT.light}):
        figure = Figure(figsize=(12, 1.0 + 3.0 * len(traces)), layout="constrained", facecolor=GROUND.light)
        axes = figure.subplots(len(traces), 2, squeeze=False, width_ratios=(3, 2), sharex="col")
        for row, trace in enumerate(traces):
            title = titles[row] if titles else f"{trace.source}: {trace.machine}"
            _lanes(axes[row, 0], trace, inks, _middle(trace) if call is None else call, title)
            _durations(axes[row, 1], trace, names, inks)
        axes[-1, 0].set_xlabel("us since the first block began")
        axes[-1, 1].set_xlabel("us, all blocks of all calls")
        patches = [Patch(facecolor=inks[name], edgecolor=LINE.light, label=name) for name in names]
        figure.legend(handles=patches, loc="outside lower center", ncols=min(len(names), 8), frameon=False, fontsize=9)
        sns.despine(figure)
    return figure


def _middle(trace: Trace) -> int:
    calls = np.unique(trace.spans["call"])
    return int(calls[len(calls) // 2])


def _lanes(axes: Axes, trace: Trace, inks: dict[str, str], call: int, title: str) -> None:
    spans = trace.spans[trace.spans["call"] == call]
    first = spans["begin"].min()
    lanes = [(int(r), int(b)) for r in np.unique(spans["rank"]) for b in _shown(spans["block"][spans["rank"] == r])]
    for lane, (rank, block) in enumerate(lanes):
        for span in spans[(spans["rank"] == rank) & (spans["block"] == block)]:
            begin, end = (span["begin"] - first) / 1e3, (span["end"] - first) / 1e3
            axes.barh(lane, end - begin, left=begin, height=0.8, color=inks[trace.phases[span["phase"]]],
                      edgecolor=LINE.light, linewidth=0.4)  # fmt: skip
    axes.set_yticks(range(len(lanes)), [f"rank {rank} block {block}" for rank, block in lanes], fontsize=7)
    axes.invert_yaxis()
    axes.set_title(f"{title}, call {call}", fontsize=10, loc="left")


def _shown(blocks: np.ndarray) -> np.ndarray:
    every = np.unique(blocks)
    if len(every) <= _MOST_LANES:
        return every
    return every[np.linspace(0, len(every) - 1, _MOST_LANES).round().astype(int)]


def _durations(axes: Axes, trace: Trace, names: list[str], inks: dict[str, str]) -> None:
    import seaborn as sns

    rows = durations(trace)
    sns.boxplot(
        rows[rows["phase"].isin(names)],
        x="us", y="phase", hue="phase", order=names, hue_order=names, palette=inks, ax=axes, whis=(10, 90),
        showfliers=False, legend=False,
    )  # fmt: skip
    axes.set_ylabel("")
