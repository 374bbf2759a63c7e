"""Clocks are aligned by what must have come before what: offsets, rates, honest errors, and what no clocks fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.alignment import align
from lab.errors import LabError
from lab.tests.meetings import MEETINGS, clocked, leave_early, met, steady
from lab.trace import Trace


@given(st.integers(2, 8), st.integers(0, 1000), st.floats(-1e9, 1e9))
@settings(max_examples=30)
def test_the_true_offsets_lie_within_the_stated_uncertainty(world, seed, far):
    offsets = {rank: far * rank for rank in range(world)}
    found = align(met(world, 5, seed, offsets), MEETINGS)
    for rank in range(world):
        slack = 1e-6 * abs(far) * world + 1e-3  # float64 of clocks that are a second apart
        assert abs(found.offsets[rank] - offsets[rank]) <= found.uncertainty[rank] + slack
        assert found.uncertainty[rank] < 1800


@given(
    st.integers(2, 5), st.integers(0, 1000), st.sampled_from([3, 40, 200]), st.sampled_from([1e3, 1e5, 1e6]),
    st.floats(-1e6, 1e6), st.floats(0, 300),
)  # fmt: skip
@settings(max_examples=40)
def test_every_corrected_time_lies_within_the_stated_uncertainty_of_the_true_one(world, seed, calls, gap, offset, most):
    rng = np.random.default_rng(seed)
    rates = rng.uniform(-most, most, world)
    clocks = {rank: steady(offset * rank, rates[rank]) for rank in range(world)}
    trace = met(world, calls, seed, gap=gap)
    found = align(clocked(trace, clocks), MEETINGS)
    assert np.array_equal(found.trace.spans["call"], trace.spans["call"])
    for rank in range(world):
        ours = trace.spans["rank"] == rank
        for side in ("begin", "end"):
            due = clocks[0](trace.spans[side][ours])  # on the first rank's clock
            off = np.abs(found.trace.spans[side][ours] - due).max()
            assert off <= found.uncertainty[rank] + 1e-3
        fast = 1e6 * ((1 + rates[rank] * 1e-6) / (1 + rates[0] * 1e-6) - 1)
        assert abs(found.ppm[rank] - fast) <= found.ppm_uncertainty[rank] + 1.0  # second order: 300 ppm squared
    assert max(found.uncertainty.values()) < 6000


def test_a_drift_is_measured_and_does_not_spoil_the_offsets():
    """A trace long enough shows the rate; before rates were fitted, one of 10 ppm looked like a kernel's fault."""
    for ppm in (-10.0, 1.0, 10.0):
        found = align(clocked(met(2, 300, 7, gap=1e6), {1: steady(12345.0, ppm)}), MEETINGS)
        assert found.ppm[1] == pytest.approx(ppm, abs=found.ppm_uncertainty[1]) and found.ppm_uncertainty[1] < 3
        assert found.uncertainty[1] < 700
    assert found.ppm[0] == 0 and found.uncertainty[0] == 0


def test_a_rank_that_leaves_a_meeting_early_fits_no_clocks():
    for gap in (1e3, 1e6):
        with pytest.raises(LabError, match="left a meeting before") as refused:
            align(leave_early(met(2, 4, 1, gap=gap), rank=1, call=2, nanoseconds=5000), MEETINGS)
        assert "up to 600 ppm apart" in str(refused.value)


def test_a_rank_that_leaves_early_is_seen_whatever_the_other_clocks_do():
    trace = leave_early(met(4, 50, 3, gap=1e5), rank=2, call=30, nanoseconds=9000)
    clocks = {rank: steady(1e5 * rank, 20.0 * rank) for rank in range(4)}
    with pytest.raises(LabError, match="left a meeting before"):
        align(clocked(trace, clocks), MEETINGS)


def test_clocks_whose_rates_change_are_not_blamed_on_the_kernel():
    """A rate that swings by 40 ppm within the trace: no constant one fits, and no block is called early."""

    def swinging(true):
        return true + 40e-6 * 5e7 * np.sin(true / 5e7)

    with pytest.raises(LabError, match="drift, and not at constant rates") as refused:
        align(clocked(met(3, 300, 5, gap=1e6), {1: swinging}), MEETINGS)
    assert 5 < float(str(refused.value).split("at least ")[1].split(" ppm")[0]) <= 40


def test_ranks_of_one_clock_may_be_said_to_have_one():
    trace = met(2, 300, 7, gap=1e6)
    found = align(trace, MEETINGS, most_ppm=0)
    assert found.ppm == {0: 0.0, 1: 0.0} and found.ppm_uncertainty[1] < 1e-6
    assert found.uncertainty[1] < align(trace, MEETINGS).uncertainty[1]
    with pytest.raises(LabError, match="up to 0 ppm"):
        align(clocked(trace, {1: steady(0.0, 10.0)}), MEETINGS, most_ppm=0)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(LabError, match="most_ppm"):
            align(trace, MEETINGS, most_ppm=bad)


def test_ranks_that_meet_by_way_of_others_are_aligned():
    """A ring: rank 0 and rank 2 share no call."""
    trace = met(3, 20, 1)
    spans = trace.spans
    keep = ((spans["rank"] == 0) & (spans["call"] % 2 == 0)) | ((spans["rank"] == 2) & (spans["call"] % 2 == 1))
    trace = Trace(spans[keep | (spans["rank"] == 1)], trace.phases, "recorded", "made", {})
    found = align(trace.shifted({1: -5e4, 2: 7e7}), MEETINGS)
    assert abs(found.offsets[1] - 5e4) <= found.uncertainty[1] and abs(found.offsets[2] + 7e7) <= found.uncertainty[2]


def test_ranks_that_never_meet_cannot_be_aligned():
    trace = met(2, 2, 1)
    spans = trace.spans.copy()
    spans["call"][spans["rank"] == 1] += 100
    with pytest.raises(LabError, match="never meet"):
        align(Trace(spans, trace.phases, "recorded", "made", {}), MEETINGS)
    with pytest.raises(LabError, match="no such phase"):
        align(trace, {"gather": "gather"})


def test_one_rank_alone_is_on_its_own_clock():
    trace = met(1, 3, 1)
    found = align(trace, MEETINGS)
    assert np.array_equal(found.trace.spans, trace.spans) and found.offsets == {0: 0.0}
