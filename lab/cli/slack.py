"""`lab slack`: what a protocol holds without, with the proof of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import StoppedError
from lab.cli.options import (
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
    from lab.sim.change.slack import Depth, Slack


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
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find the waits, fences, orders, scopes and buffers that a protocol holds without.

    Each is taken away, on all ranks alike, and what is left is proved right at this configuration: by one execution
    that stands for every schedule, or by a search of all of them. For each region whose slots take turns, the smallest
    number of buffers is found. Last comes a set that can go as a whole. All of it holds for the configuration given:
    repeat it with the ranks, blocks and calls that you run.
    """
    try:
        from lab.cli.request import at, configured, require_right
        from lab.sim.change.judge import Limits
        from lab.sim.change.slack import slack_of

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
        require_right(found, config, program, limits, "nothing can be called spare")
        with telling() as tell:
            slack = slack_of(program, limits, tell)
    except KeyboardInterrupt:
        if json:
            emit_json(_NOTHING_YET)
        raise StoppedError("nothing was looked at, so nothing can be said") from None
    if json:
        emit_json(_document(slack))
    else:
        for line in _lines(slack):
            typer.echo(line)
        typer.echo(at(config))
    if slack.interrupted:
        raise StoppedError(_how_far(slack))


def _lines(slack: Slack) -> Iterator[str]:
    for outcome in slack.items:
        yield f"slack     {outcome.mutant.what:<32} {outcome.mutant.phase:<12} {outcome.mutant.line}"
        yield f"          {outcome.mutant.example}"
        yield f"          proof: {outcome.proof}"
    for outcome in slack.unproved:
        yield f"open      {outcome.mutant.what:<32} {outcome.mutant.phase:<12} {outcome.mutant.line}"
        yield f"          nothing found against it, and not proved: {outcome.proof}"
    for depth in slack.depths:
        yield from _depth_lines(depth)
    if slack.interrupted:
        return  # what is not above may be slack all the same
    if not slack.items and not any(depth.enough < depth.dimension.depth for depth in slack.depths):
        yield "no slack: every wait, fence, order, scope and buffer is needed" + (
            ", or open as said above" if slack.unproved else ""
        )
    if slack.together:
        yield f"together, {len(slack.together.changes)} can go at once:"
        yield from (f"          {what}" for what in slack.together.changes)
        yield f"          proof: {slack.together.judgement.covered}"
        yield from (f"          needed once these are gone: {what}" for what in slack.together.left_out)


def _how_far(slack: Slack) -> str:
    """What a search for slack that Ctrl-C ended can speak of."""
    if slack.looked_at == slack.of:
        return f"all {slack.of} looked at, but not what can go together"
    return f"{slack.looked_at} of {'the' if slack.of is None else slack.of} looked at; nothing can be said of the rest"


def _depth_lines(depth: Depth) -> Iterator[str]:
    own, region = depth.dimension.depth, depth.dimension.region
    if depth.enough < own:
        yield f"depth     {region}: {depth.enough} of its {own} buffers {'is' if depth.enough == 1 else 'are'} enough"
        yield f"          proof: {depth.proof.covered}"
    else:
        yield f"depth     {region}: all {own} buffers are needed"
    for tried, judgement in depth.tried:
        if not judgement.proved:
            what = judgement.verdict if judgement.caught else f"not proved ({judgement.covered})"
            yield f"          {tried}: {what}"


def _document(slack: Slack) -> dict[str, object]:
    together = slack.together
    return {
        "slack": [outcome.row() for outcome in slack.items],
        "open": [outcome.row() for outcome in slack.unproved],
        "depths": [
            {
                "region": depth.dimension.region,
                "depth": depth.dimension.depth,
                "enough": depth.enough,
                "tried": [
                    {
                        "depth": tried,
                        "verdict": judgement.verdict,
                        "proved": judgement.proved,
                        "covered": judgement.covered,
                    }
                    for tried, judgement in depth.tried
                ],
            }
            for depth in slack.depths
        ],
        "together": None
        if together is None
        else {"changes": together.changes, "covered": together.judgement.covered, "left_out": together.left_out},
        "looked_at": slack.looked_at,
        "of": slack.of,
        "interrupted": slack.interrupted,
    }


_NOTHING_YET: dict[str, object] = {
    **dict.fromkeys(("slack", "open", "depths"), ()),
    "together": None,
    "looked_at": 0,
    "of": None,
    "interrupted": True,
}
