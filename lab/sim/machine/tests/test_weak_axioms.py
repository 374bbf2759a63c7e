"""Model weak against the axioms of RC11 with scopes, written down independently: the outcomes are the same sets.

The engine walks histories with vector clocks. The reference here enumerates everything: which write each read sees, and
the order of the writes of each word; and keeps what the axioms allow (Lahav et al., PLDI 2017, without seq_cst):

* coherence: happens-before followed by (reads-from, modification order, from-read)+ has no cycle;
* atomicity: nothing comes between the read and the write of a read-modify-write;
* no cycle of program order and reads-from.

Where threads drain, coherence also holds along what is complete: a store, drained by its thread, is before whatever
comes after an acquire by somebody who has heard of the drain, by program order and reads-from, before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.protocol.program import Order, Scope
from lab.protocol.tables import compile_tables
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.tests.programs import Litmus, litmus

WORDS = ("x", "y")
ORDERS = {"load": ("relaxed", "acquire"), "await": ("relaxed", "acquire"), "store": ("relaxed", "release")}
ORDERS |= {"add": ("relaxed", "acquire", "release", "acq_rel"), "fence": ("acquire", "release", "acq_rel")}
SCOPES = ("system", "system", "device", "block")


@dataclass(frozen=True)
class Event:
    """One operation of a thread, or the initial value of a word (thread -1)."""

    thread: int
    kind: str  # load, await, store, add, fence, drain, initial
    word: str = ""
    value: int = 0  # stored, added, awaited
    register: str = ""
    order: Order = Order.RELAXED
    scope: Scope = Scope.SYSTEM

    @property
    def reads(self) -> bool:
        return self.kind in ("load", "await", "add")

    @property
    def writes(self) -> bool:
        return self.kind in ("store", "add", "initial")

    def __str__(self) -> str:
        if self.kind == "drain":
            return "drain"
        at = f" {self.order.name.lower()}@{self.scope.name.lower()}"
        return {
            "load": f"{self.register} = {self.word}",
            "await": f"await {self.word} >= {self.value}",
            "store": f"{self.word} = {self.value}",
            "add": f"{self.register} = {self.word} + {self.value}",
            "fence": "fence",
        }[self.kind] + at


Threads = tuple[tuple[int, tuple[Event, ...]], ...]  # (rank, events)


def text(threads: Threads) -> str:
    return " | ".join(f"{rank}: " + "; ".join(map(str, events)) for rank, events in threads)


# ---- the axioms


def _needed(a: int, b: int, ranks: tuple[int, ...]) -> Scope:
    """The narrowest scope that holds two threads; each is a block."""
    if a == b:
        return Scope.BLOCK
    return Scope.DEVICE if ranks[a] == ranks[b] else Scope.SYSTEM


def allowed(threads: Threads) -> set[tuple[tuple[str, int], ...]]:
    """Values of registers and words at the end of every execution that the axioms allow and whose waits are met."""
    ranks = tuple(rank for rank, _ in threads)
    events = [Event(-1, "initial", word) for word in WORDS] + [e for _, own in threads for e in own]
    reads = [k for k, e in enumerate(events) if e.reads]
    writes = {w: [k for k, e in enumerate(events) if e.writes and e.word == w] for w in WORDS}
    found = set()
    for sources in product(*([w for w in writes[events[r].word] if w != r] for r in reads)):
        seen = dict(zip(reads, sources, strict=True))
        values = _values(events, seen)
        if values is None or any(events[r].kind == "await" and values[seen[r]] < events[r].value for r in reads):
            continue
        for orders in product(*(permutations(writes[w][1:]) for w in WORDS)):
            order = {w: (writes[w][0], *rest) for w, rest in zip(WORDS, orders, strict=True)}
            if _consistent(events, seen, order, ranks):
                outcome = {events[r].register: values[seen[r]] for r in reads if events[r].register}
                outcome |= {w: values[order[w][-1]] for w in WORDS}
                found.add(tuple(sorted(outcome.items())))
    return found


def _program_order(events: list[Event]) -> np.ndarray:
    n = len(events)
    before = np.zeros((n, n), bool)
    for a in range(n):
        for b in range(a + 1, n):
            before[a, b] = events[a].thread == events[b].thread >= 0 or (events[a].thread < 0 <= events[b].thread)
    return before


def _values(events: list[Event], seen: dict[int, int]) -> dict[int, int] | None:
    """The value that each write writes; None where program order and reads-from have a cycle."""
    relation = _program_order(events)
    for read, write in seen.items():
        relation[write, read] = True
    if np.trace(_closed(relation)):
        return None
    values: dict[int, int] = {}
    while len(values) < sum(e.writes for e in events):
        for k, e in enumerate(events):
            if e.writes and k not in values:
                if e.kind != "add":
                    values[k] = e.value
                elif seen[k] in values:
                    values[k] = values[seen[k]] + e.value
    return values


def _closed(relation: np.ndarray) -> np.ndarray:
    closed = relation.copy()
    for k in range(len(closed)):
        closed |= np.outer(closed[:, k], closed[k, :])
    return closed


def _consistent(
    events: list[Event], seen: dict[int, int], order: dict[str, tuple[int, ...]], ranks: tuple[int, ...]
) -> bool:
    n = len(events)
    place = {write: k for own in order.values() for k, write in enumerate(own)}
    for k, e in enumerate(events):
        if e.kind == "add" and place[k] != place[seen[k]] + 1:
            return False
    coherence = np.zeros((n, n), bool)
    for own in order.values():
        for a in range(len(own)):
            for b in range(a + 1, len(own)):
                coherence[own[a], own[b]] = True
    for read, write in seen.items():
        coherence[write, read] = True
        for later in order[events[read].word][place[write] + 1 :]:
            coherence[read, later] = coherence[read, later] or later != read
    happens_before = _closed(_program_order(events) | _synchronises(events, seen, ranks))
    if np.trace(happens_before):
        return False
    complete = _complete(events, seen, ranks, happens_before)
    return not np.any((happens_before | complete) & _closed(coherence).T)


def _complete(
    events: list[Event], seen: dict[int, int], ranks: tuple[int, ...], happens_before: np.ndarray
) -> np.ndarray:
    """Stores that are complete before each event, where its thread may rely on that."""
    n, before, heard = len(events), _program_order(events), _program_order(events)
    for read, write in seen.items():
        heard[write, read] = True
    heard = _closed(heard)
    relation = np.zeros((n, n), bool)
    for store, drain in product(range(n), repeat=2):
        if not (events[store].writes and events[drain].kind == "drain" and before[store, drain]):
            continue
        for k, e in enumerate(events):
            told = [k] if e.kind == "fence" else _told(events, seen, ranks, k)
            reaches = e.thread >= 0 and e.scope >= _needed(events[store].thread, e.thread, ranks)
            if e.order.acquires and reaches and any(heard[drain, write] for write in told):
                relation[store] |= happens_before[k]
                relation[store, k] = True
    return relation


def _told(events: list[Event], seen: dict[int, int], ranks: tuple[int, ...], read: int) -> list[int]:
    """The writes of which a read acquires what their threads had heard: what it saw, and what additions replaced."""
    found, write = [], seen.get(read, -1)
    while write >= 0 and events[write].kind != "initial":
        if events[read].scope >= _needed(events[write].thread, events[read].thread, ranks):
            found.append(write)
        write = seen[write] if events[write].kind == "add" else -1
    return found


def _synchronises(events: list[Event], seen: dict[int, int], ranks: tuple[int, ...]) -> np.ndarray:
    n = len(events)
    relation = np.zeros((n, n), bool)
    before = _program_order(events)
    for read, write in seen.items():
        head = write
        while events[head].kind != "initial":
            needed = _needed(events[head].thread, events[read].thread, ranks)
            if events[head].scope >= needed and events[read].scope >= needed:
                releases = [head] if events[head].order.releases else []
                acquires = [read] if events[read].order.acquires else []
                for k, e in enumerate(events):
                    if e.kind == "fence" and e.scope >= needed:
                        releases += [k] if e.order.releases and before[k, head] else []
                        acquires += [k] if e.order.acquires and before[read, k] else []
                for a, b in product(releases, acquires):
                    relation[a, b] = a != b
            if events[head].kind != "add":
                break
            head = seen[head]
    return relation


# ---- the engine


def shown(test: Litmus) -> set[tuple[tuple[str, int], ...]] | None:
    """The same of the engine over all schedules; None where there are too many."""
    engine = Engine(compile_tables(test.program), "weak")
    schedules, complete = every_schedule(engine, limit=20_000)
    if not complete:
        return None
    found = set()
    for choices in schedules:
        engine.follow(choices, m.REPLAY)
        if np.array_equal(engine.state.pc, engine.tables.agent_end):
            values = {name: int(engine.state.registers[at]) for name, at in test.registers.items()}
            at = engine.tables.word_base
            values |= {name: int(engine.state.word[at[region]]) for name, region in test.words.items()}
            found.add(tuple(sorted(values.items())))
    return found


@st.composite
def programs(draw: st.DrawFn, most: int = 7) -> Threads:
    """Two or three blocks on one or two ranks, with a few operations on two words."""
    shape = draw(st.sampled_from(((0, 1), (0, 1), (0, 0), (0, 0, 1), (0, 1, 1))))
    left, threads, names, value = most, [], iter("abcdefghijk"), 1
    for thread, rank in enumerate(shape):
        events = []
        for _ in range(draw(st.integers(1, min(4, left - (len(shape) - 1 - thread))))):
            kind = draw(st.sampled_from(("load", "load", "store", "store", "store", "add", "await", "fence", "drain")))
            order = Order[draw(st.sampled_from(ORDERS.get(kind, ("relaxed",)))).upper()]
            scope = Scope[draw(st.sampled_from(SCOPES)).upper()]
            register = next(names) if kind in ("load", "add") else ""
            number = draw(st.integers(1, 3)) if kind == "await" else value if kind == "store" else 1
            value += kind == "store"
            word = draw(st.sampled_from(WORDS)) if kind not in ("fence", "drain") else ""
            events.append(Event(thread, kind, word, number, register, order, scope))
        left -= len(events)
        threads.append((rank, tuple(events)))
    return tuple(threads)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_the_outcomes_are_those_of_the_axioms(threads):
    found = shown(litmus(text(threads), "x@0 y@1"))
    if found is not None:
        assert found == allowed(threads), text(threads)


@pytest.mark.parametrize(
    ("threads", "outcomes"),
    [
        ("relaxed", {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("ordered", {(0, 0), (0, 1), (1, 1)}),
    ],
)
def test_the_axioms_know_message_passing(threads, outcomes):
    """The reference is not empty: it allows and forbids what every text on the matter does."""
    release, acquire = (Order.RELEASE, Order.ACQUIRE) if threads == "ordered" else (Order.RELAXED, Order.RELAXED)
    writer = (Event(0, "store", "x", 1), Event(0, "store", "y", 1, order=release))
    reader = (Event(1, "load", "y", register="a", order=acquire), Event(1, "load", "x", register="b"))
    found = allowed(((0, writer), (1, reader)))
    assert {(dict(o)["a"], dict(o)["b"]) for o in found} == outcomes
