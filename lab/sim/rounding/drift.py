"""What a rounding mode does to a residual stream, measured against the same stream in fp64.

The stream: r_0 = bf16(N(0, ratio * sigma)), and at each step every one of W ranks contributes
x_t^w = bf16(N(0, 1)), sigma = sqrt(W) being the standard deviation of an update. A path adds the W contributions and
the residual as a kernel would (`lab.sim.rounding.arithmetic` has the same arithmetic on bit patterns; a test compares
the two); the shadow adds the same bf16 inputs in fp64.

    drift = |r - ref| / |ref|          relative L2 distance
    gain  = <r, ref> / <ref, ref> - 1  how much of the reference is left in r: "shrank by 15.5 %"
    norm  = |r| / |ref| - 1            the other reading of "shrank"; 0.4 points less at 128 truncated steps
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lab.errors import LabError, UnknownNameError
from lab.sim.rounding.arithmetic import rms_norm
from lab.sim.rounding.convert import to_bf16
from lab.sim.rounding.drift_law import Law, law
from lab.sim.rounding.modes import RoundMode

BF16_OVERFLOW = 2.0**128
"""What no bf16 number reaches."""

Step = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(inputs uint16[W, n], residual uint16[n]) -> new residual uint16[n]: a kernel, on any device."""


@dataclass(frozen=True)
class Stream:
    """The residual stream.

    Attributes:
        world: ranks W whose contributions are added at each step.
        hidden: elements of a row; None: 5120, or 512 with feedback, whose layers cost hidden^2.
        tokens: rows.
        steps: T, additions to the residual.
        ratio: standard deviation of r_0 over that of an update (the sum of W contributions).
        bias: mean of a contribution in units of its standard deviation.
        rho: correlation of successive contributions of an element (AR(1)), 0 <= rho < 1.
        identical: every rank contributes the same numbers (as AITER's own tests do).
        feedback: "none": contributions are drawn. "linear", "tanh", "relu": they are W f(RMSNorm(r)) with that f and
            a random matrix W for each step and rank, scaled to variance 1.
        teacher_forced: with feedback, the shadow adds the path's contributions instead of its own.
    """

    world: int = 4
    hidden: int | None = None
    tokens: int = 16
    steps: int = 128
    ratio: float = 1.6
    bias: float = 0.0
    rho: float = 0.0
    identical: bool = False
    feedback: Literal["none", "linear", "tanh", "relu"] = "none"
    teacher_forced: bool = False

    def __post_init__(self):
        """Refuse what cannot be run."""
        for name, low, high in (("world", 1, 1024), ("tokens", 1, 1 << 20), ("steps", 1, 1 << 20)):
            if not low <= getattr(self, name) <= high:
                raise LabError(f"{name} is out of range", value=getattr(self, name), hint=f"{low} to {high}")
        if self.hidden is not None and not 1 <= self.hidden <= 1 << 24:
            raise LabError("hidden is out of range", value=self.hidden, hint="1 to 16777216")
        if not 0 <= self.ratio < np.inf:
            raise LabError("ratio must be a number from 0 up", value=self.ratio)
        if not np.isfinite(self.bias):
            raise LabError("bias must be a finite number", value=self.bias)
        if not 0 <= self.rho < 1:
            raise LabError("rho is out of range", value=self.rho, hint="0 <= rho < 1")
        if self.feedback not in FEEDBACK:
            raise UnknownNameError("feedback", self.feedback, FEEDBACK, hint=f"one of {', '.join(FEEDBACK)}")
        if self.teacher_forced and self.feedback == "none":
            raise LabError("teacher forcing needs feedback", hint="without feedback the shadow has the same input")
        if self.feedback != "none" and (self.bias or self.rho or self.identical):
            raise LabError("bias, rho and identical are for drawn contributions", hint="leave feedback out")

    @property
    def row(self) -> int:
        """Elements of a row."""
        return self.hidden or (5120 if self.feedback == "none" else 512)

    @property
    def has_law(self) -> bool:
        """Whether the closed form's assumptions hold: independent, zero-mean contributions."""
        return not (self.bias or self.rho or self.identical) and self.feedback == "none"


FEEDBACK = ("none", "linear", "tanh", "relu")

PRESETS: dict[str, Stream] = {
    # 128 steps against fp64: 17.5 / -15.5 truncated, 1.37 / -0.02 to nearest, 1.4 / -0.02 RCCL + add
    "seed": Stream(),
    # aiter#5151: one rank, hidden 4096, 72 calls: -8.98 %
    "aiter-5151": Stream(world=1, hidden=4096, steps=72, ratio=1.5),
}


@dataclass(frozen=True)
class Path:
    """One way to add: what the kernel rounds, and how.

    Attributes:
        name: as shown.
        add: mode of the rounding after the residual is added.
        sum: mode of the roundings of the sum; None: the same as `add`.
        roundings: 2: the sum is rounded before the residual is added. 1: residual + fp32 sum, rounded once.
        accumulate: "fp32": rank order, rounded at the end. "sequential" and "tree": rounded to bf16 after each
            addition. "ring": as "sequential", each chunk in RCCL's order.
        order: for fp32: "rank", or "reverse" (W - 1 .. 0).
        random_bits: for stochastic modes.
        step: a kernel that does all of it; the fields above then only describe it.
    """

    name: str
    add: RoundMode = RoundMode.TiesToEven
    sum: RoundMode | None = None
    roundings: Literal[1, 2] = 2
    accumulate: Literal["fp32", "sequential", "tree", "ring"] = "fp32"
    order: Literal["rank", "reverse"] = "rank"
    random_bits: int | None = None
    step: Step | None = field(default=None, compare=False)

    def __post_init__(self):
        """Refuse what has no meaning."""
        if self.roundings not in (1, 2):
            raise LabError("roundings must be 1 or 2", value=self.roundings)
        if self.accumulate not in ACCUMULATE:
            raise UnknownNameError("accumulation", self.accumulate, ACCUMULATE, hint=f"one of {ACCUMULATE}")
        if self.order not in ("rank", "reverse"):
            raise UnknownNameError("order", self.order, ("rank", "reverse"), hint="rank or reverse")
        if self.roundings == 1 and self.accumulate != "fp32":
            raise LabError("one rounding needs an fp32 sum", value=self.accumulate)


ACCUMULATE = ("fp32", "sequential", "tree", "ring")

RCCL_ADD = Path("RCCL + add", accumulate="ring")


def fused(mode: RoundMode | str, **how: object) -> Path:
    """The fused kernel in one mode; `how` as the fields of Path."""
    mode = RoundMode.parse(mode)
    path = replace(Path("", add=mode), **how)
    if not path.name:
        bits = f"({path.random_bits})" if path.random_bits else ""
        other = f", sum {path.sum.value}" if path.sum not in (None, mode) else ""
        path = replace(path, name=f"fused {mode.value}{bits}{other}")
    return path


#: The rows of the published table.
SEED_PATHS = (fused("RTZ"), fused("RNE"), RCCL_ADD)


def all_paths(**how: object) -> tuple[Path, ...]:
    """Every mode, stochastic ones with 16, 8, 4 and 2 bits, and RCCL + add; `how` as the fields of Path."""
    modes = [mode for mode in RoundMode if mode is not RoundMode.LowHalf and not mode.is_stochastic]
    stochastic = [
        fused(mode, random_bits=bits, **how)
        for mode in (RoundMode.Stochastic, RoundMode.StochasticCentred)
        for bits in (16, 8, 4, 2)
    ]
    return (*(fused(mode, **how) for mode in modes), *stochastic, RCCL_ADD)


@dataclass(frozen=True)
class Measured:
    """One path against the shadow: per seed and step, as fractions.

    Attributes:
        path: what was run.
        drift, gain, norm: float64[seeds, steps].
        law: the closed form, or None where its assumptions do not hold.
    """

    path: Path
    drift: np.ndarray
    gain: np.ndarray
    norm: np.ndarray
    law: Law | None

    def row(self, step: int = -1) -> dict[str, object]:
        """The numbers after a step (the last by default), in percent, with 95 % intervals over the seeds."""
        row: dict[str, object] = {"path": self.path.name}
        for name in ("drift", "gain", "norm"):
            values = 100 * getattr(self, name)[:, step]
            row[name] = float(values.mean())
            row[f"{name}_interval"] = interval(values)
            predicted = np.nan if self.law is None else float(getattr(self.law, name)[step])
            row[f"{name}_law"] = None if np.isnan(predicted) else 100 * predicted
        return row


def interval(values: np.ndarray) -> list[float] | None:
    """95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    half = _student(count - 1) * float(np.std(values, ddof=1)) / count**0.5
    middle = float(np.mean(values))
    return [middle - half, middle + half]


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by integrating its density."""
    from math import gamma, pi, sqrt

    if freedom > 300:
        return 1.96
    scale = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
    x = np.linspace(0, 13, 130001)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)]) * (x[1] - x[0])
    return float(np.interp(0.475, area, x))


def measure(
    stream: Stream | None = None,
    paths: Sequence[Path] = SEED_PATHS,
    *,
    seeds: Sequence[int] = (0, 1, 2, 3),
    every_step: bool = False,
    progress: Callable[[int], None] = lambda seeds: None,
) -> list[Measured]:
    """Run the paths over drawn streams; Ctrl-C keeps the seeds that are finished, if any.

    Args:
        stream: the set-up; None: that of the published table.
        paths: what to compare; all see the same inputs.
        seeds: one run each.
        every_step: measure after every step, not only after the last (the others are NaN).
        progress: called with the seeds that are finished.

    Returns:
        One Measured a path.

    Raises:
        LabError: no path, no seed, or a path that cannot be run.
    """
    stream = stream or Stream()
    if not paths or not len(seeds):
        raise LabError("there is nothing to run", hint="give at least one path and one seed")
    run = _run_drawn if stream.feedback == "none" else _run_feedback
    runs: list[Any] = []
    try:
        for seed in seeds:
            runs.append(run(stream, paths, seed, every_step))
            progress(len(runs))
    except KeyboardInterrupt:
        if not runs:
            raise
    return [
        Measured(path, *(np.stack([one[index][name] for one in runs]) for name in METRICS), _law(path, stream))
        for index, path in enumerate(paths)
    ]


METRICS = ("drift", "gain", "norm")


def measure_tensors(
    updates: np.ndarray, residual: np.ndarray | None = None, paths: Sequence[Path] = SEED_PATHS
) -> list[Measured]:
    """Run the paths over the caller's own updates.

    Args:
        updates: float32 (steps, W, ...) or (steps, ...) when `residual` says that W is missing; rounded to bf16
            (nearest even) first, as the shadow sees bf16 inputs too.
        residual: float32 (...): r_0; None: zeros.
        paths: what to compare.

    Returns:
        One Measured a path, for one "seed". The law assumes independent, zero-mean updates of equal size; its ratio
        is taken from the data.
    """
    updates = np.asarray(updates)
    if residual is not None and updates.ndim == residual.ndim + 1:
        updates = updates[:, None]
    if updates.ndim < 3:
        raise LabError(
            "updates must be (steps, world_size, elements...)",
            value=updates.shape,
            hint="for one rank: updates[:, None]",
        )
    steps, world = updates.shape[:2]
    size = int(np.prod(updates.shape[2:]))
    if not steps * world * size:
        raise LabError(
            "the updates are empty", value=updates.shape, hint="steps, ranks and elements: one of each at least"
        )
    if residual is not None and residual.shape != updates.shape[2:]:
        raise LabError("residual and updates disagree", value=residual.shape, hint=f"updates: {updates.shape}")
    if not (np.isfinite(updates).all() and (residual is None or np.isfinite(residual).all())):
        raise LabError("updates or residual hold infinities or NaN", hint="a drift is not defined for them")
    start = _rounded(np.zeros(size, np.float32) if residual is None else residual.reshape(-1))
    rows = (_rounded(step.reshape(world, size)) for step in updates)
    result = _walk(start, rows, steps, paths, seed=0, every_step=True)
    total = updates.reshape(steps, world, size).sum(axis=1, dtype=np.float64)
    spread = float(np.sqrt(np.mean(total**2)))
    ratio = float(np.sqrt(np.mean(start.astype(np.float64) ** 2))) / spread if spread else 0.0
    described = Stream(world=world, hidden=size, tokens=1, steps=steps, ratio=ratio)
    return [
        Measured(path, *(one[name][None] for name in METRICS), _law(path, described))
        for path, one in zip(paths, result, strict=True)
    ]


def _law(path: Path, stream: Stream) -> Law | None:
    uniform = path.sum in (None, path.add) and path.step is None
    if not stream.has_law or not uniform:
        return None
    return law(
        path.add,
        stream.steps,
        ratio=stream.ratio,
        world=stream.world,
        roundings=path.roundings,
        hops=path.accumulate != "fp32",
        random_bits=path.random_bits or 16,
    )


# ---- drawn contributions: all paths and the shadow see the same ones


def _rounded(values: np.ndarray) -> np.ndarray:
    """The nearest bf16 values, as float32."""
    with np.errstate(over="ignore"):  # `_record` refuses what leaves the range
        wide = np.ascontiguousarray(values, np.float32)
    return to_bf16(wide, out=np.empty_like(wide))


@np.errstate(over="ignore", invalid="ignore")  # `_record` refuses what leaves the range
def _run_drawn(stream, paths, seed, every_step):
    rng = np.random.default_rng([20, seed])
    size = stream.tokens * stream.row
    sigma = stream.world if stream.identical else stream.world**0.5  # of an update
    start = _rounded((stream.ratio * sigma) * rng.standard_normal(size, np.float32))

    def contributions():
        shape = (1 if stream.identical else stream.world, size)
        state = rng.standard_normal(shape, np.float32)
        for step in range(stream.steps):
            if step:
                fresh = rng.standard_normal(shape, np.float32)
                if stream.rho:
                    state = np.float32(stream.rho) * state + np.float32((1 - stream.rho**2) ** 0.5) * fresh
                else:
                    state = fresh
            x = _rounded(state + np.float32(stream.bias)) if stream.bias else _rounded(state)
            yield np.broadcast_to(x, (stream.world, size))

    return _walk(start, contributions(), stream.steps, paths, seed, every_step)


@np.errstate(over="ignore", invalid="ignore")  # `_record` refuses what leaves the range
def _walk(start, contributions, steps, paths, seed, every_step):
    shadow = start.astype(np.float64)
    residuals = [start.copy() for _ in paths]
    results = [{name: np.full(steps, np.nan) for name in METRICS} for _ in paths]
    for step, x in enumerate(contributions):
        for term in x:
            shadow += term
        sums: dict[str, np.ndarray] = {}
        for index, path in enumerate(paths):
            residuals[index] = _advance(path, x, residuals[index], sums, seed, step, index)
        if every_step or step == steps - 1:
            square = _dot(shadow, shadow)
            for path, residual, result in zip(paths, residuals, results, strict=True):
                _record(result, path, step, residual, shadow, square)
    return results


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    """Not by BLAS, whose result depends on the number of its threads."""
    return float(np.sum(a * b))


def _record(result, path, step, residual, shadow, square):
    wide = residual.astype(np.float64)
    if not (np.isfinite(wide).all() and np.abs(shadow).max() < BF16_OVERFLOW):
        raise LabError(
            "the stream leaves the range of bf16",
            value=f"{path.name} at step {step + 1}",
            hint="its numbers end at 3.4e38; scale updates and residual down, which changes no drift",
        )
    difference = wide - shadow
    if square == 0:
        raise LabError("the reference stream is zero", hint="a relative drift is not defined")
    result["drift"][step] = np.sqrt(_dot(difference, difference) / square)
    result["gain"][step] = _dot(difference, shadow) / square
    result["norm"][step] = np.sqrt(_dot(wide, wide) / square) - 1


def _advance(path, x, residual, sums, seed, step, index):
    """The residual after one step of a path: float32 array of bf16 values."""
    if path.step is not None:
        codes = path.step(_codes(np.ascontiguousarray(x)), _codes(residual))
        return (np.asarray(codes).astype(np.uint32) << 16).view(np.float32)
    draws = iter(range(1 << 20))

    def round_(values, mode):
        if not mode.is_stochastic:
            return to_bf16(values, mode, out=values)
        # a stream of random bits of its own for every seed, path, step and rounding
        key = (((seed * 4096 + index) << 20) + step << 12) + next(draws)
        return to_bf16(values, mode, out=values, random_bits=path.random_bits, seed=key)

    sum_mode = path.sum or path.add
    if path.accumulate == "fp32":
        if path.order not in sums:
            sums[path.order] = _add_up(x if path.order == "rank" else x[::-1])
        total = sums[path.order]
        if path.roundings == 2:
            total = round_(total.copy(), sum_mode)
    elif path.accumulate == "sequential":
        total = x[0]
        for term in x[1:]:
            total = round_(total + term, sum_mode)
    elif path.accumulate == "tree":
        level = list(x)
        while len(level) > 1:
            pairs = [round_(level[i] + level[i + 1], sum_mode) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(level) & ~1 :]
        total = level[0]
    else:
        total = _ring(x, lambda values: round_(values, sum_mode))
    return round_(residual + total, path.add)


def _codes(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _add_up(x):
    total = x[0].copy()
    for term in x[1:]:
        np.add(total, term, out=total)
    return total


def _ring(x, round_):
    """RCCL's order: chunk c is summed over ranks c + 1, c + 2, ..., c."""
    world, size = x.shape
    part = size // world
    total = np.empty(size, np.float32)
    for last in range(world):
        chunk = slice(last * part, size if last == world - 1 else (last + 1) * part)
        partial = x[(last + 1) % world, chunk]
        for hop in range(2, world + 1):
            partial = round_(partial + x[(last + hop) % world, chunk])
        total[chunk] = partial
    return total


# ---- feedback: the contributions are a layer of the normalised residual, so each path has its own

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda z: z,
    "tanh": lambda z: np.tanh(z) / 0.6279,  # its standard deviation for a standard normal
    "relu": lambda z: np.maximum(z, 0) * 2**0.5,  # mean square 1
}


@np.errstate(over="ignore", invalid="ignore")
def _run_feedback(stream, paths, seed, every_step):
    rng = np.random.default_rng([21, seed])
    shape = (stream.tokens, stream.row)
    activation = ACTIVATIONS[stream.feedback]
    start = _rounded(stream.ratio * stream.world**0.5 * rng.standard_normal(shape, np.float32))
    if not start.any():
        raise LabError("feedback from a residual of zeros is zero", hint="use a ratio above 0")
    residuals = [start.reshape(-1).copy() for _ in paths]
    own_shadow = start.astype(np.float64)
    shadows = [start.astype(np.float64).reshape(-1) for _ in paths]
    results = [{name: np.full(stream.steps, np.nan) for name in METRICS} for _ in paths]
    for step in range(stream.steps):
        weights = rng.standard_normal((stream.world, stream.row, stream.row), np.float32)
        weights /= np.float32(stream.row**0.5)
        if not stream.teacher_forced:
            normed = rms_norm(own_shadow)
            for weight in weights:
                own_shadow = own_shadow + activation(normed) @ weight
        for index, path in enumerate(paths):
            normed32 = rms_norm(residuals[index].reshape(shape)).astype(np.float32)
            x = np.stack([_rounded(activation(normed32) @ weight).reshape(-1) for weight in weights])
            residuals[index] = _advance(path, x, residuals[index], {}, seed, step, index)
            if stream.teacher_forced:
                for term in x:
                    shadows[index] += term
            else:
                shadows[index] = own_shadow.reshape(-1)
            if every_step or step == stream.steps - 1:
                shadow = shadows[index]
                _record(results[index], path, step, residuals[index], shadow, _dot(shadow, shadow))
    return results
