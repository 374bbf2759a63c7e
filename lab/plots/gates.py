"""The gate table as a picture: failing trials and wrong elements over gate size, model beside hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.plots.style import BLUE, FAINT_TEXT, GREEN, RED
from lab.sim.timing.gate_reference import REFERENCES
from lab.sim.timing.gates import GateRow
from lab.sim.timing.presets import PRESETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODES = {
    "isolated": ("isolated calls", BLUE.light, "o"),
    "back_to_back": ("back-to-back calls", GREEN.light, "s"),
    "self_test": ("boot self-test", RED.light, "D"),
}
_LEAST = 1e-5  # a share below this is drawn at the floor


def gate_figure(rows: Sequence[GateRow]) -> Figure:
    """Draw rows of the gate table: a column a preset, above the failing trials, below the wrong elements of those.

    Lines with filled marks are simulated; hollow marks of the same shape are hardware.
    """
    import seaborn as sns
    from matplotlib.figure import Figure

    presets = list(dict.fromkeys(row.preset for row in rows))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(1.2 + 5.2 * len(presets), 7.4), layout="constrained")
        axes = figure.subplots(2, len(presets), sharex=True, sharey="row", squeeze=False)
    gates = sorted({row.gate_kib for row in rows})
    for column, preset in enumerate(presets):
        shown = [row for row in rows if row.preset == preset]
        _panel(axes[0, column], shown, preset, "fail_share")
        _panel(axes[1, column], shown, preset, "wrong_share")
        about = PRESETS[preset].about.split(".")[0]
        axes[0, column].set_title(f"{preset}\n{about}", fontsize=10)
        axes[1, column].set_xlabel("gate = message size")
        axes[1, column].set_xticks(gates, [f"{g} KiB" if g < 1024 else f"{g // 1024} MiB" for g in gates])
        axes[1, column].tick_params(axis="x", rotation=40)
    axes[0, 0].set_ylabel("share of trials that fail")
    axes[1, 0].set_ylabel("share of wrong elements\nin the trials that fail")
    axes[1, 0].set_yscale("log")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    for other in axes.flat[1:]:
        for handle, label in zip(*other.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.suptitle("The seed's all-reduce over gate size, 4 ranks: simulated lines, hollow marks from hardware")
    return figure


def _panel(axes: Axes, rows: Sequence[GateRow], preset: str, field: str) -> None:
    import seaborn as sns

    for mode, (name, colour, marker) in _MODES.items():
        points = [(row.gate_kib, getattr(row, field)) for row in rows if row.mode == mode]
        if field == "wrong_share":
            points = [(gate, max(share, _LEAST)) for gate, share in points if share]
        if points:
            x, y = zip(*points, strict=True)
            sns.lineplot(x=x, y=y, ax=axes, color=colour, marker=marker, markersize=6, label=f"{name}, simulated")
        hardware = [(r.gate_kib, getattr(r, field)) for r in REFERENCES if (r.preset, r.mode) == (preset, mode)]
        hardware = [(gate, share) for gate, share in hardware if share is not None]
        if hardware:
            x, y = zip(*hardware, strict=True)
            axes.scatter(
                x, y, s=110, marker=marker, facecolors="none", edgecolors=colour, linewidths=1.6, zorder=3,
                label=f"{name}, hardware",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    if field == "fail_share":
        axes.set_ylim(-0.04, 1.08)
        axes.yaxis.set_major_formatter("{x:.0%}")
    elif not axes.lines and not axes.collections:
        axes.text(0.5, 0.5, "no wrong element", transform=axes.transAxes, ha="center", color=FAINT_TEXT.light)
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()
