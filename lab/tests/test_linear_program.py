"""The simplex finds the best corner, which a walk over all corners finds too."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.linear_program import maximise


def by_corners(objective, rows, limits, box):
    """The best corner of all; None: there is none."""
    n = len(objective)
    every = np.vstack([rows, np.eye(n), -np.eye(n)])
    bounds = np.concatenate([limits, box, box])
    best = None
    for chosen in combinations(range(len(every)), n):
        matrix = every[list(chosen)]
        if abs(np.linalg.det(matrix)) > 1e-9:
            corner = np.linalg.solve(matrix, bounds[list(chosen)])
            if np.all(every @ corner <= bounds + 1e-7):
                best = max(float(objective @ corner), -np.inf if best is None else best)
    return best


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 7), st.booleans())
def test_the_best_corner_is_found_or_that_there_is_none(seed, n, m, coarse):
    rng = np.random.default_rng(seed)
    rows, limits = rng.uniform(-1, 1, (m, n)), rng.uniform(-0.6, 1, m)
    if coarse:  # many corners in one place
        rows, limits = np.round(rows * 2) / 2, np.round(limits)
    objective, box = rng.uniform(-1, 1, n), np.full(n, 5.0)
    found, due = maximise(objective, rows, limits, box), by_corners(objective, rows, limits, box)
    assert (found is None) == (due is None)
    if found is not None:
        assert objective @ found == pytest.approx(due, abs=1e-6)
        assert np.all(rows @ found <= limits + 1e-6) and np.all(np.abs(found) <= box + 1e-6)


def test_limits_that_contradict_each_other_have_no_point():
    rows = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert maximise(np.array([1.0, 0.0]), rows, np.array([1.0, -1.0]), np.full(2, 9.0)) is not None
    assert maximise(np.array([1.0, 0.0]), rows, np.array([1.0, -1.1]), np.full(2, 9.0)) is None
