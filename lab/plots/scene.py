"""What a picture of one execution shows: which steps count, what is said at them, who is stuck. Data only.

A scene is made of a wrong value and the race behind it, of a race that made nothing wrong, of an execution in which
nothing can move any more, or of one in which all is well. `lanes` says where its parts stand, `timeline` draws it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lab.plots.story import TOO_EARLY, Story, named_phase, spans, story
from lab.protocol import tables as t
from lab.protocol.program import Agent, Wait, WaitStamp
from lab.sim.explain.values import Output, outputs
from lab.sim.explain.wrong import Explainer, Fault, WitnessStep, waits_before, witness
from lab.sim.machine import words
from lab.sim.machine.execution import Execution
from lab.sim.order.verdict import Access, Race, access_of

_MOST_STUCK = 8  # agents that are shown stuck; the others are named in the verdict
_MOST_WRITES = 12  # to what they wait for; the last ones
_ASIDE = ("launch", "host", "kernel end")


@dataclass(frozen=True)
class Stuck:
    """An agent that cannot go on or gave up, and what it stands at, in few words."""

    agent: Agent
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """One execution and what is to be seen of it.

    Attributes:
        explainer: Explains the execution.
        steps: The steps that count, in order; a step's number is its place here, counted from 1.
        pair: Two steps that nothing orders; empty: none.
        chain: Steps that carried a wrong value, oldest first.
        remarks: (step, lines) said in red at the step.
        stuck: Agents that cannot go on, or gave up.
        outputs: What every compared output held.
        sentences: The same told.
    """

    explainer: Explainer
    steps: tuple[WitnessStep, ...] = ()
    pair: tuple[int, ...] = ()
    chain: tuple[int, ...] = ()
    remarks: tuple[tuple[int, tuple[str, ...]], ...] = ()
    stuck: tuple[Stuck, ...] = ()
    outputs: tuple[Output, ...] = ()
    sentences: tuple[str, ...] = ()

    @property
    def execution(self) -> Execution:
        """The execution."""
        return self.explainer.execution

    @property
    def red(self) -> tuple[int, ...]:
        """Numbers of the steps that are at fault."""
        marked = {*self.pair, *(step for step, _ in self.remarks)}
        return tuple(place for place, step in enumerate(self.steps, 1) if step.step in marked)


def of_story(explainer: Explainer, fault: Fault, told: Story) -> Scene:
    """The scene of a read that a race made wrong, already told."""
    read = told.steps[told.read - 1].step
    remarks = [(read, (f"finds {told.holds}", f"due: {told.due}"))]
    pair: tuple[int, ...] = ()
    if told.write and told.write != told.read:
        write = told.steps[told.write - 1].step
        early = told.fault == TOO_EARLY
        remarks.append((write, ("writes what is due" if early else "overwrites what is due",)))
        pair = (min(read, write), max(read, write))
    return Scene(
        explainer, told.steps, pair, fault.chain, tuple(remarks), (), told.outputs, tuple(told.sentences())
    )  # fmt: skip


def of_fault(explainer: Explainer, fault: Fault) -> Scene:
    """The scene of a read that went wrong: by a race with a write, by a race of two writes, or by no race at all."""
    if explainer.unordered(fault) is not None:
        return of_story(explainer, fault, story(explainer, fault))
    steps = tuple(witness(explainer, fault))
    read = _access(explainer, fault.step, "read")
    where = f" compares the output (op {read.op}) and" if read.phase == "host" else f", {_at(read)},"
    finds = f"{read.agent}{where} finds {explainer.holder(fault.seen)}, where {explainer.due_of(fault)} is due."
    remarks = [(fault.step, (f"finds {explainer.holder(fault.seen)}", f"due: {explainer.due_of(fault)}"))]
    racing = explainer.racing(fault)
    if len(racing) == 2:
        due, seen = (_access(explainer, step, "write") for step in racing)
        said = [
            f"{due.agent}, {_at(due)}, and {seen.agent}, {_at(seen)}, write the same elements, and nothing orders the "
            "two: what is read afterwards is what came last.",
            finds,
        ]
        remarks += [(racing[0], ("writes what is due",)), (racing[1], ("writes here too",))]
    else:
        said = [finds, "No race shows here: every access of this execution that matters is ordered as the text has it."]
    wrong = explainer.wrong()
    if wrong:
        said.append(f"{wrong[0].region} of rank {wrong[0].rank} ends up wrong in elements {spans(wrong[0].elements)}.")
    return Scene(
        explainer,
        steps,
        tuple(sorted(racing)) if len(racing) == 2 else (),
        fault.chain,
        tuple(remarks),
        (),
        tuple(outputs(explainer.execution)),
        tuple(_capital(text) for text in said),
    )


def of_race(explainer: Explainer, race: Race) -> Scene | None:
    """The scene of a race in an execution in which it makes nothing wrong; None: it is not in this execution."""
    first, second = (_step_of(explainer, access) for access in (race.first, race.second))
    if first is None or second is None:
        return None
    roles = {first: race.first.kind, second: race.second.kind}
    because: dict[int, int] = {}
    for step in (first, second):
        for wait, write in waits_before(explainer, step):
            roles.setdefault(wait, "sync")
            roles.setdefault(write, "sync")
            because[wait] = write
    steps = tuple(
        WitnessStep(step, roles[step], _access(explainer, step, roles[step]), because.get(step, -1))
        for step in sorted(roles)
    )
    loose = not explainer.before(min(first, second), max(first, second))
    where = f"{race.region}, elements {spans(race.elements)}"
    said = [
        f"{race.first.agent}, {_at(race.first)}, {race.first.kind}s {where}.",
        f"{race.second.agent}, {_at(race.second)}, {race.second.kind}s there too.",
        f"Missing: {race.missing}.",
    ]
    if not loose:
        said.append("In this execution a wait happens to order the two; in another one nothing does.")
    return Scene(
        explainer,
        steps,
        (min(first, second), max(first, second)) if loose else (),
        (),
        ((first, (f"{race.first.kind}s {race.region}",)), (second, (f"{race.second.kind}s it",))),
        (),
        tuple(outputs(explainer.execution)),
        tuple(_capital(text) for text in said),
    )


def of_hang(explainer: Explainer, sentences: tuple[str, ...]) -> Scene:
    """The scene of an execution in which nothing can move any more; `sentences` say why."""
    execution = explainer.execution
    stuck = sorted(_stuck(execution), key=lambda each: each.agent.kind == "host")
    shown = stuck[:_MOST_STUCK]
    writes = sorted({step for each in shown for step in _writes(execution, each.agent)})[-_MOST_WRITES:]
    steps = tuple(WitnessStep(step, "write", _with_value(explainer, step)) for step in writes)
    return Scene(
        explainer,
        steps,
        stuck=tuple(shown),
        outputs=tuple(outputs(execution)),
        sentences=tuple(_capital(text) for text in sentences),
    )


def of_timeouts(explainer: Explainer) -> Scene:
    """The scene of an execution in which bounded waits gave up although others could still move."""
    tables, log = explainer.tables, explainer.execution.log
    gave_up = []
    for step in np.flatnonzero(log.op[: explainer.execution.steps] == -2)[:_MOST_STUCK].tolist():
        row = int(log.row[step])
        agent = tables.program.agents[int(tables.ops[row, t.AGENT])]
        gave_up.append(Stuck(agent, (f"gave up: {tables.op(row).describe()}", "others could still move")))
    return Scene(explainer, stuck=tuple(gave_up), outputs=tuple(outputs(explainer.execution)))


def of_run(explainer: Explainer) -> Scene:
    """The scene of an execution in which nothing is wrong."""
    return Scene(explainer, outputs=tuple(outputs(explainer.execution)))


# ---- what is read off an execution


def _access(explainer: Explainer, step: int, kind: str) -> Access:
    return access_of(explainer.tables, int(explainer.execution.log.op[step]), kind)


def _step_of(explainer: Explainer, access: Access) -> int | None:
    """The step in which an operation ran; None: it did not."""
    tables, execution = explainer.tables, explainer.execution
    for agent in tables.program.agents:
        if agent.name == access.agent and access.op < len(agent.ops):
            row = int(tables.agent_start[agent.id]) + access.op
            found = np.flatnonzero(execution.log.op[: execution.steps] == row)
            return int(found[0]) if len(found) else None
    return None


def _stuck(execution: Execution) -> list[Stuck]:
    """Agents that have started and not finished, those in a kernel's own text; where there are none, the others."""
    tables, state = execution.tables, execution.state
    own, aside = [], []
    for agent in tables.program.agents:
        row = int(state.pc[agent.id])
        started = agent.kind == "host" or row != int(tables.agent_start[agent.id])
        if not started or row >= int(tables.agent_end[agent.id]):
            continue
        op = tables.op(row)
        (aside if op.phase in _ASIDE or agent.kind == "host" else own).append(Stuck(agent, _stands(execution, agent)))
    return own or aside


def _stands(execution: Execution, agent: Agent) -> tuple[str, ...]:
    """What an agent stands at: the operation, and what the word that it waits for holds."""
    tables = execution.tables
    op = tables.op(int(execution.state.pc[agent.id]))
    if isinstance(op, Wait):
        held = ", ".join(str(int(execution.state.word[word])) for word in _awaited(execution, agent))
        return f"stuck: {op.describe()}", f"it holds {held}"
    return (f"stuck: {op.describe()}",)


def _awaited(execution: Execution, agent: Agent) -> range:
    """Ids of the words that an agent's wait looks at."""
    row = int(execution.state.pc[agent.id])
    op = execution.tables.op(row)
    if not isinstance(op, Wait) or isinstance(op, WaitStamp):
        return range(0)
    first = int(words.address.py_func(execution.static, execution.state, row, agent.id))
    return range(first, first + op.word.count)


def _writes(execution: Execution, agent: Agent) -> list[int]:
    """The steps that wrote a word that an agent waits for."""
    tables, log, n = execution.tables, execution.log, execution.steps
    rows = log.op[:n]
    writes = np.isin(np.where(rows >= 0, tables.ops[np.maximum(rows, 0), t.KIND], -1), (t.STORE, t.RMW))
    return np.flatnonzero(writes & np.isin(log.row[:n], list(_awaited(execution, agent)))).tolist()


def _with_value(explainer: Explainer, step: int) -> Access:
    """A write to a word, with what the word holds then."""
    access = _access(explainer, step, "write")
    return replace(access, text=f"{access.text}, and it holds {int(explainer.execution.log.value[step])}")


def _at(access: Access) -> str:
    return f"{named_phase(access)} (op {access.op})" if access.phase else f"at op {access.op}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:] if text else text
