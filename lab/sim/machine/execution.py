"""One execution, recorded in full: what every analysis of order, and every explanation, starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import engine_of


@dataclass(frozen=True)
class Execution:
    """One run under a memory model, recorded in full, and how it ended (see `interleaved.run`)."""

    tables: Tables
    memory: str
    outcome: int
    steps: int
    log: m.Log
    state: m.State
    static: m.Static


def execute(
    tables: Tables, memory: str = "sc", policy: int = m.RUN_ON, seed: int = 0, choices: np.ndarray | None = None
) -> Execution:
    """Run `tables` once and keep everything."""
    engine = engine_of(memory)
    static = engine.static(tables, memory)
    state, log = engine.new_state(static, tables.registers), m.new_log(static, m.LEVEL_FULL)
    outcome = engine.run(static, state, log, policy, seed, choices)
    return Execution(tables, memory, outcome, int(state.counts[m.C_STEPS]), log, state, static)
