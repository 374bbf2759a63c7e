"""Why an element is wrong: from the output back along the copies to the read that saw a value it must not see.

Fingerprints add like the payload does, so what an output lacks can be read off it: the difference between what is due
and what it holds is the difference between what some read along the way should have seen and what it saw. The read at
which another write to the same cell makes up exactly that difference is at fault, and that write is what was due. Where
several reads of one sum are at fault the difference fits none of them, but a set of them together. Where no set fits
either, the first read counts that saw a write of a later call, or did not see an unordered one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import CONSTANT, Expect, Fill
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order.clocks import Clocks, clocks
from lab.sim.order.kinds import READ, WRITE, Key, key_of_steps
from lab.sim.order.races import accesses
from lab.sim.order.verdict import Access, Wrong, access_of, ranges

_WRAP = 1 << 64


@dataclass(frozen=True)
class Fault:
    """The read that went wrong for one element.

    Attributes:
        step: Step of the read.
        seen: Step whose write it saw, -1: the initial contents.
        due: Step whose write it should have seen, -1: the initial contents, None: not known.
        cell: The cell.
        chain: Steps that carried the value from there to the output, oldest first.
    """

    step: int
    seen: int
    due: int | None
    cell: int
    chain: tuple[int, ...]


class Explainer:
    """Explains the wrong elements of one execution."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.tables: Tables = execution.tables
        self.clocks: Clocks = clocks(execution)
        cells, steps, writes = accesses(self.tables, execution)
        order = np.argsort(cells[writes], kind="stable")
        self._written, self._writers = cells[writes][order], steps[writes][order]
        self._step_of = {int(row): step for step, row in enumerate(execution.log.op[: execution.steps])}

    def faults(self, limit: int = 4096) -> Iterator[tuple[int, int, Fault]]:
        """Yield (row of the EXPECT, item, fault) for each wrong cell, in the order found, of at most `limit` cells.

        Where several reads of one sum are at fault, each is a fault of the cell.
        """
        count = min(int(self.execution.state.counts[m.C_WRONG]), limit)
        for row, item in self.execution.log.wrong[:count].tolist():
            step = self._step_of[row]
            lacking = self._lacking(step, item)
            one = self._fault(step, item, lacking, {})
            several = [one] if one is not None else self._several(step, item, lacking)
            for fault in several or [self._fault(step, item, None, {}) or self._unknown(step, item)]:
                yield row, item, fault

    def _several(self, step: int, item: int, lacking: int) -> list[Fault]:
        """The reads of one sum that together saw as much less or more as it lacks; empty: no set of them did."""
        reads = list(self._loose_reads(step, item, (), {}))
        chosen = _summing([[gain for gain, _ in read] for read in reads], lacking)
        return [reads[place][choice][1] for place, choice in chosen]

    def _loose_reads(
        self, step: int, item: int, chain: tuple[int, ...], visited: dict[tuple[int, int], None]
    ) -> Iterator[list[tuple[int, Fault]]]:
        """For each read behind an item, what another write would have added, and the fault that it would be.

        Another write that nothing orders with the read or with the write that it saw. `chain`: the steps behind it.
        """
        if (step, item) in visited:
            return
        visited[step, item] = None
        for cell, seen in self.reads(step, item):
            lo, hi = np.searchsorted(self._written, [cell, cell + 1])
            loose = [w for w in self._writers[lo:hi].tolist() if w not in (step, seen) and self._open(w, step, seen)]
            if seen >= 0 and not self.before(seen, step):
                loose.append(-1)
            saw = self._value(cell, seen)
            gains = [((self._value(cell, w) - saw) % _WRAP, Fault(step, seen, w, cell, (step, *chain))) for w in loose]
            if gains:
                yield gains
            elif seen >= 0 and self._is_move(seen):
                yield from self._loose_reads(seen, self._item_of(seen, cell), (step, *chain), visited)

    def _open(self, write: int, read: int, seen: int) -> bool:
        """Whether a read might see a write instead of the one that it saw, in another schedule."""
        if not self.before(write, read) and not self.before(read, write):
            return True
        return self.before(write, read) and seen >= 0 and not (self.before(write, seen) or self.before(seen, write))

    def _lacking(self, step: int, item: int) -> int:
        """What is due minus what was read, modulo 2**64."""
        row = int(self.execution.log.row[step])
        due = int(self.tables.values[self.tables.moves[row, t.M_VALUES] + item])
        cell, seen = next(self.reads(step, item))
        return (due - self._value(cell, seen)) % _WRAP

    def _value(self, cell: int, step: int) -> int:
        """The fingerprint that `step` wrote to `cell`; the initial one for -1."""
        if step < 0:
            return int(self.tables.cell_initial[cell])
        at = int(self.execution.static.pending_at[self.execution.log.row[step]])
        return int(self.execution.log.wrote[at + self._item_of(step, cell)])

    def wrong(self) -> list[Wrong]:
        """The wrong elements, those with the same cause together."""
        groups: dict[tuple[object, ...], list[tuple[int, int, Fault]]] = {}
        for row, item, fault in self.faults():
            key = (row, self.holder(fault.seen), self.holder(fault.due) if fault.due is not None else None)
            groups.setdefault(key, []).append((row, item, fault))
        return [self._group(members) for members in groups.values()]

    def race_key(self, fault: Fault) -> Key | None:
        """What `kinds.key_of` gives for the race that shows at a fault; None: it is no fault of order."""
        steps = self.racing(fault)
        if len(steps) < 2:
            return None
        # Between two writes, one that reads the cell too counts as a read, as in `races.conflicts`.
        reads = [step == fault.step or self._reads_too(step, fault.cell) for step in steps]
        return key_of_steps(
            self.execution, *steps, (READ if reads[0] else WRITE, WRITE if all(reads) or not reads[1] else READ)
        )

    def _reads_too(self, step: int, cell: int) -> bool:
        move = self.tables.moves[int(self.execution.log.row[step])]
        if not self._is_move(step):
            return False
        items = (self.tables.items[o : o + move[t.M_COUNT]] for o in self._sources(move))
        return any(bool(np.any(cells == cell)) for cells in items)

    def _sources(self, move: np.ndarray) -> np.ndarray:
        """Where the items of each source of a row of moves begin."""
        return self.tables.sources[move[t.M_SOURCES] : move[t.M_SOURCES] + max(0, int(move[t.M_N_SOURCES]))]

    def racing(self, fault: Fault) -> tuple[int, ...]:
        """The steps of the race that shows at a fault.

        A read and a write that is not ordered with it; or, where the read comes after both, the write that it saw and
        the one that it should have seen, if nothing orders those; or the read alone.
        """
        other = self.unordered(fault)
        if other is not None:
            return fault.step, other
        if fault.due is not None and min(fault.due, fault.seen) >= 0 and not self.before(fault.due, fault.seen):
            return (fault.step,) if self.before(fault.seen, fault.due) else (fault.due, fault.seen)
        return (fault.step,)

    def unordered(self, fault: Fault) -> int | None:
        """The step that a fault's read is not ordered with; None: the fault is not one of order.

        A read that saw a write of a later launch shows that this came too early, whatever else it missed.
        """
        seen = fault.seen if fault.seen >= 0 and not self.before(fault.seen, fault.step) else None
        if seen is not None and self._call(seen) > self._call(fault.step):
            return seen
        if fault.due is not None and fault.due >= 0 and not self.before(fault.due, fault.step):
            return fault.due
        return seen

    def before(self, a: int, b: int) -> bool:
        """Whether step `a` happens before step `b`."""
        return bool(self.clocks.rows[b, self.clocks.chain[a]] >= self.clocks.time[a])

    def reads(self, step: int, item: int) -> Iterator[tuple[int, int]]:
        """Yield (cell, step that wrote what was read) for each source of one item."""
        row = int(self.execution.log.row[step])
        move = self.tables.moves[row]
        n, base = int(move[t.M_COUNT]), int(self.execution.static.reads_at[row])
        for k in range(int(move[t.M_N_SOURCES])):
            cell = int(self.tables.items[self.tables.sources[move[t.M_SOURCES] + k] + item])
            yield cell, int(self.execution.log.reads[base + k * n + item])

    def _item_of(self, step: int, cell: int) -> int:
        move = self.tables.moves[int(self.execution.log.row[step])]
        items = self.tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]]
        return int(np.flatnonzero(items == cell)[0])

    def _fault(self, step: int, item: int, lacking: int | None, visited: dict[tuple[int, int], None]) -> Fault | None:
        if (step, item) in visited:
            return None
        visited[step, item] = None
        for cell, seen in self.reads(step, item):
            found = self._fault_here(step, cell, seen, lacking)
            if found is None and seen >= 0 and self._is_move(seen):
                deeper = self._fault(seen, self._item_of(seen, cell), lacking, visited)
                found = deeper and Fault(deeper.step, deeper.seen, deeper.due, deeper.cell, (*deeper.chain, step))
            if found is not None:
                return found
        return None

    def _is_move(self, step: int) -> bool:
        return int(self.tables.ops[self.execution.log.op[step], t.KIND]) == t.MOVE

    def _fault_here(self, step: int, cell: int, seen: int, lacking: int | None) -> Fault | None:
        lo, hi = np.searchsorted(self._written, [cell, cell + 1])
        others = [w for w in (-1, *self._writers[lo:hi].tolist()) if w not in (step, seen)]
        if lacking is not None:
            saw = self._value(cell, seen)
            due = [w for w in others if (self._value(cell, w) - saw) % _WRAP == lacking]
            return Fault(step, seen, due[0], cell, (step,)) if due else None
        loose = [w for w in others if w >= 0 and not self.before(w, step) and not self.before(step, w)]
        missed = [w for w in loose if self._call(w) <= self._call(step)]
        if seen >= 0 and self._call(seen) > self._call(step) and not self.before(seen, step):
            return Fault(
                step, seen, max((w for w in others if w < 0 or self.before(w, step)), default=-1), cell, (step,)
            )
        return Fault(step, seen, missed[0], cell, (step,)) if missed else None

    def _call(self, step: int) -> int:
        return self.tables.program.agents[int(self.tables.ops[self.execution.log.op[step], t.AGENT])].sequence

    def _unknown(self, step: int, item: int) -> Fault:
        cell, seen = next(self.reads(step, item))
        return Fault(step, seen, None, cell, (step,))

    def holder(self, step: int | None) -> str:
        """Whose value a cell holds that `step` wrote, in words."""
        if step is None:
            return "another sum"
        if step < 0:
            return "the initial contents"
        op = self.tables.op(int(self.execution.log.op[step]))
        agent = self.tables.program.agents[int(self.tables.ops[self.execution.log.op[step], t.AGENT])]
        if isinstance(op, Fill):
            constant = op.source is not None and op.source[0] == CONSTANT
            what = "poison" if op.source is None else f"{'the constant' if constant else 'version'} {op.source[1]}"
            return f"what rank {agent.rank} filled in as {what}"
        return f"the value of call {agent.call} {op.phase or 'store'} from rank {agent.rank}"

    def _group(self, members: list[tuple[int, int, Fault]]) -> Wrong:
        row, _, fault = members[0]
        op = self.tables.op(row)
        assert isinstance(op, Expect)
        cells = [next(self.reads(self._step_of[r], i))[0] for r, i, _ in members]
        region = self.tables.program.regions[int(self.tables.cell_region[cells[0]])]
        agent = self.tables.program.agents[int(self.tables.ops[row, t.AGENT])]
        spans = ranges(
            [int(self.tables.cell_start[c]) for c in cells], [int(self.tables.cell_length[c]) for c in cells]
        )
        holds = f"{self.holder(fault.seen)}, read at {self._place(fault)}"
        return Wrong(
            rank=agent.rank,
            call=op.due[0][1],
            region=region.name,
            elements=spans,
            holds=holds,
            due=self.due_of(fault),
            chain=tuple(self._access(step) for step in self.steps_of(fault)),
        )

    def due_of(self, fault: Fault) -> str:
        """What the read at fault should have seen, in words."""
        if fault.due is not None:
            return self.holder(fault.due)
        compared = self.tables.op(int(self.execution.log.op[fault.chain[-1]]))
        if isinstance(compared, Expect) and (compared.fn != "sum" or compared.combined != list(compared.due)):
            return compared.describe().partition(" = ")[2]
        ranks = [rank for rank, _ in compared.due] if isinstance(compared, Expect) else []
        if len(ranks) == 1:
            return f"the input of rank {ranks[0]} of this call"
        if ranks and len(ranks) < self.tables.program.world:
            return f"the sum of the inputs of ranks {', '.join(map(str, ranks))} of this call"
        return "the sum of all ranks' inputs of this call"

    def _place(self, fault: Fault) -> str:
        region = self.tables.program.regions[int(self.tables.cell_region[fault.cell])]
        slot, _ = region.slot(int(self.tables.cell_start[fault.cell]))
        return f"{slot} of rank {region.rank}"

    def steps_of(self, fault: Fault) -> list[int]:
        """The steps that carried the wrong value to the output, the write that was seen first."""
        head = [fault.seen] if fault.seen >= 0 else []
        return [*head, *fault.chain]

    def _access(self, step: int) -> Access:
        row = int(self.execution.log.op[step])
        kind = {t.MOVE: "copy", t.FILL: "fill", t.EXPECT: "compare"}[int(self.tables.ops[row, t.KIND])]
        return access_of(self.tables, row, kind)


def _summing(gains: list[list[int]], wanted: int, budget: int = 50_000) -> list[tuple[int, int]]:
    """One gain of each of as few lists as possible that add up to `wanted` modulo 2**64: (list, place in it) each.

    Empty: none do, or they were not found within `budget` tries.
    """
    tries = 0

    def search(start: int, rest: int, count: int) -> list[tuple[int, int]] | None:
        nonlocal tries
        if not count:
            return [] if rest == 0 else None
        for place in range(start, len(gains) - count + 1):
            for choice, gain in enumerate(gains[place]):
                tries += 1
                if tries > budget:
                    return None
                others = search(place + 1, (rest - gain) % _WRAP, count - 1)
                if others is not None:
                    return [(place, choice), *others]
        return None

    for count in range(2, len(gains) + 1):
        found = search(0, wanted % _WRAP, count)
        if found is not None:
            return found
    return []


@dataclass(frozen=True)
class WitnessStep:
    """One step of a witness that matters.

    Attributes:
        step: Its place in the execution.
        role: `write` / `read` (the racing accesses), `data` (carries the value), `sync` (let an agent go on).
        access: The operation.
        because: For `sync`, the step whose write let it go on; -1: none.
    """

    step: int
    role: str
    access: Access
    because: int = -1


def witness(explainer: Explainer, fault: Fault) -> list[WitnessStep]:
    """The steps that matter for one fault, in the order they happened.

    These are: the racing accesses, the copies that carried the value, and for each of them the waits that let its agent
    reach it since the one before, with the writes that satisfied those waits.
    """
    execution, tables = explainer.execution, explainer.tables
    roles: dict[int, str] = {}
    for step in explainer.steps_of(fault):
        roles[step] = "data"
    if fault.due is not None and fault.due >= 0:
        roles[fault.due] = "write"
    if fault.seen in explainer.racing(fault):
        roles[fault.seen] = "write"
    roles[fault.step] = "read"
    because: dict[int, int] = {}
    for step in sorted(roles):
        for wait, write in waits_before(explainer, step):
            roles.setdefault(wait, "sync")
            roles.setdefault(write, "sync")
            because[wait] = write
    return [
        WitnessStep(
            step, roles[step], access_of(tables, int(execution.log.op[step]), roles[step]), because.get(step, -1)
        )
        for step in sorted(roles)
    ]


def waits_before(explainer: Explainer, step: int) -> Iterator[tuple[int, int]]:
    """Yield (wait, write that met it) of the agent between its last payload operation and `step`, launches left out."""
    execution, tables = explainer.execution, explainer.tables
    agent = int(tables.ops[execution.log.op[step], t.AGENT])
    for earlier in range(step - 1, -1, -1):
        row = int(execution.log.op[earlier])
        if row < 0 or int(tables.ops[row, t.AGENT]) != agent:
            continue
        kind = int(tables.ops[row, t.KIND])
        if kind in (t.MOVE, t.FILL, t.EXPECT):
            return
        write = int(explainer.clocks.joined[earlier])
        if kind == t.WAIT and write >= 0 and tables.op(row).phase not in ("launch", "host"):
            yield earlier, write
