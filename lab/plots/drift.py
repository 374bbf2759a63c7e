"""Drift and gain of a residual stream over its steps, with the closed form drawn in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.errors import LabError
from lab.plots.style import write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lab.sim.rounding.drift import Measured


def plot_drift(measured: Sequence["Measured"], out: Path | str | None = None) -> "Figure":
    """Draw one line a path: points are the simulation (mean over seeds), lines the closed form.

    Args:
        measured: from `measure(..., every_step=True)`.
        out: where to save the picture; None: not saved.

    Returns:
        The figure.

    Raises:
        LabError: only the last step was measured, or the file cannot be written.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    steps = measured[0].drift.shape[1]
    if steps > 1 and np.isnan(measured[0].drift[:, 0]).any():
        raise LabError("only the last step was measured", hint="measure(..., every_step=True)")
    colours = sns.color_palette("husl", len(measured))
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8.5, 8), sharex=True, layout="constrained")
    t = np.arange(1, steps + 1)
    shown = np.unique(np.round(np.geomspace(1, steps, 28)).astype(int)) - 1
    for each, colour in zip(measured, colours, strict=True):
        label = each.path.name
        top.plot(t[shown], 100 * each.drift.mean(0)[shown], "o", ms=4, color=colour, label=label)
        bottom.plot(t[shown], 100 * each.gain.mean(0)[shown], "o", ms=4, color=colour)
        if each.law is not None:
            top.plot(t, 100 * each.law.drift, "-", lw=1.2, color=colour)
            bottom.plot(t, 100 * each.law.gain, "-", lw=1.2, color=colour)
    top.set(xscale="log", yscale="log", ylabel="drift |r − ref| / |ref|, %")
    top.set_title("A residual stream in bf16 against fp64: points simulated, lines closed form")
    bottom.set(xlabel="additions to the residual", ylabel="gain ⟨r, ref⟩ / ⟨ref, ref⟩ − 1, %")
    bottom.axhline(0, color="0.6", lw=0.8)
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
        sns.despine(ax=axes)
    figure.legend(*top.get_legend_handles_labels(), loc="outside right upper", fontsize="small", frameon=False)
    if out is not None:
        try:
            write_figure(figure, Path(out), dpi=130)
        finally:
            plt.close(figure)
    return figure
