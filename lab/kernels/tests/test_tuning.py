"""Measured shapes become the fewest bands that are nearly as fast as the fastest."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import LabError
from lab.kernels.staging import Layout
from lab.kernels.strategy import Band, Plan, Room, launch_shape
from lab.kernels.tuning import Point, measured, tuned

ROOM = Room(512, 132 * 2048)
RESULTS = Path(__file__).parents[3] / "experiments/how_fast_are_the_kernels/results"


def slowdowns(strategy, points, layout) -> list[float]:
    by_size: dict[int, dict[Plan, float]] = {}
    for point in points:
        by_size.setdefault(point.bytes, {})[point.plan] = point.us
    plans = {size: strategy.plan(size, layout, ROOM) for size in by_size}
    return [by_size[size][plans[size]] / min(by_size[size].values()) for size in by_size]


def made(times: dict[int, dict[str, float]]) -> list[Point]:
    """Points of low_latency with caps by name: `a` is one block, `b` up to 512."""
    bands = {"a": Band(1 << 62, "low_latency", 64, 1), "b": Band(1 << 62, "low_latency", 64, 512)}
    return [
        Point(size, launch_shape(bands[name], size, 2, ROOM), us)
        for size, by in times.items()
        for name, us in by.items()
    ]


def test_bands_change_where_the_fastest_does():
    points = made({64 << 10: {"a": 1, "b": 2}, 128 << 10: {"a": 2, "b": 2.01}, 256 << 10: {"a": 8, "b": 3}})
    strategy = tuned(points, world=2, room=ROOM, source="made")
    assert [band.max_bytes for band in strategy.bands] == [128 << 10, 1 << 62]
    assert [band.max_blocks for band in strategy.bands] == [1, 512]


@given(
    st.lists(st.tuples(st.floats(1, 4), st.floats(1, 4)), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_no_strategy_with_fewer_bands_is_as_close(times, tolerance):
    sizes = [(64 << 10) << k for k in range(len(times))]
    points = made({size: {"a": a, "b": b} for size, (a, b) in zip(sizes, times, strict=True)})
    layout = Layout(2, 1 << 30, 1 << 30, 1 << 30)
    strategy = tuned(points, world=2, room=ROOM, source="made", tolerance=tolerance)
    assert max(slowdowns(strategy, points, layout)) <= 1 + tolerance
    close = [{name for name, us in zip("ab", pair, strict=True) if us <= (1 + tolerance) * min(pair)} for pair in times]
    fewest = next(
        count
        for count in range(1, len(times) + 1)
        for cuts in combinations(range(1, len(times)), count - 1)
        if all(set.intersection(*close[i:j]) for i, j in zip((0, *cuts), (*cuts, len(times)), strict=True))
    )
    assert len(strategy.bands) == fewest


def test_the_recorded_measurement_gives_a_strategy_close_to_the_fastest():
    report = json.loads((RESULTS / "speed_2_gpus_tune.json").read_text())
    points = measured(report)
    strategy = tuned(points, world=2, room=ROOM, source=report["machine"])
    assert max(slowdowns(strategy, points, Layout(2, 64 << 20, 64 << 20, 64 << 20))) <= 1.03
    assert len(strategy.bands) <= 12 and strategy.bands[-1].algorithm == "two_shot"


def test_bad_reports_are_refused():
    for report in ({}, {"rows": [{"bytes": 1}]}, {"rows": [{"bytes": 1, "ours": {"two_shot": 2}}]}, {"rows": 3}):
        with pytest.raises(LabError, match="no report"):
            measured(report)
    with pytest.raises(LabError, match="nothing to tune"):
        tuned([], world=2, room=ROOM, source="")
    odd = [Point(1024, Plan("two_shot", 77, 64), 1.0)]
    with pytest.raises(LabError, match="no band leads"):
        tuned(odd, world=2, room=ROOM, source="")
