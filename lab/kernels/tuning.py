"""From measured launch shapes to a `Strategy`: the fewest bands that stay close to the fastest at every size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from lab.errors import LabError
from lab.kernels.staging import MAX_BLOCKS
from lab.kernels.strategy import Band, Plan, Room, Strategy, launch_shape

_SHAPE = re.compile(r"(\w+) (\d+)x(\d+)")
_VECTORS = (1, 2, 4)
_EVERY_SIZE = 1 << 62


@dataclass(frozen=True)
class Point:
    """One measured launch: `us` microseconds a call for a message of `bytes`."""

    bytes: int
    plan: Plan
    us: float


def measured(report: Mapping[str, object]) -> list[Point]:
    """The launches in a report of `experiments/how_fast_are_the_kernels` (rows with `bytes` and `ours`).

    Raises:
        LabError: A row is not of this form.
    """
    found = []
    try:
        for row in report["rows"]:  # type: ignore[attr-defined]
            for label, us in row["ours"].items():
                algorithm, blocks, threads = _SHAPE.fullmatch(label).groups()  # type: ignore[union-attr]
                found.append(Point(int(row["bytes"]), Plan(algorithm, int(blocks), int(threads)), float(us)))
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise LabError(
            "this is no report of measured launch shapes", value=str(problem), hint="rows of {bytes, ours: {shape: us}}"
        ) from problem
    return found


def tuned(points: Iterable[Point], *, world: int, room: Room, source: str, tolerance: float = 0.03) -> Strategy:
    """The fewest bands whose launch, at every measured size, takes at most 1 + tolerance times the fastest one.

    A band that covers a run of sizes covers every part of that run, so taking the band that reaches farthest, again and
    again, gives the fewest. Among those that reach equally far, the fastest on the whole is taken.

    Args:
        points: What was measured.
        world: Ranks of the measurement.
        room: What was certain to run at the same time there.
        source: What the strategy rests on.
        tolerance: How much slower than the fastest a band may be.

    Raises:
        LabError: Nothing was measured, or no band leads to any launch that was measured at some size.
    """
    times: dict[int, dict[Plan, float]] = {}
    for point in points:
        times.setdefault(point.bytes, {})[point.plan] = point.us
    if not times:
        raise LabError("there is nothing to tune from: no launch was measured")
    sizes = sorted(times)
    candidates = list(_candidates({plan for by_plan in times.values() for plan in by_plan}))
    slowdowns = [[_slowdown(band, times[size], size, world, room) for size in sizes] for band in candidates]
    bands: list[Band] = []
    at = 0
    while at < len(sizes):
        reach, _, best = max(
            (_reach(row, at, tolerance), -sum(row[at : _reach(row, at, tolerance)]), k)
            for k, row in enumerate(slowdowns)
        )
        if reach == at:  # nothing is close enough: the fastest band at this size alone
            best = min(range(len(candidates)), key=lambda k: slowdowns[k][at])
            if slowdowns[best][at] == float("inf"):
                raise LabError("no band leads to a launch that was measured at this size", value=sizes[at])
            reach = at + 1
        limit = sizes[reach - 1] if reach < len(sizes) else _EVERY_SIZE
        chosen = candidates[best]
        bands.append(Band(limit, chosen.algorithm, chosen.threads, chosen.max_blocks, chosen.vectors))
        at = reach
    return Strategy((*bands, *_when_too_large(bands[-1], times[sizes[-1]])), source=source)


def _candidates(plans: set[Plan]) -> Iterator[Band]:
    """Bands that could have led to the measured launches."""
    kinds = sorted({(plan.algorithm, plan.threads) for plan in plans})
    caps = sorted({plan.blocks for plan in plans} | {MAX_BLOCKS})
    for (algorithm, threads), cap, vectors in product(kinds, caps, _VECTORS):
        yield Band(_EVERY_SIZE, algorithm, threads, cap, vectors)


def _slowdown(band: Band, by_plan: Mapping[Plan, float], nbytes: int, world: int, room: Room) -> float:
    """Time of the band's launch over the fastest at this size; infinite where it was not measured."""
    return by_plan.get(launch_shape(band, nbytes, world, room), float("inf")) / min(by_plan.values())


def _reach(slowdowns: list[float], at: int, tolerance: float) -> int:
    while at < len(slowdowns) and slowdowns[at] <= 1 + tolerance:
        at += 1
    return at


def _when_too_large(last: Band, by_plan: Mapping[Plan, float]) -> Iterator[Band]:
    """A two_shot band, whose workspace is the smallest, for what no other kernel has room for."""
    shapes = {plan: us for plan, us in by_plan.items() if plan.algorithm == "two_shot"}
    if last.algorithm != "two_shot" and shapes:
        best = min(shapes, key=lambda plan: shapes[plan])
        yield Band(_EVERY_SIZE + 1, best.algorithm, best.threads, best.blocks)
