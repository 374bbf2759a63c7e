"""Clocks are aligned by what must have come before what, and two traces are compared phase by phase."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.compare import CALL, align, compare, durations, skew
from lab.errors import LabError
from lab.trace import Trace

MEETINGS = {"meet": "meet"}


def met(world: int, calls: int, seed: int, offsets=None, slow: float = 1.0) -> Trace:
    """Blocks that push, meet and reduce on one true clock; `offsets` are then taken off each rank's clock."""
    rng = np.random.default_rng(seed)
    rows, now = [], np.zeros(world)
    for call in range(calls):
        for block in range(3):
            begin = now + rng.uniform(0, 50, world)
            pushed = begin + slow * rng.uniform(800, 1200, world)
            left = pushed.max() + rng.uniform(300, 500, world)
            done = left + rng.uniform(900, 1100, world)
            for rank in range(world):
                times = (begin[rank], pushed[rank], left[rank], done[rank])
                for name, first, last in zip(("push", "meet", "reduce"), times[:-1], times[1:], strict=True):
                    rows.append((rank, call, block, name, first, last))
        now = np.full(world, done.max() + 1000)
    trace = Trace.of(rows, source="recorded", machine="made", about={})
    return trace.shifted({rank: -offset for rank, offset in (offsets or {}).items()})


@given(st.integers(2, 8), st.integers(0, 1000), st.floats(-1e9, 1e9))
def test_the_true_offsets_lie_within_the_stated_uncertainty(world, seed, far):
    offsets = {rank: far * rank for rank in range(world)}
    found = align(met(world, 5, seed, offsets), MEETINGS)
    for rank in range(world):
        slack = 1e-6 * abs(far) * world + 1e-3  # float64 of clocks that are a second apart
        assert abs(found.offsets[rank] - offsets[rank]) <= found.uncertainty[rank] + slack
        assert found.uncertainty[rank] < 1800


def test_a_rank_that_leaves_a_meeting_early_fits_no_clocks():
    trace = met(2, 4, 1)
    spans = trace.spans.copy()
    early = np.flatnonzero((spans["rank"] == 1) & (spans["call"] == 2) & (spans["block"] == 0) & (spans["phase"] == 1))
    spans["begin"][early] -= 5000
    spans["end"][early] -= 5000
    with pytest.raises(LabError, match="left a meeting before"):
        align(Trace(spans, trace.phases, "recorded", "made", {}), MEETINGS)


def test_ranks_that_never_meet_cannot_be_aligned():
    trace = met(2, 2, 1)
    spans = trace.spans.copy()
    spans["call"][spans["rank"] == 1] += 100
    with pytest.raises(LabError, match="never meet"):
        align(Trace(spans, trace.phases, "recorded", "made", {}), MEETINGS)


def test_skew_is_the_spread_of_the_starts_after_alignment():
    aligned = align(met(3, 20, 5, {1: 1e6, 2: -3e6}), MEETINGS)
    assert skew(aligned.trace).shape == (20,)
    assert np.all(skew(aligned.trace) < 2.0)
    assert np.all(skew(met(3, 20, 5, {1: 1e6, 2: -3e6})) > 1000)


def test_the_first_phase_that_differs_is_named():
    same = compare(met(2, 20, 1), met(2, 20, 2))
    assert same.first_difference is None and same.missing == ()
    assert same.table.loc["push", "ratio"] == pytest.approx(1, abs=0.1)
    slower = compare(met(2, 20, 1), met(2, 20, 2, slow=3.0), names=("before", "after"))
    assert slower.first_difference == "push"
    assert slower.table.loc["push", "ratio"] == pytest.approx(3, rel=0.1)
    assert slower.table.loc[CALL, "after_us"] > slower.table.loc[CALL, "before_us"]


def test_durations_add_up_to_the_whole_call():
    rows = durations(met(2, 3, 1))
    parts = rows[rows["phase"] != CALL].groupby(["rank", "call", "block"])["us"].sum()
    whole = rows[rows["phase"] == CALL].set_index(["rank", "call", "block"])["us"]
    assert len(whole) == 2 * 3 * 3
    assert np.allclose(parts.sort_index(), whole.sort_index())
