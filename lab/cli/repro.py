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
    """Print the answer, then how it was seen (the gate table), then each finding's execution, for a person."""
    from rich.console import Console

    from lab.gate_tables import gate_tables
    from lab.repro import COLUMN_WORDS, WHY

    console = Console(highlight=False)
    _print_answer(console, report)
    tables = gate_tables(report.rows)
    if tables:
        _paragraph(console, "Why 64 KiB fails and 20 MiB passes", WHY)
        console.print("[bold]What fails at which gate[/]  (a gate is the largest message that the kernel may take)")
        for word, meaning in COLUMN_WORDS:
            _indented(console, f"{word}: {meaning}", style="dim")
        console.print()
    for table in tables:
        _print_table(console, table)
    for finding in report.findings:
        console.print(f"[bold red]{finding.words.name}[/]  [bold]One execution that shows it[/]")
        for sentence in finding.story.sentences():
            _indented(console, sentence)
        console.print(f"  lab replay '{finding.line}'\n", markup=False, soft_wrap=True)


def _print_answer(console: Console, report: Report) -> None:
    """The defects, what closes each, and whether that was confirmed."""
    from lab.repro import TITLE

    console.print(f"[bold]{TITLE}[/]\n")
    if not report.findings:
        return
    console.print("Two defects, independent of each other:" if len(report.findings) == 2 else "Found so far:")
    for finding in report.findings:
        console.print(f"\n[bold red]{finding.words.name}[/]  [bold]{finding.words.title}[/]")
        _indented(console, finding.words.gist)
        _indented(console, f"Closed by: {finding.words.repair[0].lower()}{finding.words.repair[1:]}", style="green")
    console.print()
    if report.repaired is not None:
        console.print(
            f"With both changes and nothing else, [bold]{report.repaired.protocol}[/] is "
            f"[bold]{report.repaired.verdict}[/] at the same size.\n"
        )


def _paragraph(console: Console, title: str, text: str) -> None:
    console.print(f"[bold]{title}[/]")
    _indented(console, text)
    console.print()


def _indented(console: Console, text: str, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False))


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
