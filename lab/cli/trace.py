"""`lab trace`: when each block of a protocol is in which phase, simulated, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import DEFECT, say
from lab.cli.options import (
    Blocks,
    Bytes,
    Calls,
    Dtype,
    Gate,
    Gpus,
    Name,
    Resident,
    Scenario,
    Settings,
    Waves,
    World,
)
from lab.cli.output import emit_json

if TYPE_CHECKING:
    from lab.protocol.tables import Tables
    from lab.sim.timing.timing import TimedRun
    from lab.trace import Trace


def command(
    protocol: Name,
    out: Annotated[
        Path,
        typer.Option(help="File to write: .npz, .parquet, or .json for Perfetto and chrome://tracing."),
    ],
    world: World = None,
    blocks: Blocks = None,
    calls: Calls = None,
    nbytes: Bytes = None,
    gate: Gate = None,
    dtype: Dtype = None,
    waves: Waves = None,
    resident: Resident = None,
    gpus: Gpus = None,
    scenario: Scenario = None,
    option: Settings = None,
    preset: Annotated[
        str, typer.Option(help="Machine that is simulated: pcie_v620, h200 or h200_one_gpu.")
    ] = "pcie_v620",
    seed: Annotated[int, typer.Option(help="Seed of every random draw.", min=0)] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the phases of one call into this .png or .svg.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the durations of the phases as JSON.")] = False,
) -> None:
    """Run a protocol once in time, on a machine that is a table of latencies, and write the trace of its phases.

    Times are simulated: take shapes and comparisons from them, not nanoseconds. `lab compare` puts the trace beside one
    that was recorded. Exit 1 if the simulated run hangs, gives up a wait, or has a wrong element.
    """
    from lab.cli.request import configured
    from lab.compare import durations
    from lab.protocol.tables import compile_tables
    from lab.sim.timing.presets import preset as machine
    from lab.sim.timing.timed_trace import trace_of

    chosen = machine(preset)
    found, config = configured(
        protocol,
        world=world,
        blocks=blocks,
        calls=calls,
        nbytes=nbytes,
        gate=gate,
        dtype=dtype,
        waves=waves,
        resident=resident,
        gpus=gpus,
        scenario=scenario,
        settings=option or [],
    )
    run = _run(compile_tables(found.program(config)), chosen.name, seed)
    trace = trace_of(run)
    trace.save(out)
    if picture is not None:
        _draw(trace, picture)
    phases = durations(trace).groupby("phase", sort=False)["us"]
    rows = [
        {"phase": name, "median_us": float(us.median()), "least_us": float(us.min()), "most_us": float(us.max())}
        for name, us in phases
    ]
    if json:
        emit_json({"trace": str(out), "machine": trace.machine, "spans": len(trace.spans), "phases": rows})
    else:
        typer.echo(
            f"{len(trace.spans):,} phases of {len(trace.ranks)} ranks, simulated on {chosen.name}: {chosen.about}"
        )
        typer.echo(f"{'phase, simulated us':<24}{'median':>10}{'least':>10}{'most':>10}")
        for row in rows:
            typer.echo(f"{row['phase']:<24}{row['median_us']:>10.2f}{row['least_us']:>10.2f}{row['most_us']:>10.2f}")
    say(f"wrote {out}")
    failed = _failed(run)
    if failed:
        say(f"this run went wrong: {failed}; `lab check {protocol}` says why")
        raise typer.Exit(DEFECT)


def _run(tables: Tables, preset: str, seed: int) -> TimedRun:
    """A run of which every operation is kept."""
    from lab.sim.timing.timing import simulate

    run = simulate(tables, preset, seed, record=len(tables.ops) + 1)
    if run.spans_lost:  # operations in a loop
        run = simulate(tables, preset, seed, record=len(run.span_op) + run.spans_lost)
    return run


def _failed(run: TimedRun) -> str:
    """What went wrong in a run; empty: nothing."""
    wrong = [check for check in run.checks if not check.ok]
    if wrong:
        return f"call {wrong[0].call} of rank {wrong[0].rank} has {100 * wrong[0].wrong_share:.2g} % wrong elements"
    if run.timeouts:
        return str(run.timeouts[0])
    if run.hung:
        return f"{len(run.hung)} agents never ended, the first is {run.hung[0][0].name}"
    return ""


def _draw(trace: Trace, picture: Path) -> None:
    from lab.plots.phases import phases_figure
    from lab.plots.style import write_figure

    write_figure(phases_figure([trace]), picture)
    say(f"wrote {picture}")
