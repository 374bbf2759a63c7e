"""A verdict as text for a person: a summary, the findings, how executions fail, a witness, repairs, what it covers."""

from __future__ import annotations

from collections.abc import Iterator

from lab.sim.explain.repair_lines import all_repair_lines
from lab.sim.explain.replay import Replay
from lab.sim.order.verdict import Effect, Finding, Outcome, Race, Verdict

_WRONG_SHOWN, _MEANS_SHOWN, _WAITS_SHOWN, _MEMBERS_SHOWN, _STEPS_SHOWN = 6, 4, 12, 4, 14
_FAILS = {"wrong": "give wrong results", "hang": "hang", "abort": "abort"}


def report(verdict: Verdict) -> str:
    """The whole verdict: what was checked, a summary, and what is behind it."""
    return "\n".join(_lines(verdict))


def headline(verdict: Verdict) -> str:
    """One line: protocol, verdict, configuration. The worst that was found, and what else executions did."""
    config = verdict.config
    sizes = ",".join(map(str, config["bytes"]))  # type: ignore[call-overload]
    others = [outcome.kind for outcome in verdict.outcomes if outcome.kind != verdict.verdict]
    also = f" (and {' and '.join(others).upper()})" if others else ""
    return (
        f"{verdict.protocol}: {verdict.verdict.upper()}{also}   world {config['world']}, calls {config['calls']}, "
        f"bytes {sizes}, blocks {config['blocks'] or 'own grid'}{_few(config)}, {config['scenario']}, {verdict.memory}"
    )


def _few(config: dict[str, object]) -> str:
    """The slots of a GPU, and the GPUs, where they are few."""
    shared = f" on {config['gpus']} GPU{'s' if config['gpus'] != 1 else ''}" if config["gpus"] else ""
    return f", {config['resident']} at once{shared}" if config["resident"] else ""


def _lines(verdict: Verdict) -> Iterator[str]:
    yield headline(verdict)
    yield from (f"  {line}" for line in summary(verdict))
    for number, finding in enumerate(verdict.findings, 1):
        yield from _finding(verdict, number, finding)
    yield from what_failed(verdict, {outcome.kind: _shown(verdict, outcome) for outcome in verdict.outcomes})
    if verdict.witness:
        yield f"\nsmallest witness of {_first_shown(verdict)}, the {len(verdict.witness)} steps that matter:"
        yield from (f"  {line}" for line in _cut(verdict.witness, _STEPS_SHOWN))
    yield from all_repair_lines(verdict)
    yield from _replays(verdict)
    if verdict.notes:
        yield ""
        yield from (f"note: {note}" for note in verdict.notes)
    yield f"\nwhat this rests on:\n  {verdict.proof.replace(chr(10), chr(10) + '  ')}"


def summary(verdict: Verdict) -> Iterator[str]:
    """What was found, in a few plain lines: how executions end, how many races, what closes them."""
    if verdict.executions:
        fail = [f"{o.executions:,} {_FAILS[o.kind]} ({_share(o)})" for o in verdict.outcomes if o.executions]
        ended = ", ".join(fail) if fail else "none fails"
        yield f"{verdict.executions:,} executions explored: {ended}"
    for outcome in verdict.outcomes:
        if not outcome.executions:
            yield f"{outcome.kind}: in none of these, but in {outcome.found_by}"
    if verdict.races:
        races = f"{len(verdict.races)} race{'s' if len(verdict.races) > 1 else ''}"
        orders = f"{len(verdict.findings)} missing order{'s' if len(verdict.findings) > 1 else ''}"
        yield f"{races}, from {orders}" + "".join(f"; {told}" for told in _told(verdict))
    elif verdict.ok:
        yield "no race, no wrong value, no hang, no abort was found"
    if verdict.changes_tried:
        yield f"repairs: {_closed(verdict)}"


def _told(verdict: Verdict) -> Iterator[str]:
    """Which races make a value wrong in a witness of their own."""
    seen = [effect.race for effect in verdict.effects if effect.schedule]
    if len(seen) == len(verdict.races):
        yield "each makes a value wrong" if len(seen) > 1 else "it makes a value wrong"
    elif seen:
        yield f"{_numbers(seen)} make{'s' if len(seen) == 1 else ''} a value wrong"


def _closed(verdict: Verdict) -> str:
    """Whether changes of the text close what was found."""
    count = len(verdict.repairs)
    if not count:
        return "no change of the text that was tried closes it"
    return f"{count} change{'s' if count > 1 else ''} of the text close{'' if count > 1 else 's'} all of it"


def _share(outcome: Outcome) -> str:
    share = outcome.share or 0.0
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _numbers(races: list[int] | tuple[int, ...]) -> str:
    if len(races) == 1:
        return f"race {races[0]}"
    listed = sorted(races)
    return f"races {', '.join(map(str, listed[:-1]))} and {listed[-1]}"


# ---- findings


def _finding(verdict: Verdict, number: int, finding: Finding) -> Iterator[str]:
    races = {place: verdict.races[place - 1] for place in finding.races}
    effects = {effect.race: effect for effect in verdict.effects}
    first, *others = finding.races
    ranks = "between ranks" if finding.across else "within a rank"
    yield f"\nfinding {number} of {len(verdict.findings)}: {finding.direction}, {ranks}; {_numbers(finding.races)}"
    yield f"  race {first} {_pairs(races[first])}: {races[first].what}"
    yield f"    {races[first].first}\n    {races[first].second}"
    yield from _effect(effects.get(first))
    for place in others[:_MEMBERS_SHOWN]:
        race = races[place]
        yield f"  race {place} {_pairs(race)}: {race.what}; {_places(race)}{_apart(race)}"
        yield from _effect(effects.get(place))
    if len(others) > _MEMBERS_SHOWN:
        rest = ", ".join(map(str, sorted(others[_MEMBERS_SHOWN:])))
        yield f"  and {len(others) - _MEMBERS_SHOWN} more that lack the same order: {rest} (--json)"
    yield f"  missing: {finding.missing}"


def _pairs(race: Race) -> str:
    return f"({race.pairs} pair{'s' if race.pairs > 1 else ''} of operations)"


def _places(race: Race) -> str:
    return " then ".join(f"{f'[{a.phase}] ' if a.phase else ''}{a.line}" for a in (race.first, race.second))


def _apart(race: Race) -> str:
    """How far apart the accesses are."""
    _, launches = race.distance
    if not launches:
        return ""
    return ", the next launch" if launches == 1 else f", {launches} launches later"


def _effect(effect: Effect | None) -> Iterator[str]:
    if effect is not None:
        yield from (f"    {line}" for line in effect.said.splitlines())


def _first_shown(verdict: Verdict) -> str:
    return next((f"race {effect.race}" for effect in verdict.effects if effect.schedule), "it")


# ---- how executions fail


def _shown(verdict: Verdict, outcome: Outcome) -> str:
    """Above what one failing execution did: in how many it is so, and which one is shown."""
    what = {"wrong": "wrong results", "hang": "nothing can move any more", "abort": "an abort"}[outcome.kind]
    if outcome.executions:
        return f"{what} in {outcome.executions:,} of {verdict.executions:,} executions; shown: {outcome.found_by}"
    if verdict.executions:
        return f"{what}, in none of the {verdict.executions:,} explored executions but in {outcome.found_by}"
    return f"{what}; shown: {outcome.found_by}"


def _replays(verdict: Verdict) -> Iterator[str]:
    """The lines that repeat the outcomes; wrong values left out where a race shows them already."""
    shown = any(effect.schedule for effect in verdict.effects)
    for outcome in (outcome for outcome in verdict.outcomes if outcome.kind != "wrong" or not shown):
        what = "go wrong" if outcome.kind == "wrong" else outcome.kind
        yield f"\nto see it {what}:\n  lab replay '{outcome.schedule}'"


def what_failed(found: Verdict | Replay, titles: dict[str, str]) -> Iterator[str]:
    """How executions failed, line by line; `titles`: by kind, what stands above."""
    if found.wrong:
        yield f"\n{titles.get('wrong', 'wrong results')}:"
        yield from (f"  {each}" for each in found.wrong[:_WRONG_SHOWN])
        if len(found.wrong) > _WRONG_SHOWN:
            yield f"  and {len(found.wrong) - _WRONG_SHOWN} more"
        yield from (f"  {mean}" for mean in found.means[:_MEANS_SHOWN])
    if found.hang:
        yield f"\n{titles.get('hang', 'nothing can move any more')}:"
        yield from (f"  {line}" for line in _cut(found.hang, _WAITS_SHOWN))
    if found.abort:
        yield f"\n{titles.get('abort', 'abort')}:\n  abort record: {found.abort}"
    if found.gave_up:
        yield "\nwhen the first bounded wait gave up, nothing else could move:"
        yield from (f"  {line}" for line in _cut(found.gave_up, _WAITS_SHOWN))


def _cut(lines: tuple[str, ...], most: int) -> Iterator[str]:
    yield from lines[:most]
    if len(lines) > most:
        yield f"and {len(lines) - most} more"
