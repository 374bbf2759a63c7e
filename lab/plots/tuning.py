"""The tuning surface: how far each launch shape of a kernel is from the fastest, over message size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lab.kernels.tuning import Point
from lab.plots.style import GROUND
from lab.plots.style import RED as STAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAR = 2.0  # times the fastest; beyond it the colour says no more


def surface(points: Sequence[Point]) -> pd.DataFrame:
    """Time over the fastest at the size: rows (algorithm, threads, blocks), columns bytes, NaN where not measured."""
    rows = pd.DataFrame(
        [(p.plan.algorithm, p.plan.threads, p.plan.blocks, p.bytes, p.us) for p in points],
        columns=["algorithm", "threads", "blocks", "bytes", "us"],
    )
    rows["slowdown"] = rows["us"] / rows.groupby("bytes")["us"].transform("min")
    return rows.pivot_table(index=["algorithm", "threads", "blocks"], columns="bytes", values="slowdown")


def tuning_figure(points: Sequence[Point], title: str = "") -> Figure:
    """Heat maps of blocks by message size: a column a kernel, a row a block size; a star marks a size's fastest."""
    import seaborn as sns
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    table = surface(points)
    kernels, threads = (table.index.unique(level) for level in ("algorithm", "threads"))
    blocks = sorted(table.index.unique("blocks"))
    size = (1.5 + 4.0 * len(kernels), 1.0 + (0.4 + 0.16 * len(blocks)) * len(threads))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(threads), len(kernels), sharex=True, sharey=True, squeeze=False)
    for (row, column), axes in np.ndenumerate(panels):
        index = pd.MultiIndex.from_product([[kernels[column]], [threads[row]], blocks])
        part = table.reindex(index).droplevel([0, 1])
        sns.heatmap(part, ax=axes, vmin=1.0, vmax=_FAR, cmap="crest", linewidths=0.3, cbar=False)
        fastest, sizes = np.nonzero(part.to_numpy() == 1.0)
        axes.scatter(
            sizes + 0.5, fastest + 0.5, marker="*", s=75, color=STAR.light, edgecolors=GROUND.light, linewidths=0.7,
            zorder=3,
        )  # fmt: skip
        axes.set(xlabel="", ylabel=f"{threads[row]} threads\nblocks" if column == 0 else "")
        axes.tick_params(axis="y", labelsize=7, rotation=0)
        if row == 0:
            axes.set_title(kernels[column], fontsize=10)
        if row == len(threads) - 1:
            axes.set_xticks(np.arange(len(part.columns)) + 0.5, map(_size, part.columns), rotation=60, fontsize=7)
            axes.set_xlabel("message size", fontsize=9)
    bar = figure.colorbar(
        panels[0, 0].collections[0], ax=panels, label="time over the fastest of the size", shrink=0.6, extend="max"
    )
    ticks = np.linspace(1.0, _FAR, 6)
    bar.set_ticks(ticks, labels=[*(f"{tick:.1f}" for tick in ticks[:-1]), f"{_FAR:.1f} or more"])
    star = Line2D([], [], ls="", marker="*", ms=10, color=STAR.light, markeredgecolor=GROUND.light)
    figure.legend([star], ["the fastest of its size"], loc="outside lower center", frameon=False, fontsize=9)
    figure.suptitle(title)
    return figure


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB" if nbytes >= 1024 else str(nbytes)
