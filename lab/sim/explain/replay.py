"""Repeating a schedule line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lab.errors import LabError
from lab.protocol import tables as t
from lab.protocol.tables import compile_tables
from lab.sim.explain.failure import failure_of
from lab.sim.explain.history import History
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.schedule import parse
from lab.sim.order.verdict import Wrong


@dataclass(frozen=True)
class Replay:
    """An execution repeated from its line.

    Attributes:
        outcome: ok, wrong, hang or abort.
        steps: One line a step, with what it read and wrote.
        digest: A hash of every step and of all memory at its end: equal digests are bit-identical executions.
        wrong, means, hang, abort, gave_up: As in a verdict.
    """

    outcome: str
    steps: tuple[str, ...]
    digest: str
    wrong: tuple[Wrong, ...]
    means: tuple[str, ...]
    hang: tuple[str, ...]
    abort: str | None
    gave_up: tuple[str, ...]


def replay(line: str) -> Replay:
    """Repeat the schedule of a line, step for step.

    Raises:
        LabError: The line is damaged or belongs to another program.
    """
    schedule, protocol, program = parse(line)
    execution = execute(compile_tables(program), schedule.memory, m.REPLAY, choices=schedule.steps)
    if execution.outcome == m.DIVERGED:
        raise LabError(
            f"the schedule does not fit the program: step {execution.steps} names an agent that cannot move",
            hint="run `lab check` again for a schedule of the protocol as it is now",
        )
    found = failure_of(protocol, execution)
    history = History(execution)
    steps = tuple(_told(history, step) for step in range(execution.steps))
    return Replay(
        found.kind or "ok",
        steps,
        digest(execution),
        found.wrong,
        found.means,
        found.hang,
        found.abort,
        found.gave_up,
    )


def digest(execution: Execution) -> str:
    """Sixteen hex digits over the choices, what each step saw and wrote, and all memory at the end."""
    log, state, n = execution.log, execution.state, execution.steps
    hashed = hashlib.sha256()
    for array in (log.choice[:n], log.op[:n], log.seen[:n], log.value[:n], log.row[:n], state.word, state.cell):
        hashed.update(array.tobytes())
    return hashed.hexdigest()[:16]


def _told(history: History, step: int) -> str:
    execution = history.execution
    tables, row = execution.tables, int(execution.log.op[step])
    if row == -1:
        return f"step {step}: the store of step {int(execution.log.row[step])} reaches memory"
    if row == -2:
        waited = int(execution.log.row[step])
        agent = tables.program.agents[int(tables.ops[waited, t.AGENT])]
        return f"step {step}: {agent.name} gives up waiting at op {int(tables.ops[waited, t.POSITION])}"
    agent = tables.program.agents[int(tables.ops[row, t.AGENT])]
    op = tables.op(row)
    values = history.told(step)
    told = f": {values}" if values else ""
    return (
        f"step {step}: {agent.name}, op {int(tables.ops[row, t.POSITION])} [{op.phase}] {op.describe()} "
        f"({op.site}){told}"
    )
