"""What all pages share: how a template becomes one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.plots.style import css_colours, inline_svg
from lab.sim.explain.wrong import WitnessStep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render(template: str, context: dict[str, Any]) -> str:
    """A template of this room with its values, in the colours of the pictures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from lab import __version__

    environment = Environment(
        loader=PackageLoader("lab.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )  # fmt: skip
    colours = {"light": Markup(css_colours(dark=False)), "dark": Markup(css_colours(dark=True))}
    return environment.get_template(template).render(version=__version__, **colours, **context)


def svg(figure: Figure, name: str, label: str) -> Any:
    """A figure as a part of a page; `name` is unique in the page, `label` says what it shows."""
    from markupsafe import Markup

    return Markup(inline_svg(figure, name, label))


def steps_told(steps: tuple[WitnessStep, ...], red: tuple[int, ...]) -> list[dict[str, Any]]:
    """The steps that count, as `parts.html` lists them; `red` are the numbers of those at fault."""
    number = {step.step: place for place, step in enumerate(steps, 1)}
    return [
        {
            "number": place,
            "race": place in red,
            "agent": step.access.agent,
            "phase": step.access.phase,
            "text": step.access.text,
            "where": f"op {step.access.op}, {step.access.line}",
            "after": number.get(step.because),
        }
        for place, step in enumerate(steps, 1)
    ]


def kind_of_line(line: str) -> str:
    """How a line of a unified diff is coloured."""
    return {"+": "plus", "-": "minus"}.get(line[:1], "")
