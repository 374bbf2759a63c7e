"""What an order rests on that not every machine gives, and which races are so by the letter of a memory model.

The first is the end of a kernel as a release to the whole system; the second a write that comes after a read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.sim.order.clocks import clocks
from lab.sim.order.kinds import READ, WRITE, Key, agent_of, in_order, key_of_steps, pair_kinds
from lab.sim.order.races import RaceReport, conflicts

_SCOPE = 4  # of the bits of SYNC = order | scope << 4


def leans_on_kernel_end(report: RaceReport) -> bool:
    """Whether accesses of kernels of different ranks are ordered only if a kernel's end releases to the whole system.

    In the same execution the ends and starts of kernels order within their device alone; what then races is asked.
    """
    execution = report.execution
    ops = execution.tables.ops.copy()
    boundary = (ops[:, t.SYNC] & t.BOUNDARY) != 0
    ops[boundary, t.SYNC] = (ops[boundary, t.SYNC] & ((1 << _SCOPE) - 1)) | (int(Scope.DEVICE) << _SCOPE)
    weaker = replace(execution, tables=replace(execution.tables, ops=ops))
    return any(_between_ranks(weaker, pair) for pair in conflicts(weaker.tables, weaker, clocks(weaker)))


def _between_ranks(execution, pair: np.ndarray) -> bool:
    one, two = (agent_of(execution, int(step)) for step in pair[:2])
    return one.rank != two.rank and "host" not in (one.kind, two.kind)


def only_memory_orders(report: RaceReport) -> set[Key]:
    """The races of a write after a read whose words do make the write wait for the read, by accesses that are relaxed.

    In every schedule the write is issued after the read is; what is missing are release and acquire.
    """
    execution = report.execution
    guards = clocks(execution, guards_only=True)
    ordered: dict[Key, bool] = {}
    for pair in report.pairs:
        kinds = pair_kinds(pair)
        if set(kinds) != {READ, WRITE}:
            continue
        a, b = int(pair[0]), int(pair[1])
        first, second = in_order(execution, a, b, kinds)
        if kinds[(a, b).index(first)] != READ:
            continue
        key = key_of_steps(execution, a, b, kinds)
        before = bool(guards.rows[second, guards.chain[first]] >= guards.time[first])
        ordered[key] = ordered.get(key, True) and before
    return {key for key, every in ordered.items() if every}
