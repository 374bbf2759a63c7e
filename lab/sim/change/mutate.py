"""Mutants of a protocol: each wait, fence, store, order, scope and buffer weakened in turn, on all ranks alike.

A mutant that the checker catches shows that the operation is needed. One that survives with a proof shows *slack*: the
protocol holds without it. One that survives without a proof is a gap of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from lab.errors import LabError
from lab.protocol.program import Drain, Fence, Load, Memory, Move, Op, Order, Program, Rmw, Scope, Wait, WaitStamp
from lab.sim.change.edit import SYNCHRONISING, Line, changed, dropped, is_barrier, own_lines, packet_lines
from lab.sim.change.judge import DEFAULT_LIMITS, Judgement, Limits, judge_program
from lab.sim.change.slots import at_depth, slot_dimensions
from lab.sim.explore.executor import Executor, InProcess

Change = Callable[[Program], Program]
_WEAKER = {
    Order.ACQUIRE: (Order.RELAXED,),
    Order.RELEASE: (Order.RELAXED,),
    Order.ACQ_REL: (Order.ACQUIRE, Order.RELEASE),
    Order.RELAXED: (),
}


@dataclass(frozen=True)
class Mutant:
    """One change to one line of a protocol.

    Attributes:
        what: What was changed, in words.
        line, phase: Where.
        example: The operation of one agent that it changes.
        kind: `drop`, `stamp`, `order`, `scope` or `buffer`.
        change: Makes the change; changes of several mutants can be made one after the other.
        program: The changed program.
        orders_only: The change takes away an order, a scope or a fence, and no operation that reads or writes.
    """

    what: str
    line: str
    phase: str
    example: str
    kind: str
    change: Change
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
        """Whether the mutant is proved right; one that takes only an order away, by a proof that sees orders."""
        return self.judgement.proved and (self.judgement.orders or not self.mutant.orders_only)

    @property
    def proof(self) -> str:
        """What was covered, in words."""
        return self.judgement.covered

    @property
    def state(self) -> str:
        """caught, slack or survived."""
        return "caught" if self.caught else "slack" if self.proved else "survived"

    def row(self) -> dict[str, object]:
        """What was changed, where, and what the outcome rests on, for a table."""
        mutant = self.mutant
        return {
            "change": mutant.what,
            "kind": mutant.kind,
            "phase": mutant.phase,
            "line": mutant.line,
            "example": mutant.example,
            "covered": self.proof,
        }


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


@dataclass(frozen=True)
class _Judging:
    """The mutants of one program, judged by their number; see `executor.Task`."""

    program: Program
    limits: Limits

    def start(self) -> Callable[[int], Judgement]:
        programs = [mutant.program for mutant in mutants(self.program)]
        return lambda number: judge_program(programs[number], self.limits)


@dataclass
class Judged:
    """The mutants that were judged, as far as it got.

    Attributes:
        outcomes: In the order of `mutants`.
        of: How many mutants there are; None: Ctrl-C came before they were counted.
        interrupted: Ctrl-C ended it before all were judged.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    of: int | None = None
    interrupted: bool = False


def judge_all(
    program: Program,
    limits: Limits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Judged:
    """Judge all mutants of a program.

    Args:
        program: The program.
        limits: Of each judgement.
        executor: Who judges them (`executor.by_process`); None: this thread. The outcomes are the same.
        progress: Called with the mutants judged, and how many there are.

    Returns:
        What was judged; Ctrl-C keeps what was judged until then.

    Raises:
        LabError: A mutant could not be judged because its workers died.
    """
    judged: dict[int, Outcome] = {}
    found = Judged()
    try:
        made = list(mutants(program))
        found.of = len(made)
        judging = (executor or InProcess()).unordered(_Judging(program, limits), range(len(made)))
        with closing(judging) as results:
            for done in results:
                if done.result is None:
                    raise LabError("a mutant was not judged", value=made[done.item].what, hint=done.lost)
                judged[done.item] = Outcome(made[done.item], done.result)
                progress(len(judged), len(made))
    except KeyboardInterrupt:
        found.interrupted = True
    found.outcomes = [judged[number] for number in sorted(judged)]
    return found


def score(outcomes: list[Outcome]) -> float | None:
    """The mutation score: of the mutants that are not proved right, the share that is caught; None: there are none."""
    wanted = [outcome for outcome in outcomes if outcome.state != "slack"]
    return sum(outcome.caught for outcome in wanted) / len(wanted) if wanted else None


def _every(program: Program) -> Iterator[Mutant]:
    for place, example in {**own_lines(program, (*SYNCHRONISING, Drain)), **packet_lines(program)}.items():
        for what, kind, change in _changes(place, example):
            orders_only = kind in ("order", "scope") or isinstance(example, (Fence, Drain))
            where = (str(place.site), place.phase, example.describe())
            yield Mutant(what, *where, kind, change, change(program), orders_only)
    yield from _single_buffers(program)


def _changes(place: Line, example: Op) -> Iterator[tuple[str, str, Change]]:
    """(what, kind, change) of each way to weaken a line."""
    if isinstance(example, Move) and example.sources:
        yield "write no stamp", "stamp", partial(place.change, _unstamped)
        return
    if isinstance(example, Move):
        yield "drop the packet", "drop", partial(place.change, dropped)
        return
    if not isinstance(example, Load):  # what it loads is used
        yield f"drop the {_called(example)}", "drop", partial(place.change, dropped)
    if is_barrier(example) and example.order.acquires:  # type: ignore[attr-defined]
        yield "block barrier -> bare barrier", "order", partial(changed, change=partial(_bare, place))
    if is_barrier(example) or isinstance(example, (WaitStamp, Drain)):
        return
    order: Order = example.order  # type: ignore[attr-defined]
    scope: Scope = example.scope  # type: ignore[attr-defined]
    for weaker in _WEAKER[order]:
        if isinstance(example, Fence) and weaker is Order.RELAXED:
            continue  # a relaxed fence is none
        yield f"{order.name.lower()} -> {weaker.name.lower()}", "order", partial(place.change, _with_order(weaker))
    if order is not Order.RELAXED and scope > Scope.BLOCK:
        narrower = Scope(scope - 1)
        what = f"{scope.name.lower()} -> {narrower.name.lower()} scope"
        yield what, "scope", partial(place.change, _with_scope(narrower))


def _bare(place: Line, op: Op) -> Op:
    """An operation of the block barrier of a line, where the waves only meet."""
    words = getattr(op, "word", None)
    inside = words is not None and words.region.memory is Memory.BLOCK_SHARED
    if inside and isinstance(op, (Rmw, Wait)) and (op.site, op.phase) == (place.site, place.phase):
        return replace(op, order=Order.RELAXED)
    return op


def _called(op: Op) -> str:
    """What an operation is called where it is dropped."""
    if is_barrier(op):
        return "block barrier" if op.order.acquires else "bare barrier"  # type: ignore[attr-defined]
    return "wait for packets" if isinstance(op, WaitStamp) else type(op).__name__.lower()


def _unstamped(op: Op) -> Op:
    return replace(op, stamp=None)  # type: ignore[call-arg]


def _with_order(most: Order) -> Callable[[Op], Op]:
    return lambda op: replace(op, order=Order(op.order & most))  # type: ignore[attr-defined, call-arg]


def _with_scope(widest: Scope) -> Callable[[Op], Op]:
    return lambda op: replace(op, scope=min(op.scope, widest))  # type: ignore[attr-defined, call-arg]


def _single_buffers(program: Program) -> Iterator[Mutant]:
    """Each region with a slot dimension, with one buffer instead of several."""
    for dimension in slot_dimensions(program):
        change = partial(at_depth, dimension.region, 1)
        what = f"one buffer of {dimension.region} instead of several"
        example = f"{dimension.region}: {dimension.depth} buffers"
        yield Mutant(what, "", "", example, "buffer", change, change(program))
