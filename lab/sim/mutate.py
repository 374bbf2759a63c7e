"""Mutants of a protocol: each wait, fence, store, order, scope and buffer weakened in turn, on all ranks alike.

A mutant that the checker catches shows that the operation is needed. One that survives with a proof shows *slack*: the
protocol holds without it. One that survives without a proof is a gap of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lab.protocol.expr import Binary, Expr, bound_of, enumerate_index, word
from lab.protocol.program import Barrier, Fence, Load, Op, Order, Program, Rmw, Scope, Site, Span, Store, Wait
from lab.sim.judge import DEFAULT_LIMITS, Basis, Judgement, Limits, judge_program

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
        orders_only: The change takes away an order, a scope or a fence, and no operation that reads or writes.
    """

    change: str
    line: str
    phase: str
    example: str
    kind: str
    program: Program
    orders_only: bool = False


@dataclass(frozen=True)
class Outcome:
    """What the checker says of a mutant: caught (with the verdict), slack (proved right), or survived (not proved)."""

    mutant: Mutant
    judgement: Judgement

    @property
    def caught(self) -> bool:
        """Whether a defect was found."""
        return self.judgement.caught

    @property
    def verdict(self) -> str:
        """What was found: race, wrong, hang, abort, or ok."""
        return self.judgement.verdict

    @property
    def proved(self) -> bool:
        """Whether the mutant is proved right.

        A search of every schedule under `sc` and `posted` does not see what memory orders do on weaker machines, so it
        proves nothing about a mutant that takes only an order away.
        """
        if self.judgement.basis is Basis.EVERY_SCHEDULE:
            return not self.mutant.orders_only
        return self.judgement.proved

    @property
    def proof(self) -> str:
        """What was covered, in words."""
        return self.judgement.covered

    @property
    def state(self) -> str:
        """caught, slack or survived."""
        return "caught" if self.caught else "slack" if self.proved else "survived"


def mutants(program: Program) -> Iterator[Mutant]:
    """All single changes of a program's own synchronisation; the runtime's launches and kernel ends are left alone.

    Changes that make the same program are one.
    """
    seen = {program.fingerprint()}
    for mutant in _every(program):
        made = mutant.program.fingerprint()
        if made not in seen:
            seen.add(made)
            yield mutant


def judge(mutant: Mutant, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Check one mutant (see `judge.judge_program`)."""
    return Outcome(mutant, judge_program(mutant.program, limits))


def score(outcomes: list[Outcome]) -> float | None:
    """The mutation score: of the mutants that are not proved right, the share that is caught; None: there are none."""
    wanted = [outcome for outcome in outcomes if outcome.state != "slack"]
    return sum(outcome.caught for outcome in wanted) / len(wanted) if wanted else None


def _every(program: Program) -> Iterator[Mutant]:
    for (site, phase, kind), example in _lines(program).items():
        yield from _drop(program, site, phase, kind, example)
        if isinstance(example, _SYNCHRONISING):
            yield from _weaken(program, site, phase, kind, example)
    yield from _single_buffers(program)


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
    what = f"drop the {kind.__name__.lower()}"
    yield Mutant(what, str(site), phase, example.describe(), "drop", changed, orders_only=kind is Fence)


def _weaken(program: Program, site: Site, phase: str, kind: type[Op], example: Op) -> Iterator[Mutant]:
    order: Order = example.order  # type: ignore[attr-defined]
    scope: Scope = example.scope  # type: ignore[attr-defined]
    for weaker in _WEAKER[order]:
        changed = _at(program, site, phase, kind, lambda op, w=weaker: replace(op, order=w))  # type: ignore[misc]
        what = f"{order.name.lower()} -> {weaker.name.lower()}"
        yield Mutant(what, str(site), phase, example.describe(), "order", changed, orders_only=True)
    if order is not Order.RELAXED and scope > Scope.BLOCK:
        narrower = Scope(scope - 1)
        changed = _at(program, site, phase, kind, lambda op: replace(op, scope=narrower))  # type: ignore[call-arg]
        what = f"{scope.name.lower()} -> {narrower.name.lower()} scope"
        yield Mutant(what, str(site), phase, example.describe(), "scope", changed, orders_only=True)


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
