"""Candidates that take two accesses apart: more buffers, or a region of its own for one of the two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from lab.protocol import tables as t
from lab.protocol.program import Op, Program, Span
from lab.sim.change.edit import Line, changed, line_of
from lab.sim.change.repairs.candidate import Candidate, Cost, Pair, fresh_name
from lab.sim.change.slots import SlotDimension, Turn, slot_dimension, spans_of, turns_of, with_depth, with_spans
from lab.sim.machine.execution import Execution
from lab.sim.order.races import RaceReport


def buffers(program: Program, region: str) -> Iterator[Candidate]:
    """One more buffer of a region, of those that take turns or to take turns with the one there is; or one a turn."""
    own = slot_dimension(program, region)
    lines = ", ".join(dict.fromkeys(str(op.site) for a in program.agents for op in a.ops if _touches(op, region)))
    dimensions = [own] if own else [SlotDimension(region, -1, 1, turn) for turn in Turn]
    depth = dimensions[0].depth + 1
    if own:
        name = next(r.shape[own.axis][0] for r in program.regions if r.name == region)
        what, index = f"one more buffer of {region}: {name}={depth}", f"modulo {depth} along {name}"
    else:
        name = "parity"
        what, index = f"two buffers of {region} that take turns: parity=2", "[b.call % 2, ...]"
    write = (f"declare {region} with {name}={depth}", f"at {lines}: index it {index}")
    for dimension in dimensions:
        yield Candidate(Cost.BUFFER, what, write, partial(_deeper, region, dimension.turn, 1), ())
    each = f"a buffer of {region} for every call"
    for dimension in dimensions:
        change = partial(_deeper, region, dimension.turn, None)
        yield Candidate(Cost.BUFFERS, each, (f"at {lines}: the buffer of the call",), change, (what,))


def _touches(op: Op, region: str) -> bool:
    return any(span.region.name == region for _, _, span in spans_of(op))


def _deeper(region: str, turn: Turn, more: int | None, program: Program) -> Program | None:
    """The program with `more` buffers of a region; None: with as many as it has turns."""
    dimension = slot_dimension(program, region) or SlotDimension(region, -1, 1, turn)
    depth = dimension.depth + more if more else turns_of(program, dimension)
    return with_depth(program, dimension, depth) if depth > dimension.depth else None


def separations(report: RaceReport, region: str, pair: Pair) -> Iterator[Candidate]:
    """A region of its own for what one of the two accesses writes or reads, where nobody reads both."""
    groups = _exchanges(report, region)
    sides = [next((g for g in groups if any(line == key[0] for key in g)), None) for line in pair.lines]
    if sides[0] is None or sides[1] is None or sides[0] == sides[1]:
        return
    for group in sides:
        assert group is not None
        at = [
            f"the {verb} of {', '.join(lines)}"
            for verb, kept in (("writes", True), ("reads", False))
            if (lines := dict.fromkeys(str(line) for line, name in sorted(group, key=str) if (name == "dst") == kept))
        ]
        what = f"a region of its own, beside {region}, for {' and '.join(at)}"
        write = (f"declare a second region like {region}", f"use it for {' and '.join(at)}")
        yield Candidate(Cost.BUFFER, what, write, partial(_separated, region, group))


Side = tuple[Line, str]  # a line and the field of its operations that holds the span


def _exchanges(report: RaceReport, region: str) -> list[frozenset[Side]]:
    """Lines that exchange values through a region: those that read what others wrote, and were meant to, together.

    A read is meant to see what something orders before it; what it sees by a race says nothing.
    """
    execution, clocks = report.execution, report.clocks
    tables, log = execution.tables, execution.log
    groups: dict[Side, set[Side]] = {}
    for step in range(execution.steps):
        row = int(log.op[step])
        if row < 0 or int(tables.ops[row, t.KIND]) not in (t.MOVE, t.FILL, t.EXPECT):
            continue
        op = tables.op(row)
        for name, place, span in spans_of(op):
            if span.region.name != region:
                continue
            side = (line_of(op), name)
            groups.setdefault(side, {side})
            if name != "dst":
                for writer in _writers(execution, step, place):
                    if clocks.rows[step, clocks.chain[writer]] < clocks.time[writer]:
                        continue
                    _unite(groups, side, (line_of(tables.op(int(log.op[writer]))), "dst"))
    return list({id(group): frozenset(group) for group in groups.values()}.values())


def _writers(execution: Execution, step: int, place: int) -> set[int]:
    """Steps whose values a step read from its source `place`."""
    row = int(execution.log.row[step])
    count = int(execution.tables.moves[row, t.M_COUNT])
    at = int(execution.static.reads_at[row]) + place * count
    return {int(writer) for writer in set(execution.log.reads[at : at + count].tolist()) if writer >= 0}


def _unite(groups: dict[Side, set[Side]], a: Side, b: Side) -> None:
    one, two = groups.setdefault(a, {a}), groups.setdefault(b, {b})
    if one is not two:
        one |= two
        for side in two:
            groups[side] = one


def _separated(region: str, group: frozenset[Side], program: Program) -> Program:
    """The program with the spans of `group` in a second region like the first."""
    name = fresh_name(program, region)
    old = [r for r in program.regions if r.name == region]
    new = {r.id: replace(r, id=len(program.regions) + k, name=name) for k, r in enumerate(old)}

    def change(op: Op) -> Op:
        line = line_of(op)

        def moved(field: str, place: int, span: Span) -> Span:
            inside = span.region.id in new and (line, field) in group
            return replace(span, region=new[span.region.id]) if inside else span

        return with_spans(op, moved)

    apart = changed(program, change)
    return replace(apart, regions=(*apart.regions, *new.values()))
