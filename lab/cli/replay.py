"""`lab replay`: repeat a schedule line step for step."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli.errors import DEFECT
from lab.cli.output import emit_json


def command(
    line: Annotated[
        str, typer.Argument(help="A schedule line as `lab check` prints it, in single quotes.", metavar="LINE")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the steps and the outcome as JSON.")] = False,
) -> None:
    """Repeat a schedule line; exit 1 if the execution is wrong, hangs or aborts, 0 if it is fine."""
    from lab.sim.explain.replay import replay
    from lab.sim.explain.report import what_failed

    found = replay(line)
    if json:
        emit_json(found)
    else:
        for step in found.steps:
            typer.echo(step)
        typer.echo(f"\n{found.outcome}; {found.digest}")
        for told in what_failed(found, {}):
            typer.echo(told)
    raise typer.Exit(0 if found.outcome == "ok" else DEFECT)
