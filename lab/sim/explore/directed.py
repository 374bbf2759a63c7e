"""Race-directed schedules: a found race turned round, to see whether it makes a value wrong.

Two accesses race when nothing orders them, so each may come late. From a recorded execution in which both happen, other
schedules are made that differ in this one thing:

* *late*: the agent of one access stops right before it, and all that can happen without it does, in the order of the
  recorded execution. Then it goes on. Under `posted` also the arrival of a store alone is late, not its agent.
* *swapped*: the access that came first waits only until the other has happened, and follows at once: between two writes
  the last one counts, and a reader after both sees it.
* under `weak`, *bent*: a read takes the oldest value that it may see, a write a place before those that it need not
  follow, at exactly this pair, in the recorded order and late.

Choices that cannot be made any more, because they waited for what is late, are left out (`machine.TOLERANT`).
The search, the witnesses and the exploration all take their schedules from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np

from lab.protocol import tables as t
from lab.protocol.tables import Tables
from lab.sim.explore.recorded import recorded
from lab.sim.machine import interleaved as m
from lab.sim.machine import weak_history as h
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import Execution
from lab.sim.order.kinds import Key, key_of_steps, pair_kinds
from lab.sim.order.races import RaceReport

DIRECTED = "directed"
LIMIT = 256
"""Schedules of a plan, unless another number is asked for."""
_ENOUGH = 4  # recorded where these show every race
_LATE, _SWAPPED, _RECORDED = range(3)
_NOT_BENT = -1


class Turn(NamedTuple):
    """One schedule of a plan.

    Attributes:
        base: Its recorded execution, by number.
        race: The kind of race, by number.
        held: The step that is late: its agent's, or the arrival of a store.
        other: The other step of the pair.
        move: _LATE, _SWAPPED or _RECORDED.
        bent: The step that takes the choice `bend`; _NOT_BENT: none.
        bend: A choice of `weak.run`, from 1.
    """

    base: int
    race: int
    held: int
    other: int
    move: int
    bent: int = _NOT_BENT
    bend: int = 0


class Base(NamedTuple):
    """A recorded execution, as far as schedules are made of it: what was chosen at each step, and whose step it was.

    `owner` is the agent; of the arrival of a store, agents + the link.
    """

    choices: np.ndarray
    owner: np.ndarray
    agents: int
    world: int


@dataclass(frozen=True)
class Plan:
    """Schedules that turn races round, in the order in which they are to be tried; every kind of race in turn.

    Attributes:
        bases: The recorded executions.
        races: The kinds of race (`kinds.key_of`).
        turns: The schedules.
    """

    bases: tuple[Base, ...] = ()
    races: tuple[Key, ...] = ()
    turns: tuple[Turn, ...] = ()

    def __len__(self) -> int:
        return len(self.turns)

    def choices(self, number: int) -> np.ndarray:
        """The choices (int32 entities of `machine.run`, TOLERANT) of a schedule."""
        turn = self.turns[number]
        base = self.bases[turn.base]
        entities = base.choices
        if turn.bent != _NOT_BENT:
            entities = entities.copy()
            first_other = 2 * base.agents + base.world**2 + 1
            entities[turn.bent] = first_other + (turn.bend - 1) * base.agents + base.owner[turn.bent]
        if turn.move == _RECORDED:
            return entities
        place = np.arange(len(entities))
        late = (base.owner == base.owner[turn.held]) & (place >= turn.held)
        if turn.move == _LATE:
            return np.concatenate((entities[~late], entities[late]))
        before = ~late & (place <= turn.other)
        after = ~before & (place != turn.held)
        return np.concatenate((entities[before], entities[turn.held : turn.held + 1], entities[after]))

    def tried(self, count: int | None = None) -> dict[Key, int]:
        """How many of the first `count` schedules turn each kind of race round; None: of all."""
        counts = Counter(turn.race for turn in self.turns[:count])
        return {key: counts[number] for number, key in enumerate(self.races)}

    def batch(self, engine: Engine, first: int, count: int) -> np.ndarray:
        """Run schedules `first`, `first + 1`, ...

        Returns:
            int64 (races, totals): of the schedules that turn each kind of race round; columns as `machine.T_*`.
        """
        totals = np.stack([m.new_totals() for _ in self.races]) if self.races else m.new_totals()[None]
        for number in range(first, min(first + count, len(self))):
            outcome, _ = engine.follow(self.choices(number))
            row = totals[self.turns[number].race]
            m.add_outcome.py_func(row, number, *_failed(engine, outcome), int(engine.state.counts[m.C_OPS]))
        return totals


def _failed(engine: Engine, outcome: int) -> tuple[bool, bool, bool]:
    """Whether the last run was wrong, hung, aborted."""
    return bool(engine.wrong), outcome == m.HANG, engine.aborted


def plan_of(
    tables: Tables,
    memory: str = "sc",
    races: Sequence[Key] | None = None,
    seed: int = 0,
    limit: int = LIMIT,
    first: RaceReport | None = None,
) -> Plan:
    """A plan for the races of a program: both orders of each pair, at as many pairs as `limit` allows.

    Args:
        tables: The program.
        memory: The memory model under which the schedules will run, and the executions are recorded.
        races: The kinds of race to turn round; None: all that show.
        seed: Of the recorded executions, and of which pairs come first.
        limit: Schedules, at most.
        first: Races of an execution that is already recorded; it counts if `memory` is its memory model.
    """
    wanted = None if races is None else set(races)
    numbers: dict[Key, int] = {} if races is None else {key: number for number, key in enumerate(dict.fromkeys(races))}
    bases: list[Base] = []
    turns: list[Turn] = []
    met: set[Key] = set()
    for report in recorded(tables, memory, seed, first):
        pairs = _by_kind(report, wanted)
        met |= pairs.keys()
        for key in pairs:
            numbers.setdefault(key, len(numbers))
        if pairs:
            arrivals = _arrivals(report.execution)
            ways = [
                _ways(memory, pairs[key], arrivals, len(bases), number, seed)
                for key, number in numbers.items()
                if key in pairs
            ]
            bases.append(base_of(report.execution))
            turns += islice(_in_turn(ways), limit - len(turns))
        if len(turns) >= limit or (len(bases) >= _ENOUGH and (wanted is None or met == wanted)):
            break
    return Plan(tuple(bases), tuple(numbers), tuple(turns))


def plan_for(execution: Execution, pairs: np.ndarray, limit: int = LIMIT) -> Plan:
    """A plan for pairs of steps of one execution, which are not told apart by kind.

    Args:
        execution: Recorded in full.
        pairs: int64 (pairs, 2): steps, the earlier one first; operations, or arrivals of stores.
        limit: Schedules, at most.
    """
    turns = (turn for earlier, later in pairs.tolist() for turn in _orders(0, 0, earlier, later))
    return Plan((base_of(execution),), ((),), tuple(islice(turns, limit)))


def base_of(execution: Execution) -> Base:
    """What schedules are made of."""
    log, tables, steps = execution.log, execution.tables, execution.steps
    agents, world = len(tables.agent_start), tables.program.world
    rows = np.where(log.op[:steps] == -2, log.row[:steps], log.op[:steps])
    owner = np.where(rows >= 0, tables.ops[np.maximum(rows, 0), t.AGENT], log.choice[:steps])
    return Base(log.choice[:steps].astype(np.int32), owner.astype(np.int32), agents, world)


def _by_kind(report: RaceReport, wanted: set[Key] | None) -> dict[Key, list[np.ndarray]]:
    found: dict[Key, list[np.ndarray]] = {}
    for pair in report.pairs:
        key = key_of_steps(report.execution, int(pair[0]), int(pair[1]), pair_kinds(pair))
        if wanted is None or key in wanted:
            found.setdefault(key, []).append(pair)
    return found


def _arrivals(execution: Execution) -> dict[int, int]:
    """For each step that posts a store, the step at which it arrives."""
    arrived = np.flatnonzero(execution.log.op[: execution.steps] == -1)
    return {int(store): int(step) for step, store in zip(arrived, execution.log.row[arrived], strict=True)}


def _ways(
    memory: str, pairs: list[np.ndarray], arrivals: dict[int, int], base: int, race: int, seed: int
) -> Iterator[Turn]:
    """All turns of one kind of race, its pairs in an order that the seed sets, so that a bound leaves a sample."""
    for at in np.random.default_rng(seed).permutation(len(pairs)):
        earlier, later, _, _, first_writes, second_writes = pairs[at].tolist()
        bent = _bent(base, race, earlier, later, bool(first_writes), bool(second_writes))
        if memory == "weak":
            yield next(bent)
        yield from _orders(base, race, earlier, later)
        if memory == "weak":
            yield from bent
        if earlier in arrivals:
            yield from _orders(base, race, arrivals[earlier], later)
        if later in arrivals:
            yield from _orders(base, race, earlier, arrivals[later])


def _orders(base: int, race: int, earlier: int, later: int) -> Iterator[Turn]:
    yield Turn(base, race, earlier, later, _LATE)
    yield Turn(base, race, earlier, later, _SWAPPED)
    yield Turn(base, race, later, earlier, _LATE)


def _bent(base: int, race: int, earlier: int, later: int, first_writes: bool, second_writes: bool) -> Iterator[Turn]:
    bend = h.EARLY_WRITE if second_writes else h.STALE_READ
    yield Turn(base, race, later, earlier, _RECORDED, later, bend)
    yield Turn(base, race, later, earlier, _LATE, later, bend)
    yield Turn(base, race, earlier, later, _LATE, earlier, h.EARLY_WRITE if first_writes else h.STALE_READ)


def _in_turn(ways: list[Iterator[Turn]]) -> Iterator[Turn]:
    """The first of each, then the second of each, and so on."""
    for row in zip_longest(*ways):
        yield from (turn for turn in row if turn is not None)
