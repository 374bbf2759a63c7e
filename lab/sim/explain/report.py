"""A verdict as text for a person."""

from __future__ import annotations

from collections.abc import Iterator

from lab.sim.explain.repair_lines import all_repair_lines
from lab.sim.explain.replay import Replay
from lab.sim.order.verdict import Verdict

_WRONG_SHOWN, _MEANS_SHOWN, _WAITS_SHOWN = 6, 4, 12


def report(verdict: Verdict) -> str:
    """The whole verdict: what was checked, each race, the failing execution, the witness, and what was covered."""
    return "\n".join(_lines(verdict))


def headline(verdict: Verdict) -> str:
    """One line: protocol, verdict, configuration."""
    config = verdict.config
    sizes = ",".join(map(str, config["bytes"]))  # type: ignore[call-overload]
    return (
        f"{verdict.protocol}: {verdict.verdict.upper()}   world {config['world']}, calls {config['calls']}, "
        f"bytes {sizes}, blocks {config['blocks'] or 'own grid'}{_few(config)}, {config['scenario']}, {verdict.memory}"
    )


def _few(config: dict[str, object]) -> str:
    """The slots of a GPU, and the GPUs, where they are few."""
    shared = f" on {config['gpus']} GPU{'s' if config['gpus'] != 1 else ''}" if config["gpus"] else ""
    return f", {config['resident']} at once{shared}" if config["resident"] else ""


def _lines(verdict: Verdict) -> Iterator[str]:
    yield headline(verdict)
    for number, race in enumerate(verdict.races, 1):
        yield f"\nrace {number} of {len(verdict.races)} ({race.pairs} pairs of operations): {race}"
    yield from what_failed(verdict, _where_wrong(verdict))
    for note in verdict.notes:
        yield f"\n{note}"
    if verdict.witness:
        yield f"\nsmallest witness, the {len(verdict.witness)} steps that matter:"
        yield from (f"  {line}" for line in verdict.witness)
    yield from all_repair_lines(verdict)
    replayed = f"lab replay '{verdict.schedule}'"
    if verdict.schedule and not any(replayed in note for note in verdict.notes):
        yield f"\n{replayed}"
    yield f"\n{verdict.proof}"


def _where_wrong(verdict: Verdict) -> str:
    """In how many executions results are wrong. The one shown may be none of them: the race check's, or a witness."""
    if verdict.failing:
        return f"wrong results in {verdict.failing} of {verdict.executions} executions; the first failing one:"
    if verdict.executions:
        return f"wrong results, in none of the {verdict.executions} explored executions but in this one:"
    return "wrong results; an execution that shows them:"


def what_failed(found: Verdict | Replay, wrong: str) -> Iterator[str]:
    """How an execution failed, line by line; `wrong` stands above the wrong elements."""
    if found.wrong:
        yield f"\n{wrong}"
        yield from (f"  {each}" for each in found.wrong[:_WRONG_SHOWN])
        if len(found.wrong) > _WRONG_SHOWN:
            yield f"  and {len(found.wrong) - _WRONG_SHOWN} more"
        yield from (f"  {mean}" for mean in found.means[:_MEANS_SHOWN])
    if found.hang:
        yield "\nnothing can move any more:"
        yield from _waits(found.hang)
    if found.abort:
        yield f"\nabort record: {found.abort}"
    if found.gave_up:
        yield "\nwhen the first bounded wait gave up, nothing else could move:"
        yield from _waits(found.gave_up)


def _waits(lines: tuple[str, ...]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_WAITS_SHOWN])
    if len(lines) > _WAITS_SHOWN:
        yield f"  and {len(lines) - _WAITS_SHOWN} more"
