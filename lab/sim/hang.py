"""Why nothing can move any more: who waits for what, who could still write it, and whether it was there and is gone."""

from __future__ import annotations

from collections.abc import Iterator

from lab.protocol import tables as t
from lab.protocol.expr import enumerate_index
from lab.protocol.program import Agent, Rmw, Store, Wait, WordRef
from lab.protocol.tables import Tables
from lab.sim import words
from lab.sim.races import Execution


def waiting(execution: Execution) -> list[str]:
    """One line for each agent that waits, then the cycle of agents that wait for each other, if there is one."""
    blocked = list(_blocked(execution))
    waits_for = {agent.id: _writers_to_come(execution, agent, op) for agent, op in blocked}
    names = {agent.id: agent.name for agent in execution.tables.program.agents}
    blocked.sort(key=lambda pair: pair[1].phase in ("launch", "host"))  # what waits inside a kernel comes first
    lines = [_line(execution, agent, op, waits_for[agent.id], names) for agent, op in blocked]
    cycle = _cycle(waits_for)
    if cycle:
        lines.append("each waits for the next: " + " -> ".join(names[agent] for agent in [*cycle, cycle[0]]))
    return lines


def _blocked(execution: Execution) -> Iterator[tuple[Agent, object]]:
    """Agents that have started and not finished, each with the operation it stands at."""
    tables, state = execution.tables, execution.state
    for agent in tables.program.agents:
        pc = int(state.pc[agent.id])
        launched = agent.kind == "host" or pc != int(tables.agent_start[agent.id])
        if launched and pc < int(tables.agent_end[agent.id]):
            yield agent, tables.op(pc)


def _line(execution: Execution, agent: Agent, op: object, writers: list[int], names: dict[int, str]) -> str:
    tables = execution.tables
    pc = int(execution.state.pc[agent.id])
    text = f"{agent.name} waits at op {int(tables.ops[pc, t.POSITION])}: {op.describe()} ({op.site})"  # type: ignore[attr-defined]
    if not isinstance(op, Wait):
        return text
    held = ", ".join(str(int(execution.state.word[word])) for word in _words(tables, op.word))
    text += f"; it holds {held}"
    gone = _met_and_gone(execution, agent, op)
    if gone:
        return f"{text}; {gone}"
    if not writers:
        return f"{text}; nobody will write it any more"
    shown = ", ".join(names[writer] for writer in writers[:3])
    return f"{text}; still to be written by {shown}" + (f" and {len(writers) - 3} more" if len(writers) > 3 else "")


def _words(tables: Tables, ref: WordRef) -> list[int]:
    """Word ids that a reference can name."""
    base = int(tables.word_base[ref.region.id])
    _, (indices,) = enumerate_index(ref.index)
    return sorted({base + index + k for index in indices for k in range(ref.count)})


def _writers_to_come(execution: Execution, agent: Agent, op: object) -> list[int]:
    """Agents that have an operation ahead of them that may write what `agent` waits for."""
    if not isinstance(op, Wait):
        return []
    tables = execution.tables
    wanted = set(_words(tables, op.word))
    found = []
    for other in tables.program.agents:
        at = int(execution.state.pc[other.id]) - int(tables.agent_start[other.id])
        ahead = (o for o in other.ops[at:] if isinstance(o, (Store, Rmw)) and o.word.region.id == op.word.region.id)
        if other.id != agent.id and any(wanted & set(_words(tables, o.word)) for o in ahead):
            found.append(other.id)
    return found


def _met_and_gone(execution: Execution, agent: Agent, op: Wait) -> str | None:
    """Whether the word once met the wait and was overwritten before the waiter looked."""
    log, tables = execution.log, execution.tables
    wanted = set(_words(tables, op.word))
    if op.word.count > 1:
        return None
    value = _operand(execution, agent, op)
    met = None
    for step in range(execution.steps):
        row = int(log.op[step])
        if row < 0 or int(tables.ops[row, t.KIND]) not in (t.STORE, t.RMW) or int(log.row[step]) not in wanted:
            continue
        if words.met.py_func(int(op.cond), int(log.value[step]), value):
            met = step
        elif met is not None:
            by = tables.program.agents[int(tables.ops[row, t.AGENT])].name
            return (
                f"step {met} wrote {int(log.value[met])}, which meets it, and {by} overwrote it with "
                f"{int(log.value[step])} at step {step} before the waiter looked"
            )
    return None


def _operand(execution: Execution, agent: Agent, op: Wait) -> int:
    tables = execution.tables
    row = int(tables.ops[int(execution.state.pc[agent.id]), t.VALUE])
    return int(words.operand.py_func(tables.exprs, tables.postfix, row, execution.state.registers, agent.id))


def _cycle(waits_for: dict[int, list[int]]) -> list[int]:
    """Agents that wait for each other in a ring; empty: there is none."""
    done: set[int] = set()
    for start in waits_for:
        path: list[int] = []
        agent: int | None = start
        while agent is not None and agent not in done:
            if agent in path:
                return path[path.index(agent) :]
            path.append(agent)
            agent = next((other for other in waits_for[agent] if other in waits_for), None)
        done.update(path)
    return []
