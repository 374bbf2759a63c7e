"""`lab mutate`: what a protocol needs, by the defect that appears without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import DEFECT, StoppedError
from lab.cli.options import (
    MOST_WORKERS,
    Blocks,
    Bytes,
    Calls,
    Dtype,
    Gate,
    Gpus,
    Name,
    Resident,
    Scenario,
    Settings,
    Waves,
    World,
)
from lab.cli.output import emit_json
from lab.cli.progress import telling

if TYPE_CHECKING:
    from lab.sim.change.mutate import Outcome


def command(
    protocol: Name,
    world: World = None,
    blocks: Blocks = None,
    calls: Calls = None,
    nbytes: Bytes = None,
    gate: Gate = None,
    dtype: Dtype = None,
    waves: Waves = None,
    resident: Resident = None,
    gpus: Gpus = None,
    scenario: Scenario = None,
    option: Settings = None,
    states: Annotated[int, typer.Option(help="States of an exhaustive search, at most.", min=1)] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Seed of the exploration.", min=0)] = 0,
    workers: Annotated[int, typer.Option(help="Processes that judge.", min=1, max=MOST_WORKERS)] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Weaken each wait, fence, store, order, scope and buffer of a protocol in turn and see whether the check notices.

    caught: the operation is needed. slack: the protocol holds without it, with the proof: one execution that stands
    for every schedule of this configuration, or a search of all of them (`lab slack` says more). survived: nothing was
    found, and nothing is proved. Exit 1 if any mutant survived.
    """
    from lab.cli.request import at, configured, require_right
    from lab.sim.change.judge import Limits
    from lab.sim.change.mutate import Judged, judge_all
    from lab.sim.explore.executor import by_process

    found, config = configured(
        protocol,
        world=world,
        blocks=blocks,
        calls=calls,
        nbytes=nbytes,
        gate=gate,
        dtype=dtype,
        waves=waves,
        resident=resident,
        gpus=gpus,
        scenario=scenario,
        settings=option or [],
    )
    program = found.program(config)
    limits = Limits(states=states, seed=seed)
    try:
        require_right(found, config, program, limits, "its mutants say nothing")
        with telling() as tell:
            judged = judge_all(
                program, limits, by_process(workers), lambda done, of: tell(f"{done} of {of} mutants judged")
            )
    except KeyboardInterrupt:
        judged = Judged(interrupted=True)
    outcomes = judged.outcomes
    if json:
        emit_json([_row(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _print(outcome)
        if not judged.interrupted:
            typer.echo(f"{_summary(outcomes)}\n{at(config)}")
    if judged.interrupted:
        of = "the" if judged.of is None else judged.of
        raise StoppedError(f"{len(outcomes)} of {of} mutants judged; nothing can be said of the rest")
    raise typer.Exit(DEFECT if any(outcome.state == "survived" for outcome in outcomes) else 0)


def _print(outcome: Outcome) -> None:
    mutant = outcome.mutant
    typer.echo(f"{outcome.state:<9} {outcome.verdict:<14} {mutant.what:<32} {mutant.phase:<12} {mutant.line}")
    typer.echo(f"{'':<25}{mutant.example}")
    if not outcome.caught:
        blind = " (sc and posted do not see what an order does)" if outcome.judgement.proved else ""
        typer.echo(f"{'':<25}{'proof' if outcome.proved else 'not proved' + blind}: {outcome.proof}")


def _summary(outcomes: list[Outcome]) -> str:
    """How many of each state, and the mutation score: caught of those that are not proved right."""
    from lab.sim.change.mutate import score

    counts = {state: sum(o.state == state for o in outcomes) for state in ("caught", "slack", "survived")}
    share = score(outcomes)
    text = ", ".join(f"{count} {state}" for state, count in counts.items()) + f" of {len(outcomes)} mutants"
    if share is None:
        return f"{text}; no mutation score: every mutant is proved right"
    return f"{text}; mutation score {share:.0%} ({counts['caught']} of {counts['caught'] + counts['survived']})"


def _row(outcome: Outcome) -> dict[str, object]:
    return {"state": outcome.state, "verdict": outcome.verdict} | outcome.row()
