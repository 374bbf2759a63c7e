"""Run the kernels on the CPU: several ranks, each with a stream of launches, under one seeded schedule."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.errors import LabError
from lab.kernels.build import HIP, KERNELS, build
from lab.kernels.norm_reference import Points
from lab.kernels.rows import check_rows
from lab.kernels.runtime import bridge
from lab.kernels.staging import (
    MAX_BLOCKS,
    SENTINEL,
    Call,
    Control,
    Layout,
    Norm,
    Wait,
    WaitRecord,
    decode_records,
)
from lab.kernels.stamps import EVENTS, STAMP, trace_of
from lab.trace import Trace

OUTCOMES = ("finished", "out of steps", "diverged at a barrier")  # the order of lab::host::Outcome
NEVER = 1 << 62


class _Launch(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_uint64), ("call", Call), ("early", ctypes.c_uint64)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("start_after", ctypes.c_uint64 * 8),
        ("ranks", ctypes.c_uint32),
        ("weak", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Normed:
    """What add_rmsnorm does besides the all-reduce.

    Attributes:
        residuals: per rank, an array like the input.
        new_residuals: per rank, where the sums go; may be the residual itself.
        weights: per rank, (hidden,).
        points: where it rounds.
        eps: added to the mean square.
    """

    residuals: Sequence[np.ndarray]
    new_residuals: Sequence[np.ndarray]
    weights: Sequence[np.ndarray]
    points: Points
    eps: float = 1e-6


@dataclass(frozen=True)
class Collective:
    """One call, made by every rank.

    Attributes:
        algorithm: a kernel's file stem.
        dtype: "fp32", "fp16" or "bf16".
        inputs: per rank, a 1-d array of bit patterns (uint16, or uint32 for fp32).
        outputs: per rank, an array like the input; may be the input itself. Of reduce_scatter, one of the input's W
            parts; of all_gather, W parts like the input.
        blocks, threads: launch shape; threads must be at least the number of ranks.
        norm: of add_rmsnorm, the rest of it; threads are then a power of two from 32 on, a quarter of a row's vectors
            or more.
    """

    algorithm: str
    dtype: str
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    blocks: int
    threads: int
    norm: Normed | None = None


@dataclass(frozen=True)
class HostRun:
    """How a run ended. `waits[rank]` holds the rank's late and lost records."""

    outcome: str
    steps: int
    waits: list[list[Wait]] = field(default_factory=list)


class HostRanks:
    """W ranks on the CPU, with their workspaces and control words; state persists from run to run, as on a GPU."""

    def __init__(
        self,
        layout: Layout,
        *,
        kernels: Sequence[str] = KERNELS,
        rounding: str = "RNE",
        source: Path = HIP,
        cache: Path | None = None,
        timeout: int = 1 << 40,
        grace: int = 0,
        trace: bool = False,
    ):
        """`timeout` and `grace` are in scheduler steps; `trace` compiles the phase stamps in."""
        self.layout = layout
        artifact = build(
            "host", world=layout.world, rounding=rounding, kernels=kernels, trace=trace, source=source, cache=cache
        )
        self._traces = trace
        self.stamps = np.zeros((layout.world, 0, MAX_BLOCKS, len(EVENTS)), STAMP)
        self.module = bridge(cache).HostModule(artifact.path)
        mirrored = [ctypes.sizeof(kind) for kind in (Call, _Launch, Control, WaitRecord, _Options)]
        if self.module.sizes() != mirrored:
            raise LabError("staging.py and staging.hpp disagree on sizes", value=(self.module.sizes(), mirrored))
        self.timeout, self.grace = timeout, grace
        self.workspaces = [_aligned(layout.total_bytes) for _ in range(layout.world)]
        self.controls = [Control() for _ in range(layout.world)]
        self.records = [(WaitRecord * 2)() for _ in range(layout.world)]
        self.reset()

    def reset(self, epoch: int = 0) -> None:
        """What all ranks agree to do after an abort, and at the start: empty slots, flags and counters at `epoch`."""
        for rank in range(self.layout.world):
            self.workspaces[rank][: self.layout.packets_offset] = 0
            self.workspaces[rank][self.layout.packets_offset :] = SENTINEL
            ctypes.memset(ctypes.byref(self.records[rank]), 0, ctypes.sizeof(self.records[rank]))
            ctypes.memset(ctypes.byref(self.controls[rank]), 0, ctypes.sizeof(Control))
            self.controls[rank].epoch[:] = [epoch] * MAX_BLOCKS

    def run(
        self,
        collectives: Sequence[Collective],
        *,
        seed: int,
        weak: bool = True,
        step_limit: int = 1 << 34,
        start_after: Sequence[int] = (),
        rounding_seed: int = 0,
        early: bool = False,
    ) -> HostRun:
        """Play the calls back to back on every rank.

        Args:
            collectives: the calls, in stream order.
            seed: of the schedule; the same seed gives the same steps.
            weak: let payload stores arrive late and out of order until drained or released.
            step_limit: scheduler steps after which the run is given up.
            start_after: per rank, the step before which it launches nothing; NEVER for a rank that is dead.
            rounding_seed: key of the stochastic rounding.
            early: let a launch start once every block of its predecessor allows it, as Rank's overlap does. Every
                other launch allows it at once, the rest behind their last wait for a peer or at their end.
        """
        delays = [*start_after, *[0] * (8 - len(start_after))]
        alive = [rank for rank in range(self.layout.world) if delays[rank] < NEVER]
        launches = (_Launch * (len(collectives) * len(alive)))()
        if self._traces:
            self.stamps = np.zeros((self.layout.world, len(collectives), *self.stamps.shape[2:]), STAMP)
        for i, (nth, rank) in enumerate((n, r) for n in range(len(collectives)) for r in alive):
            collective, call = collectives[nth], launches[i].call
            launches[i].kernel = self.module.kernel(f"{collective.algorithm}_{collective.dtype}")
            self._fill(call, collective, rank)
            call.rounding_seed = rounding_seed
            launches[i].early, call.lets_at_once = early, early and (seed + nth) % 2 == 0
            if self._traces:
                call.trace, call.trace_events = self.stamps[rank, nth].ctypes.data, len(EVENTS)
        registered = np.array([[mine.ctypes.data for mine in c.inputs] for c in collectives], np.uint64)
        for launch, nth in zip(launches, np.repeat(np.arange(len(collectives)), len(alive)), strict=True):
            launch.call.registered = registered[nth].ctypes.data
        options = _Options(seed=seed, step_limit=step_limit, ranks=self.layout.world, weak=weak)
        options.start_after[:] = [min(delay, NEVER) for delay in delays]
        outcome, steps = self.module.run(bytes(launches), len(launches), bytes(options))
        return HostRun(OUTCOMES[outcome], steps, [decode_records(records) for records in self.records])

    def trace(self) -> Trace:
        """The phases of the last run's calls. All ranks share one clock, the scheduler: a step counts as 1 ns.

        Raises:
            LabError: The kernels were built without stamps, or a call did not end.
        """
        if not self._traces:
            raise LabError("these kernels leave no stamps", hint="HostRanks(..., trace=True)")
        return trace_of(self.stamps, 1e9, machine="CPU host", about={"clock": "scheduler steps, 1 ns each"})

    def _fill(self, call: Call, collective: Collective, rank: int) -> None:
        source, target = collective.inputs[rank], collective.outputs[rank]
        count = min(source.size, target.size)  # of reduce_scatter and all_gather, a part
        nbytes = count * source.itemsize
        if nbytes > self.layout.capacity(collective.algorithm):
            raise LabError(f"message of {nbytes} bytes is too large for {collective.algorithm}")
        call.connect(rank, [workspace.ctypes.data for workspace in self.workspaces])
        call.input, call.output = source.ctypes.data, target.ctypes.data
        call.control = ctypes.addressof(self.controls[rank])
        call.records = ctypes.addressof(self.records[rank])
        call.count = count
        call.timeout, call.grace = self.timeout, self.grace
        call.place(self.layout)
        call.blocks, call.threads = collective.blocks, collective.threads
        if collective.norm is not None:
            norm = collective.norm
            hidden = norm.weights[rank].size
            check_rows(self.layout, collective.algorithm, collective.threads, count // hidden, hidden, source.itemsize,
                       norm.points)  # fmt: skip
            call.norm = Norm(
                residual=norm.residuals[rank].ctypes.data, residual_out=norm.new_residuals[rank].ctypes.data,
                weight=norm.weights[rank].ctypes.data, hidden=hidden, points=norm.points.word(), eps=norm.eps,
            )  # fmt: skip


def _aligned(nbytes: int) -> np.ndarray:
    raw = np.zeros(nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + nbytes]
