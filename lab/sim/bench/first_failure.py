"""How soon a scheduler meets a defect: executions until the first failing one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lab.protocol.tables import Tables
from lab.sim.bench.models import tables_of
from lab.sim.explore.directed import DIRECTED, plan_of
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine

LAGGING = "lagging rank"
RANDOM_SCHEDULERS = ("random", "pct")
SEEDS = 2000
"""Seeds of a random scheduler from which its mean is taken."""


@dataclass(frozen=True)
class FirstFailure:
    """Executions until the first failing one.

    Attributes:
        defect: Its name.
        memory: The memory model.
        executions: By scheduler: of `directed`, which fails first, counted from 1; of the others, the mean over SEEDS
            seeds, which is more than SEEDS (infinite) where none of them fails.
    """

    defect: str
    memory: str
    executions: dict[str, float]


def first_failures(defects: Mapping[str, Tables], memory: str) -> Iterator[FirstFailure]:
    """Each of the defects in which a race makes a value wrong under `memory`, and the lagging rank of three."""
    for name, tables in {**defects, LAGGING: tables_of("lagging", 3, 8)}.items():
        found = _first(name, tables, memory)
        if found is not None:
            yield found


def _first(defect: str, tables: Tables, memory: str) -> FirstFailure | None:
    """None: nothing races, or no scheduler finds a wrong value."""
    plan = plan_of(tables, memory)
    if not len(plan):
        return None
    engine = Engine(tables, memory)
    turned = m.sum_of_totals(plan.batch(engine, 0, len(plan)))
    executions = {DIRECTED: turned[m.T_FIRST] + 1.0 if turned[m.T_FIRST] >= 0 else np.inf}
    for scheduler in RANDOM_SCHEDULERS:
        failing = engine.batch(scheduler, 0, SEEDS)[m.T_FAILING]
        executions[scheduler] = SEEDS / failing if failing else np.inf
    if not np.isfinite(list(executions.values())).any():
        return None
    return FirstFailure(defect, memory, {name: float(count) for name, count in executions.items()})
