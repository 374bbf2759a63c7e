"""How often calls fail, and how much of the output is wrong, over the gate: simulated lines, hardware marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.gates import H200, V620, gate_name, in_order
from lab.plots.style import BLUE, FAINT_TEXT, FONTS, GREEN, GROUND, LINE, RED, TEXT
from lab.sim.gates import GateRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODES = (("self_test", "boot self-test", RED, "o"), ("isolated", "isolated calls", BLUE, "s"),
          ("back_to_back", "back to back", GREEN, "^"))  # fmt: skip


def gate_curve(rows: list[GateRow]) -> Figure:
    """Two panels over the gate: share of trials that fail (PCIe box), share of wrong elements (both machines)."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.family": FONTS[:1], "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.8, 4.4), facecolor=GROUND.light)
        left, right = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.07, right=0.985, bottom=0.30, top=0.90, wspace=0.2)
        gates = sorted({row.gate_kib for row in rows})
        _failing(left, in_order(rows), gates)
        _wrong(right, in_order(rows), gates)
    return figure


def _failing(axes: Axes, rows: list[GateRow], gates: list[int]) -> None:
    for mode, name, ink, mark in _MODES:
        of_mode = [row for row in rows if (row.preset, row.mode) == (V620, mode)]
        axes.plot(
            [gates.index(row.gate_kib) for row in of_mode], [100 * row.fail_share for row in of_mode], mark + "-",
            color=ink.light, label=f"{name}, simulated", ms=5,
        )  # fmt: skip
        told = [row for row in of_mode if row.reference]
        if told:
            axes.plot(
                [gates.index(row.gate_kib) for row in told],
                [100 * row.reference.fail_share for row in told if row.reference], "D", color=TEXT.light, mfc="none",
                ms=10, mew=1.4, label=f"{name}, reported on 4x V620",
            )  # fmt: skip
    _dress(axes, gates, "Trials that fail, 4 GPUs on PCIe, %")
    axes.set_ylim(-5, 108)


def _wrong(axes: Axes, rows: list[GateRow], gates: list[int]) -> None:
    for preset, name, ink, mark in ((V620, "4 GPUs on PCIe", BLUE, "s"), (H200, "2 H200", GREEN, "o")):
        of_preset = [row for row in rows if (row.preset, row.mode) == (preset, "isolated") and row.wrong_share]
        axes.plot(
            [gates.index(row.gate_kib) for row in of_preset], [100 * row.wrong_share for row in of_preset], mark + "-",
            color=ink.light, label=f"{name}, simulated", ms=5,
        )  # fmt: skip
        told = [row.reference for row in of_preset if row.reference and row.reference.wrong_share]
        if told:
            axes.plot(
                [gates.index(t.gate_kib) for t in told], [100 * (t.wrong_share or 0) for t in told], "D", mfc="none",
                color=TEXT.light, ms=8, mew=1.4, label=f"{name}, measured",
            )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _dress(axes, gates, "Wrong elements of an isolated call that fails, %")


def _dress(axes: Axes, gates: list[int], title: str) -> None:
    axes.set_title(title, loc="left", size=10, weight="bold", color=TEXT.light)
    axes.set_xticks(range(len(gates)), [gate_name(gate).replace(" ", "\n") for gate in gates])
    axes.set_xlim(-0.4, len(gates) - 0.6)
    axes.set_facecolor("none")
    axes.tick_params(colors=FAINT_TEXT.light, labelcolor=TEXT.light, length=3)
    axes.grid(color=LINE.light, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE.light)
    axes.legend(
        frameon=False, labelcolor=TEXT.light, fontsize=9, ncols=2, loc="upper left", bbox_to_anchor=(-0.04, -0.17)
    )
