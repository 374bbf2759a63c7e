"""Candidates that move what is there: a statement, or a phase, before or after its neighbours."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lab.protocol.program import Rmw, Store, Wait
from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.scene import Scene, Side
from lab.sim.change.text.source import Source, Splice

_FAR = 8  # statements that one is moved past, at most


def phases(scene: Scene) -> Iterator[Candidate]:
    """What does the first access moved to earlier places of its body, what does the second to later ones, and back."""
    for side in scene.sides:
        yield from _moved(scene, side)


def _moved(scene: Scene, side: Side) -> Iterator[Candidate]:
    seen: set[ast.stmt] = set()
    for place in (*scene.places(side, True),):
        statement = place.statement
        if statement in seen:
            continue
        seen.add(statement)
        body = _body(place.source, statement)
        at = body.index(statement)
        first = at - 1 if at and _names_a_phase(body[at - 1]) else at
        groups = [(first, at)] if first != at else [(at, at)]
        for lo, hi in groups:
            for to in [*range(lo - 1, max(-1, lo - 1 - _FAR), -1), *range(hi + 1, min(len(body), hi + 1 + _FAR))]:
                candidate = _move(scene, place.source, body, lo, hi, to)
                if candidate is not None:
                    yield candidate


def _body(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which one stands."""
    parent = source.parents[statement]
    return next(block for _, block in ast.iter_fields(parent) if isinstance(block, list) and statement in block)


def _names_a_phase(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "phase"


def _synchronises(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement may order anything: only past such ones is it worth to move another."""
    return any(isinstance(node, ast.Call) for node in ast.walk(statement)) and not _names_a_phase(statement)


def _move(scene: Scene, source: Source, body: list[ast.stmt], lo: int, hi: int, to: int) -> Candidate | None:
    """Statements `lo` to `hi` of a body before (if it stands before) or after the statement `to`."""
    target = body[to]
    if not _synchronises(source, target) or not all(map(source.stands_alone, (*body[lo : hi + 1], target))):
        return None
    start, end = source.line_start(body[lo].lineno), source.lines_of(body[hi])[1]
    text = source.text[start:end]
    if not text.endswith(("\n", "\r")):
        return None
    before = to < lo
    at = source.lines_of(target)[0 if before else 1]
    if at == len(source.text) and not source.text.endswith(("\n", "\r")):
        return None
    what = (
        f"{scene.label(source, body[hi].lineno)} moved {'before' if before else 'after'} "
        f"{scene.label(source, target.lineno)}"
    )
    splices = (Splice(source.path, start, end, ""), Splice(source.path, at, at, text, start))
    return Candidate(Cost.MOVE, f"move {source.path}:{start}", what, splices)


def tell_first(scene: Scene) -> Iterator[Candidate]:
    """Each store that stands behind a wait, in front of it, or the wait behind the store: tell before you wait."""
    waits = [line for line in scene.lines if isinstance(line.op, Wait)]
    for wait in waits:
        for told in scene.lines:
            if not isinstance(told.op, (Store, Rmw)) or told.source is not wait.source:
                continue
            source = told.source
            for one in source.chain(told.statement):
                body = _body(source, one)
                other = next((s for s in source.chain(wait.statement) if s in body), None)
                if other is not None and other is not one and body.index(other) < body.index(one):
                    at = body.index(one)
                    first = body.index(other)
                    yield from filter(
                        None, (_move(scene, source, body, at, at, first), _move(scene, source, body, first, first, at))
                    )
