"""What makes races of different texts, of different executions and configurations the same."""

from __future__ import annotations

from lab.protocol.program import Program, Site
from lab.sim.change.text.texts import Texts
from lab.sim.order.verdict import Access, Race

RaceKey = tuple[object, ...]
"""The author's lines, which of them comes first and what each does, and whether ranks and launches differ."""


def keyed(texts: Texts, program: Program, races: tuple[Race, ...]) -> dict[RaceKey, Race]:
    """Races of a program by their keys; of several with one key the two launches that are closest."""
    agents = {agent.name: agent for agent in program.agents}

    def side(access: Access) -> object:
        site: Site = agents[access.agent].ops[access.op].site
        return (texts.origin(site.file, site.line) or (site.file, site.line)), access.kind

    found: dict[RaceKey, Race] = {}
    for race in sorted(races, key=lambda race: abs(race.second.call - race.first.call)):
        apart, across = race.first.rank != race.second.rank, race.first.call != race.second.call
        found.setdefault((side(race.first), side(race.second), apart, across), race)
    return found


def told(texts: Texts, program: Program, race: Race) -> str:
    """A race by the lines of the author's text."""
    lines = []
    for access in (race.first, race.second):
        agent = next(agent for agent in program.agents if agent.name == access.agent)
        site = agent.ops[access.op].site
        place = texts.origin(site.file, site.line)
        lines.append(f"{place[0].rsplit('/', 1)[-1]}:{place[1]}" if place else str(site))
    return f"a race of {lines[0]} and {lines[1]}"
