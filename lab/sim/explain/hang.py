"""Why nothing can move any more: who waits for what, who could still write it, and whether it was there and is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from lab.protocol import tables as t
from lab.protocol.expr import Const, enumerate_index
from lab.protocol.program import Agent, Cond, Move, Op, Residency, Rmw, Span, Store, Wait, WaitStamp, WordRef
from lab.protocol.tables import Tables
from lab.sim.explain.history import History, Touch
from lab.sim.machine import interleaved as m
from lab.sim.machine import words
from lab.sim.machine.engines import engine_of
from lab.sim.machine.execution import Execution
from lab.sim.order.kinds import agent_of


@dataclass(frozen=True)
class _Waits:
    """Why an agent stands: what spoiled its wait, else who may still bring what it waits for."""

    spoiled: str | None
    writers: list[int]


def waiting(execution: Execution) -> list[str]:
    """GPUs whose slots have run out; who waits for which word, a line for all that wait alike; a cycle, if any."""
    history = History(execution)
    blocked = list(_blocked(execution))
    queues = [_Queue.of(execution, slots, blocked) for slots in execution.tables.program.residency]
    holders = {agent.id: queue.holders for queue in queues for agent in queue.waiters}
    causes = {agent.id: _cause(history, agent, op) for agent, op in blocked if agent.id not in holders}
    waits_for = {
        agent.id: [holder.id for holder in holders[agent.id]] if agent.id in holders else causes[agent.id].writers
        for agent, _ in blocked
    }
    names = {agent.id: agent.name for agent in execution.tables.program.agents}
    lines = [str(queue) for queue in queues if queue.waiters]
    inside = [(agent, op) for agent, op in blocked if agent.id not in holders and not _for_others(agent, op, waits_for)]
    alike: dict[str, list[Agent]] = {}
    for agent, op in sorted(inside, key=lambda pair: pair[1].phase in _AROUND):
        causes[agent.id].writers.sort(key=lambda writer: writer not in holders)
        alike.setdefault(_stands(history, agent, op, causes[agent.id]), []).append(agent)
    lines += [f"{_several(agents)} wait{'s' if len(agents) == 1 else ''} at {where}" for where, agents in alike.items()]
    behind = [agent for agent, op in blocked if agent.id not in holders and _for_others(agent, op, waits_for)]
    if behind:
        lines.append(f"until these end there wait: {_some([agent.name for agent in behind])}")
    cycle = _cycle(waits_for)
    if cycle:
        lines.append("each waits for the next: " + " -> ".join(names[agent] for agent in [*cycle, cycle[0]]))
    return lines


_NAMED = 3  # agents of many
_AROUND = ("launch", "host")
"""Phases of what waits around kernels, not inside them."""


def _cause(history: History, agent: Agent, op: Op) -> _Waits:
    spoiled = _spoiled(history, agent, op)
    return _Waits(spoiled, [] if spoiled else _writers_to_come(history.execution, agent, op))


def _for_others(agent: Agent, op: Op, waits_for: dict[int, list[int]]) -> bool:
    """Whether an agent merely waits for kernels to end that are stuck themselves."""
    writers = waits_for[agent.id]
    return op.phase in _AROUND and bool(writers) and all(writer in waits_for for writer in writers)


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


def _stands(history: History, agent: Agent, op: Op, waits: _Waits) -> str:
    """Where an agent stands, what it waits for, what came of it, and who may still bring it."""
    tables = history.tables
    pc = int(history.execution.state.pc[agent.id])
    text = f"op {int(tables.ops[pc, t.POSITION])}: {op.describe()} ({op.site})"
    if not isinstance(op, (Wait, WaitStamp)):
        return text
    values = list(history.registers(agent, op.value))
    if isinstance(op, Wait):
        text += f"; it holds {_held(history, agent, op)}"
    text += "".join(f"; {value}" for value in values)
    if waits.spoiled:
        return f"{text}; {waits.spoiled}"
    return text + _to_come(history, agent, [tables.program.agents[writer].name for writer in waits.writers])


def _held(history: History, agent: Agent, op: Wait) -> str:
    """What the words hold that an agent looks at, and of a single one, who wrote it."""
    looked_at = _looked_at(history.execution, agent, op)
    held = ", ".join(str(int(history.execution.state.word[word])) for word in looked_at)
    if len(looked_at) > 1:
        return held
    writes = [touch for touch in history.touches(looked_at[0]) if touch.writes]
    if not writes:
        return f"{held}, as at first"
    last = writes[-1]
    by = "it" if last.agent.id == agent.id else last.agent.name
    return held if str(last.value) != held else f"{held}, which {by} wrote at step {last.step}"


def _to_come(history: History, agent: Agent, writers: list[str]) -> str:
    if not writers:
        return "; nobody will write it any more" + _uneven(history, agent)
    return f"; still to be written by {_some(writers)}"


def _some(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    shown, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _uneven(history: History, agent: Agent) -> str:
    """Where the ranks launch grids of different sizes: how many blocks each has, and which has no such block."""
    grids: dict[int, set[int]] = {}
    for other in history.tables.program.agents:
        if other.kind in ("block", "wave") and other.call == agent.call:
            grids.setdefault(other.rank, set()).add(other.block)
    sizes = {rank: len(blocks) for rank, blocks in sorted(grids.items())}
    if agent.kind not in ("block", "wave") or len(set(sizes.values())) < 2:
        return ""
    lacking = [rank for rank, blocks in sizes.items() if agent.block >= blocks]
    listed = ", ".join(f"rank {rank} has {blocks}" for rank, blocks in sizes.items())
    none = f"; rank {', rank '.join(map(str, lacking))} has no block {agent.block}" if lacking else ""
    return f": the grids of call {agent.call} differ, {listed} block{'s' if list(sizes.values())[-1] > 1 else ''}{none}"


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
    tables, value = execution.tables, _operand(execution, agent, op)

    def may_meet(written: Op) -> bool:
        given = written.stamp if isinstance(written, Move) else written.value if isinstance(written, Store) else None
        known = isinstance(given, Const) and op.cond is not Cond.SUM_LE
        return not known or _meets(execution, agent, given.value, value)

    found = []
    for other in tables.program.agents:
        at = int(execution.state.pc[other.id]) - int(tables.agent_start[other.id])
        ahead = other.ops[at:] if other.id != agent.id else ()
        if any(wanted & _written(tables, o, region) and may_meet(o) for o in ahead for region in regions):
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


# ---- what spoiled a wait


def _spoiled(history: History, agent: Agent, op: Op) -> str | None:
    """Which write took away what an agent waits for before it looked, or brought what never meets it; None: none."""
    if isinstance(op, Wait) and op.word.count == 1 and not op.others:
        return _word_spoiled(history, agent, op)
    if isinstance(op, WaitStamp):
        return _packet_spoiled(history, agent, op)
    return None


def _earlier_self(one: Agent, other: Agent) -> bool:
    """Whether `one` is `other`, in an earlier launch: what that looked at or wrote was an earlier use of the word."""
    place, before = (one.rank, one.block, one.wave, one.kind), (other.rank, other.block, other.wave, other.kind)
    return place == before and one.sequence < other.sequence


def _word_spoiled(history: History, agent: Agent, op: Wait) -> str | None:
    """Of a wait for one word: the write that met it, after the agent last looked, and the one that unmet it."""
    word, wanted = _looked_at(history.execution, agent, op)[0], _operand(history.execution, agent, op)
    met: Touch | None = None
    spoiled: tuple[Touch, Touch] | None = None
    for touch in history.touches(word):
        if _earlier_self(touch.agent, agent) or (touch.agent.id == agent.id and not touch.writes):
            met = spoiled = None
        elif touch.writes and _meets(history.execution, agent, touch.value, wanted):
            met, spoiled = touch, None
        elif touch.writes and met is not None:
            met, spoiled = None, (met, touch)
    if spoiled is None:
        return None
    first, second = spoiled
    return (
        f"{_who(first, agent)} made it {first.value} at step {first.step}, which meets it, and "
        f"{_who(second, agent)} ({second.op.site}) overwrote it with {second.value} at step {second.step}"
        f"{', behind it in the order of memory,' if second.step < first.step else ''} before the waiter looked"
    )


def _who(touch: Touch, agent: Agent) -> str:
    """Who did it, with what, from where the waiting agent stands."""
    if touch.agent.id != agent.id:
        return touch.agent.name
    what = {"add": "addition", "sub": "subtraction"}.get(getattr(touch.op, "fn", ""), "update")
    return f"its own {'store' if isinstance(touch.op, Store) else what}"


def _packet_spoiled(history: History, agent: Agent, op: WaitStamp) -> str | None:
    """Of a wait for stamps: a packet that met it and was overwritten, or that came with a stamp that does not."""
    execution, log, tables = history.execution, history.log, history.tables
    row = int(words.address.py_func(execution.static, execution.state, int(execution.state.pc[agent.id]), agent.id))
    polled = tables.sources[tables.moves[row, t.M_SOURCES]]
    wanted = tables.items[polled : polled + tables.moves[row, t.M_COUNT]]
    value, stamps = _operand(execution, agent, op), history.clocks.stamp
    met, last = np.full(len(wanted), -1), np.full(len(wanted), -1)  # by cell, steps of packets
    gone: tuple[int, int] | None = None
    for step in np.flatnonzero(log.op[: execution.steps] >= 0).tolist():
        op_row, move = int(log.op[step]), tables.moves[max(int(log.row[step]), 0)]
        by = agent_of(execution, step)
        polls = int(tables.ops[op_row, t.KIND]) == t.WAIT_STAMP
        if polls and (by.id == agent.id or _earlier_self(by, agent)):
            first = tables.sources[move[t.M_SOURCES]]
            looked = np.isin(wanted, tables.items[first : first + move[t.M_COUNT]])
            met[looked] = last[looked] = -1
        if stamps[step] < 0:
            continue
        here = np.isin(wanted, tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]])
        if _meets(execution, agent, int(stamps[step]), value):
            met[here], gone = step, None if gone is not None and np.any(here) else gone
        elif np.any(met[here] >= 0):
            gone, met[here] = (int(met[here].max()), step), -1
        last[here] = -1 if _earlier_self(by, agent) else step
    if gone is not None:
        sent, wiped = gone
        own = agent_of(execution, wiped).id == agent.id
        by_whom = "its own packet" if own else agent_of(execution, wiped).name
        return (
            f"the packet of step {sent} had stamp {int(stamps[sent])}, which meets it, and {by_whom} "
            f"({tables.op(int(log.op[wiped])).site}) overwrote it with stamp {int(stamps[wiped])} at step {wiped} "
            "before the waiter looked"
        )
    return _came_unmet(history, agent, last[met < 0])


def _came_unmet(history: History, agent: Agent, packets: np.ndarray) -> str | None:
    """A packet of this call or a later one that is there and does not meet the wait."""
    for step in np.unique(packets[packets >= 0]).tolist():
        by = agent_of(history.execution, step)
        if by.id != agent.id and by.call >= agent.call:
            stamp = int(history.clocks.stamp[step])
            site = history.tables.op(int(history.log.op[step])).site
            return f"the packet of {by.name} ({site}) came at step {step} with stamp {stamp}, which does not meet it"
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
