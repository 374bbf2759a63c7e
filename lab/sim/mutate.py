"""Mutants of a protocol: each wait, fence, store, order, scope and buffer weakened in turn, on all ranks alike.

A mutant that the checker catches shows that the operation is needed. One that survives with a proof (determinate, free
of races, right) shows *slack*: the protocol holds without it. One that survives without a proof is a gap of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lab.protocol.expr import Binary, Expr, bound_of, enumerate_index, word
from lab.protocol.program import Barrier, Fence, Load, Op, Order, Program, Rmw, Scope, Site, Span, Store, Wait
from lab.protocol.tables import compile_tables
from lab.sim import machine as m
from lab.sim.determinate import why_not_determinate
from lab.sim.explore import Engine, explore
from lab.sim.races import find_races

_SYNCHRONISING = (Load, Store, Rmw, Wait, Fence)
_WEAKER = {
    Order.ACQUIRE: (Order.RELAXED,),
    Order.RELEASE: (Order.RELAXED,),
    Order.ACQ_REL: (Order.ACQUIRE, Order.RELEASE),
    Order.RELAXED: (),
}
_OWN_PHASES = ("launch", "kernel end", "host", "timeout", "produce", "consume")


@dataclass(frozen=True)
class Mutant:
    """One change to one line of a protocol.

    Attributes:
        change: What was changed, in words.
        line, phase: Where.
        example: The operation of one agent that it changes.
        kind: `drop`, `order`, `scope` or `buffer`.
        program: The changed program.
    """

    change: str
    line: str
    phase: str
    example: str
    kind: str
    program: Program


@dataclass(frozen=True)
class Outcome:
    """What the checker says of a mutant: caught (with the verdict), slack (proved right), or survived (not proved)."""

    mutant: Mutant
    caught: bool
    verdict: str
    proved: bool

    @property
    def state(self) -> str:
        """caught, slack or survived."""
        return "caught" if self.caught else "slack" if self.proved else "survived"


def mutants(program: Program) -> Iterator[Mutant]:
    """All single changes of a program's own synchronisation; the runtime's launches and kernel ends are left alone."""
    for (site, phase, kind), example in _lines(program).items():
        yield from _drop(program, site, phase, kind, example)
        if isinstance(example, _SYNCHRONISING):
            yield from _weaken(program, site, phase, kind, example)
    yield from _single_buffers(program)


def judge(mutant: Mutant, executions: int = 200, seed: int = 0) -> Outcome:
    """Check one mutant: races, then the one-execution proof, then, where that does not apply, exploration."""
    tables = compile_tables(mutant.program)
    report = find_races(tables)
    if report.races:
        return Outcome(mutant, True, "race", True)
    if report.execution.outcome == m.HANG:
        return Outcome(mutant, True, "hang", True)
    if report.execution.state.counts[m.C_WRONG]:
        return Outcome(mutant, True, "wrong", True)
    if why_not_determinate(report.execution, False) is None:
        return Outcome(mutant, False, "ok", True)
    for memory in m.MEMORY_MODELS[:2]:
        found = explore(Engine(tables, memory), executions=executions, seed=seed)
        if found.failing:
            kind = "wrong" if found.wrong else "hang" if found.hangs else "abort"
            return Outcome(mutant, True, f"{kind} ({memory})", True)
    return Outcome(mutant, False, "ok", False)


def _lines(program: Program) -> dict[tuple[Site, str, type[Op]], Op]:
    """One example for each line, phase and kind of operation of the protocol's own text."""
    found: dict[tuple[Site, str, type[Op]], Op] = {}
    for agent in program.agents:
        if agent.kind in ("host", "kernel"):
            continue
        for op in agent.ops:
            if op.phase not in _OWN_PHASES and isinstance(op, _SYNCHRONISING):
                found.setdefault((op.site, op.phase, type(op)), op)
    return found


def _changed(program: Program, change: Callable[[Op], Op]) -> Program:
    agents = tuple(replace(agent, ops=tuple(change(op) for op in agent.ops)) for agent in program.agents)
    return replace(program, agents=agents)


def _at(program: Program, site: Site, phase: str, kind: type[Op], change: Callable[[Op], Op]) -> Program:
    return _changed(
        program, lambda op: change(op) if op.site == site and op.phase == phase and type(op) is kind else op
    )


def _drop(program: Program, site: Site, phase: str, kind: type[Op], example: Op) -> Iterator[Mutant]:
    if isinstance(example, Load):
        return  # what it loads is used
    changed = _at(program, site, phase, kind, lambda op: Barrier(site=op.site, phase=op.phase))
    yield Mutant(f"drop the {kind.__name__.lower()}", str(site), phase, example.describe(), "drop", changed)


def _weaken(program: Program, site: Site, phase: str, kind: type[Op], example: Op) -> Iterator[Mutant]:
    order: Order = example.order  # type: ignore[attr-defined]
    scope: Scope = example.scope  # type: ignore[attr-defined]
    for weaker in _WEAKER[order]:
        changed = _at(program, site, phase, kind, lambda op, w=weaker: replace(op, order=w))  # type: ignore[misc]
        what = f"{order.name.lower()} -> {weaker.name.lower()}"
        yield Mutant(what, str(site), phase, example.describe(), "order", changed)
    if order is not Order.RELAXED and scope > Scope.BLOCK:
        narrower = Scope(scope - 1)
        changed = _at(program, site, phase, kind, lambda op: replace(op, scope=narrower))  # type: ignore[call-arg]
        what = f"{scope.name.lower()} -> {narrower.name.lower()} scope"
        yield Mutant(what, str(site), phase, example.describe(), "scope", changed)


def _single_buffers(program: Program) -> Iterator[Mutant]:
    """Each region whose slot a register selects, with that register taken as 0."""
    names = {
        span.region.name: span
        for agent in program.agents
        for op in agent.ops
        for span in _spans(op)
        if span.region.shape and _selected(span.start) is not None
    }
    for name, span in names.items():
        changed = _changed(program, lambda op, n=name: _unselected(op, n))  # type: ignore[misc]
        yield Mutant(f"one buffer of {name} instead of several", "", "", str(span), "buffer", changed)


def _spans(op: Op) -> Iterator[Span]:
    for name in op.__dataclass_fields__:
        value = getattr(op, name)
        yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Span))


def _selected(expr: Expr) -> Expr | None:
    """The innermost register-dependent part that is bounded, None when the address is fixed."""
    if bound_of(expr) is not None:
        return expr
    if isinstance(expr, Binary):
        return _selected(expr.left) if _selected(expr.left) is not None else _selected(expr.right)
    return None


def _unselected(op: Op, region: str) -> Op:
    changes: dict[str, object] = {}
    for name in op.__dataclass_fields__:
        value = getattr(op, name)
        if isinstance(value, Span) and value.region.name == region:
            changes[name] = _fixed(value)
        elif isinstance(value, tuple) and any(isinstance(part, Span) for part in value):
            changes[name] = tuple(_fixed(part) if part.region.name == region else part for part in value)
    return replace(op, **changes) if changes else op  # type: ignore[arg-type]


def _fixed(span: Span) -> Span:
    """The span in the first of the slots that its region's outermost dimension counts."""
    _, (starts,) = enumerate_index(span.start)
    return replace(span, start=word(starts[0] % (span.region.length // span.region.shape[0][1])))
