"""Races that lack one order are one finding."""

from __future__ import annotations

from lab.sim.order.verdict import Finding, Race


def findings(races: tuple[Race, ...]) -> tuple[Finding, ...]:
    """Races by the order that they lack: the lines where one side releases and the other acquires, and the direction.

    An order from the one line to the other would close all of a finding's races.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, race in enumerate(races, 1):
        across = race.first.rank != race.second.rank
        groups.setdefault((race.direction, across, race.release, race.acquire), []).append(number)
    return tuple(_finding(races, numbers) for numbers in groups.values())


def _finding(races: tuple[Race, ...], numbers: list[int]) -> Finding:
    """Of some races, the nearest first."""
    nearest = sorted(numbers, key=lambda number: (races[number - 1].distance, number))
    race = races[nearest[0] - 1]
    return Finding(tuple(nearest), race.direction, race.first.rank != race.second.rank, race.missing)
