"""`lab bench`: how fast the lab's own engines are, each with its peers in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import bench_rounding
from lab.cli.errors import StoppedError
from lab.cli.options import seconds as span
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.cli.table import print_table

if TYPE_CHECKING:
    from lab.sim.bench.measure import Report, Row

app = typer.Typer(help="Measure the lab's engines, with what limits them.", no_args_is_help=True)
app.command("rounding")(bench_rounding.command)


@app.command()
def sim(
    seconds: Annotated[float, typer.Option(help="Seconds to measure each row.", callback=span)] = 0.5,
    peers: Annotated[bool, typer.Option(help="Also run SPIN on the searched models, where it is installed.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Operations, schedules and states per second on one core, what limits them, and SPIN beside them.

    Then how many executions each scheduler needs to meet the races of the catalogue.
    """
    from lab.protocol.published import ENTRIES
    from lab.protocol.tables import compile_tables
    from lab.sim.bench.measure import measure

    defects = {}
    for entry in ENTRIES:
        protocol, config = entry.defective()
        defects[entry.id] = compile_tables(protocol.program(config))
    with telling() as tell:
        report = measure(seconds, peers, defects, tell)
    if json:
        emit_json(report.document())
    else:
        _print(report)
    if report.interrupted:
        raise StoppedError(f"the {len(report.rows)} rows that were finished are above")


def _print(report: Report) -> None:
    rows = [(row.engine, row.model, row.memory, _figures(row), row.limit) for row in report.rows]
    print_table(("engine", "model", "memory", "how fast", "limited by"), rows)
    for model, ratio in report.times_spin.items():
        typer.echo(f"{model}: the exact search visits {ratio:.0f} times as many states a second as SPIN")
    for name, what in report.peers.items():
        typer.echo(f"{name}: {what}")


def _figures(row: Row) -> str:
    parts = []
    if row.ops_per_s is not None:
        parts.append(f"{row.ops_per_s / 1e6:7.1f} M ops/s")
    if row.schedules_per_s is not None:
        parts.append(f"{row.schedules_per_s:>12,.0f} schedules/s")
    if row.executions is not None:
        parts.append(f"{row.executions:7.1f} executions, mean")
    if row.states_per_s is not None:
        parts.append(f"{row.states_per_s / 1e6:7.2f} M states/s")
    if row.bytes_per_state is not None:
        parts.append(f"{row.bytes_per_state:.2f} bytes a state")
    if row.us is not None:
        parts.append(f"{row.us:7.1f} us")
    return " ".join(parts)
