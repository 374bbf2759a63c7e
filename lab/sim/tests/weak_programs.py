"""Random small programs for memory model weak: every kind of operation, order, scope and memory, on two ranks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from lab.protocol.expr import word
from lab.protocol.language.record import span_of
from lab.protocol.program import WHOLE, Cache, Cond, Expect, Memory, Move, Order, Program, Scope, WaitStamp
from lab.protocol.write import CACHED, UNCACHED, Block, Declare, Host, protocol
from lab.sim.tests.programs import bare

WORDS, SLOTS = ("x", "y"), ("A", "B")
KINDS = {
    "words": ("store", "store", "add", "cas", "load", "branch", "wait >=", "wait ==", "wait !="),
    "payload": ("put", "put", "copy", "expect", "expect"),
    "packets": ("send", "send", "poll", "poll"),
    "bounds": ("polls", "seconds"),
    "conditions": ("wait <", "wait mask", "wait function", "any", "any"),
    "locks": ("lock", "lock", "update", "xor"),
    "sums": ("store pair", "store pair", "sum"),
    "fences": ("fence", "fence", "drain"),
}


@dataclass(frozen=True)
class Step:
    """One operation of a thread; `where` is the rank whose memory it touches."""

    kind: str
    name: str
    where: int
    value: int
    order: Order
    scope: Scope
    bypass: bool

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.name}@{self.where} {self.value} {self.order.name.lower()}@{self.scope.name.lower()}"
            + (" bypassing" if self.bypass else "")
        )


@dataclass(frozen=True)
class Threads:
    """(rank, steps) of each block; the kind of memory that words and packets lie in."""

    blocks: tuple[tuple[int, tuple[Step, ...]], ...]
    memory: Memory

    def __str__(self) -> str:
        lines = (f"rank {rank}: " + "; ".join(map(str, steps)) for rank, steps in self.blocks)
        return f"{self.memory.name.lower()} words\n" + "\n".join(lines)


@st.composite
def threads(draw: st.DrawFn, most: int = 8) -> Threads:
    """Two to four blocks on two ranks, with at most so many operations together, of two or three groups of kinds."""
    ranks = draw(st.sampled_from(((0, 1), (0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1, 1))))
    chosen = draw(st.lists(st.sampled_from(tuple(KINDS)), min_size=1, max_size=3))
    kinds = tuple(kind for group in ("words", *chosen) for kind in KINDS[group])
    made, left = [], most
    for k, rank in enumerate(ranks):
        count = draw(st.integers(1, min(4, left - (len(ranks) - 1 - k))))
        left -= count
        made.append((rank, tuple(draw(_step(kinds)) for _ in range(count))))
    return Threads(tuple(made), draw(st.sampled_from((UNCACHED, UNCACHED, CACHED))))


def _step(kinds: tuple[str, ...]) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        st.sampled_from(kinds),
        st.sampled_from((0, 0, 1)).map(WORDS.__getitem__),
        st.integers(0, 1),
        st.integers(1, 2),
        st.sampled_from(tuple(Order)),
        st.sampled_from((Scope.SYSTEM, Scope.SYSTEM, Scope.DEVICE, Scope.BLOCK)),
        st.booleans(),
    )


def program_of(given: Threads) -> Program:
    """The program of these threads, without hosts and launches."""
    by_rank: dict[int, list[tuple[Step, ...]]] = {0: [], 1: []}
    for rank, steps in given.blocks:
        by_rank[rank].append(steps)

    def memory(declare: Declare) -> None:
        for name in (*WORDS, "gave_up"):
            declare.words(name, memory=given.memory)
        declare.words("pair", 2, given.memory)
        for name in SLOTS:
            declare.payload(name, 2, UNCACHED)
        declare.payload("packet", 2, given.memory)

    sent_to = {step.where for _, steps in given.blocks for step in steps if step.kind == "send"}

    def kernel(b: Block) -> None:
        for step in by_rank[b.rank][b.block]:
            if step.kind != "poll" or step.where in sent_to:  # a wait for packets that nobody sends is refused
                _record(b, step)

    def scenario(h: Host) -> None:
        for name in WORDS:  # a wait on a word that nobody writes is refused; these go with the hosts
            h.store(getattr(h.mine, name), 0, Order.RELAXED, Scope.SYSTEM)
        for k in range(2):
            h.store(h.mine.pair[k], 0, Order.RELAXED, Scope.SYSTEM)
        inputs = [h.input(4) for _ in range(2)]
        h.launch(inputs[0], None, blocks=len(by_rank[h.rank]), args={"inputs": inputs})

    made = protocol(memory=memory, blocks=1, scenarios={"once": scenario}, bytes=4)(kernel)
    return bare(made.program(made.config(world=2)))


def _record(b: Block, step: Step) -> None:
    there, kind = b.on(step.where), step.kind
    at, slot = getattr(there, step.name), getattr(there, SLOTS[WORDS.index(step.name)])
    release, acquire = Order(step.order & Order.RELEASE), Order(step.order & Order.ACQUIRE)
    if kind == "store":
        b.store(at, step.value, release, step.scope)
    elif kind == "add":
        b.add(at, step.value, step.order, step.scope)
    elif kind == "cas":
        before = b.cas(at, step.value - 1, 2, step.order, step.scope)
        with b.when(before == 1):
            b.store(b.mine.y, 1, release, step.scope)
    elif kind == "load":
        b.load(at, acquire, step.scope)
    elif kind == "branch":
        with b.when(b.load(at, acquire, step.scope) == step.value):
            b.store(b.mine.y, 2, release, step.scope)
    elif kind == "wait mask":
        b.wait(at, "==", step.value & 1, acquire, step.scope, mask=1)
    elif kind == "wait function":
        b.wait_until(at, lambda word: (word - 1) & 3 == step.value - 1, acquire, step.scope)
    elif kind == "any":
        b.wait_any([at, there.pair[0]], ">=", step.value, acquire, step.scope)
    elif kind == "lock":
        b.cas_until(at, step.value - 1, step.value, step.order, step.scope)
    elif kind == "update":
        b.update(at, lambda old: (old + step.value) % 3, step.order, step.scope)
    elif kind == "xor":
        b.rmw("xor", at, step.value, step.order, step.scope)
    elif kind.startswith("wait"):
        b.wait(at, kind.split()[1], step.value, acquire, step.scope)
    elif kind in ("polls", "seconds"):
        bound = {"bound": 10} if kind == "polls" else {"seconds": 1.0}
        b.wait(
            at,
            ">=",
            step.value,
            acquire,
            step.scope,
            **bound,
            on_timeout=lambda: b.store(b.mine.gave_up, 1, release, step.scope),
        )
    elif kind == "fence":
        b.fence(step.order or Order.ACQ_REL, step.scope)
    elif kind == "drain":
        b.drain()
    elif kind == "store pair":
        b.store(there.pair[step.value - 1], step.value if step.bypass else 2**32 - step.value, release, step.scope)
    elif kind == "sum":
        b.wait(there.pair.words(0, 2), "sum<=", (2 - 2 * step.value) % 2**32, acquire, step.scope)
    else:
        _record_payload(b, step, slot)


def _record_payload(b: Block, step: Step, slot) -> None:
    cache = Cache.BYPASS if step.bypass else Cache.CACHED
    given = b.args["inputs"][step.value - 1]
    packet = b.on(step.where).packet
    if step.kind == "put":
        b._emit(Move, dst=span_of(slot), sources=(span_of(given),), mapping=WHOLE, cache=cache)
    elif step.kind == "copy":
        other = b.mine.B if step.name == "x" else b.mine.A
        b._emit(Move, dst=span_of(slot), sources=(span_of(other), span_of(given)), mapping=WHOLE, cache=cache)
    elif step.kind == "send":
        stamp = word(step.value)
        b._emit(Move, dst=span_of(packet), sources=(span_of(given),), mapping=WHOLE, cache=cache, stamp=stamp)
    elif step.kind == "poll":
        fields = {"span": span_of(packet), "mapping": WHOLE, "cond": Cond.EQ, "value": word(step.value)}
        b._emit(WaitStamp, **fields, bound=None, on_timeout=None)
    else:
        due = ((step.where, step.value),)
        b._emit(Expect, span=span_of(slot), due=due, constant=False, mapping=WHOLE, dst=None)
