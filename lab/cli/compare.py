"""`lab compare`: two traces side by side, each on one clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import say
from lab.cli.output import emit_json
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.alignment import Alignment
    from lab.compare import Comparison
    from lab.trace import Trace


SKEW = "skew of ranks"


def command(
    first: Annotated[Path, typer.Argument(help="A trace, as `lab trace` or the kernels' stamps give it.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    meeting: Annotated[
        list[str] | None,
        typer.Option(
            help="A phase that no block ends before the same block of every peer has begun it, or LATER=EARLIER. "
            "By default those of the kernel that the trace names.",
        ),
    ] = None,
    most_ppm: Annotated[
        float, typer.Option(help="How far apart the clocks of two ranks may run, in parts per million.", min=0)
    ] = 600.0,
    picture: Annotated[Path | None, typer.Option(help="Draw both into this .png or .svg.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Put two traces side by side, phase by phase: medians, the middle 80 %, and the first phase that differs.

    The ranks of a recorded trace have clocks of their own. They are brought onto one by what must have come before
    what, offset and rate, and what that leaves open is said. Where no clocks fit, either a block left a meeting early
    or a clock changed its rate, and the message says which.
    """
    from lab.compare import compare
    from lab.trace import Trace

    traces = [Trace.load(path) for path in (first, second)]
    given = dict(_meeting(text) for text in meeting or [])
    aligned = [_aligned(path, trace, given, most_ppm) for path, trace in zip((first, second), traces, strict=True)]
    on_one_clock = [trace if found is None else found.trace for trace, found in zip(traces, aligned, strict=True)]
    found = compare(*on_one_clock)
    if not all(_one_clock(trace, clocks) for trace, clocks in zip(traces, aligned, strict=True)):
        found = replace(found, table=found.table.drop(index=SKEW))  # the clocks' offsets, and no skew
    if picture is not None:
        _draw(on_one_clock, picture)
    if json:
        emit_json(_document((first, second), aligned, found))
        return
    for path, trace, clocks in zip((first, second), traces, aligned, strict=True):
        typer.echo(f"{path}: {trace.source}, {trace.machine}, {len(trace.spans):,} phases of {len(trace.ranks)} ranks")
        for line in _clock_lines(trace, clocks):
            typer.echo(f"  {line}")
    typer.echo("")
    for line in _table_lines(found):
        typer.echo(line)


def _meeting(text: str) -> tuple[str, str]:
    later, equals, earlier = text.partition("=")
    if not later or (equals and not earlier):
        raise LabError("a meeting is a phase, or LATER=EARLIER", value=text)
    return later, earlier or later


def _aligned(path: Path, trace: Trace, given: dict[str, str], most_ppm: float) -> Alignment | None:
    """The trace on one clock; None: nothing is known of its meetings, or a simulation gave it one clock."""
    from lab.alignment import align
    from lab.kernels.stamps import MEETINGS

    if trace.source == "simulated" or len(trace.ranks) < 2:
        return None
    meetings = given or MEETINGS.get(str(trace.about.get("algorithm")), {})
    if not meetings:
        return None
    try:
        return align(trace, meetings, most_ppm)
    except LabError as problem:
        raise LabError(f"{path}: {problem.what}", value=problem.value, hint=problem.hint) from problem


def _one_clock(trace: Trace, aligned: Alignment | None) -> bool:
    return aligned is not None or trace.source == "simulated" or len(trace.ranks) < 2


def _clock_lines(trace: Trace, aligned: Alignment | None) -> list[str]:
    if aligned is None:
        if _one_clock(trace, aligned):
            return []
        return ["each rank has its own clock, and nothing is known of meetings: no skew (--meeting PHASE)"]
    first, *others = aligned.offsets
    return [
        f"rank {rank}: clock {aligned.offsets[rank] / 1e3:+,.2f} us to rank {first}'s, rate "
        f"{aligned.ppm[rank]:+.1f} ppm (+- {aligned.ppm_uncertainty[rank]:.1f}); its times are known to "
        f"{aligned.uncertainty[rank] / 1e3:.2f} us either way"
        for rank in others
    ]


def _table_lines(found: Comparison) -> list[str]:
    names = [column.removesuffix("_us") for column in found.table.columns if column.endswith("_us")]
    head = f"{'us':<16}" + "".join(f"{name:>12}{'middle 80 %':>22}" for name in names) + f"{'ratio':>9}"
    lines = [head]
    for phase, row in found.table.iterrows():
        cells = "".join(f"{row[f'{n}_us']:>12.2f}{row[f'{n}_low']:>12.2f} ..{row[f'{n}_high']:>7.2f}" for n in names)
        lines.append(f"{phase:<16}{cells}{row['ratio']:>9.2f}")
    if found.missing:
        lines.append(f"only one of the two has: {', '.join(found.missing)}")
    differs = found.first_difference
    said = (
        f"the first phase whose middle 80 % do not overlap: {differs}" if differs else "no phase is clearly different"
    )
    return [*lines, said]


def _document(paths: tuple[Path, Path], aligned: list[Alignment | None], found: Comparison) -> dict[str, object]:
    clocks = [
        None
        if each is None
        else {
            "offsets_ns": each.offsets,
            "ppm": each.ppm,
            "uncertainty_ns": each.uncertainty,
            "ppm_uncertainty": each.ppm_uncertainty,
        }
        for each in aligned
    ]
    rows = [{"phase": phase, **row} for phase, row in found.table.to_dict("index").items()]
    return {
        "traces": [str(path) for path in paths],
        "clocks": clocks,
        "phases": rows,
        "first_difference": found.first_difference,
        "missing": found.missing,
    }


def _draw(traces: list[Trace], picture: Path) -> None:
    from lab.plots.phases import phases_figure
    from lab.plots.style import write_figure

    write_figure(phases_figure(traces), picture)
    say(f"wrote {picture}")
