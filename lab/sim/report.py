"""A verdict as text for a person."""

from __future__ import annotations

from collections.abc import Iterator

from lab.sim.verdict import Verdict

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
    yield from _failing(verdict)
    for note in verdict.notes:
        yield f"\n{note}"
    if verdict.witness:
        yield f"\nsmallest witness, the {len(verdict.witness)} steps that matter:"
        yield from (f"  {line}" for line in verdict.witness)
    if verdict.schedule:
        yield f"\nlab replay '{verdict.schedule}'"
    yield f"\n{verdict.proof}"


def _failing(verdict: Verdict) -> Iterator[str]:
    if verdict.wrong:
        yield f"\nwrong results in {verdict.failing} of {verdict.executions} executions; the first failing one:"
        yield from (f"  {wrong}" for wrong in verdict.wrong[:_WRONG_SHOWN])
        if len(verdict.wrong) > _WRONG_SHOWN:
            yield f"  and {len(verdict.wrong) - _WRONG_SHOWN} more"
        yield from (f"  {mean}" for mean in verdict.means[:_MEANS_SHOWN])
    if verdict.hang:
        gave_up = ", until bounded waits give up" if verdict.abort else ""
        yield f"\nnothing can move any more{gave_up}:"
        yield from (f"  {line}" for line in verdict.hang[:_WAITS_SHOWN])
        if len(verdict.hang) > _WAITS_SHOWN:
            yield f"  and {len(verdict.hang) - _WAITS_SHOWN} more"
    if verdict.abort:
        yield f"\nabort record: {verdict.abort}"
