"""One palette for all pictures, and SVG that may stand inside a page and follow its light or dark colours."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ink:
    """A colour: its name in the page, and what it is on a light and on a dark ground."""

    name: str
    light: str
    dark: str


GROUND = Ink("ground", "#fdfdfc", "#16181d")
TEXT = Ink("text", "#1c2128", "#e6e8eb")
FAINT_TEXT = Ink("faint-text", "#5b6470", "#a3abb5")
LINE = Ink("line", "#c9ced5", "#454c56")
SHADE = Ink("shade", "#f1f3f5", "#1f2329")
FLAG = Ink("flag", "#3f4a58", "#c3cad3")
FAINT_FLAG = Ink("faint-flag", "#a9b1bb", "#69727e")
RED = Ink("red", "#c8102e", "#ff6b76")
RED_GROUND = Ink("red-ground", "#fde8ea", "#4a1c22")
BLUE = Ink("blue", "#2f6fb5", "#7db4ec")
GREEN = Ink("green", "#1b7f4b", "#5fd08f")
PHASES = (
    Ink("phase-1", "#bcd7f5", "#2b527d"),
    Ink("phase-2", "#f8dc9c", "#6f5312"),
    Ink("phase-3", "#c5e8c2", "#2c6136"),
    Ink("phase-4", "#e2cdf1", "#5a3b75"),
    Ink("phase-5", "#f7cdb9", "#79412a"),
    Ink("phase-6", "#b9e6e4", "#1f5f5d"),
    Ink("phase-7", "#dcdfa9", "#54571f"),
    Ink("phase-8", "#d3d8de", "#474e58"),
)
INKS = (GROUND, TEXT, FAINT_TEXT, LINE, SHADE, FLAG, FAINT_FLAG, RED, RED_GROUND, GREEN, BLUE, *PHASES)
_NEUTRAL = {"#000000": TEXT, "#262626": TEXT, "#cccccc": LINE}  # what matplotlib and seaborn use where nothing is said
FONTS = ["DejaVu Sans", "Verdana", "Segoe UI", "Helvetica", "Arial", "sans-serif"]


def phase_inks(phases: list[str]) -> dict[str, Ink]:
    """A colour for each phase name, in the order given; colours repeat after eight."""
    return {name: PHASES[index % len(PHASES)] for index, name in enumerate(phases)}


def css_colours(dark: bool) -> str:
    """The palette as CSS custom properties."""
    return " ".join(f"--{ink.name}: {ink.dark if dark else ink.light};" for ink in INKS)


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """A figure as an SVG element for a page: no header, no links, own ids, palette colours as CSS variables.

    Args:
        figure: A matplotlib figure drawn with the palette.
        name: Unique in the page.
        label: What the picture shows, for readers who cannot see it.
    """
    import matplotlib as mpl

    target = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, ink in (*((ink.light, ink) for ink in INKS), *_NEUTRAL.items()):
        text = text.replace(colour, f"var(--{ink.name})")
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    assert box is not None
    width = f"{float(box[1]) * 4 / 3:.0f}px"
    return f'<svg role="img" aria-label="{_escaped(label)}" {box[0]} style="width: {width}">{body}'


def write_figure(figure: Figure, path: Path, dpi: int = 160) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`.

    Raises:
        LabError: The ending is another, or the file cannot be written.
    """
    forms = (".png", ".svg", ".pdf")
    if path.suffix.lower() not in forms:
        raise LabError("a picture is not written in this form", value=str(path), hint=f"use {', '.join(forms)}")
    try:
        figure.savefig(path, dpi=dpi, facecolor=GROUND.light)
    except OSError as problem:
        raise LabError("the picture cannot be written", value=str(path), hint=problem.strerror) from problem


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
