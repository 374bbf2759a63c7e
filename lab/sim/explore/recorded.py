"""Races of several recorded executions: where one does not stand for all, others do other things and race elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute
from lab.sim.order.kinds import Key, key_of
from lab.sim.order.races import RaceReport, find_races
from lab.sim.order.verdict import Race

RECORDED = 16
"""Random executions whose races are looked at beside the first one's."""


def recorded(
    tables: Tables, memory: str = "sc", seed: int = 0, first: RaceReport | None = None, count: int = RECORDED
) -> Iterator[RaceReport]:
    """Yield recorded executions with their races: one that runs on, then random ones.

    Args:
        tables: The program.
        memory: The memory model under which they run.
        seed: Of the first random one.
        first: An execution that runs on and is already recorded; it counts if `memory` is its memory model.
        count: Random ones, at most.
    """
    known = first is not None and first.execution.memory == memory
    yield first if first is not None and known else find_races(tables, execute(tables, memory))
    for number in range(count):
        yield find_races(tables, execute(tables, memory, m.RANDOM, seed + number))


def races_of_all(reports: Iterable[RaceReport]) -> tuple[Race, ...]:
    """The races of several executions, one of each kind, in the order in which they are met."""
    races: dict[Key, Race] = {}
    for report in reports:
        for race in report.races:
            races.setdefault(key_of(race), race)
    return tuple(races.values())


def showing(reports: Iterable[RaceReport], key: Key) -> RaceReport | None:
    """The first of several executions in which a race shows; None: it shows in none."""
    return next((report for report in reports if any(key_of(race) == key for race in report.races)), None)
