"""Which engine runs a memory model: a module with `static`, `new_state`, `new_log`, `run`, `batch` and `movable`."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from lab.errors import UnknownNameError
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import weak

ENGINES: dict[str, ModuleType] = {"sc": m, "posted": m, "weak": weak}
assert tuple(ENGINES) == m.MEMORY_MODELS
SCHEDULERS = {"random": m.RANDOM, "pct": m.PCT, "run_on": m.RUN_ON}


def engine_of(memory: str) -> ModuleType:
    """The engine of a memory model.

    Raises:
        UnknownNameError: There is no such model.
    """
    if memory not in ENGINES:
        raise UnknownNameError("memory model", memory, tuple(ENGINES))
    return ENGINES[memory]


class Engine:
    """One program under one memory model, ready to run; keeps its state between runs."""

    def __init__(self, tables: Tables, memory: str = "sc") -> None:
        self.tables, self.memory, self._runner = tables, memory, engine_of(memory)
        self.static = self._runner.static(tables, memory)
        self.state = self._runner.new_state(self.static, tables.registers)
        self._silent, self._choices = m.new_log(self.static, m.LEVEL_NONE), m.new_log(self.static, m.LEVEL_CHOICES)

    def batch(
        self, scheduler: str, seed: int, count: int, early_timeout: int = 0, pct_depth: int = m.PCT_DEPTH
    ) -> np.ndarray:
        """Run seeds `seed`, `seed + 1`, ...; returns totals, indexed by `scheduler.T_*`."""
        return self._run(self._silent, scheduler, seed, count, early_timeout, pct_depth)

    def choices(self, scheduler: str, seed: int, early_timeout: int = 0, pct_depth: int = m.PCT_DEPTH) -> np.ndarray:
        """The choices that a scheduler made under a seed."""
        self._run(self._choices, scheduler, seed, 1, early_timeout, pct_depth)
        return self._choices.choice[: self.state.counts[m.C_STEPS]].copy()

    def _run(self, log: m.Log, scheduler: str, seed: int, count: int, early_timeout: int, pct_depth: int) -> np.ndarray:
        policy = SCHEDULERS[scheduler]
        return self._runner.batch(self.static, self.state, log, policy, seed, count, early_timeout, False, pct_depth)

    def follow(
        self, choices: np.ndarray, policy: int = m.TOLERANT, max_steps: int | None = None
    ) -> tuple[int, np.ndarray]:
        """Run along `choices`, then on; returns the outcome and the choices that were really made."""
        outcome = self._runner.run(self.static, self.state, self._choices, policy, choices=choices, max_steps=max_steps)
        return outcome, self._choices.choice[: self.state.counts[m.C_STEPS]].copy()

    def movable(self) -> list[int]:
        """The entities that can be chosen next, in order, after a run that its `max_steps` ended."""
        return self._runner.movable(self.static, self.state)

    @property
    def wrong(self) -> int:
        """Wrong cells of the last run."""
        return int(self.state.counts[m.C_WRONG])

    @property
    def timeouts(self) -> int:
        """Timeouts of the last run."""
        return int(self.state.counts[m.C_TIMEOUTS])

    @property
    def aborted(self) -> bool:
        """Whether an agent gave up waiting and returned in the last run."""
        return bool(self.state.counts[m.C_ABORTS])
