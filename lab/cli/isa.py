"""`lab isa`: the kernels' machine code, checked."""

from typing import Annotated

import typer

from lab.cli.errors import DEFECT


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
    from lab.kernels.build import KERNELS
    from lab.kernels.isa import ARCHITECTURES, survey

    rows = survey(world=world, kernels=kernel or KERNELS, architectures=arch or ARCHITECTURES)
    if json:
        emit_json([{"passed": row.passed, **vars(row)} for row in rows])
    else:
        typer.echo(f"world {world}, {rows[0].compiler}")
        typer.echo(
            f"{'kernel':<14} {'arch':<8} {'VGPR':>4} {'SGPR':>4} {'LDS':>4} {'lane spills':>11} "
            f"{'in flight':>9} {'scalar':>6} {'poll spills':>11} {'drains':>6}  checks"
        )
        for row in rows:
            failed = [f"FAIL {name}: {found}" for name, found in row.checks.items() if found != "pass"]
            verdict = "; ".join(failed) or f"pass: {', '.join(row.checks)}"
            typer.echo(
                f"{row.kernel:<14} {row.architecture:<8} {row.vgprs:>4} {row.sgprs:>4} {row.lds:>4} "
                f"{row.lane_spills:>11} {row.loads_in_flight:>9} {row.scalar_trips:>6} {row.poll_spills:>11} "
                f"{row.drains:>6.1f}  {verdict}"
            )
    if not all(row.passed for row in rows):
        raise typer.Exit(DEFECT)
