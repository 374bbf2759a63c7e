"""`lab bench rounding`: every mode beside copies and other libraries."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli.errors import StoppedError
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.cli.table import print_table


def command(
    mebibytes: Annotated[int, typer.Option(min=1, max=4096, help="Size of the fp32 input in MiB.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each row runs; the best counts.")] = 15,
    peers: Annotated[bool, typer.Option(help="Also time torch, ml_dtypes and gfloat, where installed.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Bytes read and written a second, on one thread, and the ratio to numpy's copy in the same run."""
    from lab.sim.rounding.speed import measure

    finished = 0
    with telling() as tell:

        def progress(done: int) -> None:
            nonlocal finished
            finished = done
            tell(f"{done} of {rounds} rounds")

        rows = measure(mebibytes, rounds, peers=peers, progress=progress)
    if json:
        emit_json({"mebibytes": mebibytes, "rounds": finished, "threads": 1, "rows": rows})
    else:
        typer.echo(f"{mebibytes} MiB of fp32, one thread, best of {finished}, rows and copies interleaved")
        print_table(
            ("implementation", "mode", "format", "ms", "GB/s", "ratio to copy", "limited by"),
            [
                (
                    *(row.implementation, row.mode, row.format),
                    *(f"{row.ms:.2f}", f"{row.gb_per_s:.2f}", f"{row.ratio_to_copy:.3f}", row.limit),
                )
                for row in rows
            ],
            right=(3, 4, 5),
        )
    if finished < rounds:
        raise StoppedError(f"{finished} of {rounds} rounds were finished; the rows are of those")
