"""What a program does that a repair must leave alone: which lines move how much, and which reads have a writer.

A change may close a race by taking one of the two accesses out of the program, or by letting a read look where nobody
writes. Both are no repair, and where a scenario compares no output no wrong value would show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Move, Program
from lab.protocol.tables import Tables
from lab.sim.change.edit import is_own
from lab.sim.change.slots import spans_of
from lab.sim.change.text.texts import Place, Texts
from lab.sim.machine.execution import Execution


@dataclass(frozen=True)
class Intent:
    """What one execution of a program did, by the lines of the author's text.

    Attributes:
        moved: Elements that each line of the kernels copies or reduces.
        unwritten: Elements that each line reads of memory that nobody has written.
        in_turn: Pairs of lines, with what each does to one region: some agent comes to the one, then to the other.
    """

    moved: Counter[Place]
    unwritten: Counter[Place]
    in_turn: frozenset[tuple[object, object]]

    @staticmethod
    def of(texts: Texts, execution: Execution) -> Intent:
        """Of an execution of a text's program."""
        program = execution.tables.program
        return Intent(_moved(texts, program), _unwritten(texts, execution), _in_turn(texts, program))

    def kept_by(self, other: Intent) -> bool:
        """Whether a changed text does as much at every line, in the order of the text, and reads nothing unwritten.

        Lines of one agent that touch one region, one of them to write it, mean something by their order: moved past
        each other they are another protocol.
        """
        less = any(other.moved[place] != count for place, count in self.moved.items())
        more = any(count > self.unwritten[place] for place, count in other.unwritten.items())
        return not less and not more and other.in_turn <= self.in_turn


def _moved(texts: Texts, program: Program) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for agent in program.agents:
        if is_own(agent):
            for op in agent.ops:
                if isinstance(op, Move):
                    place = texts.origin(op.site.file, op.site.line)
                    if place is not None:
                        found[place] += sum(hi - lo for _, lo, hi in op.mapping.chunks(op.dst.length))
    return found


def _in_turn(texts: Texts, program: Program) -> frozenset[tuple[object, object]]:
    found: set[tuple[object, object]] = set()
    for agent in program.agents:
        before: dict[tuple[str, int], dict[tuple[Place, bool], None]] = {}
        for op in agent.ops if is_own(agent) else ():
            place = texts.origin(op.site.file, op.site.line) if isinstance(op, Move) else None
            if place is None:
                continue
            for name, _, span in spans_of(op):
                seen = before.setdefault((span.region.name, span.region.rank), {})
                here = (place, name == "dst")
                found |= {(other, here) for other in seen if (other[1] or here[1]) and other[0] != place}
                seen[here] = None
    return frozenset(found)


def _unwritten(texts: Texts, execution: Execution) -> Counter[Place]:
    """Elements read from declared memory and outputs that hold what they held at first."""
    tables, log = execution.tables, execution.log
    found: Counter[Place] = Counter()
    for step in range(execution.steps):
        row = int(log.op[step])
        if row < 0 or int(tables.ops[row, t.KIND]) not in (t.MOVE, t.EXPECT):
            continue
        moves = tables.moves[int(log.row[step])]
        count, sources = int(moves[t.M_COUNT]), int(moves[t.M_N_SOURCES])
        if not count or not sources:
            continue
        at = int(execution.static.reads_at[int(log.row[step])])
        writers = log.reads[at : at + count * sources]
        offsets = tables.sources[moves[t.M_SOURCES] : moves[t.M_SOURCES] + sources]
        cells = np.concatenate([tables.items[o : o + count] for o in offsets])
        poison = _without_values(tables)[tables.cell_region[cells]]
        elements = int(tables.cell_length[cells[(writers < 0) & poison]].sum())
        if elements:
            site = tables.op(row).site
            place = texts.origin(site.file, site.line)
            if place is not None:
                found[place] += elements
    return found


def leaves_output_unwritten(tables: Tables) -> bool:
    """Whether an element that is compared is written by no operation at all, whatever the schedule.

    Then the protocol is not made for the configuration: no order of accesses repairs that.
    """
    written = np.zeros(len(tables.cell_region), bool)
    compared = np.zeros(len(tables.cell_region), bool)
    for move in tables.moves[tables.moves[:, t.M_DST] >= 0]:
        written[tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]]] = True
    for move in tables.moves[tables.ops[tables.ops[:, t.KIND] == t.EXPECT, t.ADDR]]:
        at = int(tables.sources[move[t.M_SOURCES]])
        compared[tables.items[at : at + move[t.M_COUNT]]] = True
    return bool(np.any(compared & ~written & _without_values(tables)[tables.cell_region]))


def _without_values(tables) -> np.ndarray:
    """Of each region, whether it holds nothing of its own before the program runs."""
    return np.array([region.source is None for region in tables.program.regions])
