"""Candidates that add order: fences, barriers, waits for what is there, and a word that says "done"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from lab.protocol.expr import Const, word
from lab.protocol.program import (
    Agent,
    Cond,
    Fence,
    Load,
    Memory,
    Op,
    Order,
    Program,
    Region,
    Rmw,
    Scope,
    Store,
    Wait,
    WordRef,
)
from lab.sim.change.edit import Additions, Line, Visit, beside, is_barrier, is_own, line_of, own_lines, visits
from lab.sim.change.repairs.candidate import Candidate, Cost, Pair, fresh_name


def fences(program: Program, pair: Pair, scope: Scope) -> Iterator[Candidate]:
    """A release between the first access and what its agent writes next; an acquire between a read and the second."""
    own = own_lines(program)
    if pair.own[0]:
        yield fence(pair.lines[0], False, Order.RELEASE, scope)
        written = [op for op in pair.agents[0].ops[pair.positions[0] + 1 :] if isinstance(op, (Store, Rmw))]
        for line in dict.fromkeys(map(line_of, written)):
            if line in own:
                yield fence(line, True, Order.RELEASE, scope)
    if pair.own[1]:
        read = [op for op in pair.agents[1].ops[: pair.positions[1]] if isinstance(op, (Wait, Load, Rmw))]
        for line in dict.fromkeys(map(line_of, read)):
            if line in own:
                yield fence(line, False, Order.ACQUIRE, scope)
        yield fence(pair.lines[1], True, Order.ACQUIRE, scope)


def fence(line: Line, before: bool, order: Order, scope: Scope) -> Candidate:
    """A fence before or after a line."""
    where = f"{'before' if before else 'after'} {line}"
    what = f"a fence ({order.name.lower()}, {scope.name.lower()}) {where}"
    write = f"{where}: b.fence({order.name}, {scope.name})"
    return Candidate(Cost.FENCE, what, (write,), partial(_with_fence, line, before, order, scope))


def _with_fence(line: Line, before: bool, order: Order, scope: Scope, program: Program) -> Program:
    added = Additions()
    for visit in visits(program, line):
        beside(added, visit, before, [Fence(site=line.site, phase=line.phase, order=order, scope=scope)])
    return added.into(program)


# ---- barriers


@dataclass(frozen=True)
class _Meeting:
    """Who meets at a barrier.

    Attributes:
        name: What it is called.
        verb: What to write.
        scope: Of its words.
        cost: Of the candidate.
        key: Agents with the same key meet.
    """

    name: str
    verb: str
    scope: Scope
    cost: Cost
    key: Callable[[Agent], tuple[int, ...]]


BLOCK_BARRIER = _Meeting(
    "a block barrier", "b.barrier()", Scope.BLOCK, Cost.BLOCK_BARRIER, lambda a: (a.rank, a.call, a.block)
)
_GRID_BARRIER = _Meeting(
    "a grid barrier",
    "b.barrier(); thread 0 adds 1 to a counter of this rank and waits until all blocks have; b.barrier()",
    Scope.DEVICE,
    Cost.BARRIER,
    lambda a: (a.rank, a.call),
)
_RANKS_BARRIER = _Meeting(
    "a barrier of the same block of all ranks",
    "b.barrier(); thread 0 stores b.call to a word of every peer (release, system) and waits for every peer's "
    "(acquire, system); b.barrier()",
    Scope.SYSTEM,
    Cost.BARRIER,
    lambda a: (a.call, a.block),
)
_WORLD_BARRIER = _Meeting(
    "a barrier of all blocks on all ranks",
    "b.barrier(); thread 0 stores b.call to a word of every rank (release, system) and waits for those of every block "
    "of every rank (acquire, system); b.barrier()",
    Scope.SYSTEM,
    Cost.BARRIER,
    lambda a: (a.call,),
)


def barriers(program: Program, pair: Pair, meetings: tuple[_Meeting, ...]) -> Iterator[Candidate]:
    """Barriers after the first access, then before the second, of those who may be concerned."""
    weaker: tuple[str, ...] = ()
    for meeting in meetings:
        for side, before in ((0, False), (1, True)):
            if pair.own[side]:
                line = pair.lines[side]
                where = f"{'before' if before else 'after'} {line}"
                change = partial(_with_barrier, line, before, meeting)
                what = f"{meeting.name} {where}"
                yield Candidate(meeting.cost, what, (f"{where}: {meeting.verb}",), change, weaker)
                weaker = (*weaker, what)


def meetings(program: Program, pair: Pair) -> tuple[_Meeting, ...]:
    """Who may have to meet across blocks."""
    if not pair.apart:
        return (_GRID_BARRIER,)
    return (_RANKS_BARRIER, _WORLD_BARRIER) if blocks_of(program) > 1 else (_RANKS_BARRIER,)


def blocks_of(program: Program) -> int:
    """The largest grid."""
    return 1 + max((agent.block for agent in program.agents), default=0)


def _with_barrier(line: Line, before: bool, meeting: _Meeting, program: Program) -> Program | None:
    """Every agent that comes to the line writes its turn to a word of its own and waits for the words of the others."""
    found = visits(program, line)
    met: dict[tuple[int, ...], list[Visit]] = {}
    for visit in found:
        met.setdefault((*meeting.key(visit.agent), visit.turn), []).append(visit)
    if all(len(group) == 1 for group in met.values()):
        return None
    words = Words(program, "met", meeting.scope)
    added = Additions()
    for group in met.values():
        for visit in group:
            others = [other.agent for other in group if other is not visit]
            told = dict.fromkeys(other.rank for other in others)
            stores = [words.store(visit.agent, rank, visit.turn, line) for rank in told]
            waits = [words.wait(visit.agent, other, visit.turn, line) for other in others]
            beside(added, visit, before, [*stores, *waits])
    return added.into(program, words.regions)


class Words:
    """New words on every rank, one for each place (block and wave) of each rank; the rank that polls has them."""

    def __init__(self, program: Program, name: str, scope: Scope) -> None:
        places = sorted({(agent.block, agent.wave) for agent in program.agents if is_own(agent)})
        self._place = {place: index for index, place in enumerate(places)}
        self._scope, self._world = scope, program.world
        shape = (("block", len(places)), ("", program.world))
        self.regions = tuple(
            Region(
                len(program.regions) + rank,
                fresh_name(program, name),
                rank,
                "words",
                Memory.UNCACHED,
                len(places) * program.world,
                shape,
            )
            for rank in range(program.world)
        )

    def _ref(self, on: int, agent: Agent) -> WordRef:
        region, place = self.regions[on], self._place[agent.block, agent.wave]
        return WordRef(region, Const(place * self._world + agent.rank), f"{region.name}[{place}, {agent.rank}]")

    def store(self, agent: Agent, on: int, value: int, line: Line) -> Store:
        """`agent` tells rank `on` that it has come so far."""
        return Store(
            site=line.site,
            phase=line.phase,
            word=self._ref(on, agent),
            value=word(value),
            order=Order.RELEASE,
            scope=self._scope,
        )

    def wait(self, agent: Agent, other: Agent, value: int, line: Line) -> Wait:
        """`agent` waits until `other` has come so far."""
        return Wait(
            site=line.site,
            phase=line.phase,
            word=self._ref(agent.rank, other),
            cond=Cond.GE,
            value=word(value),
            order=Order.ACQUIRE,
            scope=self._scope,
        )


# ---- waits for what is there


def waits(program: Program, pair: Pair) -> Iterator[Candidate]:
    """Before the second access, a wait that stands elsewhere, or one for a word that somebody stores to."""
    if not pair.own[1]:
        return
    line = pair.lines[1]
    own = own_lines(program)
    for source in [line_ for line_, op in own.items() if isinstance(op, Wait) and not is_barrier(op)]:
        what = f"the wait of {source} before {line}"
        change = partial(_with_copied_wait, source, line)
        yield Candidate(Cost.WAIT, what, (f"before {line}: {own[source].describe()}",), change)
    for source in [line_ for line_, op in own.items() if isinstance(op, Store)]:
        for back in (0, 1):
            what = f"a wait before {line} for what {source} stores{', of the call before' if back else ''}"
            store = own[source]
            write = f"before {line}: wait for {store.word.region.name} of every rank that stores it"  # type: ignore[attr-defined]
            yield Candidate(Cost.WAIT, what, (write,), partial(_with_wait_for_store, source, line, back))


def _with_copied_wait(source: Line, line: Line, program: Program) -> Program | None:
    """Every agent does its waits of `source` before `line` too, where it comes to `line` first."""
    added = Additions()
    for visit in visits(program, line):
        waits = [(k, op) for k, op in enumerate(visit.agent.ops) if source.holds(op)]
        later = [op for k, op in waits if k > visit.first]
        if later:
            copies: list[Op] = [replace(op, bound=None, seconds=None, on_timeout=None) for op in later]  # type: ignore[call-arg]
            beside(added, visit, True, copies)
    return added.into(program) if added.before else None


def _with_wait_for_store(source: Line, line: Line, back: int, program: Program) -> Program | None:
    """Before each turn at `line`, wait for the words of this rank that others store at `source`, `back` turns ago."""
    stored: dict[int, list[tuple[int, Store, Agent]]] = {}
    for visit in visits(program, source):
        for op in visit.agent.ops[visit.first : visit.last + 1]:
            if source.holds(op) and isinstance(op, Store) and isinstance(op.word.index, Const):
                stored.setdefault(visit.turn, []).append((op.word.region.rank, op, visit.agent))
    added = Additions()
    for visit in visits(program, line):
        waits: list[Op] = []
        for rank, op, agent in stored.get(visit.turn - back, ()):
            if rank == visit.agent.rank and agent.id != visit.agent.id and isinstance(op.value, Const):
                waits.append(_wait_for(op, line))
        if waits:
            beside(added, visit, True, waits)
    return added.into(program) if added.before else None


def _wait_for(op: Store, line: Line) -> Wait:
    return Wait(
        site=line.site,
        phase=line.phase,
        word=op.word,
        cond=Cond.GE,
        value=op.value,
        order=Order.ACQUIRE,
        scope=Scope.SYSTEM,
    )


# ---- "done"


def handshakes(program: Program, pair: Pair) -> Iterator[Candidate]:
    """The first side says that it is done, the second waits for that: the missing order itself."""
    if not all(pair.own):
        return
    turns = [
        _turn(program, line, agent, at) for line, agent, at in zip(pair.lines, pair.agents, pair.positions, strict=True)
    ]
    distance = turns[1] - turns[0]
    if distance < 0:
        return
    first, second = pair.lines
    call = "b.call" if distance == 0 else f"b.call - {distance}"
    weaker: tuple[str, ...] = ()
    for every in (True,) if not pair.apart else (False, True) if blocks_of(program) > 1 else (False,):
        told, at, who, words = _done(program, pair, every)
        scope = Scope.SYSTEM if pair.apart else Scope.DEVICE
        what = f"a word `done`, stored after {first} and waited for before {second}, of {who}"
        write = (
            f"in the memory: {words}",
            f"after {first}: b.barrier(), then b.leader.store({told}, b.call, RELEASE, {scope.name})"
            + (" for every peer j" if pair.apart else ""),
            f'before {second}: b.leader.wait({at}, ">=", {call}, ACQUIRE, {scope.name}) for {who}, then b.barrier()',
        )
        change = partial(_with_handshake, first, second, distance, pair.apart, every)
        yield Candidate(Cost.HANDSHAKE, what, write, change, weaker)
        weaker = (what,)


def _done(program: Program, pair: Pair, every: bool) -> tuple[str, str, str, str]:
    """The word that is stored, the word that is waited for, whose it is, and how it is declared."""
    if not pair.apart:
        return "b.mine.done[b.block]", "b.mine.done[k]", "every other block k", 'm.words("done", m.blocks)'
    if blocks_of(program) == 1:
        return "b.on(j).done[b.rank]", "b.mine.done[j]", "every peer j", 'm.words("done", m.world)'
    told, words = "b.on(j).done[b.block, b.rank]", 'm.words("done", m.world, block=m.blocks)'
    if every:
        return told, "b.mine.done[k, j]", "every block k of every peer j", words
    return told, "b.mine.done[b.block, j]", "the same block of every peer j", words


def _turn(program: Program, line: Line, agent: Agent, position: int) -> int:
    return next(v.turn for v in visits(program, line) if v.agent.id == agent.id and v.first <= position <= v.last)


def _with_handshake(
    first: Line, second: Line, distance: int, apart: bool, every: bool, program: Program
) -> Program | None:
    """Words `done`: before turn n at `second`, what came to `first` in turn n - distance has done with it."""
    words = Words(program, "done", Scope.SYSTEM if apart else Scope.DEVICE)
    added = Additions()
    come: dict[int, list[Visit]] = {}
    for visit in visits(program, first):
        come.setdefault(visit.turn, []).append(visit)
        told = [rank for rank in range(program.world) if (rank != visit.agent.rank) == apart]
        beside(added, visit, False, [words.store(visit.agent, rank, visit.turn, first) for rank in told])
    waited = False
    for visit in visits(program, second):
        agent, turn = visit.agent, visit.turn - distance
        others = [
            other.agent
            for other in come.get(turn, ())
            if (other.agent.rank != agent.rank) == apart
            and (every or other.agent.block == agent.block)
            and (apart or (other.agent.block, other.agent.wave) != (agent.block, agent.wave))
        ]
        waited = waited or bool(others)
        beside(added, visit, True, [words.wait(agent, other, turn, second) for other in others])
    return added.into(program, words.regions) if waited else None
