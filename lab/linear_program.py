"""Small linear programs: the largest value of a linear function where many linear limits hold.

    point = maximise(objective, rows, limits, box)  # None: no point meets the limits

A dual simplex (Lemke 1954) over a dense basis: right for a dozen variables and any number of limits, of which few bind.
"""

from __future__ import annotations

import numpy as np

_PIVOT = 1e-9  # weights below this are rounding
_TIED = 1e-9
_BLAND_AFTER = 2_000  # pivots after which the first that will do is taken, so that no basis comes twice
_MOST_PIVOTS = 20_000


def maximise(
    objective: np.ndarray, rows: np.ndarray, limits: np.ndarray, box: np.ndarray, slack: float = 1e-9
) -> np.ndarray | None:
    """Find x with the largest `objective @ x` among those with `rows @ x <= limits` and `|x| <= box`.

    Args:
        objective: float64 (n,).
        rows: float64 (m, n); of the size of 1, or `slack` means little.
        limits: float64 (m,).
        box: float64 (n,), positive: where the search begins, and what bounds it where nothing else does.
        slack: How far a limit may be passed by rounding.

    Returns:
        float64 (n,), or None: no x meets all limits.

    Raises:
        ArithmeticError: The pivots do not end, which only rounding can cause.
    """
    n = len(objective)
    every = np.vstack([rows, np.eye(n), -np.eye(n)])
    bounds = np.concatenate([limits, box, box])
    basis = len(rows) + np.where(objective >= 0, np.arange(n), n + np.arange(n))
    for pivot in range(_MOST_PIVOTS):
        chosen = every[basis]
        point = np.linalg.solve(chosen, bounds[basis])
        left = bounds - every @ point
        left[basis] = 0.0
        bland = pivot >= _BLAND_AFTER
        worst = int(np.argmax(left < -slack)) if bland else int(np.argmin(left))
        if left[worst] >= -slack:
            return point
        prices, weights = np.linalg.solve(chosen.T, np.column_stack([objective, every[worst]])).T
        candidates = np.flatnonzero(weights > _PIVOT)
        if not len(candidates):
            return None  # every way to meet this limit passes one that binds (Farkas)
        ratios = np.maximum(prices[candidates], 0.0) / weights[candidates]
        tied = candidates[ratios <= ratios.min() + _TIED]
        basis[tied[np.argmin(basis[tied]) if bland else np.argmax(weights[tied])]] = worst
    raise ArithmeticError(f"no optimum after {_MOST_PIVOTS} pivots")
