"""`lab isa`: the kernels' machine code, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import DEFECT
from lab.cli.table import print_table

if TYPE_CHECKING:
    from lab.kernels.isa import Row


def command(
    world: Annotated[int, typer.Option(help="Ranks that the kernels are compiled for, 2 to 8.")] = 4,
    kernel: Annotated[list[str] | None, typer.Option(help="A kernel; repeat for more. All when left out.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="An AMD architecture; repeat for more.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: one object per kernel and architecture.")] = False,
) -> None:
    """Compile the kernels for AMD GPUs and check the machine code. Needs no GPU.

    Checked: release (write-back, its wait, flag), drain (every wave's stores before the barrier), acquire
    (invalidate), payload (cache bypass), 16-byte accesses, spills, the rounding mode. Counted and checked: loads of a
    vector in flight together, waits for scalar loads before the first push, spills between two polls, waits for all
    stores to peers for each vector. Exit code 1 when a check fails.
    """
    from lab.cli.output import emit_json
    from lab.kernels.build import EVERY_KERNEL
    from lab.kernels.isa import ARCHITECTURES, survey

    rows = survey(world=world, kernels=kernel or EVERY_KERNEL, architectures=arch or ARCHITECTURES)
    if json:
        emit_json([{"passed": row.passed, **vars(row)} for row in rows])
    else:
        typer.echo(f"world {world}, {rows[0].compiler}")
        heads = ("kernel", "arch", "VGPR", "SGPR", "LDS", "lane spills", "in flight", "scalar", "poll spills", "drains")
        print_table((*heads, "checks"), [_cells(row) for row in rows], right=range(2, len(heads)), gap=1)
        typer.echo(f"checked: {', '.join(rows[0].checks)}")
        for row in rows:
            for name, found in row.checks.items():
                if found != "pass":
                    typer.echo(f"FAIL {row.kernel} {row.architecture} {name}: {found}")
    if not all(row.passed for row in rows):
        raise typer.Exit(DEFECT)


def _cells(row: Row) -> tuple[str, ...]:
    counts = (row.vgprs, row.sgprs, row.lds, row.lane_spills, row.loads_in_flight, row.scalar_trips, row.poll_spills)
    return (row.kernel, row.architecture, *map(str, counts), f"{row.drains:.1f}", "pass" if row.passed else "FAIL")
