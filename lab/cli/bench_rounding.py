"""`lab bench rounding`: every mode beside copies and other libraries."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli.output import emit_json


def command(
    mebibytes: Annotated[int, typer.Option(min=1, max=4096, help="Size of the fp32 input in MiB.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each row runs; the best counts.")] = 15,
    peers: Annotated[bool, typer.Option(help="Also time torch, ml_dtypes and gfloat, where installed.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Bytes read and written a second, on one thread, and the ratio to numpy's copy in the same run."""
    from lab.sim.rounding.speed import measure

    rows = measure(mebibytes, rounds, peers=peers)
    if json:
        emit_json({"mebibytes": mebibytes, "rounds": rounds, "threads": 1, "rows": rows})
        return
    typer.echo(f"{mebibytes} MiB of fp32, one thread, best of {rounds}, rows and copies interleaved")
    typer.echo(f"{'implementation':<22} {'mode':<13} {'format':<6} {'ms':>9} {'GB/s':>7} {'ratio to copy':>14}  limit")
    for row in rows:
        typer.echo(
            f"{row.implementation:<22} {row.mode:<13} {row.format:<6} {row.ms:>9.2f} {row.gb_per_s:>7.2f} "
            f"{row.ratio_to_copy:>14.3f}  {row.limit}"
        )
