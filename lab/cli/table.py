"""Tables of the commands: on a terminal what is too long wraps inside its own column; elsewhere a row is a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

_NARROWEST = 14  # columns of words that wrap
_UNBROKEN = 10_000  # columns of a stdout that is no terminal


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), gap: int = 2) -> None:
    """Print rows under their columns.

    Args:
        columns: The heads; all empty: none are printed.
        rows: The cells, as many as there are columns.
        right: Columns that are aligned on the right, such as numbers; these are never wrapped.
        gap: Blanks between two columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=any(columns), header_style="")
    rows = list(rows)
    least = 0
    for place, name in enumerate(columns):
        longest = max((len(row[place]) for row in rows), default=0)
        whole = longest if place in numbers else min(longest, _NARROWEST)
        side = "right" if place in numbers else "left"
        table.add_column(Text(name), justify=side, min_width=whole, overflow="fold")
        least += whole + gap
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBROKEN
    console = Console(file=sys.stdout, highlight=False, width=width)
    if console.width < least:  # too narrow for the table: the terminal breaks its lines, and nothing is left out
        console = Console(file=sys.stdout, highlight=False, width=least)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())
