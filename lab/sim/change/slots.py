"""Buffers: which instance of a payload region each operation uses in each turn, and the program with more or fewer.

A region has a *slot dimension* where operations go round in it: at every line that uses the region the index along the
dimension is `turn + a` or `a - turn`, modulo its extent. The turn is known when the program is recorded (the number of
the call, or how often the line has used this place before), or a register holds it (`seq % 2`). The same rule with
another modulus is the same protocol with another number of buffers; a region without a slot dimension gets one.

What comes out is a program like any other: whether it still holds is for the checker to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from lab.protocol.expr import Binary, Const, Expr, Reg, bounded_roots, enumerate_index, registers_of, word
from lab.protocol.program import Agent, Op, Program, Region, Span


class Turn(Enum):
    """What counts the turns where no register does."""

    USE = "each use of the place at this line"
    CALL = "the number of the call"


@dataclass(frozen=True)
class Use:
    """One span of one operation over a region."""

    agent: Agent
    position: int
    field: str
    place: int
    span: Span

    @property
    def key(self) -> tuple[int, int, str, int]:
        """Which span of the program it is; `place` counts within a field that holds several."""
        return self.agent.id, self.position, self.field, self.place


@dataclass(frozen=True)
class SlotDimension:
    """Where the operations of a program go round in a region.

    Attributes:
        region: Name of the region, the same on every rank.
        axis: Which of its leading dimensions; -1: none of them.
        depth: Its extent; 1 for none.
        turn: What counts the turns.
    """

    region: str
    axis: int
    depth: int
    turn: Turn


def spans_of(op: Op) -> Iterator[tuple[str, int, Span]]:
    """(field, place in the field, span) of each span of an operation."""
    for name in op.__dataclass_fields__:
        value = getattr(op, name)
        for place, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, Span):
                yield name, place, part


def with_spans(op: Op, change: Callable[[str, int, Span], Span]) -> Op:
    """The operation with each of its spans changed; `change` takes what `spans_of` yields."""
    changes: dict[str, object] = {}
    for name, place, span in spans_of(op):
        value = changes.get(name, getattr(op, name))
        if isinstance(value, tuple):
            changes[name] = (*value[:place], change(name, place, span), *value[place + 1 :])
        else:
            changes[name] = change(name, place, span)
    return replace(op, **changes) if changes else op  # type: ignore[arg-type]


def slot_dimension(program: Program, region: str) -> SlotDimension | None:
    """The dimension in which the program goes round in `region`; None: it does not, or not in a way understood here."""
    uses = list(_uses(program, region))
    for turn in Turn:
        for axis, (_, extent) in enumerate(uses[0].span.region.shape if uses else ()):
            if extent > 1 and _goes_round(uses, axis, turn):
                return SlotDimension(region, axis, extent, turn)
    return None


def slot_dimensions(program: Program) -> list[SlotDimension]:
    """The slot dimension of each payload region that has one."""
    names = dict.fromkeys(region.name for region in program.regions if region.kind == "payload")
    found = (slot_dimension(program, name) for name in names)
    return [dimension for dimension in found if dimension is not None]


def with_depth(program: Program, dimension: SlotDimension, depth: int) -> Program | None:
    """The program with `depth` buffers along a dimension; None: some operation cannot be given its place.

    With axis -1 every line takes the next of `depth` instances of the whole region in each turn.
    """
    uses = list(_uses(program, dimension.region))
    regions = {r.id: _resized(r, dimension, depth) for r in program.regions if r.name == dimension.region}
    moved: dict[tuple[int, int, str, int], Span] = {}
    for group in _groups(uses, dimension.axis, dimension.turn).values():
        rule = _rule(group, dimension)
        for use, turn in group:
            span = None if rule is None else _moved(use, turn, rule, dimension, depth, regions[use.span.region.id])
            if span is None:
                return None
            moved[use.key] = span
    return _with_spans_moved(program, regions, moved)


def turns_of(program: Program, dimension: SlotDimension) -> int:
    """Most turns that a block takes at a line that uses the region."""
    groups = _groups(list(_uses(program, dimension.region)), dimension.axis, dimension.turn)
    return 1 + max((turn for group in groups.values() for _, turn in group), default=0)


def at_depth(region: str, depth: int, program: Program) -> Program:
    """The program with so many buffers of `region`; unchanged where they cannot be told."""
    dimension = slot_dimension(program, region)
    changed = None if dimension is None else with_depth(program, dimension, depth)
    return program if changed is None else changed


def _with_spans_moved(
    program: Program, regions: dict[int, Region], moved: dict[tuple[int, int, str, int], Span]
) -> Program:
    """The program with some regions replaced, and some spans (by `Use.key`)."""
    agents = []
    for agent in program.agents:
        ops = tuple(
            with_spans(op, lambda f, k, span, at=(agent.id, i): moved.get((*at, f, k), span))  # type: ignore[misc]
            for i, op in enumerate(agent.ops)
        )
        agents.append(replace(agent, ops=ops))
    kept = tuple(regions.get(region.id, region) for region in program.regions)
    return replace(program, agents=tuple(agents), regions=kept)


def _uses(program: Program, region: str) -> Iterator[Use]:
    for agent in program.agents:
        for position, op in enumerate(agent.ops):
            for field, place, span in spans_of(op):
                if span.region.name == region:
                    yield Use(agent, position, field, place, span)


# ---- places


@dataclass(frozen=True)
class _Place:
    """An address taken apart: the index along each dimension, and what is left within the slot."""

    indices: tuple[int, ...]
    offset: int


def _slot_length(region: Region) -> int:
    return region.length // prod(extent for _, extent in region.shape)


def _place(region: Region, start: int, length: int) -> _Place | None:
    """Where `start` lies; None: the span reaches from one slot into another."""
    slot = _slot_length(region)
    flat, offset = divmod(start, slot)
    if offset + length > slot:
        return None
    indices = []
    for _, extent in reversed(region.shape):
        flat, index = divmod(flat, extent)
        indices.append(index)
    return _Place(tuple(reversed(indices)), offset)


def _start(region: Region, place: _Place) -> int:
    flat = 0
    for index, (_, extent) in zip(place.indices, region.shape, strict=True):
        flat = flat * extent + index
    return flat * _slot_length(region) + place.offset


def _along(place: _Place, axis: int) -> int:
    return place.indices[axis] if axis >= 0 else 0


def _with_index(place: _Place, axis: int, index: int) -> _Place:
    if axis < 0:
        return replace(place, indices=(index, *place.indices))
    return replace(place, indices=(*place.indices[:axis], index, *place.indices[axis + 1 :]))


def _resized(region: Region, dimension: SlotDimension, depth: int) -> Region:
    length = region.length // dimension.depth * depth
    if dimension.axis < 0:
        return replace(region, length=length, shape=(("parity" if depth == 2 else "turn", depth), *region.shape))
    shape = list(region.shape)
    shape[dimension.axis] = (shape[dimension.axis][0], depth)
    return replace(region, length=length, shape=tuple(shape))


# ---- turns


_Group = list[tuple[Use, int]]
_Rule = tuple[int, int]  # sign, a: the index is sign * turn + a, modulo the depth


def _groups(uses: list[Use], axis: int, turn: Turn) -> dict[tuple[object, ...], _Group]:
    """Uses at one line by one block of one place but for its index along `axis`, in the order of time, with turns."""
    groups: dict[tuple[object, ...], _Group] = defaultdict(list)
    for use in sorted(uses, key=lambda use: (use.agent.sequence, use.agent.id, use.position)):
        op, agent, span = use.agent.ops[use.position], use.agent, use.span
        places = _places(span)
        other = () if places is None else _with_index(places[0], axis, 0).indices
        key = (op.site, op.phase, use.field, use.place, agent.rank, agent.block, agent.wave, span.region.id, other)
        count = len(groups[key]) if turn is Turn.USE else agent.call - 1
        groups[key].append((use, count))
    return groups


def _places(span: Span) -> list[_Place] | None:
    """The places that a span can name, one for each value of what selects it."""
    _, (starts,) = enumerate_index(span.start)
    places = [_place(span.region, start, span.length) for start in starts]
    return None if any(place is None for place in places) else places  # type: ignore[return-value]


def _rule(group: _Group, dimension: SlotDimension) -> _Rule | None:
    """How the index along the dimension follows from the turn; None: in no way understood here."""
    seen: list[tuple[int, int]] = []
    for use, turn in group:
        places = _places(use.span)
        if places is None:
            return None
        if isinstance(use.span.start, Const) or dimension.axis < 0:
            seen.append((turn, _along(places[0], dimension.axis)))
        elif len(places) == dimension.depth and len({_with_index(place, dimension.axis, 0) for place in places}) == 1:
            seen += [(value, _along(place, dimension.axis)) for value, place in enumerate(places)]
        else:
            return None
    return _fitted(seen, dimension.depth)


def _fitted(seen: list[tuple[int, int]], depth: int) -> _Rule | None:
    """(sign, a) such that each index is sign * turn + a modulo `depth`, with a as close to 0 as can be."""
    for sign in (1, -1):
        turn, index = seen[0]
        a = (index - sign * turn) % depth
        if all((sign * turn + a) % depth == index for turn, index in seen):
            return sign, a if a <= depth // 2 else a - depth
    return None


def _goes_round(uses: list[Use], axis: int, turn: Turn) -> bool:
    dimension = SlotDimension("", axis, uses[0].span.region.shape[axis][1], turn)
    groups = _groups(uses, axis, turn).values()
    selected = any(not isinstance(use.span.start, Const) for use in uses) or any(len(group) > 1 for group in groups)
    return selected and all(_rule(group, dimension) is not None for group in groups)


def _moved(use: Use, turn: int, rule: _Rule, dimension: SlotDimension, depth: int, region: Region) -> Span | None:
    """The span in its place among `depth` buffers."""
    sign, a = rule
    places = _places(use.span)
    assert places is not None
    if isinstance(use.span.start, Const):
        place = _with_index(places[0], dimension.axis, (sign * turn + a) % depth)
        return replace(use.span, region=region, start=word(_start(region, place)))
    if dimension.axis < 0:
        return replace(
            use.span, region=region, start=use.span.start + (sign * turn + a) % depth * use.span.region.length
        )
    starts = [_start(region, _with_index(places[0], dimension.axis, (sign * v + a) % depth)) for v in range(depth)]
    if depth == 1:
        return replace(use.span, region=region, start=word(starts[0]))
    counter = _counter(use.span.start, use.agent)
    if counter is None:
        return None
    selector = Binary("%", counter, Const(depth))
    start: Expr = Const(0)
    for value, at in enumerate(starts):
        start = start + (selector == value) * at
    return replace(use.span, region=region, start=start)


def _counter(start: Expr, agent: Agent) -> Expr | None:
    """The number whose remainder selects an address: `seq` where it depends on `seq % 2`; None: there is none."""
    roots = bounded_roots(start)
    return _unreduced(roots[0][0], agent) if len(roots) == 1 else None


def _unreduced(expr: Expr, agent: Agent) -> Expr | None:
    if isinstance(expr, Binary):
        return expr.left if all(len(_definitions(agent, r.index)) == 1 for r in registers_of(expr.left)) else None
    if isinstance(expr, Reg):
        made = _definitions(agent, expr.index)
        value = getattr(made[0], "value", None) if len(made) == 1 else None
        return _unreduced(value, agent) if isinstance(value, Binary) and value.op in ("%", "&") else None
    return None


def _definitions(agent: Agent, register: int) -> list[Op]:
    return [op for op in agent.ops if getattr(op, "dst", None) == register]
