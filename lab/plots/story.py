"""A witness in words: what the racing read found, what was due, who wrote it, and what one side knew of the other.

All of it is read off the execution and its vector clocks; nothing here knows a protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Expect
from lab.sim.explain.values import Output, outputs
from lab.sim.explain.wrong import Explainer, Fault, WitnessStep, witness
from lab.sim.order.verdict import Access, Wrong, access_of, ranges

TOO_EARLY, TOO_LATE = "too early", "too late"


@dataclass(frozen=True)
class Story:
    """One witness, told.

    Attributes:
        steps: The steps that matter, in order; a step's number is its place here, counted from 1.
        read, write: Numbers of the racing accesses.
        read_access, write_access: The accesses themselves.
        fault: `too early`: the read came before the write that is due; `too late`: the write had already replaced it.
        place: The slot or buffer in which they meet.
        elements: Ranges [lo, hi) of it.
        holds, due: What the read found, and what it should have found.
        first, second: The same two: the one that should come first, and the other.
        known: The last operation of `first`'s agent that `second`'s agent can know of when it acts; None: none.
        wrong: The elements of an output that end up wrong.
        outputs: What every compared output held.
    """

    steps: tuple[WitnessStep, ...]
    read: int
    write: int
    read_access: Access
    write_access: Access
    fault: str
    place: str
    elements: tuple[tuple[int, int], ...]
    holds: str
    due: str
    first: Access
    second: Access
    known: Access | None
    wrong: Wrong | None
    outputs: tuple[Output, ...]

    @property
    def across_calls(self) -> bool:
        """Whether the racing accesses belong to different calls."""
        return self.read_access.call != self.write_access.call

    def reads(self) -> str:
        """The racing read, in one sentence."""
        return (
            f"{self.read_access.agent}, {_at(self.read_access)}, reads {self.place}, elements {spans(self.elements)}, "
            f"{self.fault}: it finds {self.holds}, where {self.due} is due."
        )

    def writes(self) -> str:
        """The racing write, in one sentence."""
        when = "only afterwards" if self.fault == TOO_EARLY else "before that"
        return (
            f"{self.write_access.agent}, {_at(self.write_access)}, writes these elements {when}; no flag, barrier or "
            "fence orders the two."
        )

    def missing(self) -> str:
        """Which order is missing, and how far the knowledge of the second side reaches."""
        first, second, known = self.first, self.second, self.known
        if known is None:
            return f"When {second.agent} does op {second.op}, it knows of nothing that {first.agent} did."
        return (
            f"When {second.agent} gets to op {second.op}, the last thing it can know of {first.agent} is op "
            f"{known.op}, {named_phase(known)}: {known.text}. Op {first.op} ({first.phase or first.text}) comes after"
            " that, and nothing tells whether it is done."
        )

    def ends(self) -> str:
        """Where the wrong value ends up."""
        if self.wrong is None:
            return ""
        mean = next((o for o in self.outputs if (o.rank, o.call) == (self.wrong.rank, self.wrong.call)), None)
        tail = "" if mean is None else f"; its mean is {mean.mean:.4g} where {mean.due:.4g} is due"
        wrong = self.wrong
        return f"{wrong.region} of rank {wrong.rank} ends up wrong in elements {spans(wrong.elements)}{tail}."

    def sentences(self) -> list[str]:
        """The story in four sentences."""
        told = (self.reads(), self.writes(), self.missing(), self.ends())
        return [text[0].upper() + text[1:] for text in told if text]


def _at(access: Access) -> str:
    return f"in its {access.phase} (op {access.op})" if access.phase else f"at op {access.op}"


def named_phase(access: Access) -> str:
    """`in its scatter`, or `before its first phase` where the protocol names none."""
    return f"in its {access.phase}" if access.phase else "before its first phase"


def spans(elements: tuple[tuple[int, int], ...], most: int = 3) -> str:
    """Ranges [lo, hi) as people write them: `0..127, 256..383`."""
    shown = ", ".join(f"{lo}..{hi - 1}" for lo, hi in elements[:most])
    more = len(elements) - most
    return shown + (f" and {more} more range{'s' if more > 1 else ''}" if more > 0 else "")


def story(explainer: Explainer, fault: Fault) -> Story:
    """Tell the witness of `fault`."""
    steps = tuple(witness(explainer, fault))
    other = explainer.unordered(fault)
    other = fault.seen if other is None else other
    early = other == fault.due or other < 0
    read, write = _access(explainer, fault.step, "read"), _access(explainer, max(other, 0), "write")
    first_step, second_step = (other, fault.step) if early else (fault.step, other)
    first, second = (write, read) if early else (read, write)
    number = {step.step: place for place, step in enumerate(steps, 1)}
    wrong = explainer.wrong()
    place, elements = _where(explainer, fault, max(other, 0))
    return Story(
        steps=steps,
        read=number.get(fault.step, 0),
        write=number.get(other, 0),
        read_access=read,
        write_access=write,
        fault=TOO_EARLY if early else TOO_LATE,
        place=place,
        elements=elements,
        holds=explainer.holder(fault.seen),
        due=explainer.due_of(fault),
        first=first,
        second=second,
        known=_known(explainer, max(first_step, 0), max(second_step, 0)),
        wrong=_of_fault(explainer, fault, wrong),
        outputs=tuple(outputs(explainer.execution)),
    )


def _access(explainer: Explainer, step: int, kind: str) -> Access:
    return access_of(explainer.tables, int(explainer.execution.log.op[step]), kind)


def _known(explainer: Explainer, first: int, second: int) -> Access | None:
    """The last operation of the agent of step `first` that step `second` knows of, by its vector clock."""
    clocks = explainer.clocks
    chain = int(clocks.chain[first])
    time = int(clocks.rows[second, chain])
    if time == 0:
        return None
    found = np.flatnonzero((clocks.chain == chain) & (clocks.time == time))
    return _access(explainer, int(found[0]), "known") if len(found) else None


def _where(explainer: Explainer, fault: Fault, write: int) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The slot in which the read at fault and the write meet, and the elements of it that both touch."""
    tables = explainer.tables
    region = tables.program.regions[int(tables.cell_region[fault.cell])]
    cells = np.intersect1d(_cells_read(explainer, fault.step), _cells_written(explainer, write))
    cells = cells[tables.cell_region[cells] == region.id]
    cells = cells if len(cells) else np.array([fault.cell])
    slot, offset = region.slot(int(tables.cell_start[fault.cell]))
    base = int(tables.cell_start[fault.cell]) - offset
    starts = [int(start) - base for start in tables.cell_start[cells]]
    return f"{slot} of rank {region.rank}", ranges(starts, [int(length) for length in tables.cell_length[cells]])


def _cells_read(explainer: Explainer, step: int) -> np.ndarray:
    tables = explainer.tables
    move = tables.moves[int(explainer.execution.log.row[step])]
    first = tables.sources[move[t.M_SOURCES] : move[t.M_SOURCES] + move[t.M_N_SOURCES]]
    return np.concatenate([tables.items[at : at + move[t.M_COUNT]] for at in first])


def _cells_written(explainer: Explainer, step: int) -> np.ndarray:
    tables = explainer.tables
    move = tables.moves[int(explainer.execution.log.row[step])]
    return tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]]


def _of_fault(explainer: Explainer, fault: Fault, wrong: list[Wrong]) -> Wrong | None:
    """The wrong output that the value of this fault ends up in."""
    last = explainer.tables.op(int(explainer.execution.log.op[fault.chain[-1]]))
    if isinstance(last, Expect):
        for found in wrong:
            if found.region == last.span.region.name and found.rank == last.span.region.rank:
                return found
    return wrong[0] if wrong else None
