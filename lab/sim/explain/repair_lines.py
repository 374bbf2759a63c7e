"""Repairs and advice as text for a person."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from lab.sim.order.verdict import Advice, Repair, Verdict

_REPAIRS_SHOWN = 5


def repair_lines(number: int, repair: Repair) -> Iterator[str]:
    """One repair: what it does, then what it changes in the text."""
    yield f"  {number}. {repair.what}"
    yield from (f"       {line}" for line in repair.diff.splitlines())
    if repair.not_at:
        yield f"       NOT RIGHT at {'; '.join(repair.not_at)}, where another of these is"


def all_repair_lines(verdict: Verdict) -> Iterator[str]:
    """The repairs of a verdict, the cheapest first, then advice, and how much was tried."""
    if not verdict.repairs_tried:
        return
    shown = list(enumerate(verdict.repairs[:_REPAIRS_SHOWN], 1))
    for (parts, _), same in groupby(shown, key=lambda pair: (pair[1].parts, bool(pair[1].not_at))):
        alternatives = list(same)
        everything = "all of it" if len(verdict.races) > 1 else "it"
        yield f"\n{_closes(parts, len(alternatives))} {everything}; applied and checked anew:"
        for (judged_at, models), alike in groupby(alternatives, key=lambda pair: (pair[1].judged_at, pair[1].models)):
            for number, repair in alike:
                yield from repair_lines(number, repair)
            yield f"  proved right {_under(models)} at {'; '.join(judged_at)}"
    if len(verdict.repairs) > _REPAIRS_SHOWN:
        yield f"  and {len(verdict.repairs) - _REPAIRS_SHOWN} more (--json)"
    if verdict.repairs:
        yield "  lab check ... --apply N writes repair N into the file"
    elif verdict.changes_tried:
        yield "\nno change of the text that was tried closes all of it"
    yield from _advice(verdict.advice)
    yield f"\n{verdict.repairs_tried}"


def _closes(parts: int, alternatives: int) -> str:
    """How many changes close it, of which any will do."""
    if parts == 1:
        return (
            "one change of the text closes" if alternatives == 1 else "each of these changes of the text alone closes"
        )
    return f"{parts} changes of the text, together, close" + (" (any of these)" if alternatives > 1 else "")


def _under(models: tuple[str, ...]) -> str:
    """Memory models in words; those that are not named were explored."""
    if len(models) > 2:
        return f"under {', '.join(models[:-1])} and {models[-1]}"
    return f"under {' and '.join(models)} (explored under the others)"


def _advice(advice: tuple[Advice, ...]) -> Iterator[str]:
    if advice:
        yield "\nadvice, which is no repair:"
    for each in advice:
        yield f"  * {each.what}"
        yield f"      {each.why}"
