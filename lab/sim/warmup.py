"""Compile the engines on a tiny program before a clock starts, so that limits in seconds are for the work alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from threading import Timer

from numba.core import event

from lab.protocol.tables import compile_tables
from lab.sim.bench.models import two_phase
from lab.sim.explain.minimise import smallest_witness
from lab.sim.explore.directed import DIRECTED
from lab.sim.explore.explore import explore
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.kinds import key_of
from lab.sim.order.races import find_races
from lab.sim.search.search import search

_TOLD_AFTER = 1.0  # seconds of compiling
_STATES = 100
_SIDE_BY_SIDE = (("sc", "posted"), ("weak",))  # what takes about as long to compile, and shares little


def compile_engines(memories: Iterable[str], searches: bool, compiling: Callable[[], None] = lambda: None) -> None:
    """Run whatever a check of these memory models calls; what an earlier run of this version compiled is only loaded.

    Args:
        memories: The memory models.
        searches: Whether all schedules will be searched, too.
        compiling: Called once, from another thread, when something has been compiling for a second.
    """
    told = _Slow(compiling)
    try:
        with event.install_listener("numba:compile", told):
            for memory in memories:
                _explored(memory)
                if searches:
                    _searched(memory)
    finally:
        told.timer.cancel()


class _Slow(event.Listener):
    """Starts a timer when the first function is compiled; Numba sends no event for one that it finds in its cache."""

    def __init__(self, compiling: Callable[[], None]) -> None:
        self.timer = Timer(_TOLD_AFTER, compiling)
        self.timer.daemon = True
        self._started = False

    def on_start(self, event: event.Event) -> None:
        if not self._started:
            self._started = True
            self.timer.start()

    def on_end(self, event: event.Event) -> None:
        """Nothing: the whole of it counts."""


@cache
def _explored(memory: str) -> None:
    """Race check, exploration and a witness of a program that races and goes wrong; the proof of one that is right."""
    config = two_phase.config(world=2, calls=3, options={"gather": "shared"})
    tables = compile_tables(two_phase.program(config))
    report = find_races(tables)
    explore(tables, memory, (DIRECTED, "random", "pct"), executions=12)
    smallest_witness(two_phase, config, memory, key_of(report.races[0]))
    right = find_races(compile_tables(two_phase.program(two_phase.config(world=2, calls=2)))).execution
    why_not_determinate(right, False)
    holds_under_every_model(right)


@cache
def _searched(memory: str) -> None:
    """A search that a race turned round does not end, and one that goes through states."""
    config = two_phase.config(world=2, calls=2, options={"gather": "shared"})
    tables = compile_tables(two_phase.program(config))
    for stop in (True, False):
        search(tables, memory, limit_states=_STATES, stop=stop)


def compile_all(compiling: Callable[[], None] = lambda: None) -> None:
    """Compile the engines and searches of all memory models, on two cores where there are two.

    Args:
        compiling: As for `compile_engines`; called in each process that compiles.
    """
    with ProcessPoolExecutor(min(len(_SIDE_BY_SIDE), os.cpu_count() or 1), get_context("spawn")) as pool:
        list(pool.map(partial(compile_engines, searches=True, compiling=compiling), _SIDE_BY_SIDE))


def _say() -> None:
    print("lab: compiling the simulator, once per version", file=sys.stderr, flush=True)


if __name__ == "__main__":
    compile_all(_say)
