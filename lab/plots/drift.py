"""Drift and gain of a residual stream over its steps, with the closed form drawn in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.errors import LabError
from lab.plots.style import write_figure
from lab.sim.rounding.modes import RoundMode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lab.sim.rounding.drift import Measured
    from lab.sim.rounding.drift import Path as Path_


# Hues that are far apart for the eye, colour-blind eyes included (Okabe, Ito 2008, and two more); modes that are easily
# mixed up differ in hue, lightness and mark.
_LOOKS = {
    RoundMode.TowardZero: ("#d55e00", "v"),
    RoundMode.TiesToEven: ("#0072b2", "o"),
    RoundMode.TiesToAway: ("#e6a200", "s"),
    RoundMode.TowardPositive: ("#111111", "^"),
    RoundMode.TowardNegative: ("#7f7f7f", "v"),
    RoundMode.AwayFromZero: ("#8c2d04", "D"),
    RoundMode.ToOdd: ("#009e73", "P"),
    RoundMode.TiesToEvenViaFp16: ("#56b4e9", "h"),
    RoundMode.LowHalf: ("#bcbd22", "X"),
}
_RANDOM = (("#3f007d", "*"), ("#cc79a7", "*"), ("#f768c4", "*"), ("#9e9ac8", "*"), ("#6a51a3", "d"), ("#dadaeb", "d"))
_OTHERS = (("#17becf", "<"), ("#a65628", ">"), ("#4daf4a", "p"), ("#999933", "H"), ("#882255", "8"))


def _looks(paths: Sequence["Path_"]) -> list[tuple[str, str]]:
    """Colour and mark of each path: the mode's own, the first time; then those of others, until all are used up."""
    free = {True: list(_RANDOM), False: list(_OTHERS)}
    used: set[tuple[str, str]] = set()
    looks = []
    for path in paths:
        own = _LOOKS.get(path.add)
        if own is None or own in used or path.accumulate == "ring":
            rest = free[path.add.is_stochastic]
            own = rest.pop(0) if rest else (f"C{len(looks) % 10}", "o")
        used.add(own)
        looks.append(own)
    return looks


def _label(path: "Path_") -> str:
    """A path's name, with its mode spelt out where the name is made of it."""
    return f"{path.name}: {path.add.words}" if path.add.value in path.name else path.name


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

    looks = _looks([each.path for each in measured])
    steps = measured[0].drift.shape[1]
    if steps > 1 and np.isnan(measured[0].drift[:, 0]).any():
        raise LabError("only the last step was measured", hint="measure(..., every_step=True)")
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10.5, 8), sharex=True, layout="constrained")
    t = np.arange(1, steps + 1)
    shown = np.unique(np.round(np.geomspace(1, steps, 28)).astype(int)) - 1
    for each, (colour, marker) in zip(measured, looks, strict=True):
        for axes, value in ((top, each.drift), (bottom, each.gain)):
            axes.plot(
                t[shown],
                100 * value.mean(0)[shown],
                marker,
                ls="",
                ms=8 if marker == "*" else 5,
                color=colour,
                label=_label(each.path),
                markeredgecolor="white",
                markeredgewidth=0.4,
            )
        if each.law is not None:
            top.plot(t, 100 * each.law.drift, "-", lw=1.2, color=colour, zorder=1)
            bottom.plot(t, 100 * each.law.gain, "-", lw=1.2, color=colour, zorder=1)
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
