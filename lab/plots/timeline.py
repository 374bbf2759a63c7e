"""The picture of an execution: one lane a block, bars for phases, arrows for flags, in red what is at fault.

    figure = timeline(witness.explainer, witness.fault, title="Elements are sent before they are reduced")

It knows no protocol: phases, slots and agents have the names that the protocol gave them. `lanes` says where it stands.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from lab.plots.lanes import STUCK, SYNC, WORK, Arrow, Item, Lanes, arrange
from lab.plots.scene import Scene, of_fault, of_story
from lab.plots.story import Story
from lab.plots.style import (
    FAINT_FLAG,
    FAINT_TEXT,
    FLAG,
    FONTS,
    GREEN,
    GROUND,
    LINE,
    RED,
    RED_GROUND,
    SHADE,
    TEXT,
    Ink,
    phase_inks,
)
from lab.sim.explain.wrong import Explainer, Fault

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_RIGHT, _UNIT = 2.45, 0.80
_PITCH, _BAR, _RANK_GAP, _BRACKET = 0.50, 0.29, 0.16, 0.17
_RED_LINE, _RED_GAP, _RACE_GAP = 0.17, 0.10, 0.22
_LINE = 0.21
_MARGIN = 0.12
_LEAST_WIDTH = 6.5
_DOT, _BADGE = 0.045, 0.095


def timeline(
    explainer: Explainer, fault: Fault, *, title: str = "", words: bool = True, told: Story | None = None
) -> Figure:
    """Draw the execution in which `fault` happens.

    Args:
        explainer: Explains the execution.
        fault: The read that went wrong.
        title: A headline.
        words: Explain the marks and tell the story in sentences below the lanes.
        told: The story, when it is already known.
    """
    return draw(of_fault(explainer, fault) if told is None else of_story(explainer, fault, told), title, words)


def draw(scene: Scene, title: str = "", words: bool = True) -> Figure:
    """Draw a scene; `title` and `words` as for `timeline`."""
    return _Drawing(arrange(scene), scene, title, words).draw()


class _Drawing:
    def __init__(self, lanes: Lanes, scene: Scene, title: str, words: bool) -> None:
        self.lanes, self.scene, self.title = lanes, scene, title
        self.left = max(1.15, 0.42 + 0.07 * max((len(lane.label) for lane in lanes.lanes), default=0))
        self.width = max(
            self.left + _UNIT * lanes.width + (_RIGHT if scene.outputs or scene.stuck else 0.3), _LEAST_WIDTH
        )
        self.notes = self._wrapped(list(scene.sentences)) if words else []
        self.callouts = self._callouts()
        self.y, bottom = self._rows()
        self.lanes_bottom = bottom
        self.legend = self._wrapped([self._key()] if words else [], 0.0625)
        self.height = bottom + _LINE * (len(self.legend) + len(self.notes)) + (0.34 if words else 0.0)
        self.inks = phase_inks(lanes.phases)

    def draw(self) -> Figure:
        """The figure."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context({"font.family": FONTS[:1], "svg.fonttype": "none"}):
            figure = Figure(figsize=(self.width, self.height), facecolor=GROUND.light)
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, self.width), ylim=(self.height, 0))
            axes.axis("off")
            self._title(axes)
            self._ranks(axes)
            for arrow in self.lanes.flags:
                self._flag(axes, arrow)
            marks = {WORK: self._bar, SYNC: self._dot, STUCK: self._end}
            for item in self.lanes.items:
                marks[item.kind](axes, item)
            self._brackets(axes)
            self._carried(axes)
            self._race(axes)
            self._results(axes)
            self._legend(axes)
            self._notes(axes)
        return figure

    # -- geometry ------------------------------------------------------------------------------------------------------

    def _callouts(self) -> list[tuple[Item, list[str], bool]]:
        """(mark, lines, whether they stand above its lane) of the racing pair."""
        remarks = self.lanes.remarks
        top = min((mark.lane for mark, _ in remarks), default=0)
        first = next((mark for mark, _ in remarks if mark.lane == top), None)
        return [(mark, list(lines), mark is first and mark.kind != STUCK) for mark, lines in remarks]

    def _rows(self) -> tuple[list[float], float]:
        """The centre of each lane, and where the lanes end."""
        at = _MARGIN + (0.42 if self.title else 0.0)
        rows: list[float] = []
        lanes = self.lanes.lanes
        racing = sorted(mark.lane for mark in self.lanes.pair)
        for index, lane in enumerate(lanes):
            new_rank = index and lane.rank != lanes[index - 1].rank
            at += _RANK_GAP if new_rank else 0.0
            at += _RACE_GAP if not new_rank and racing == [index - 1, index] else 0.0
            at += self._room(index, above=True) + self._bracket(index)
            rows.append(at + _PITCH / 2)
            at += _PITCH + self._room(index, above=False)
        return rows, at + 0.06

    def _room(self, lane: int, above: bool) -> float:
        """Height of the callouts on one side of a lane."""
        return sum(
            _RED_GAP + _RED_LINE * len(lines) for mark, lines, up in self.callouts if mark.lane == lane and up == above
        )

    def _bracket(self, lane: int) -> float:
        return _BRACKET if any(call[0] == lane for call in self.lanes.calls) else 0.0

    def _x(self, units: float) -> float:
        return self.left + _UNIT * units

    def _wrapped(self, sentences: list[str], letter: float = 0.0735) -> list[str]:
        letters = int((self.width - 2 * _MARGIN) / letter)
        return [line for text in sentences for line in textwrap.wrap(text, letters)]

    # -- the ground ----------------------------------------------------------------------------------------------------

    def _title(self, axes: Axes) -> None:
        if self.title:
            axes.text(_MARGIN, _MARGIN + 0.12, self.title, size=13, weight="bold", color=TEXT.light, va="center")

    def _ranks(self, axes: Axes) -> None:
        lanes = self.lanes.lanes
        for index, lane in enumerate(lanes):
            first = index == 0 or lanes[index - 1].rank != lane.rank
            y = self.y[index]
            axes.text(self.left - 0.12, y, lane.label, size=9, color=TEXT.light, ha="right", va="center")
            if first:
                last = max(i for i, other in enumerate(lanes) if other.rank == lane.rank)
                self._rank_ground(axes, f"rank {lane.rank}", y - self._bracket(index), self.y[last])
            items = [item for item in self.lanes.items if item.lane == index]
            if items:
                right = max(item.right for item in items)
                goes_on = index in self.lanes.cut
                end = self._x(self.lanes.width if goes_on else right)
                axes.plot([self._x(0), end], [y, y], color=LINE.light, lw=1, zorder=1)
                if goes_on:
                    axes.text(end + 0.03, y, "…", size=9, color=FAINT_TEXT.light, va="center")

    def _rank_ground(self, axes: Axes, label: str, top: float, bottom: float) -> None:
        from matplotlib.patches import Rectangle

        low, high = top - _PITCH / 2, bottom + _PITCH / 2
        left = 0.04
        axes.add_patch(Rectangle((left, low), self.width - 2 * left, high - low, color=SHADE.light, lw=0, zorder=0))
        axes.text(
            _MARGIN + 0.1, (low + high) / 2, label, size=9.5, weight="bold", color=TEXT.light, rotation=90, va="center",
            ha="center",
        )  # fmt: skip

    def _brackets(self, axes: Axes) -> None:
        for lane, call, left, right in self.lanes.calls:
            y = self.y[lane] - _BAR / 2 - 0.075
            axes.plot([self._x(left), self._x(right)], [y, y], color=FAINT_TEXT.light, lw=1, zorder=2)
            axes.text(
                self._x(left),
                y - 0.07,
                f"call {call}",
                size=8,
                color=FAINT_TEXT.light,
                ha="left",
                va="center",
                zorder=2,
            )

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _racing(self, item: Item) -> bool:
        return any(item is mark for mark, _ in self.lanes.remarks) or any(item is mark for mark in self.lanes.pair)

    def _bar(self, axes: Axes, item: Item) -> None:
        from matplotlib.patches import FancyBboxPatch

        x, y = self._x(item.left), self.y[item.lane]
        width = self._x(item.right) - x
        red = self._racing(item)
        ink: Ink = self.inks.get(item.phase, SHADE)
        axes.add_patch(
            FancyBboxPatch(
                (x, y - _BAR / 2),
                width,
                _BAR,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=ink.light,
                edgecolor=RED.light if red else LINE.light,
                lw=2.2 if red else 0.8,
                zorder=4,
            )
        )
        count = f" ×{len(item.steps)}" if len(item.steps) > 1 else ""
        text = (item.phase or "copy") + count
        size = min(9.0, 9.0 * width / (0.075 * len(text) + 0.1))
        axes.text(x + width / 2, y, text, size=size, color=TEXT.light, ha="center", va="center", zorder=5)
        if item.number:
            self._badge(axes, x + 0.02, y - _BAR / 2, item.number, RED if red else FLAG)

    def _dot(self, axes: Axes, item: Item) -> None:
        from matplotlib.patches import Circle

        x, y = self._x(item.middle), self.y[item.lane]
        if item.number:
            self._badge(axes, x, y, item.number, RED if self._racing(item) else FLAG, hollow=item.waits)
            return
        ink = FAINT_FLAG.light
        axes.add_patch(
            Circle((x, y), _DOT, facecolor=SHADE.light if item.waits else ink, edgecolor=ink, lw=1.2, zorder=4)
        )

    def _end(self, axes: Axes, item: Item) -> None:
        """The end of a lane whose agent is stuck: a bar across it."""
        x, y = self._x(item.left), self.y[item.lane]
        axes.plot([x, x], [y - _BAR / 2, y + _BAR / 2], color=RED.light, lw=3, solid_capstyle="round", zorder=5)
        axes.plot([x + 0.05, self._x(item.right)], [y, y], color=RED.light, lw=1.2, ls=(0, (1, 2)), zorder=4)

    def _badge(self, axes: Axes, x: float, y: float, number: int, ink: Ink, hollow: bool = False) -> None:
        from matplotlib.patches import Circle

        face = SHADE if hollow else ink
        axes.add_patch(Circle((x, y), _BADGE, facecolor=face.light, edgecolor=ink.light, lw=1.3, zorder=6))
        size = 7.5 if number < 10 else 6.5
        text = ink if hollow else GROUND
        axes.text(
            x, y + 0.005, str(number), size=size, weight="bold", color=text.light, ha="center", va="center", zorder=7
        )

    # -- arrows --------------------------------------------------------------------------------------------------------

    def _edge(self, item: Item, towards: float) -> tuple[float, float]:
        """Where an arrow touches a mark: a dot on its rim, a bar on the side that faces `towards`."""
        y = self.y[item.lane]
        if item.kind == SYNC:
            return self._x(item.middle), y
        return self._x(item.middle), y + (_BAR / 2 if towards > y else -_BAR / 2)

    def _arrow(
        self, axes: Axes, start: tuple[float, float], end: tuple[float, float], ink: Ink, **style: object
    ) -> None:
        from matplotlib.patches import FancyArrowPatch

        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 1.1, "zorder": 3} | style
        axes.add_patch(FancyArrowPatch(start, end, color=ink.light, **look))

    def _flag(self, axes: Axes, arrow: Arrow) -> None:
        start = self._edge(arrow.start, self.y[arrow.end.lane])
        end = self._edge(arrow.end, self.y[arrow.start.lane])
        shrink = 72 * (_BADGE if arrow.end.number else _DOT) + 1
        ink = FLAG if arrow.matters else FAINT_FLAG
        self._arrow(axes, start, end, ink, shrinkA=2, shrinkB=shrink, lw=1.5 if arrow.matters else 0.9)

    def _carried(self, axes: Axes) -> None:
        """The way of the wrong value: out of the reading bar, along the lane that it goes to, into the next bar."""
        for arrow in self.lanes.carried:
            if arrow.start.lane == arrow.end.lane:
                start, end = self._edge(arrow.start, -1e9), self._edge(arrow.end, -1e9)
                self._arrow(axes, start, end, RED, shrinkA=0, shrinkB=1, lw=1.3, connectionstyle="arc3,rad=-0.25")
                continue
            target = self.y[arrow.end.lane]
            start = self._edge(arrow.start, target)
            end = self._edge(arrow.end, self.y[arrow.start.lane])
            x = self._x(arrow.start.left) + 0.22
            turn = target + (-1 if start[1] < target else 1) * (_PITCH / 2 + 0.08 + self._bracket(arrow.end.lane))
            axes.plot([x, x, end[0]], [start[1], turn, turn], color=RED.light, lw=1.3, zorder=3)
            self._arrow(axes, (end[0], turn), end, RED, shrinkA=0, shrinkB=1, lw=1.3)

    def _race(self, axes: Axes) -> None:
        for mark, lines, above in self.callouts:
            self._callout(axes, mark, lines, above)
        if not self.lanes.pair or self.lanes.pair[0] is self.lanes.pair[1]:
            return
        first, second = self.lanes.pair
        down = self.y[second.lane] >= self.y[first.lane]
        side = _BAR / 2 if down else -_BAR / 2
        start = (self._x(first.middle), self.y[first.lane] + side)
        end = (self._x(second.middle), self.y[second.lane] - side)
        if first.lane == second.lane:
            end = (end[0], start[1])
        axes.plot(*zip(start, end, strict=True), color=RED.light, lw=2, ls=(0, (4, 2)), zorder=5)
        box: dict[str, Any] = {
            "boxstyle": "round,pad=0.15",
            "facecolor": RED_GROUND.light,
            "edgecolor": RED.light,
            "lw": 0.8,
        }
        at = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        look: dict[str, Any] = {"size": 8.5, "weight": "bold", "color": RED.light, "ha": "center", "va": "center"}
        axes.text(*at, "no order", zorder=8, bbox=box, **look)

    def _callout(self, axes: Axes, item: Item, lines: list[str], above: bool) -> None:
        longest = max(map(len, lines)) * 0.074
        right = self._x(self.lanes.width) + (2.2 if item.kind == STUCK else 0.2)  # the results stand beside the lanes
        x = max(min(self._x(item.middle), right - longest / 2), 0.35 + longest / 2)
        y = self.y[item.lane]
        top = y - _PITCH / 2 - self._bracket(item.lane) - _RED_LINE * len(lines) if above else y + _PITCH / 2 + 0.03
        for place, line in enumerate(lines):
            at = top + _RED_LINE * (place + 0.5)
            axes.text(x, at, line, size=8.5, weight="bold", color=RED.light, ha="center", va="center", zorder=8)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _results(self, axes: Axes) -> None:
        left = self._x(self.lanes.width) + 0.22
        lanes = self.lanes.lanes
        for rank in dict.fromkeys(lane.rank for lane in lanes):
            rows = [self.y[i] for i, lane in enumerate(lanes) if lane.rank == rank]
            middle = (rows[0] + rows[-1]) / 2
            found = [output for output in self.scene.outputs if output.rank == rank][:3]
            for place, output in enumerate(found):
                y = middle + 0.2 * (place - (len(found) - 1) / 2)
                right = output.wrong_share == 0
                name = f"call {output.call}: " if len(found) > 1 else ""
                text = f"✓ {name}output right" if right else f"✗ {name}mean {output.mean:.4g}, {output.due:.4g} is due"
                ink, weight = (GREEN, "normal") if right else (RED, "bold")
                axes.text(left, y, text, size=8.5, color=ink.light, va="center", weight=weight)

    def _key(self) -> str:
        hidden = f" {self.lanes.hidden} more blocks are not shown." if self.lanes.hidden else ""
        return (
            "Left to right is order, not duration. Bars move data, in the colour of their phase. A full dot writes a"
            " flag or counter, an open dot waits for one, an arrow shows which write let it go on. Red dashes join "
            "the two accesses that nothing orders; the red arrow is the way of the wrong value. Numbers count the "
            f"steps that matter.{hidden}"
        )

    def _legend(self, axes: Axes) -> None:
        for place, line in enumerate(self.legend):
            y = self.lanes_bottom + 0.1 + _LINE * place
            axes.text(_MARGIN, y, line, size=8, color=FAINT_TEXT.light, va="center")

    def _notes(self, axes: Axes) -> None:
        top = self.lanes_bottom + _LINE * len(self.legend) + 0.22
        for place, line in enumerate(self.notes):
            axes.text(_MARGIN, top + _LINE * place, line, size=9, color=TEXT.light, va="center")
