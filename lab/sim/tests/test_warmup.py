"""Engines are compiled before a clock starts, and that is said where it takes long."""

from __future__ import annotations

import time

from numba import njit
from numba.core import event

from lab.sim import check as checks
from lab.sim import warmup
from lab.sim.bench.models import two_phase


class Compiled(event.Listener):
    """The functions that were compiled, rather than loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, event: event.Event) -> None:
        self.names.append(str(event.data["dispatcher"].py_func.__name__))

    def on_end(self, event: event.Event) -> None:
        pass


def slow_to_compile(memory: str) -> None:
    @njit
    def fresh(x):
        return x + 1

    fresh(1)
    time.sleep(0.3)


def test_it_is_said_once_where_something_is_compiled_and_takes_long(monkeypatch):
    monkeypatch.setattr(warmup, "_TOLD_AFTER", 0.05)
    monkeypatch.setattr(warmup, "_explored", slow_to_compile)
    told = []
    warmup.compile_engines(("sc", "posted"), False, lambda: told.append(1))
    assert told == [1]


def test_nothing_is_said_where_all_is_loaded_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(warmup, "_TOLD_AFTER", 0.05)
    monkeypatch.setattr(warmup, "_explored", lambda memory: time.sleep(0.2))
    told = []
    warmup.compile_engines(("sc",), False, lambda: told.append(1))
    assert told == []


def test_the_clock_starts_after_it(monkeypatch):
    checks.compile_engines(("sc",), False)
    monkeypatch.setattr(checks, "compile_engines", lambda *what: time.sleep(1.2))
    verdict = checks.check(two_phase, two_phase.config(world=2, calls=2), executions=20, deadline=1.0)
    assert verdict.executions == 20 and "stopped early" not in verdict.proof


def test_after_it_a_check_with_repairs_compiles_nothing():
    checks.compile_engines(("sc", "posted"), True)
    compiled = Compiled()
    with event.install_listener("numba:compile", compiled):
        config = two_phase.config(world=2, calls=3, options={"gather": "shared"})
        verdict = checks.check(two_phase, config, executions=50, deadline=60, repair_seconds=3)
    assert verdict.races and verdict.changes_tried and compiled.names == []
