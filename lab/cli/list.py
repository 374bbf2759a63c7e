"""`lab list`: the protocols that come with the lab."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli.output import emit_json
from lab.cli.table import print_table


def command(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the protocols that come with the lab, with their default configuration."""
    from lab.protocol.library import load, names

    rows = []
    for name in names():
        protocol = load(name)
        defaults = protocol.defaults
        rows.append(
            {
                "name": name,
                "about": protocol.about.split("\n")[0],
                "world": defaults.world,
                "calls": defaults.calls,
                "bytes": list(defaults.bytes),
                "scenarios": list(protocol.scenarios),
                "options": dict(defaults.options),
            }
        )
    if json:
        emit_json(rows)
        return
    print_table(("", ""), [(row["name"], row["about"]) for row in rows])
    typer.echo("\nYour own: lab check my_protocol.py:name")
