"""A small witness for a race: the least configuration and preemptions that still turn it into a wrong value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import LabError
from lab.protocol.program import Drain, Fence, Load, Program, Rmw, Site, Store, Wait, WaitStamp
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.explain.wrong import Explainer, Fault
from lab.sim.explore.deadline import Deadline
from lab.sim.explore.directed import plan_of
from lab.sim.explore.recorded import recorded, showing
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.schedule import Schedule
from lab.sim.order.kinds import Key
from lab.sim.order.races import RaceReport, find_races

_SEARCH = 256  # executions of each random scheduler on a configuration before it counts as not failing
_DIRECTED = 64  # executions before those that turn the race round


@dataclass(frozen=True)
class Witness:
    """A failing execution of a small configuration.

    Attributes:
        config: The configuration.
        choices: The steps up to where the schedule does not matter any more.
        execution: The execution, recorded in full.
        explainer: Its explanation.
        fault: The fault that shows the race.
    """

    config: Config
    choices: np.ndarray
    execution: Execution
    explainer: Explainer
    fault: Fault

    def line(self, protocol: Protocol) -> str:
        """The line that `lab replay` repeats."""
        made = self.execution
        schedule = Schedule.of(protocol, self.config, made.tables.program, made.memory, self.choices)
        return schedule.line(protocol.defaults)


def smallest_witness(
    protocol: Protocol,
    config: Config,
    memory: str,
    key: Key,
    seed: int = 0,
    deadline: Deadline | None = None,
    several: bool = False,
) -> Witness | None:
    """Find the smallest configuration up to `config` in which the race `key` makes a value wrong; None: none.

    A smaller configuration has all lines that synchronise: where one is missing, what goes wrong may be its absence.

    Args:
        protocol: The protocol.
        config: The configuration in which the race was found.
        memory: Memory model.
        key: The race, from `key_of`.
        seed: Of the search.
        deadline: When it has passed, the smallest witness found until then is returned.
        several: The race may show in other executions than the first.
    """
    deadline = deadline or Deadline(None)
    needed = _synchronising(protocol.program(config))
    search = _Search(protocol, memory, key, seed, deadline, several, needed)
    found = search.at(config)
    if found is None:
        return None
    for candidate in smaller(config):
        less = search.at(candidate)
        if less is not None:
            found = less
        if less is not None or deadline.passed:
            break
    return _shorten(found, memory, key, deadline)


def smaller(config: Config) -> Iterator[Config]:
    """Configurations from the smallest up: calls first, then ranks, blocks, and bytes."""
    blocks = [b for b in (1, 2, 3, 4) if config.blocks is None or b <= config.blocks]
    for calls in range(1, config.calls + 1):
        for world in sorted({w for w in (1, 2, 3, config.world) if w <= config.world}):
            for block in blocks:
                for size in _sizes(config):
                    sizes = tuple(min(size, b) for b in config.bytes)
                    yield replace(config, calls=calls, world=world, blocks=block, bytes=sizes)


def _sizes(config: Config) -> list[int]:
    largest = max(config.bytes)
    unit = 256 * config.itemsize
    sizes = [unit]
    while sizes[-1] * 2 < min(largest, 64 * unit):
        sizes.append(sizes[-1] * 2)
    return [size for size in sizes if size < largest] + [largest]


def _synchronising(program: Program) -> frozenset[Site]:
    """The lines that touch words or order them."""
    kinds = (Load, Store, Rmw, Wait, Fence, Drain, WaitStamp)
    return frozenset(op.site for agent in program.agents for op in agent.ops if isinstance(op, kinds))


@dataclass(frozen=True)
class _Search:
    """The search for a witness of one race."""

    protocol: Protocol
    memory: str
    key: Key
    seed: int
    deadline: Deadline
    several: bool
    needed: frozenset[Site]

    def at(self, config: Config) -> Witness | None:
        """A witness at one configuration; None: none was found there."""
        try:
            self.protocol.accept(config)
            program = self.protocol.program(config)
            if not self.needed <= _synchronising(program):
                return None
            tables = compile_tables(program)
        except LabError:
            return None  # a configuration that the protocol refuses is no witness
        first = find_races(tables)
        if showing([first], self.key) is None:
            if not self.several or showing(recorded(tables, self.memory, self.seed, first), self.key) is None:
                return None
        engine = Engine(tables, self.memory)
        for choices in _tried(engine, first, self.key, self.seed):
            if self.deadline.passed:
                return None
            if engine.wrong:
                witness = _explained(tables, config, self.memory, choices, self.key)
                if witness is not None:
                    return witness
        return None


def _tried(engine: Engine, report: RaceReport, key: Key, seed: int) -> Iterator[np.ndarray]:
    """Run executions that may show a race and yield the choices of each: those that turn it round, then random ones."""
    plan = plan_of(engine.tables, engine.memory, [key], seed, _DIRECTED, report)
    for number in range(len(plan)):
        yield engine.follow(plan.choices(number))[1]
    for scheduler, count in (("run_on", 1), ("pct", _SEARCH), ("random", _SEARCH)):
        for k in range(seed, seed + count):
            if engine.batch(scheduler, k, 1)[m.T_WRONG]:
                yield engine.choices(scheduler, k)


def _explained(tables: Tables, config: Config, memory: str, choices: np.ndarray, key: Key) -> Witness | None:
    execution = execute(tables, memory, m.REPLAY, choices=choices)
    explainer = Explainer(execution)
    for _, _, fault in explainer.faults():
        if explainer.race_key(fault) == key:
            return Witness(config, choices, execution, explainer, fault)
    return None


def _shorten(witness: Witness, memory: str, key: Key, deadline: Deadline) -> Witness:
    """Remove preemptions while the fault stays: delta debugging over runs of one agent (Zeller, Hildebrandt 2002)."""
    tables = witness.execution.tables
    engine = Engine(tables, memory)
    best = witness
    runs = _runs(witness.choices)
    size = max(1, len(runs) // 2)
    while size >= 1:
        at = 0
        while at < len(runs) and not deadline.passed:
            tried = runs[:at] + runs[at + size :]
            choices = np.concatenate([np.zeros(0, np.int32), *tried]).astype(np.int32)
            shorter = _still_fails(engine, tables, witness.config, memory, choices, key)
            if shorter is not None:
                best, runs = shorter, tried
            else:
                at += size
        size //= 2
    return replace(best, choices=_needed(engine, best.choices))


def _needed(engine: Engine, choices: np.ndarray) -> np.ndarray:
    """The shortest start of an execution's choices behind which every agent runs on as it does there.

    Every longer start repeats the execution too, so halving finds it.
    """
    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        _, made = engine.follow(choices[:middle], m.REPLAY)
        if np.array_equal(made, choices):
            high = middle
        else:
            low = middle + 1
    return choices[:low]


def _runs(choices: np.ndarray) -> list[np.ndarray]:
    if not len(choices):
        return []
    return np.split(choices, np.flatnonzero(np.diff(choices)) + 1)


def _still_fails(
    engine: Engine, tables: Tables, config: Config, memory: str, choices: np.ndarray, key: Key
) -> Witness | None:
    _, made = engine.follow(choices)
    return _explained(tables, config, memory, made, key) if engine.wrong else None
