"""`lab repro`: why the two-shot kernel desyncs at a small gate and passes its self-test at a large one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import StoppedError, say
from lab.cli.output import emit_json
from lab.errors import LabError

if TYPE_CHECKING:
    from rich.console import Console

    from lab.gate_tables import Table
    from lab.repro import Report
    from lab.sim.timing.gates import GateRow

DIFFERS = 1


def command(
    out: Annotated[Path, typer.Option(help="Folder for the page and its pictures.", file_okay=True)] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of every random draw.", min=0)] = 0,
    runs: Annotated[int, typer.Option(help="Simulated runs for each row of the gate table.", min=1)] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print the rows of the gate table as JSON.")] = False,
) -> None:
    """Reproduce the desync of the rdna_ar two-shot: the gate table, both defects, and a page that shows them.

    Exit 0 when both defects are there, the repaired protocol is fine, and the simulated self-test fails at 64 KiB and
    passes at 20 MiB; 1 when not.
    """
    check_writable(out)
    from lab.pages.repro import write_page
    from lab.repro import reproduce

    processes = min(2, os.cpu_count() or 1)
    report = reproduce(seed, runs=runs, processes=processes, progress=_progress, each_row=_row)
    page = None if report.interrupted else write_page(report, out, seed)
    if json:
        emit_json(report.rows)
    else:
        print_report(report)
    if report.interrupted:
        raise StoppedError("what was finished until then is above, and no page was written")
    say(f"the page is {page}; its pictures are beside it")
    raise typer.Exit(0 if report.reproduced else DIFFERS)


def check_writable(folder: Path) -> None:
    """Make `folder` and try to write into it.

    Raises:
        LabError: It cannot be made or written.
    """
    probe = folder / ".lab-probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as problem:
        raise LabError(
            f"the output folder cannot be written ({problem.strerror})",
            value=str(folder),
            hint="choose another with --out",
        ) from problem


def _progress(text: str) -> None:
    print(f"lab: {text} ...", file=sys.stderr, flush=True)


def _row(row: GateRow) -> None:
    from lab.gate_tables import gate_name, percent

    if sys.stderr.isatty():
        what = f"{row.preset}, {gate_name(row.gate_kib)}, {row.mode}: {percent(row.fail_share)} of {row.unit} fail"
        print(f"\r{what:<78}", end="\r", file=sys.stderr, flush=True)


def print_report(report: Report) -> None:
    """Print the gate table and both findings for a person."""
    from rich.console import Console

    from lab.gate_tables import gate_tables

    console = Console(highlight=False)
    for table in gate_tables(report.rows):
        _print_table(console, table)
    for finding in report.findings:
        console.print(f"\n[bold red]{finding.words.name}[/]  [bold]{finding.words.title}[/]")
        for sentence in finding.sentences():
            console.print(f"  {sentence}", markup=False)
        console.print(f"  lab replay '{finding.line}'", markup=False, soft_wrap=True)
    if report.repaired is not None:
        console.print(
            f"\n[bold]Repaired[/]  {report.repaired.protocol}, with both repairs and nothing else changed, is "
            f"[bold]{report.repaired.verdict}[/] at the same size."
        )


def _print_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.short):
        words = place == 0 or name.startswith("reported")
        grid.add_column(name, justify="left" if words else "right", no_wrap=not words)
    console.print(table.title, style="bold", markup=False)
    styles = {"bad": "red", "good": "green", "": ""}
    for row in table.rows:
        grid.add_row(*(Text(cell.text, style=styles[cell.kind]) for cell in row))
    console.print(grid)
    for note in table.notes:
        console.print(f"  {note}", style="dim", markup=False)
    console.print()
