"""`lab bench`: how fast the lab's own engines are, each with its peers in the same run."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import bench_rounding
from lab.cli.output import emit_json

app = typer.Typer(help="Measure the lab's engines, with what limits them.", no_args_is_help=True)
app.command("rounding")(bench_rounding.command)


@app.command()
def sim(
    seconds: Annotated[float, typer.Option(help="Seconds to measure each row.")] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Simulated operations and executions per second on one core, and what limits them."""
    from lab.sim.bench import measure

    rows = measure(seconds)
    if json:
        emit_json(rows)
        return
    for row in rows:
        typer.echo(
            f"{row.name:<44} {row.ops_per_s / 1e6:7.1f} M ops/s  {row.executions_per_s:>9.0f} executions/s  "
            f"{row.cells_per_s / 1e6:7.1f} M cells/s   {row.limit}"
        )
