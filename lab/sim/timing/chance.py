"""Random numbers of the timing model: one stream of 64-bit state a run."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, _nrt=False)
def _uniform(random):
    """A double in (0, 1): splitmix64 (Steele, Lea, Flood 2014)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (np.float64(x >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@njit(cache=True, _nrt=False)
def exponential(random, mean):
    """An exponentially distributed number with that mean."""
    return -mean * np.log(_uniform(random))


@njit(cache=True, _nrt=False)
def spread(random, sigma):
    """A log-normal factor of mean 1."""
    if sigma == 0.0:
        return 1.0
    normal = np.sqrt(-2.0 * np.log(_uniform(random))) * np.cos(2.0 * np.pi * _uniform(random))
    return np.exp(sigma * normal - 0.5 * sigma * sigma)
