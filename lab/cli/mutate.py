"""`lab mutate`: what a protocol needs, and with --slack what it could do without."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli.errors import DEFECT
from lab.cli.output import emit_json
from lab.errors import LabError


def command(
    protocol: Annotated[
        str, typer.Argument(help="A name from `lab list`, or my_protocol.py:name.", metavar="NAME_OR_FILE")
    ],
    world: Annotated[int | None, typer.Option(help="Ranks.")] = 2,
    blocks: Annotated[int | None, typer.Option(help="Most blocks of a launch.")] = 2,
    calls: Annotated[int | None, typer.Option(help="Calls of each rank.")] = 3,
    nbytes: Annotated[str | None, typer.Option("--bytes", help="Message size; several with commas.")] = None,
    option: Annotated[list[str] | None, typer.Option("--set", help="An option of the protocol, NAME=VALUE.")] = None,
    slack: Annotated[bool, typer.Option("--slack", help="Show only what the protocol holds without.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the exploration.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Weaken each wait, fence, store, order, scope and buffer of a protocol in turn and see whether the check notices.

    caught: the operation is needed. slack: the protocol holds without it, and one execution proves it for every
    schedule of this configuration. survived: nothing was found, and nothing is proved. Exit 1 if any mutant survived.
    """
    from lab.cli.request import configured
    from lab.sim.mutate import Mutant, judge, mutants

    found, config = configured(
        protocol,
        world=world,
        blocks=blocks,
        calls=calls,
        nbytes=nbytes,
        gate=None,
        dtype=None,
        waves=None,
        scenario=None,
        settings=option or [],
    )
    program = found.program(config)
    original = judge(Mutant("none", "", "", "", "none", program), seed=seed)
    if original.caught:
        raise LabError(
            f"{protocol} is {original.verdict} as it stands, so its mutants say nothing", hint=f"lab check {protocol}"
        )
    outcomes = [judge(mutant, seed=seed) for mutant in mutants(program)]
    shown = [outcome for outcome in outcomes if not slack or outcome.state == "slack"]
    if json:
        emit_json([_row(outcome) for outcome in shown])
    else:
        for outcome in shown:
            mutant = outcome.mutant
            typer.echo(f"{outcome.state:<9} {outcome.verdict:<14} {mutant.change:<32} {mutant.phase:<12} {mutant.line}")
            typer.echo(f"{'':<25}{mutant.example}")
        counts = {state: sum(o.state == state for o in outcomes) for state in ("caught", "slack", "survived")}
        typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()) + f" of {len(outcomes)} mutants")
    raise typer.Exit(DEFECT if any(outcome.state == "survived" for outcome in outcomes) else 0)


def _row(outcome) -> dict[str, object]:
    mutant = outcome.mutant
    return {
        "state": outcome.state,
        "verdict": outcome.verdict,
        "change": mutant.change,
        "kind": mutant.kind,
        "phase": mutant.phase,
        "line": mutant.line,
        "example": mutant.example,
    }
