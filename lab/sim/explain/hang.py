"""Why nothing can move any more: who waits for what, who could still write it, and whether it was there and is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from lab.protocol import tables as t
from lab.protocol.expr import enumerate_index
from lab.protocol.program import Agent, Move, Op, Residency, Rmw, Span, Store, Wait, WaitStamp, WordRef
from lab.protocol.tables import Tables
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.machine.engines import engine_of
from lab.sim.machine.execution import Execution
from lab.sim.order.clocks import clocks


def waiting(execution: Execution) -> list[str]:
    """GPUs whose slots have run out; who waits for which word, a line for all that wait alike; a cycle, if any."""
    blocked = list(_blocked(execution))
    queues = [_Queue.of(execution, slots, blocked) for slots in execution.tables.program.residency]
    holders = {agent.id: queue.holders for queue in queues for agent in queue.waiters}
    waits_for = {
        agent.id: [holder.id for holder in holders[agent.id]]
        if agent.id in holders
        else _writers_to_come(execution, agent, op)
        for agent, op in blocked
    }
    names = {agent.id: agent.name for agent in execution.tables.program.agents}
    blocked.sort(key=lambda pair: pair[1].phase in ("launch", "host"))  # what waits inside a kernel comes first
    lines = [str(queue) for queue in queues if queue.waiters]
    alike: dict[str, list[Agent]] = {}
    for agent, op in blocked:
        if agent.id not in holders:
            writers = sorted(waits_for[agent.id], key=lambda writer: writer not in holders)
            alike.setdefault(_stands(execution, agent, op, [names[writer] for writer in writers]), []).append(agent)
    lines += [f"{_several(agents)} wait{'s' if len(agents) == 1 else ''} at {where}" for where, agents in alike.items()]
    cycle = _cycle(waits_for)
    if cycle:
        lines.append("each waits for the next: " + " -> ".join(names[agent] for agent in [*cycle, cycle[0]]))
    return lines


def before_giving_up(execution: Execution) -> Execution | None:
    """The execution up to its first wait that gave up; None: none did, or others could still move then."""
    gave_up = np.flatnonzero(execution.log.op[: execution.steps] == -2)
    if not len(gave_up):
        return None
    tables, engine, steps = execution.tables, engine_of(execution.memory), int(gave_up[0])
    state, log = engine.new_state(execution.static, tables.registers), m.new_log(execution.static, m.LEVEL_FULL)
    choices = execution.log.choice[:steps]
    outcome = engine.run(execution.static, state, log, m.REPLAY, choices=choices, max_steps=steps)
    first = (
        len(tables.agent_start) + tables.program.world**2
    )  # of the entities that are timeouts (see `interleaved.run`)
    giving_up = range(first, first + len(tables.agent_start))
    if not all(entity in giving_up for entity in engine.movable(execution.static, state)):
        return None
    return Execution(tables, execution.memory, outcome, steps, log, state, execution.static)


@dataclass(frozen=True)
class Crowd:
    """Blocks that hold or want the slots of one GPU when nothing can move.

    Attributes:
        slots: The GPU and its slots.
        blocks, waiting: How many blocks hold or want one; how many of them found none.
        launches: Of how many launches.
    """

    slots: Residency
    blocks: int
    waiting: int
    launches: int

    @property
    def fitting(self) -> int:
        """Blocks a launch that all find a slot."""
        return self.slots.count // self.launches


def crowds(execution: Execution) -> list[Crowd]:
    """The GPUs on which blocks find no slot, at the end of an execution in which nothing can move any more."""
    blocked = list(_blocked(execution))
    found = []
    for slots in execution.tables.program.residency:
        queue = _Queue.of(execution, slots, blocked)
        waiting_, all_ = _whole(queue.waiters), _whole([*queue.holders, *queue.waiters])
        if waiting_:
            found.append(Crowd(slots, len(all_), len(waiting_), len({(agent.rank, agent.sequence) for agent in all_})))
    return found


@dataclass(frozen=True)
class _Queue:
    """Blocks that hold the slots of a GPU, and those that wait for one."""

    slots: Residency
    holders: list[Agent]
    waiters: list[Agent]

    @classmethod
    def of(cls, execution: Execution, slots: Residency, blocked: list[tuple[Agent, Op]]) -> _Queue:
        agents = execution.tables.program.agents
        return cls(
            slots,
            [agent for agent in agents if _holds(execution, slots, agent)],
            [agent for agent, op in blocked if op.phase == "launch" and _is_slot(slots, op)],
        )

    def __str__(self) -> str:
        several = self.slots.count > 1
        held = f"{self.slots.count} slots are" if several else "only slot is"
        holders, waiters = _several(_whole(self.holders)), _several(_whole(self.waiters))
        return (
            f"GPU {self.slots.gpu}: its {held} held by {holders}; waiting for {'one' if several else 'it'}: {waiters}"
        )


def _whole(agents: list[Agent]) -> list[Agent]:
    """One agent for each block, named as the block."""
    return [replace(agent, kind="block") if agent.kind == "wave" else agent for agent in agents if not agent.wave]


def _is_slot(slots: Residency, op: Op) -> bool:
    return isinstance(op, (Wait, Rmw)) and op.word.region.id in slots.words


def _holds(execution: Execution, slots: Residency, agent: Agent) -> bool:
    """Whether the block of this agent, its wave 0, has started and not yet given its slot back."""
    if agent.wave or not any(op.phase == "kernel end" and _is_slot(slots, op) for op in agent.ops):
        return False
    launch = max(k for k, op in enumerate(agent.ops) if op.phase == "launch")
    back = max(k for k, op in enumerate(agent.ops) if op.phase == "kernel end" and _is_slot(slots, op))
    done = execution.log.op[: execution.steps] - int(execution.tables.agent_start[agent.id])
    return bool(np.any(done == launch)) and not np.any(done == back)


def _several(agents: list[Agent]) -> str:
    """Names of agents, blocks in a row as one."""
    numbered = list(enumerate(sorted(agents, key=lambda a: (a.rank, a.sequence, a.wave, a.block))))
    rows = groupby(numbered, lambda p: (p[1].rank, p[1].kind, p[1].sequence, p[1].wave, p[1].block - p[0]))
    return " and ".join(_row([agent for _, agent in row]) for _, row in rows)


def _row(row: list[Agent]) -> str:
    first = row[0]
    if len(row) == 1:
        return first.name
    wave = f" wave {first.wave}" if first.kind == "wave" else ""
    return f"rank {first.rank} blocks {first.block}..{row[-1].block}{wave}, call {first.call}"


def _blocked(execution: Execution) -> Iterator[tuple[Agent, Op]]:
    """Agents that have started and not finished, each with the operation it stands at."""
    tables, state = execution.tables, execution.state
    for agent in tables.program.agents:
        pc = int(state.pc[agent.id])
        launched = agent.kind == "host" or pc != int(tables.agent_start[agent.id])
        if launched and pc < int(tables.agent_end[agent.id]):
            yield agent, tables.op(pc)


def _stands(execution: Execution, agent: Agent, op: Op, writers: list[str]) -> str:
    """Where an agent stands and what it waits for; `writers` may still write it."""
    tables = execution.tables
    pc = int(execution.state.pc[agent.id])
    text = f"op {int(tables.ops[pc, t.POSITION])}: {op.describe()} ({op.site})"
    if isinstance(op, WaitStamp):
        gone = _packet_met_and_gone(execution, agent, op)
        return f"{text}; {gone}" if gone else text + _to_come(writers)
    if not isinstance(op, Wait):
        return text
    held = ", ".join(str(int(execution.state.word[word])) for word in _looked_at(execution, agent, op))
    text += f"; it holds {held}"
    gone = _met_and_gone(execution, agent, op)
    if gone:
        return f"{text}; {gone}"
    return text + _to_come(writers)


def _to_come(writers: list[str]) -> str:
    if not writers:
        return "; nobody will write it any more"
    more = f" and {len(writers) - 3} more" if len(writers) > 3 else ""
    return f"; still to be written by {', '.join(writers[:3])}{more}"


def _looked_at(execution: Execution, agent: Agent, op: Wait) -> Sequence[int]:
    """Ids of the words that an agent looks at now."""
    pc = int(execution.state.pc[agent.id])
    if op.others:
        return execution.tables.words_of(pc)
    first = int(words.address.py_func(execution.static, execution.state, pc, agent.id))
    return range(first, first + op.word.count)


def _words(tables: Tables, ref: WordRef) -> list[int]:
    """Word ids that a reference can name."""
    base = int(tables.word_base[ref.region.id])
    _, (indices,) = enumerate_index(ref.index)
    return sorted({base + index + k for index in indices for k in range(ref.count)})


def _writers_to_come(execution: Execution, agent: Agent, op: Op) -> list[int]:
    """Agents that have an operation ahead of them that may write what `agent` waits for."""
    if isinstance(op, Wait):
        wanted, regions = set(_looked_at(execution, agent, op)), {ref.region.id for ref in op.words}
    elif isinstance(op, WaitStamp):
        wanted, regions = _elements(op.span), {op.span.region.id}
    else:
        return []
    tables = execution.tables
    found = []
    for other in tables.program.agents:
        at = int(execution.state.pc[other.id]) - int(tables.agent_start[other.id])
        if other.id != agent.id and any(
            wanted & _written(tables, o, region) for o in other.ops[at:] for region in regions
        ):
            found.append(other.id)
    return found


def _written(tables: Tables, op: Op, region: int) -> set[int]:
    """Words, or elements of packets, of a region that an operation may write for others to wait for."""
    if isinstance(op, (Store, Rmw)) and op.word.region.id == region:
        return set(_words(tables, op.word))
    stamps = isinstance(op, Move) and op.stamp is not None and op.dst.region.id == region
    return _elements(op.dst) if stamps else set()


def _elements(span: Span) -> set[int]:
    """Elements that a span may name."""
    _, (starts,) = enumerate_index(span.start)
    return {element for start in starts for element in range(start, start + span.length)}


def _met_and_gone(execution: Execution, agent: Agent, op: Wait) -> str | None:
    """Whether the word met the wait, after the waiter read it last, and was overwritten before the waiter looked."""
    log, tables = execution.log, execution.tables
    wanted = set(_looked_at(execution, agent, op))
    if op.word.count > 1 or op.others:
        return None
    value = _operand(execution, agent, op)
    met = None
    for step in range(execution.steps):
        row = int(log.op[step])
        kind = int(tables.ops[row, t.KIND]) if row >= 0 else -1
        if kind not in (t.LOAD, t.STORE, t.RMW, t.WAIT) or int(log.row[step]) not in wanted:
            continue
        if int(tables.ops[row, t.AGENT]) == agent.id:
            met = None
            continue
        if kind not in (t.STORE, t.RMW):
            continue
        if _meets(execution, agent, int(log.value[step]), value):
            met = step
        elif met is not None:
            by = tables.program.agents[int(tables.ops[row, t.AGENT])].name
            return (
                f"step {met} wrote {int(log.value[met])}, which meets it, and {by} overwrote it with "
                f"{int(log.value[step])} at step {step} before the waiter looked"
            )
    return None


def _packet_met_and_gone(execution: Execution, agent: Agent, op: WaitStamp) -> str | None:
    """Whether a packet met the wait, after the waiter polled it last, and was overwritten before the waiter looked."""
    log, tables = execution.log, execution.tables
    row = int(words.address.py_func(execution.static, execution.state, int(execution.state.pc[agent.id]), agent.id))
    polled = tables.sources[tables.moves[row, t.M_SOURCES]]
    wanted = tables.items[polled : polled + tables.moves[row, t.M_COUNT]]
    value, stamp = _operand(execution, agent, op), clocks(execution).stamp
    met = np.full(len(wanted), -1)  # by cell, the step of the packet
    for step in np.flatnonzero(log.op[: execution.steps] >= 0):
        op_row, move = int(log.op[step]), tables.moves[max(int(log.row[step]), 0)]
        if int(tables.ops[op_row, t.KIND]) == t.WAIT_STAMP and int(tables.ops[op_row, t.AGENT]) == agent.id:
            first = tables.sources[move[t.M_SOURCES]]
            met[np.isin(wanted, tables.items[first : first + move[t.M_COUNT]])] = -1
        if stamp[step] < 0:
            continue
        here = np.isin(wanted, tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]])
        if _meets(execution, agent, int(stamp[step]), value):
            met[here] = step
        elif np.any(met[here] >= 0):
            sent = int(met[here].max())
            by = tables.program.agents[int(tables.ops[op_row, t.AGENT])].name
            return (
                f"the packet of step {sent} had stamp {int(stamp[sent])}, which meets it, and {by} overwrote it with "
                f"stamp {int(stamp[step])} at step {step} before the waiter looked"
            )
    return None


def _operand(execution: Execution, agent: Agent, op: Wait | WaitStamp) -> int:
    pc = int(execution.state.pc[agent.id])
    return int(words.wanted.py_func(execution.static, execution.state, pc, agent.id))


def _meets(execution: Execution, agent: Agent, value: int, wanted: int) -> bool:
    """Whether a word or a stamp meets the wait that an agent stands at."""
    tables = execution.tables
    fn = int(tables.ops[int(execution.state.pc[agent.id]), t.FN])
    return bool(words.met.py_func(tables.tests, fn, value, wanted))


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
