"""The ranks of a trace on one clock: offsets and rates from what must have come before what.

    found = align(Trace.load("recorded.npz"), {"exchange": "exchange"})
    print(found.offsets, found.ppm, found.uncertainty)

No global clock is needed. A phase in which blocks meet bounds the clocks: no block leaves it before the same block of
every peer has entered it, whatever the clocks say. Each such pair of times bounds the difference of two clocks from one
side at one moment (as in NTP, RFC 5905, section 8, with one message each way). Clocks are taken to run at constant
rates, each a little wrong: what all bounds leave of offsets and rates is a polytope, and an error is as wide as it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.errors import LabError
from lab.trace import Trace

MOST_PPM = 600.0
"""How far apart two clocks may run, in parts per million: two PCIe reference clocks of +-300 ppm each."""
_CORNERS = ((1, -1), (-1, 1), (1, 1), (-1, -1), (0, 1), (0, -1))
"""Weights of offset and drift: latest and earliest at the begin of the trace, at its end; slowest and fastest."""
_AT_ENDS = 4  # the first so many of them
_BINS = 32  # stretches of the trace of which the tightest bounds are looked at first
_HALVINGS = 40  # of the searches for a least drift and a least violation
_OPTIMAL, _INFEASIBLE = 0, 2  # `status` of scipy.optimize.linprog
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Alignment:
    """A trace on one clock: that of its first rank.

    Attributes:
        trace: The trace, each rank's times corrected by offset and rate.
        offsets: Nanoseconds to add to each rank's clock in the middle of the trace; the first rank's is 0.
        ppm: How much faster than the first rank's clock each rank's runs, in parts per million.
        uncertainty: How far off a corrected time of each rank may be anywhere in the trace, in nanoseconds, if the
            clocks run at constant rates.
        ppm_uncertainty: The same of `ppm`.
    """

    trace: Trace
    offsets: dict[int, float]
    ppm: dict[int, float]
    uncertainty: dict[int, float]
    ppm_uncertainty: dict[int, float]


def align(trace: Trace, meetings: Mapping[str, str], most_ppm: float = MOST_PPM) -> Alignment:
    """Bring the ranks of a trace onto one clock.

    Args:
        trace: The trace.
        meetings: {later phase: earlier phase}, for instance {"exchange": "exchange"}: no block ends the later phase
            before the same block of every peer has begun the earlier phase of the same call.
        most_ppm: How far apart two of the clocks may run; 0 for ranks that share one clock.

    Raises:
        LabError: No clocks meet all bounds. The message says whether a block must have left a meeting before a peer
            had come, or whether the clocks change their rates, and by how much. Or two ranks never meet, a phase is
            not in the trace, or `most_ppm` is negative or no number.
    """
    if not (np.isfinite(most_ppm) and most_ppm >= 0):
        raise LabError("most_ppm is no bound on the rates of clocks", value=most_ppm, hint=f"such as {MOST_PPM:g}")
    ranks = trace.ranks
    if len(ranks) < 2:
        nothing = dict.fromkeys(ranks, 0.0)
        return Alignment(trace, nothing, nothing, nothing, nothing)
    bounds = _Bounds.of(trace, meetings)
    fitted = _Fit(bounds, most_ppm)
    extremes = fitted.extremes()
    if extremes is None:
        raise _no_clocks(fitted, most_ppm)
    # Each extreme meets all bounds, and so does the mean of those at the ends of the trace: the bounds are convex.
    point = extremes[:, :_AT_ENDS].reshape(-1, extremes.shape[-1]).mean(axis=0)
    return _alignment(trace, bounds, point, extremes)


@dataclass(frozen=True)
class _Bounds:
    """What the meetings say of the clocks: for each n, T(later[n]) >= T(earlier[n]).

    Clocks are first brought together roughly by `centre`; `middle` and `reach` are the middle and half the length of
    the trace then. Times below are (clock + centre - middle) / reach, between -1 and 1.

    Attributes:
        ranks: The ranks.
        waiter, peer: int64 (n,), places in `ranks`: who left, and who had to have come.
        gap: float64 (n,): by how much the clocks as they are say that the waiter left later, ns.
        left, came: float64 (n,): when that was, as times above.
        call: int64 (n,).
    """

    ranks: list[int]
    centre: np.ndarray
    middle: float
    reach: float
    waiter: np.ndarray
    peer: np.ndarray
    gap: np.ndarray
    left: np.ndarray
    came: np.ndarray
    call: np.ndarray

    @classmethod
    def of(cls, trace: Trace, meetings: Mapping[str, str]) -> _Bounds:
        """Collect the bounds of a trace.

        Raises:
            LabError: Two ranks are not tied to each other by meetings, or a phase is not in the trace.
        """
        ranks = trace.ranks
        pairs: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]] = []
        for later, earlier in meetings.items():
            ends, begins = _by_block(trace, later, "end", np.maximum), _by_block(trace, earlier, "begin", np.minimum)
            for i, waiter in enumerate(ranks):
                for j, peer in enumerate(ranks):
                    if i != j:
                        keys, at, of = np.intersect1d(ends[waiter][0], begins[peer][0], True, return_indices=True)
                        pairs.append((i, j, ends[waiter][1][at], begins[peer][1][of], keys >> 16))
        centre = _centres(len(ranks), pairs)
        size = [len(left) for _, _, left, _, _ in pairs]
        waiter = np.repeat([i for i, *_ in pairs], size)
        peer = np.repeat([j for _, j, *_ in pairs], size)
        left = np.concatenate([left + centre[i] for i, _, left, _, _ in pairs])
        came = np.concatenate([came + centre[j] for _, j, _, came, _ in pairs])
        ends = trace.spans["end"] + centre[np.searchsorted(ranks, trace.spans["rank"])]
        begins = trace.spans["begin"] + centre[np.searchsorted(ranks, trace.spans["rank"])]
        middle, reach = (ends.max() + begins.min()) / 2, max((ends.max() - begins.min()) / 2, 1.0)
        return cls(
            ranks, centre, middle, reach, waiter, peer, left - came,
            (left - middle) / reach, (came - middle) / reach, np.concatenate([call for *_, call in pairs]),
        )  # fmt: skip

    @property
    def rounding(self) -> float:
        """What times of this size cannot tell, ns."""
        return max(1e-6, 16 * _EPSILON * (abs(self.middle) + self.reach + float(np.abs(self.centre).max())))

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Bounds as rows over (offset, drift of each rank but the first): rows @ x <= gap."""
        found = np.zeros((len(chosen), len(self.ranks), 2))
        place = np.arange(len(chosen))
        found[place, self.peer[chosen], 0], found[place, self.peer[chosen], 1] = 1.0, self.came[chosen]
        found[place, self.waiter[chosen], 0], found[place, self.waiter[chosen], 1] = -1.0, -self.left[chosen]
        return found[:, 1:].reshape(len(chosen), -1)

    def left_over(self, point: np.ndarray) -> np.ndarray:
        """By how much each bound is met, ns: float64 (n,)."""
        offset, drift = np.vstack([np.zeros((1, 2)), point.reshape(-1, 2)]).T
        late = self.gap + offset[self.waiter] + drift[self.waiter] * self.left
        return late - offset[self.peer] - drift[self.peer] * self.came


def _by_block(trace: Trace, phase: str, side: str, most: np.ufunc) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Per rank, (call << 16 | block, time): the last end or the first begin of a phase of each block of each call."""
    spans = trace.of_phase(phase)
    found = {}
    for rank in trace.ranks:
        here = spans[spans["rank"] == rank]
        keys = here["call"].astype(np.int64) << 16 | here["block"]
        order = np.argsort(keys, kind="stable")
        each, first = np.unique(keys[order], return_index=True)
        found[rank] = each, most.reduceat(here[side][order], first) if len(each) else here[side]
    return found


def _centres(ranks: int, pairs: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """A rough offset for each rank, from the times at which ranks left and came: float64 (ranks,).

    Raises:
        LabError: Some rank is not bounded from both sides.
    """
    tied = np.eye(ranks, dtype=bool)
    roughly: dict[int, dict[int, float]] = {rank: {} for rank in range(ranks)}
    for i, j, left, came, _ in pairs:
        if len(left):
            tied[i, j] = True
            roughly[i][j] = float(np.median(left - came))
            roughly[j].setdefault(i, -roughly[i][j])
    for k in range(ranks):
        tied |= tied[:, k : k + 1] & tied[k : k + 1, :]
    if not tied.all():
        raise LabError("two ranks of the trace never meet, so their clocks cannot be compared")
    centre = {0: 0.0}
    queue = [0]
    for here in queue:
        for there, offset in roughly[here].items():
            if there not in centre:
                centre[there] = centre[here] + offset
                queue.append(there)
    return np.array([centre[rank] for rank in range(ranks)])


class _Fit:
    """Offsets and rates that meet the bounds. Bounds are taken in as they are found to bind: few ever do."""

    def __init__(self, bounds: _Bounds, most_ppm: float) -> None:
        self.bounds = bounds
        self.others = len(bounds.ranks) - 1
        self.most_drift = most_ppm * 1e-6 * bounds.reach  # ns, at either end of the trace
        span = float(np.abs(bounds.gap).max()) + self.most_drift + 1.0
        self.box = np.tile([10.0 * (self.others + 1) * span, self.most_drift + 1.0], self.others)
        self.rates, self.rate_limits = self._rate_rows()
        group = (bounds.waiter * len(bounds.ranks) + bounds.peer) * _BINS
        group += np.minimum(((bounds.left + 1) / 2 * _BINS).astype(np.int64), _BINS - 1).clip(0)
        self.pair = bounds.waiter * len(bounds.ranks) + bounds.peer
        self.pool = _least_of_each(bounds.gap, group)

    def _rate_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """No two clocks run further apart than allowed."""
        each = np.vstack([np.zeros((1, self.others)), np.eye(self.others)])
        rows = np.array([a - b for i, a in enumerate(each) for j, b in enumerate(each) if i != j])
        wide = np.zeros((len(rows), 2 * self.others))
        wide[:, 1::2] = rows
        return wide, np.full(len(rows), self.most_drift)

    def best(self, objective: np.ndarray, allowance: float = 0.0) -> np.ndarray | None:
        """The clocks with the largest `objective`, where each bound may be missed by `allowance` ns; None: none fit."""
        bounds, slack = self.bounds, self.bounds.rounding
        while True:
            rows = np.vstack([self.rates, bounds.rows(self.pool)])
            limits = np.concatenate([self.rate_limits, bounds.gap[self.pool] + allowance])
            point = _maximise(objective, rows, limits, self.box)
            if point is None:
                return None
            missed = bounds.left_over(point) + allowance
            missed[self.pool] = 0.0
            worst = _least_of_each(missed, self.pair)
            worst = worst[missed[worst] < -slack]
            if not len(worst):
                return point
            self.pool = np.concatenate([self.pool, worst])

    def extremes(self) -> np.ndarray | None:
        """For each rank but the first the clocks of _CORNERS: float64 (ranks, 6, variables); None: no clocks fit."""
        found = []
        for rank in range(self.others):
            for offset, drift in _CORNERS:
                objective = np.zeros(2 * self.others)
                objective[2 * rank : 2 * rank + 2] = offset, drift
                point = self.best(objective)
                if point is None:
                    return None
                found.append(point)
        return np.array(found).reshape(self.others, len(_CORNERS), -1)

    def least_violation(self) -> float:
        """By how many ns, at least, some bound is missed, whatever constant rates the clocks run at."""
        objective = np.zeros(2 * self.others)
        most = float(np.abs(self.bounds.gap).max()) + 2 * self.most_drift
        return _least(lambda allowance: self.best(objective, allowance) is not None, most)


def _maximise(objective: np.ndarray, rows: np.ndarray, limits: np.ndarray, box: np.ndarray) -> np.ndarray | None:
    """The x with the largest `objective @ x` where `rows @ x <= limits` and `|x| <= box`; None: there is none."""
    from scipy.optimize import linprog

    found = linprog(-objective, A_ub=rows, b_ub=limits, bounds=np.column_stack([-box, box]), method="highs")
    if found.status not in (_OPTIMAL, _INFEASIBLE):
        raise ArithmeticError(f"the clocks of the trace could not be fitted: {found.message}")
    return found.x if found.status == _OPTIMAL else None


def _least_of_each(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Where the least value of each group is."""
    order = np.lexsort((values, groups))
    return order[np.unique(groups[order], return_index=True)[1]]


def _least(fits, most: float) -> float:
    """The least value up to `most` for which `fits` holds; it holds at `most` and above whatever it holds at."""
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + most) / 2
        low, most = (low, middle) if fits(middle) else (middle, most)
    return most


def _alignment(trace: Trace, bounds: _Bounds, point: np.ndarray, extremes: np.ndarray) -> Alignment:
    offset, drift = np.vstack([np.zeros((1, 2)), point.reshape(-1, 2)]).T
    clocks, offsets, ppm, uncertainty, ppm_uncertainty = {}, {}, {}, {}, {}
    for place, rank in enumerate(bounds.ranks):
        offsets[rank] = float(bounds.centre[place] + offset[place])
        ppm[rank] = -1e6 * float(drift[place]) / float(bounds.reach) + 0.0
        off = [0.0]
        rates = [0.0]
        if place:
            ends = extremes[place - 1][:, 2 * place - 2 : 2 * place]
            off = [abs(a + side * v - (offset[place] + side * drift[place])) for a, v in ends for side in (-1, 1)]
            rates = [abs(v - drift[place]) for _, v in ends]
        uncertainty[rank] = float(max(off)) + (bounds.rounding if place else 0.0)
        ppm_uncertainty[rank] = 1e6 * float(max(rates)) / float(bounds.reach)
        clocks[rank] = _corrected(bounds, float(bounds.centre[place]), float(offset[place]), float(drift[place]))
    return Alignment(trace.on_clocks(clocks), offsets, ppm, uncertainty, ppm_uncertainty)


def _corrected(bounds: _Bounds, centre: float, offset: float, drift: float):
    def clock(times: np.ndarray) -> np.ndarray:
        roughly = times + centre
        return roughly + (offset + drift * ((roughly - bounds.middle) / bounds.reach))

    return clock


# ---- where no clocks fit


def _no_clocks(fit: _Fit, most_ppm: float) -> LabError:
    """Say whether a block left a meeting early, which no clocks explain, or whether the clocks may have drifted."""
    bounds = fit.bounds
    calls = _Calls.of(bounds)
    early = calls.contradiction(most_ppm)
    if early > bounds.rounding:
        return LabError(
            "no clocks fit this trace: a block left a meeting before a peer's same block had entered it",
            value=f"by {early:.0f} ns more than clocks that run up to {most_ppm:g} ppm apart explain",
            hint="either the kernel let it through, or the phases named in `meetings` are not meetings",
        )
    ppm = _least(lambda some: calls.contradiction(some) <= bounds.rounding, most_ppm)
    return LabError(
        "the clocks of this trace drift, and not at constant rates, so that no one correction fits all of it",
        value=f"somewhere they run at least {ppm:.3g} ppm apart",
        hint="align fewer calls at a time; only where clocks are known to be steady does it say that a block left a "
        f"meeting early, by at least {fit.least_violation():.0f} ns",
    )


@dataclass(frozen=True)
class _Calls:
    """The bounds call by call, for clocks whose rates change as they like within a limit.

    Attributes:
        gap: float64 (calls, ranks, ranks): the least gap of each (waiter, peer), inf: none.
        begin, end: float64 (calls,): the first and last time of each call's bounds, ns; calls in this order.
    """

    gap: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, bounds: _Bounds) -> _Calls:
        calls, index = np.unique(bounds.call, return_inverse=True)
        gap = np.full((len(calls), len(bounds.ranks), len(bounds.ranks)), np.inf)
        np.minimum.at(gap, (index, bounds.waiter, bounds.peer), bounds.gap)
        begin, end = np.full(len(calls), np.inf), np.full(len(calls), -np.inf)
        for times in (bounds.left, bounds.came):
            np.minimum.at(begin, index, times * bounds.reach)
            np.maximum.at(end, index, times * bounds.reach)
        order = np.argsort(begin)
        return cls(gap[order], begin[order], end[order])

    def contradiction(self, ppm: float) -> float:
        """By how many ns the bounds contradict each other although any two clocks may run `ppm` apart at any time.

        What is known of the difference of two clocks widens with time, and each call narrows it again. It is 0 where
        they need not contradict each other.
        """
        rate = ppm * 1e-6
        ranks = self.gap.shape[1]
        known = np.where(np.eye(ranks, dtype=bool), 0.0, np.inf)
        before = float(self.begin[0])
        worst = 0.0
        for gap, begin, end in zip(self.gap, self.begin, self.end, strict=True):
            known = np.minimum(known + rate * max(end - before, 0.0), gap + 2 * rate * (end - begin))
            np.fill_diagonal(known, 0.0)
            for k in range(ranks):  # shortest paths (Floyd-Warshall): all bounds that follow from others
                known = np.minimum(known, known[:, k : k + 1] + known[k : k + 1, :])
            early = -float(np.diag(known).min())
            if early > 0.0:
                worst = max(worst, early)
                known = np.where(np.eye(ranks, dtype=bool), 0.0, np.inf)  # go on with what comes later
            before = float(begin)
        return worst
