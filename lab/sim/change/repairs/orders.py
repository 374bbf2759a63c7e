"""Candidates that cost least: stronger orders and scopes, other caches, comparisons, values, places and mappings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from lab.protocol.expr import Const, enumerate_index, registers_of, word
from lab.protocol.program import (
    Agent,
    Cache,
    Cond,
    Fence,
    Load,
    Memory,
    Move,
    Op,
    Order,
    Program,
    Rmw,
    Scope,
    Store,
    Wait,
    WaitStamp,
)
from lab.protocol.tables import compile_tables
from lab.sim.change.edit import Additions, Line, beside, changed, dropped, is_barrier, line_of, own_lines, visits
from lab.sim.change.repairs.candidate import Candidate, Cost, Pair, payload_lines
from lab.sim.change.slots import spans_of, with_spans
from lab.sim.explain.minimise import key_of
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Race

_PATIENCE = 30.0  # seconds of a wait that gave up after polls


def orders(program: Program, scope: Scope) -> Iterator[Candidate]:
    """Each line with the order and the scope that it could have; then all lines of one flag."""
    lines = {line: op for line, op in own_lines(program).items() if not is_barrier(op)}
    alone: dict[Line, Candidate] = {}
    for line, op in lines.items():
        stronger = _stronger(op, scope)
        if stronger != op:
            change = partial(line.change, partial(_stronger, scope=scope))
            what = f"{_strength(op, stronger)} at {line}"
            alone[line] = Candidate(Cost.ORDER, what, (_rewritten(line, stronger),), change)
    yield from alone.values()
    words = dict.fromkeys(op.word.region.name for op in lines.values() if not isinstance(op, Fence))  # type: ignore[attr-defined]
    for name in words:
        about = {
            line: _stronger(op, scope)
            for line, op in lines.items()
            if not isinstance(op, Fence) and op.word.region.name == name and _stronger(op, scope) != op  # type: ignore[attr-defined]
        }
        if len(about) > 1:
            at = ", ".join(dict.fromkeys(map(str, about)))
            yield Candidate(
                Cost.ORDER,
                f"release and acquire on {name}, at {scope.name.lower()} scope ({at})",
                tuple(_rewritten(line, op) for line, op in about.items()),
                partial(changed, change=partial(_stronger_at, frozenset(about), scope)),
                tuple(alone[line].what for line in about),
            )


def order_is_enough(program: Program, race: Race) -> bool:
    """Whether a race is gone when every operation has every order at system scope.

    If it is not, no stronger order and no fence closes it: they only let through what the words pass on already.
    """
    own = frozenset(line for line, op in own_lines(program).items() if not is_barrier(op))
    strong = changed(program, partial(_stronger_at, own, Scope.SYSTEM))
    return key_of(race) not in {key_of(other) for other in find_races(compile_tables(strong)).races}


def _stronger_at(lines: frozenset[Line], scope: Scope, op: Op) -> Op:
    return _stronger(op, scope) if line_of(op) in lines else op


def _stronger(op: Op, scope: Scope) -> Op:
    """The operation with every order that it can have, at least at `scope`."""
    full = {Store: Order.RELEASE, Load: Order.ACQUIRE, Wait: Order.ACQUIRE}.get(type(op), Order.ACQ_REL)
    return replace(op, order=Order(op.order | full), scope=max(op.scope, scope))  # type: ignore[attr-defined, call-arg]


def _strength(op: Op, stronger: Op) -> str:
    parts = []
    if stronger.order is not op.order:  # type: ignore[attr-defined]
        parts.append(f"{stronger.order.name.lower()} instead of {op.order.name.lower()}")  # type: ignore[attr-defined]
    if stronger.scope is not op.scope:  # type: ignore[attr-defined]
        parts.append(f"{stronger.scope.name.lower()} scope instead of {op.scope.name.lower()}")  # type: ignore[attr-defined]
    return ", ".join(parts)


def _rewritten(line: Line, op: Op) -> str:
    return f"at {line}: {op.describe()}"


def uncached(program: Program) -> Iterator[Candidate]:
    """Each region in cached memory taken out of it; each line of payload or stores made to bypass the caches."""
    own = {span.region.name for line, op in payload_lines(program).items() for _, _, span in spans_of(op)}
    words = {op.word.region.name for op in own_lines(program).values() if not isinstance(op, Fence)}  # type: ignore[attr-defined]
    declared = {r.name for r in program.regions if r.memory is Memory.CACHED and r.name in own | words}
    for name in sorted(declared):
        if len({r.rank for r in program.regions if r.name == name}) == program.world:
            what = f"uncached memory for {name}"
            yield Candidate(Cost.ORDER, what, (f"declare {name} UNCACHED",), partial(_with_memory, name))
    lines = {**payload_lines(program), **own_lines(program)}
    for line, op in lines.items():
        if isinstance(op, (Move, Store)) and op.cache is Cache.CACHED:
            write = f"at {line}: cache=Cache.BYPASS"
            yield Candidate(
                Cost.ORDER, f"stores that bypass the caches at {line}", (write,), partial(line.change, _bypassed)
            )


def _bypassed(op: Op) -> Op:
    return replace(op, cache=Cache.BYPASS)  # type: ignore[call-arg]


def _with_memory(name: str, program: Program) -> Program:
    regions = {r.id: replace(r, memory=Memory.UNCACHED) for r in program.regions if r.name == name}

    def change(op: Op) -> Op:
        op = with_spans(op, lambda f, k, span: replace(span, region=regions.get(span.region.id, span.region)))
        at = getattr(op, "word", None)
        return op if at is None else replace(op, word=replace(at, region=regions.get(at.region.id, at.region)))  # type: ignore[call-arg]

    kept = tuple(regions.get(region.id, region) for region in program.regions)
    return replace(changed(program, change), regions=kept)


def conditions(program: Program) -> Iterator[Candidate]:
    """Each wait for a number with a comparison that misses less."""
    better = {Cond.EQ: (Cond.GE, Cond.GE_MOD), Cond.GE: (Cond.GE_MOD,), Cond.GE_SIGNED: (Cond.GE_MOD, Cond.GE)}
    for line, op in {**own_lines(program), **_packet_waits(program)}.items():
        for cond in better.get(op.cond, ()) if isinstance(op, (Wait, WaitStamp)) and not is_barrier(op) else ():
            what = f"`{cond.symbol}` instead of `{op.cond.symbol}` in the wait at {line}"
            stronger = replace(op, cond=cond)
            yield Candidate(
                Cost.ORDER, what, (_rewritten(line, stronger),), partial(line.change, partial(_with_cond, cond))
            )


def _with_cond(cond: Cond, op: Op) -> Op:
    return replace(op, cond=cond)  # type: ignore[call-arg]


def _packet_waits(program: Program) -> dict[Line, Op]:
    return {line_of(op): op for agent in program.agents for op in agent.ops if isinstance(op, WaitStamp)}


def patience(program: Program) -> Iterator[Candidate]:
    """Waits bounded in polls, bounded in time instead."""
    lines = [line for line, op in own_lines(program).items() if isinstance(op, Wait) and op.bound is not None]
    if lines:
        at = ", ".join(dict.fromkeys(map(str, lines)))
        what = f"a bound in seconds instead of polls in the waits at {at}"
        write = tuple(
            f"at {line}: seconds={_PATIENCE:g} instead of a number of polls" for line in dict.fromkeys(map(str, lines))
        )
        yield Candidate(Cost.ORDER, what, write, partial(changed, change=_timed))


def _timed(op: Op) -> Op:
    return replace(op, bound=None, seconds=_PATIENCE) if isinstance(op, Wait) and op.bound is not None else op


def grow_only(program: Program) -> Iterator[Candidate]:
    """Each flag that is set to one value every time, then all of them: the number of the call instead, no reset."""
    flags = _constant_flags(program)
    sets = [(name,) for name in flags] + ([tuple(flags)] if len(flags) > 1 else [])
    for names in sets:
        about = {line: op for line, op in own_lines(program).items() if _word(op) in names}
        write = [f"at {line}: {_grown_text(op)}" for line, op in about.items()]
        grows = (
            f"a value of {names[0]} that only grows"
            if len(names) == 1
            else f"values of {' and '.join(names)} that only grow"
        )
        what = f"{grows}: the number of the call"
        yield Candidate(Cost.ORDER, what, tuple(dict.fromkeys(write)), partial(_grown, names))


def _word(op: Op) -> str | None:
    return None if isinstance(op, Fence) else op.word.region.name  # type: ignore[attr-defined]


def _constant_flags(program: Program) -> list[str]:
    """Word regions that the protocol only stores to and waits for, with one number other than 0 and perhaps 0."""
    uses: dict[str, list[Op]] = {}
    for agent in program.agents:
        for op in agent.ops:
            if isinstance(op, (Load, Store, Rmw, Wait)):
                uses.setdefault(op.word.region.name, []).append(op)
    found = []
    for name in dict.fromkeys(_word(op) for op in own_lines(program).values() if isinstance(op, Store)):
        ops = uses[name]  # type: ignore[index]
        if not all(isinstance(op, (Store, Wait)) and isinstance(op.value, Const) for op in ops):
            continue
        values = {op.value.value for op in ops if isinstance(op, Store)}  # type: ignore[union-attr]
        if len(values - {0}) == 1 and any(isinstance(op, Wait) for op in ops):
            found.append(name)
    return found  # type: ignore[return-value]


def _grown_text(op: Op) -> str:
    assert isinstance(op, (Store, Wait)) and isinstance(op.value, Const)
    if op.value.value == 0:
        return f"drop {'the reset' if isinstance(op, Store) else 'the wait for 0'}"
    return (
        replace(op, value=_NumberOfCall(0)).describe()
        if isinstance(op, Store)
        else replace(  # type: ignore[arg-type]
            op, value=_NumberOfCall(0), cond=Cond.GE
        ).describe()
    )


@dataclass(frozen=True, eq=False)
class _NumberOfCall(Const):
    """Stands in a text for the number of the call."""

    def __str__(self) -> str:
        return "b.call"


def _grown(names: tuple[str, ...], program: Program) -> Program:
    """The k-th time that an agent's block stores to a word or waits for it, it is with the value k."""
    count: dict[tuple[object, ...], int] = {}
    agents = list(program.agents)
    for agent in sorted(program.agents, key=lambda agent: (agent.sequence, agent.id)):
        ops = []
        for op in agent.ops:
            if isinstance(op, (Store, Wait)) and op.word.region.name in names and isinstance(op.value, Const):
                key = (agent.rank, agent.block, agent.wave, type(op), op.word.region.id, str(op.word.index))
                if op.value.value == 0:
                    op = dropped(op)
                else:
                    count[key] = count.get(key, 0) + 1
                    op = replace(op, value=word(count[key]))
                    op = replace(op, cond=Cond.GE) if isinstance(op, Wait) else op
            ops.append(op)
        agents[agent.id] = replace(agent, ops=tuple(ops))
    return replace(program, agents=tuple(agents))


def moves(program: Program) -> Iterator[Candidate]:
    """Each store that stands behind a wait, in front of it: tell before you wait."""
    lines = own_lines(program)
    waits = [line for line, op in lines.items() if isinstance(op, Wait) and not is_barrier(op)]
    for wait in waits:
        for store in [line for line, op in lines.items() if isinstance(op, (Store, Rmw)) and op.phase == wait.phase]:
            what = f"{store} before the wait of {wait}"
            yield Candidate(Cost.ORDER, what, (f"move {store} to before {wait}",), partial(_moved_before, store, wait))


def _moved_before(store: Line, wait: Line, program: Program) -> Program | None:
    """Every agent does its operations of `store` before those of `wait`, where they stand behind them and can go."""
    added, moved = Additions(), set()
    for visit in visits(program, wait):
        for position, op in enumerate(visit.agent.ops[visit.last + 1 :], visit.last + 1):
            if store.holds(op) and not _set_between(visit.agent, visit.first, position):
                beside(added, visit, True, [op])
                moved.add((visit.agent.id, position))
    if not moved:
        return None
    without = tuple(
        replace(a, ops=tuple(dropped(op) if (a.id, k) in moved else op for k, op in enumerate(a.ops)))
        for a in program.agents
    )
    return added.into(replace(program, agents=without))


def _set_between(agent: Agent, first: int, position: int) -> bool:
    """Whether the operation at `position` reads a register that is set from `first` on."""
    op = agent.ops[position]
    read = {register.index for expr in (op.value, op.word.index) for register in registers_of(expr)}  # type: ignore[attr-defined]
    return any(getattr(other, "dst", None) in read for other in agent.ops[first:position])


def mappings(pair: Pair) -> Iterator[Candidate]:
    """One thread-to-element mapping for both accesses of blocks of one launch."""
    ops = [agent.ops[position] for agent, position in zip(pair.agents, pair.positions, strict=True)]
    if not all(isinstance(op, Move) for op in ops) or pair.apart or pair.agents[0].call != pair.agents[1].call:
        return
    first: tuple[str, ...] = ()
    for mine, theirs in ((0, 1), (1, 0)):
        vector = ops[theirs].mapping.vector  # type: ignore[attr-defined]
        if vector != ops[mine].mapping.vector and _aligned(ops[mine], vector):  # type: ignore[attr-defined]
            line, like = pair.lines[mine], pair.lines[theirs]
            what = f"the mapping of {like} at {line}, so that a thread meets what it handled itself"
            write = (f"at {line}: vector={vector}",)
            yield Candidate(Cost.MAPPING, what, write, partial(line.change, partial(_mapped, vector)), first)
            first = (what,)


def _aligned(op: Op, vector: int) -> bool:
    """Whether every span of an operation starts at a whole vector."""
    return all(start % vector == 0 for _, _, span in spans_of(op) for start in enumerate_index(span.start)[1][0])


def _mapped(vector: int, op: Op) -> Op:
    assert isinstance(op, Move)
    return replace(op, mapping=replace(op.mapping, vector=vector))
