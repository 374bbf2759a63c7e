"""Random programs for Hypothesis: agents that store flags, add to counters, wait, and write and read payload."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from lab.protocol.program import WHOLE, Expect, Fill, Order, Program, Scope
from lab.protocol.record import span_of
from lab.protocol.write import Block
from lab.sim.tests.programs import move, small

WORDS, BUFFERS = ("x", "y", "z"), ("D", "E")


@dataclass(frozen=True)
class Step:
    """One operation: what (put, get, copy, store, add, load, cas, wait, fence) on what, with its order and scope."""

    what: str
    on: str = ""
    value: int = 0
    cond: str = ">="
    order: Order = Order.RELAXED
    scope: Scope = Scope.SYSTEM

    def __str__(self) -> str:
        at = f" {self.order.name.lower()}@{self.scope.name.lower()}"
        value = (
            f" {self.cond if self.what == 'wait' else ''}{self.value}" if self.what in ("store", "add", "wait") else ""
        )
        return f"{self.what} {self.on}{value}" + ("" if self.what in ("put", "get", "copy") else at)


Threads = tuple[tuple[int, tuple[Step, ...]], ...]  # (rank, steps) of each agent


def text(threads: Threads) -> str:
    """The program for a person."""
    return "\n".join(f"rank {rank}: " + "; ".join(map(str, steps)) for rank, steps in threads)


def program_of(threads: Threads) -> Program:
    """The Program of `threads`: all words and buffers in rank 0's memory; every put writes values of its own."""
    by_rank: dict[int, list[int]] = {}
    for index, (rank, _) in enumerate(threads):
        by_rank.setdefault(rank, []).append(index)

    def kernel(b: Block) -> None:
        index = by_rank[b.rank][b.block]
        for number, step in enumerate(threads[index][1]):
            record(b, step, (index, number + 1))

    return small(
        kernel,
        words=WORDS,
        payload={name: 1 for name in BUFFERS},
        world=1 + max(rank for rank, _ in threads),
        blocks={rank: len(own) for rank, own in by_rank.items()},
        elements=1,
    )


def record(b: Block, step: Step, version: tuple[int, int]) -> None:
    """Record one step; a put writes the input `version`, a get is compared with something that it never is."""
    at = getattr(b.on(0), step.on) if step.on else None
    if step.what == "put":
        b._emit(Fill, dst=span_of(at), source=version, constant=False, mapping=WHOLE)
    elif step.what == "get":
        b._emit(Expect, span=span_of(at), due=((99, 99),), constant=False, mapping=WHOLE)
    elif step.what == "copy":
        move(b, at, getattr(b.on(0), BUFFERS[1 - BUFFERS.index(step.on)]))
    elif step.what == "store":
        b.store(at, step.value, step.order, step.scope)
    elif step.what == "add":
        b.add(at, step.value, step.order, step.scope)
    elif step.what == "cas":
        b.cas(at, step.value, step.value + 1, step.order, step.scope)
    elif step.what == "load":
        b.load(at, step.order, step.scope)
    elif step.what == "wait":
        b.wait(at, step.cond, step.value, step.order, step.scope)
    else:
        b.fence(step.order, step.scope)


@st.composite
def programs(draw: st.DrawFn, strong: bool = False, grow_only: bool = False, most: int = 5) -> Threads:
    """Two or three agents on one to three ranks.

    `strong`: all orders acquire and release at system scope. `grow_only`: flags that one agent stores in rising order,
    waits with >=.
    """
    ranks = draw(st.sampled_from([(0, 1), (0, 0), (0, 1, 2), (0, 0, 1), (0, 1, 1)]))
    owner = {word: draw(st.integers(0, len(ranks) - 1)) for word in WORDS}
    stored = dict.fromkeys(WORDS, 0)
    threads = []
    for index, rank in enumerate(ranks):
        steps = []
        for _ in range(draw(st.integers(2, most))):
            steps.append(draw(_step(index, owner, stored, strong, grow_only)))
        threads.append((rank, tuple(steps)))
    return tuple(threads)


@st.composite
def _step(draw: st.DrawFn, agent: int, owner: dict, stored: dict, strong: bool, grow_only: bool) -> Step:
    order = Order.ACQ_REL if strong else draw(st.sampled_from(Order))
    scope = Scope.SYSTEM if strong else draw(st.sampled_from([Scope.BLOCK, Scope.DEVICE, Scope.SYSTEM, Scope.SYSTEM]))
    kinds = ["put", "get", "copy", "store", "wait", "wait", "store"]
    if not strong:
        kinds += ["fence", "fence", "load"]
    if not grow_only:
        kinds += ["add", "cas", "load"]
    what = draw(st.sampled_from(kinds))
    if what in ("put", "get", "copy"):
        return Step(what, draw(st.sampled_from(BUFFERS)))
    if what == "fence":
        return Step(what, order=order, scope=scope)
    word = draw(st.sampled_from(WORDS))
    if grow_only and what == "store":
        own = [word for word in WORDS if owner[word] == agent]
        if not own:
            return Step("get", draw(st.sampled_from(BUFFERS)))
        word = draw(st.sampled_from(own))
        stored[word] += 1
        return Step(what, word, stored[word], order=order, scope=scope)
    cond = ">=" if grow_only else draw(st.sampled_from([">=", ">=", "==", "!="]))
    return Step(what, word, draw(st.integers(1 if grow_only else 0, 2)), cond, order, scope)
