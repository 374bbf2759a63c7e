"""Two traces are compared phase by phase, on clocks aligned by what must have come before what."""

import numpy as np
import pytest

from lab.compare import CALL, align, compare, durations, skew
from lab.tests.meetings import MEETINGS, met


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
