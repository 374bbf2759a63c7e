"""Closed forms for the drift of a residual stream: what each rounding mode does to a random walk.

The stream is r_t = R(r_{t-1} + s_t), s_t independent with mean zero, in bf16 (8 significant bits). Averaged over
where numbers fall between powers of two, a bf16 step of r is 2^-7 |r| / m with 1/m of mean 1 / (2 ln 2) and 1/m^2 of
mean 3 / (8 ln 2). With delta = 2^-8 / (2 ln 2) = 0.00282, and a the size of r over the size of the finest number
added to it (its grid g limits what can be cut off):

* toward zero, a rounding loses half of (step - g): r shrinks by delta (2/pi) atan(a) a step.
* SR with k plain bits does not see 2^-k of a step: r shrinks by 2^-k delta (2/pi) atan(2^-k a).
* half away gives half of g away in ties: r grows by delta (2/pi) a / (1 + a^2). With the rounded sum as the finest
  number, a = sqrt(t) and this adds up to (4 / (3 pi)) delta sqrt(T): +1.35 % at T = 128.
* toward +inf or -inf moves every element the same way. The drift D is the root of a double sum over the
  correlation of |r_s| and |r_t|; to second order the gain is D^2 / 2 and the norm sqrt(1 + 2 D^2) - 1.
* every mode adds noise: for a fine grid a step squared times 1/12 (nearest, and the directed ones around their
  mean), 1/6 (stochastic), 1/3 (to odd); with n grid points a step, the sums over them (`_noise_on_grid`).

The expectations over a come from two independent normal numbers in polar coordinates. How far each law is from
simulation is stated, and held, in lab/sim/tests/test_drift.py.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from lab.sim.rounding.modes import RoundMode

STEP = 2.0**-7  # of a number in [1, 2)
DELTA = STEP / 2 / (2 * math.log(2))
STEP_SQUARED = STEP**2 * 3 / (8 * math.log(2))  # mean of (step of r / |r|)^2
ONE_WAY_LIMIT = 0.3
HALF_NORMAL = math.sqrt(2 / math.pi)

NEAREST = (RoundMode.TiesToEven, RoundMode.TiesToEvenViaFp16, RoundMode.TiesToAway)
ONE_SIDED = (RoundMode.TowardZero, RoundMode.AwayFromZero, RoundMode.TowardPositive, RoundMode.TowardNegative)
STOCHASTIC = (RoundMode.Stochastic, RoundMode.StochasticCentred)


@dataclass(frozen=True)
class Law:
    """Predicted drift, gain and norm after each step, as fractions (not percent): arrays of T."""

    drift: np.ndarray
    gain: np.ndarray
    norm: np.ndarray


@cache
def mean_smallest(world: int) -> float:
    """Mean of the smallest of W absolute values of standard normals."""
    z = (np.arange(20000) + 0.5) * 5e-4
    tail = np.array([math.erfc(value / math.sqrt(2)) for value in z])
    return float(np.sum(tail**world) * 5e-4)


def law(
    mode: RoundMode,
    steps: int,
    *,
    ratio: float = 0.0,
    world: int = 4,
    roundings: int = 2,
    hops: bool = False,
    random_bits: int = 16,
) -> Law | None:
    """Predict drift, gain and norm of a stream with zero-mean independent updates.

    Args:
        mode: of every rounding.
        steps: T.
        ratio: standard deviation of r_0 over that of an update.
        world: ranks whose sum an update is.
        roundings: 1: R(r + fp32 sum). 2: R(r + R(sum)).
        hops: the sum is rounded after each of its W - 1 additions (two roundings only).
        random_bits: k, for SR.

    Returns:
        The law, or None for a mode that has none. Toward +inf and -inf are NaN beyond a drift of ONE_WAY_LIMIT,
        where the second order is no longer enough.
    """
    if mode is RoundMode.LowHalf:
        return None
    t = np.arange(1, steps + 1)
    variance = t + ratio**2  # of r after step t, in units of the update's
    sigma = np.sqrt(variance)
    raw_grid = mean_smallest(world) / math.sqrt(world) / HALF_NORMAL  # size of the finest raw contribution
    above_grid = sigma / (1.0 if roundings == 2 else raw_grid)
    rate = _rate(mode, above_grid, random_bits)
    rounds_sum = roundings == 2 and world > 1  # with one rank the sum is exact
    sum_factor = 1 + float(_rate(mode, np.array(1 / raw_grid), random_bits)) if rounds_sum else 1.0
    # weight of r_0 and of each update in r_T: the product of the factors since it came in
    factor = np.concatenate([[1.0], np.cumprod(1 + rate)])
    start = ratio**2
    gain = np.empty(steps)
    drift_mean = np.empty(steps)
    norm_mean = np.empty(steps)
    noise = np.empty(steps)
    added = STEP_SQUARED * _noise(mode, above_grid)
    inner = 0.0  # noise of the rounded sum, in units of its own square
    if rounds_sum:
        partial = range(2, world + 1) if hops else (world,)
        inner = sum(STEP_SQUARED * float(_noise(mode, np.array(1 / raw_grid))) * n / world for n in partial)
    for n in range(steps):
        kept = factor[n + 1] / factor[: n + 1] * sum_factor
        kept_start = factor[n + 1]
        total = variance[n]
        gain[n] = (start * kept_start + kept.sum()) / total - 1
        drift_mean[n] = (start * (1 - kept_start) ** 2 + ((1 - kept) ** 2).sum()) / total
        norm_mean[n] = (start * kept_start**2 + (kept**2).sum()) / total
        noise[n] = ((added * variance)[: n + 1].sum() + inner * (n + 1)) / total
    drift = np.sqrt(drift_mean + noise)
    norm = np.sqrt(norm_mean + noise) - 1
    if mode in (RoundMode.TowardPositive, RoundMode.TowardNegative):
        sum_shift = _one_way_share(np.array(1 / raw_grid)) if rounds_sum else np.array(0.0)
        one_way = _one_way(sigma, _one_way_share(above_grid), float(sum_shift))
        gain = one_way**2 / 2
        drift = np.sqrt(one_way**2 + noise)
        norm = np.sqrt(1 + 2 * one_way**2 + noise) - 1
        too_far = one_way > ONE_WAY_LIMIT
        for values in (gain, drift, norm):
            values[too_far] = np.nan
    return Law(drift, gain, norm)


def _rate(mode: RoundMode, a: np.ndarray, random_bits: int) -> np.ndarray:
    """Relative growth at a rounding; `a` is the size of the result over that of the finest number in it."""
    match mode:
        case RoundMode.TowardZero:
            return -DELTA * (2 / math.pi) * np.arctan(a)
        case RoundMode.AwayFromZero:
            return DELTA * (2 / math.pi) * np.arctan(a)
        case RoundMode.TiesToAway:
            return DELTA * (2 / math.pi) * a / (1 + a**2)
        case RoundMode.Stochastic:
            unseen = 2.0**-random_bits
            return -unseen * DELTA * (2 / math.pi) * np.arctan(unseen * a)
    return np.zeros_like(a)


def _noise_on_grid(mode: RoundMode, n: np.ndarray) -> np.ndarray:
    """Mean square error in squared steps, less that of the mean, when the cut-off part is one of 0, 1/n ... (n - 1)/n.

    n is a power of two; n = 1 is exact.
    """
    if mode in NEAREST:
        return np.where(n > 1, (1 + 2 / n**2) / 12, 0)
    if mode in ONE_SIDED:
        return (1 - 1 / n**2) / 12
    if mode in STOCHASTIC:
        return (1 - 1 / n**2) / 6
    return (1 - 1 / n) * (2 - 1 / n) / 6  # to odd


def _noise(mode: RoundMode, a: np.ndarray) -> np.ndarray:
    """Mean of r^2 times `_noise_on_grid` over that of r^2, r being a times as large as the finest number in it."""
    grid = np.exp2(-(np.arange(1200) + 0.5) / 100)  # |g| / |r|, log-spaced below 1
    octave, inside = np.divmod((np.arange(1200) + 0.5) / 100, 1)  # steps of g and r differ by 2^octave or twice that
    squares = (1 - inside) * _noise_on_grid(mode, 2**octave) + inside * _noise_on_grid(mode, 2 ** (octave + 1))
    a = np.asarray(a, float)[..., None]
    weight = 4 / math.pi * a * grid / (1 + (a * grid) ** 2) ** 2 * (math.log(2) / 100)
    below = 4 / math.pi * a[..., 0] * 2.0**-12  # finer than 2^-12 of r: the limit of many grid points
    return (weight * squares).sum(-1) + np.minimum(below, 1) * _noise_on_grid(mode, np.array(2.0**20))


def _one_way_share(a: np.ndarray) -> np.ndarray:
    """Mean of (|r| - |g|)+ over that of |r|."""
    return (np.sqrt(1 + a**2) - 1) / a


def _one_way(sigma: np.ndarray, share: np.ndarray, sum_share: float) -> np.ndarray:
    """Drift when every element moves the same way by delta |r_t| at each step: root of the sum of E|r_s||r_t|."""
    weight = sigma * share
    result = np.empty(sigma.size)
    total = 0.0
    for n in range(sigma.size):
        rho = np.minimum(sigma[: n + 1] / sigma[n], 1)
        joint = (2 / math.pi) * (np.sqrt(1 - rho**2) + rho * np.arcsin(rho))
        pairs = weight[: n + 1] * weight[n] * joint
        total += 2 * pairs.sum() - pairs[n]
        sums = HALF_NORMAL * sum_share * (n + 1)  # the shift of the rounded sums, independent of r
        result[n] = DELTA * math.sqrt(total + 2 * HALF_NORMAL * weight[: n + 1].sum() * sums + sums**2) / sigma[n]
    return result
