"""Random small programs: threads of stores, additions, waits, loads, branches and payload over a few words and
slots."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from lab.protocol.language.record import span_of
from lab.protocol.program import WHOLE, Expect, Move, Program
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    BLOCK,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    Host,
    protocol,
)

WORDS, SLOTS = ("x", "y", "z"), ("A", "B")


@dataclass(frozen=True)
class Step:
    """One operation of a thread. `where` is the rank whose memory it touches."""

    kind: str
    name: str = "x"
    where: int = 0
    value: int = 1
    order: int = 0
    other: str = "A"


def _steps(kinds: list[str], world: int, tidy: bool) -> st.SearchStrategy[Step]:
    """`tidy`: words grow by releases and are awaited with >=, so that most programs are straight."""

    def one(kind: str) -> st.SearchStrategy[Step]:
        slot = kind in ("put", "copy", "expect")
        return st.builds(
            Step,
            kind=st.just(kind),
            name=st.sampled_from(SLOTS if slot else WORDS),
            where=st.integers(0, world - 1),
            value=st.integers(1, 2),
            order=st.just(1) if tidy else st.integers(0, 1),
            other=st.sampled_from(SLOTS),
        )

    return st.sampled_from(kinds).flatmap(one)


@st.composite
def tidy_programs(draw: st.DrawFn) -> Program:
    """Producers and consumers: each word is stored by one thread, with growing values, and awaited with >=."""
    world = draw(st.integers(2, 3))
    blocks = {rank: draw(st.integers(1, 2)) for rank in range(world)}
    places = [(rank, block) for rank in range(world) for block in range(blocks[rank])]
    kinds = ["put", "put", "copy", "expect", "flag", "flag", "await", "await", "count", "await count"]
    kinds += ["drain", "block fence"]
    threads = {}
    for place in places[:4]:
        threads[place] = draw(st.lists(_steps(kinds, world, tidy=draw(st.booleans())), min_size=1, max_size=5))
    return build(threads, world, blocks)


@st.composite
def wild_programs(draw: st.DrawFn) -> Program:
    """Anything: several writers, conditions that stop holding, loads that decide, bounded waits, additions whose
    result is used."""
    world = 2
    blocks = {0: draw(st.integers(1, 2)), 1: 1}
    places = [(rank, block) for rank in range(world) for block in range(blocks[rank])]
    kinds = [
        "put",
        "copy",
        "expect",
        "store",
        "store",
        "add",
        "ticket",
        "wait ==",
        "wait >=",
        "wait !=",
        "bounded",
        "branch",
    ]
    kinds += ["wait <", "wait mask", "any", "lock", "update"]
    kinds += ["fence", "block fence", "drain", "count", "await count", "flag", "await"]
    threads = {place: draw(st.lists(_steps(kinds, world, False), min_size=1, max_size=4)) for place in places}
    return build(threads, world, blocks)


def build(threads: dict[tuple[int, int], list[Step]], world: int, blocks: dict[int, int]) -> Program:
    """The program of these threads, without hosts and launches."""
    from lab.sim.tests.programs import bare

    flags: dict[tuple[str, int], int] = {}

    def memory(declare: Declare) -> None:
        for name in (*WORDS, "count"):
            declare.words(name)
        for rank in range(world):
            for block in range(blocks[rank]):
                declare.words(f"flag{rank}_{block}")
        for name in SLOTS:
            declare.payload(name, 2, UNCACHED)

    def kernel(b: Block) -> None:
        if (b.rank, b.block) == (0, 0):
            _record(b, Step("put", "A"), flags, blocks)  # so that no program is empty
        for step in threads.get((b.rank, b.block), []):
            if _can_be_met(step, b.rank, threads, blocks):
                _record(b, step, flags, blocks)

    def scenario(h: Host) -> None:
        given = [h.input(4) for _ in range(2)]
        h.launch(given[0], None, blocks=blocks[h.rank], args={"inputs": given})

    made = protocol(memory=memory, blocks=1, scenarios={"once": scenario}, bytes=4)(kernel)
    return bare(made.program(made.config(world=world)))


def _can_be_met(step: Step, rank: int, threads: dict[tuple[int, int], list[Step]], blocks: dict[int, int]) -> bool:
    """Whether a wait's word is written often enough, so that not every program hangs; true for what is no wait."""
    everywhere = [other for steps in threads.values() for other in steps]
    if step.kind == "await":
        source = threads.get((step.where, step.value % blocks[step.where]), [])
        return sum(s.kind == "flag" and s.where == rank for s in source) > (step.name == "x")
    if step.kind == "await count":
        return sum(s.kind == "count" and s.where == rank for s in everywhere) >= step.value
    if step.kind.startswith("wait") or step.kind in ("bounded", "any"):
        return any(s.kind in ("store", "add", "ticket", "lock", "update") and s.name == step.name for s in everywhere)
    return True


def _record(b: Block, step: Step, flags: dict[tuple[str, int], int], blocks: dict[int, int]) -> None:
    there = b.on(step.where)
    release = RELEASE if step.order else RELAXED
    acquire = ACQUIRE if step.order else RELAXED
    if step.kind in ("put", "copy"):
        source = b.args["inputs"][step.value - 1] if step.kind == "put" else getattr(b.mine, step.other)
        # Every thread moves all elements, whichever block it is.
        b._emit(Move, dst=span_of(getattr(there, step.name)), sources=(span_of(source),), mapping=WHOLE)
    elif step.kind == "expect":
        due = ((step.where, step.value),)
        b._emit(Expect, span=span_of(getattr(b.mine, step.name)), due=due, constant=False, mapping=WHOLE, dst=None)
    elif step.kind == "flag":
        name, key = f"flag{b.rank}_{b.block}", (f"flag{b.rank}_{b.block}", step.where)
        flags[key] = flags.get(key, 0) + 1
        b.store(getattr(there, name), flags[key], release, SYSTEM)
    elif step.kind == "await":
        rank = step.where
        b.wait(
            getattr(b.mine, f"flag{rank}_{step.value % blocks[rank]}"), ">=", 1 + (step.name == "x"), acquire, SYSTEM
        )
    elif step.kind == "count":
        b.rmw("add", there.count, step.value if step.name == "x" else 1, ACQ_REL if step.order else RELAXED, SYSTEM)
    elif step.kind == "await count":
        b.wait(b.mine.count, ">=", step.value, acquire, SYSTEM)
    elif step.kind == "store":
        b.store(getattr(there, step.name), step.value, release, SYSTEM)
    elif step.kind == "add":
        b.add(getattr(there, step.name), step.value, ACQ_REL, SYSTEM)
    elif step.kind == "ticket":
        old = b.add(getattr(there, step.name), 1, ACQ_REL, SYSTEM)
        with b.when(old == step.value - 1):
            b.copy(b.args["inputs"][0], getattr(b.mine, step.other))
    elif step.kind == "branch":
        seen = b.load(getattr(there, step.name), acquire, SYSTEM)
        with b.when(seen == step.value):
            b.store(b.mine.z, 1, release, SYSTEM)
    elif step.kind == "bounded":
        word = getattr(there, step.name)
        b.wait(word, ">=", step.value, acquire, SYSTEM, 10, lambda: b.store(b.mine.y, 1, release, SYSTEM))
    elif step.kind in ("fence", "block fence"):
        b.fence(ACQ_REL, SYSTEM if step.kind == "fence" else BLOCK)
    elif step.kind == "drain":
        b.drain()
    elif step.kind == "wait mask":
        b.wait(getattr(there, step.name), "==", step.value & 1, acquire, SYSTEM, mask=1)
    elif step.kind == "any":
        b.wait_any([getattr(there, step.name), b.mine.z], ">=", step.value, acquire, SYSTEM)
    elif step.kind == "lock":
        b.cas_until(getattr(there, step.name), step.value - 1, step.value, ACQ_REL, SYSTEM)
    elif step.kind == "update":
        b.update(getattr(there, step.name), lambda old: (old + step.value) % 3, ACQ_REL, SYSTEM)
    else:
        b.wait(getattr(there, step.name), step.kind.split()[1], step.value, acquire, SYSTEM)
