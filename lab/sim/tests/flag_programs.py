"""Random programs for Hypothesis: agents that store flags, add to counters, wait, and write and read payload."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from lab.protocol.language.record import span_of
from lab.protocol.program import WHOLE, Expect, Fill, Order, Program, Scope
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


def record(b: Block, step: Step, version: tuple[int, int], at: object = None) -> None:
    """Record one step; a put writes the input `version`, a get is compared with something that it never is."""
    at = at if at is not None or not step.on else getattr(b.on(0), step.on)
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


def spread_program_of(threads: Threads, homes: dict[str, int]) -> Program:
    """The Program of `threads` with words and buffers in the memory of several ranks, and all payload moved by copies.

    A put copies an input that nothing else copies; a get copies into a buffer of its own, which then says what it saw.
    """
    by_rank: dict[int, list[int]] = {}
    for index, (rank, _) in enumerate(threads):
        by_rank.setdefault(rank, []).append(index)
    longest = max(len(steps) for _, steps in threads)

    def kernel(b: Block) -> None:
        index = by_rank[b.rank][b.block]
        for number, step in enumerate(threads[index][1]):
            at = getattr(b.on(homes[step.on]), step.on) if step.on else None
            if step.what == "put":
                move(b, b.args["inputs"][b.block * longest + number], at)
            elif step.what == "get":
                move(b, at, getattr(b.mine, f"seen{b.block}")[number])
            elif step.what == "copy":
                other = BUFFERS[1 - BUFFERS.index(step.on)]
                move(b, at, getattr(b.on(homes[other]), other))
            else:
                record(b, step, (0, 0), at)

    most = max(len(own) for own in by_rank.values())
    return small(
        kernel,
        words=WORDS,
        payload={name: 1 for name in BUFFERS} | {f"seen{block}": (longest, 1) for block in range(most)},
        world=1 + max(*(rank for rank, _ in threads), *homes.values()),
        blocks={rank: len(own) for rank, own in by_rank.items()},
        inputs=most * longest,
        elements=1,
    )


class Draft:
    """A program in the making, in the order of one schedule that finishes: a wait is for what its word then holds.

    What each agent knows of the accesses before it, if all orders were the strongest, is kept so that most accesses can
    be chosen to be safe: programs that race everywhere test little.
    """

    def __init__(self, ranks: tuple[int, ...], owner: dict[str, int]) -> None:
        self.ranks, self.owner = ranks, owner
        self.agents: list[list[Step]] = [[] for _ in ranks]
        self.words = dict.fromkeys(WORDS, 0)
        self.writer = dict.fromkeys(WORDS, -1)
        self.knows: list[set[int]] = [set() for _ in ranks]
        self.told: dict[str, set[int]] = {word: set() for word in WORDS}
        self.touched: dict[str, list[tuple[int, bool]]] = {name: [] for name in BUFFERS}  # (access, is a write)
        self.accesses = 0

    def add(self, agent: int, step: Step) -> None:
        """Append a step and what it teaches."""
        self.agents[agent].append(step)
        if step.what in ("put", "get", "copy"):
            other = BUFFERS[1 - BUFFERS.index(step.on)]
            for name, write in [(step.on, step.what == "put")] + [(other, True)] * (step.what == "copy"):
                self.accesses += 1
                self.touched[name].append((self.accesses, write))
                self.knows[agent].add(self.accesses)
        elif step.what == "wait":
            self.knows[agent] |= self.told[step.on]
        elif step.what in ("store", "add", "cas"):
            self.told[step.on] = set(self.knows[agent]) | (set() if step.what == "store" else self.told[step.on])
            self.writer[step.on] = agent

    def safe(self, agent: int) -> list[Step]:
        """Payload operations that race with nothing so far, if orders are strong."""

        def may(name: str, write: bool) -> bool:
            return all(access in self.knows[agent] for access, wrote in self.touched[name] if write or wrote)

        found = [Step("put", name) for name in BUFFERS if may(name, True)]
        found += [Step("get", name) for name in BUFFERS if may(name, False)]
        return found + [Step("copy", a) for a, b in (BUFFERS, BUFFERS[::-1]) if may(a, False) and may(b, True)]


@st.composite
def programs(
    draw: st.DrawFn, strong: bool = False, grow_only: bool = False, most: int = 8, narrow: bool = True
) -> Threads:
    """Two or three agents on one to three ranks, about `most` operations in all.

    `strong`: all orders acquire and release at system scope. `grow_only`: words that one agent stores in rising order,
    waits with >=. `narrow`: scopes below the system too.
    """
    ranks = draw(st.sampled_from([(0, 1), (0, 0), (0, 1, 2), (0, 0, 1), (0, 1, 1)]))
    draft = Draft(ranks, {word: draw(st.integers(0, len(ranks) - 1)) for word in WORDS})
    for _ in range(draw(st.integers(3, most))):
        agent = draw(st.integers(0, len(ranks) - 1))
        for step in draw(_phrase(draft, agent, strong, grow_only, narrow)):
            draft.add(agent, step)
    return tuple((rank, tuple(steps)) for rank, steps in zip(ranks, draft.agents, strict=True))


@st.composite
def _payload(draw: st.DrawFn, draft: Draft, agent: int) -> list[Step]:
    safe = draft.safe(agent)
    if draw(st.integers(0, 9)):
        return [draw(st.sampled_from(safe))] if safe else []
    return [Step(draw(st.sampled_from(["put", "get", "copy"])), draw(st.sampled_from(BUFFERS)))]


@st.composite
def _phrase(draw: st.DrawFn, draft: Draft, agent: int, strong: bool, grow_only: bool, narrow: bool) -> list[Step]:
    """One operation, or two that belong together: payload and its flag, or a wait for another agent's flag."""
    weak = not strong and draw(st.integers(0, 3)) == 0
    order = draw(st.sampled_from(Order)) if weak else Order.ACQ_REL
    scope = draw(st.sampled_from([Scope.BLOCK, Scope.DEVICE, Scope.SYSTEM])) if weak and narrow else Scope.SYSTEM
    kinds = ["payload", "payload", "publish", "publish", "await", "await", "await"]
    kinds += [] if strong else ["fence", "load"]
    kinds += [] if grow_only else ["add", "cas"]
    kind = draw(st.sampled_from(kinds))
    if kind == "payload":
        return draw(_payload(draft, agent))
    if kind == "fence":
        return [Step(kind, order=order, scope=scope)]
    if kind == "await":
        told = [word for word in WORDS if draft.writer[word] not in (-1, agent)]
        if not told:
            return draw(_payload(draft, agent))
        word = draw(st.sampled_from(told))
        now = draft.words[word]
        cond = ">=" if grow_only else draw(st.sampled_from([">=", ">=", ">=", "==", "!="]))
        value = now if cond == "==" else now + 1 if cond == "!=" else max(0, now - (draw(st.integers(0, 4)) == 0))
        return [Step("wait", word, value, cond, order, scope)]
    own = [word for word in WORDS if draft.owner[word] == agent] if grow_only else list(WORDS)
    if not own:
        return draw(_payload(draft, agent))
    word = draw(st.sampled_from(own))
    if kind == "load":
        return [Step(kind, word, order=order, scope=scope)]
    before = draw(_payload(draft, agent))
    if kind == "cas":
        tried = draft.words[word] + (draw(st.integers(0, 2)) == 0)
        draft.words[word] += draft.words[word] == tried
        return [*before, Step(kind, word, tried, order=order, scope=scope)]
    if kind == "add":
        draft.words[word] += 1
        return [*before, Step(kind, word, 1, order=order, scope=scope)]
    rises = grow_only or draw(st.integers(0, 3))
    draft.words[word] = draft.words[word] + 1 if rises else draw(st.integers(0, 2))
    return [*before, Step("store", word, draft.words[word], order=order, scope=scope)]
