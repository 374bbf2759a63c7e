"""A timed run of the simulator as a `Trace`: the phases that the protocol's text names, block by block."""

from __future__ import annotations

import numpy as np

from lab.errors import LabError
from lab.sim.timing.timing import TimedRun
from lab.trace import Trace

RUNTIME_PHASES = ("launch", "kernel end")
"""What the runtime does around a kernel; no part of the kernel's own text."""

PROLOGUE = "prologue"
"""What a kernel does before it names a phase."""


def trace_of(run: TimedRun) -> Trace:
    """The phases of every block of every call; a phase lasts from its first operation's begin to its last one's end.

    Args:
        run: Made by `simulate(..., record=n)`.

    Raises:
        LabError: The run recorded nothing, or had room for a part of its operations only.
    """
    if run.spans_lost or not len(run.span_op):
        raise LabError(
            "the run kept no whole record of its operations",
            value=f"{len(run.span_op)} kept, {run.spans_lost} lost",
            hint="simulate(..., record=n) with a larger n",
        )
    agents = run.tables.program.agents
    rows = []
    order = np.lexsort((run.span_begin, run.span_agent))
    for a in np.unique(run.span_agent):
        agent = agents[int(a)]
        if agent.kind in ("host", "kernel"):
            continue
        phases: dict[str, tuple[float, float]] = {}
        for k in order[run.span_agent[order] == a]:
            phase = agent.ops[int(run.span_op[k])].phase or PROLOGUE
            if phase in RUNTIME_PHASES:
                continue
            begin, end = float(run.span_begin[k]), float(run.span_end[k])
            first, last = phases.get(phase, (begin, end))
            phases[phase] = min(first, begin), max(last, end)
        rows += [(agent.rank, agent.call, agent.block, phase, *times) for phase, times in phases.items()]
    config = dict(run.tables.program.config)
    about = {
        "algorithm": run.tables.program.protocol,
        "bytes": config["bytes"],
        "dtype": run.tables.program.dtype,
        "world": run.tables.program.world,
        "seed": run.seed,
    }
    return Trace.of(rows, source="simulated", machine=run.preset.name, about=about)
