"""Slow and plain second versions of what the simulator computes, sharing no code with it.

* `happens_before`: the relation of one execution as an explicit graph, closed by set union. From C++20's definitions.
* `explore`: every state of a small program under sc, on Python dictionaries, with elements instead of cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.protocol.expr import Expr, evaluate, to_signed
from lab.protocol.program import (
    Agent,
    Branch,
    Cond,
    Expect,
    Fence,
    Fill,
    Load,
    Move,
    Op,
    Program,
    Rmw,
    Scope,
    Set,
    Span,
    Store,
    Wait,
)

# ---- happens-before


@dataclass
class Event:
    """One operation that one agent executed.

    Attributes:
        agent, op: Whose and which.
        word: (region, index) of a word operation.
        seen: The event whose write it read; None: the initial value.
        value: The word read or written.
        wrote: Whether it wrote (a compare-and-swap that fails does not).
        wanted: What a wait compares with.
        before: Events that happen before it.
    """

    agent: Agent
    op: Op
    word: tuple[int, int] | None = None
    seen: int | None = None
    value: int = 0
    wrote: bool = False
    wanted: int = 0
    others: tuple[int | None, ...] = ()
    before: set[int] = field(default_factory=set)


def includes(scope: Scope, a: Agent, b: Agent) -> bool:
    """Whether `scope`, used by agent `a`, includes agent `b`."""
    if a is b or scope == Scope.SYSTEM:
        return True
    if "host" in (a.kind, b.kind) or a.rank != b.rank:
        return False
    return scope == Scope.DEVICE or (scope == Scope.BLOCK and (a.call, a.block) == (b.call, b.block))


def meets(cond: Cond, word: int, value: int) -> bool:
    """Whether a wait for `word cond value` is met."""
    return {
        Cond.EQ: word == value,
        Cond.NE: word != value,
        Cond.GE: word >= value,
        Cond.GE_SIGNED: to_signed(word) >= to_signed(value),
        Cond.GE_MOD: (word - value) % 2**32 < 2**31,
    }[cond]


def happens_before(events: list[Event], initial: dict[tuple[int, int], int], used: dict[int, set[int]]) -> None:
    """Fill in `before` of each event; `used` has the registers that each agent reads."""
    last_of_agent: dict[int, int] = {}
    writes: dict[tuple[int, int], list[int]] = {}  # modification order
    floors: dict[tuple[int, tuple[int, int]], int | None] = {}
    for index, event in enumerate(events):
        earlier = last_of_agent.get(event.agent.id)
        if earlier is not None:
            event.before |= events[earlier].before | {earlier}
        if isinstance(event.op, (Load, Wait, Rmw)):
            order = writes.get(event.word, [])
            for source in _read_from(event, order, events, initial, floors, used):
                if source is not None and includes(event.op.scope, event.agent, events[source].agent):
                    for head in _release_sequence(source, order, events):
                        _synchronise(event, index, head, events)
        elif isinstance(event.op, Fence) and event.op.order.acquires:
            for read in [i for i in _own(index, events) if isinstance(events[i].op, (Load, Wait, Rmw))]:
                for source, order in events[read].__dict__.get("read_from", ()):
                    if includes(events[read].op.scope, events[read].agent, events[source].agent):
                        for head in _release_sequence(source, order, events):
                            _synchronise(event, index, head, events, events[read].op.scope)
        if event.wrote:
            writes.setdefault(event.word, []).append(index)
        last_of_agent[event.agent.id] = index


def _own(index: int, events: list[Event]) -> list[int]:
    return [i for i in range(index) if events[i].agent is events[index].agent]


def _read_from(
    event: Event, order: list[int], events: list[Event], initial: dict, floors: dict, used: dict
) -> list[int | None]:
    """The writes that a read synchronises with: what it saw if that decides something, else what it may have seen."""
    place = (event.agent.id, event.word)
    upto = [None, *order]
    upto = upto[: upto.index(event.seen) + 1]
    floor = floors.get(place)
    allowed = []
    for write in reversed(upto):
        allowed.append(write)
        if write == floor or (write is not None and write in event.before):
            break
    if isinstance(event.op, Wait):
        if event.op.cond == Cond.SUM_LE:
            found = [event.seen, *event.others]
        else:
            met = [
                w
                for w in allowed
                if meets(event.op.cond, initial[event.word] if w is None else events[w].value, event.wanted)
            ]
            found = [met[-1]]
            floors[place] = found[0]
    else:
        floors[place] = allowed[-1]
        found = [event.seen if event.op.dst in used[event.agent.id] else allowed[-1]]
    event.__dict__["read_from"] = [(w, list(order)) for w in found if w is not None]
    return found


def _release_sequence(write: int, order: list[int], events: list[Event]) -> Iterator[int]:
    """`write`, and as long as these are read-modify-writes the writes that they replaced."""
    at = order.index(write)
    while at >= 0:
        yield order[at]
        if not isinstance(events[order[at]].op, Rmw):
            return
        at -= 1


def _synchronise(event: Event, index: int, head: int, events: list[Event], read_scope: Scope | None = None) -> None:
    """An edge from what `head` releases to `event`, if orders and scopes of both sides allow it."""
    write, fence = events[head], isinstance(event.op, Fence)
    if not event.op.order.acquires or not includes(write.op.scope, write.agent, event.agent):
        return
    if not includes(event.op.scope, event.agent, write.agent):
        return
    if fence and not includes(read_scope, event.agent, write.agent):
        return
    if write.op.order.releases:
        released = {head}
    else:
        fences = [i for i in _own(head, events) if isinstance(events[i].op, Fence) and events[i].op.order.releases]
        released = {i for i in fences if includes(events[i].op.scope, write.agent, event.agent)}
    for one in released:
        event.before |= events[one].before | {one}


# ---- all states under sc


@dataclass(frozen=True)
class State:
    """A state of a program: everything that decides what can happen next, and what was read so far."""

    at: tuple[int, ...]
    registers: tuple[tuple[tuple[int, int], ...], ...]
    words: tuple[tuple[tuple[int, int], int], ...]
    elements: tuple[tuple[tuple[int, int], object], ...]
    read: tuple[tuple[tuple[int, int], object], ...]


class Interpreter:
    """Runs a program (without timeouts) one operation at a time under sc, on elements that say where they came from."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sources = {r.id: r.source for r in program.regions if r.kind == "payload"}
        self.initial = {r.id: r.initial for r in program.regions if r.kind == "words"}

    def start(self) -> State:
        n = len(self.program.agents)
        return self._run_local(State((0,) * n, ((),) * n, (), (), ()), range(n))

    def element(self, elements: dict, region: int, index: int) -> tuple:
        """The leaves whose sum the element holds: (input, rank, version, index) or (poison, region, 0, index)."""
        source = self.sources[region]
        first = ("poison", region, 0, index) if source is None else ("input", *source, index)
        return elements.get((region, index), (first,))

    def moves(self, state: State) -> list[tuple[int, State]]:
        """(agent, state after it) of each agent that can execute its next operation."""
        found = []
        for agent in range(len(self.program.agents)):
            after = self._step(state, agent)
            if after is not None:
                found.append((agent, self._run_local(after, [agent])))
        return found

    def finished(self, state: State) -> bool:
        """Whether all agents are done."""
        return all(at >= len(a.ops) for at, a in zip(state.at, self.program.agents, strict=True))

    def _run_local(self, state: State, agents) -> State:
        at, registers = list(state.at), list(state.registers)
        for agent in agents:
            ops = self.program.agents[agent].ops
            while at[agent] < len(ops):
                op = ops[at[agent]]
                known = dict(registers[agent])
                if isinstance(op, Set):
                    known[op.dst] = evaluate(op.value, known)
                    at[agent] += 1
                elif isinstance(op, Branch):
                    at[agent] = at[agent] + 1 if op.cond is not None and evaluate(op.cond, known) else op.target
                elif type(op).__name__ == "Barrier":
                    at[agent] += 1
                else:
                    break
                registers[agent] = tuple(sorted(known.items()))
        return State(tuple(at), tuple(registers), state.words, state.elements, state.read)

    def _step(self, state: State, agent: int) -> State | None:
        ops = self.program.agents[agent].ops
        if state.at[agent] >= len(ops):
            return None
        op, known, words = ops[state.at[agent]], dict(state.registers[agent]), dict(state.words)
        elements, read = dict(state.elements), dict(state.read)
        place = (agent, state.at[agent])
        if isinstance(op, (Load, Store, Rmw, Wait)):
            word = (op.word.region.id, evaluate(op.word.index, known))
            old = words.get(word, self.initial[word[0]])
            if isinstance(op, Wait):
                if op.cond == Cond.SUM_LE:
                    sums = [words.get((word[0], word[1] + k), self.initial[word[0]]) for k in range(op.word.count)]
                    if sum(map(to_signed, sums)) > to_signed(evaluate(op.value, known)):
                        return None
                elif not meets(op.cond, old, evaluate(op.value, known)):
                    return None
            else:
                words[word] = self._written(op, old, known)
                if getattr(op, "dst", None) is not None:
                    known[op.dst] = old
        elif isinstance(op, (Move, Fill, Expect)):
            read[place] = self.payload(op, elements, known)
        return State(
            tuple(p + 1 if a == agent else p for a, p in enumerate(state.at)),
            tuple(tuple(sorted(known.items())) if a == agent else r for a, r in enumerate(state.registers)),
            tuple(sorted(words.items())),
            tuple(sorted(elements.items(), key=lambda item: item[0])),
            tuple(sorted(read.items(), key=lambda item: item[0])),
        )

    def _written(self, op: Op, old: int, known: dict[int, int]) -> int:
        if isinstance(op, Load):
            return old
        value = evaluate(op.value, known)
        if isinstance(op, Store):
            return value
        expected = evaluate(op.expected, known) if op.expected is not None else 0
        results = {
            "add": (old + value) % 2**32,
            "sub": (old - value) % 2**32,
            "max": max(old, value),
            "or": old | value,
            "exchange": value,
            "cas": value if old == expected else old,
        }
        return results[op.fn]

    def payload(self, op: Op, elements: dict, known: dict[int, int]) -> object:
        """Execute a payload operation on `elements`; what it read."""
        if isinstance(op, Expect):
            at = self._elements(op.span, op.mapping, known)
            return tuple(self.element(elements, op.span.region.id, at[k]) for k in sorted(at))
        target = self._elements(op.dst, op.mapping, known)
        if isinstance(op, Fill):
            for k, index in target.items():
                new = ("poison", op.dst.region.id, 0, k) if op.source is None else ("input", *op.source, k)
                elements[op.dst.region.id, index] = (new,)
            return ()
        seen = []
        for k, index in target.items():
            terms = []
            for span in op.sources:
                start = evaluate(span.start, known)
                terms.append(self.element(elements, span.region.id, start + k))
            seen.append(tuple(terms))
            elements[op.dst.region.id, index] = tuple(sorted(leaf for term in terms for leaf in term))
        return tuple(seen)

    def _elements(self, span: Span, mapping, known: dict[int, int]) -> dict[int, int]:
        """{element of the span: element of the region} of the agent's share, as the kernel's threads loop."""
        start, share = evaluate(span.start, known), {}
        whole = span.length // mapping.vector * mapping.vector
        for k in range(span.length):
            thread = (k // mapping.vector if k < whole else k - whole) % mapping.grid
            if mapping.first <= thread < mapping.first + mapping.threads:
                share[k] = start + k
        return share


def explore(program: Program, limit: int = 200_000) -> tuple[set[State], bool]:
    """All final states of `program` under sc, and whether some schedule cannot finish.

    Raises:
        MemoryError: There are more than `limit` states.
    """
    interpreter = Interpreter(program)
    first = interpreter.start()
    known, stack, final, hangs = {first}, [first], set(), False
    while stack:
        state = stack.pop()
        moves = interpreter.moves(state)
        if not moves:
            final.add(state)
            hangs = hangs or not interpreter.finished(state)
        for _, after in moves:
            if after not in known:
                known.add(after)
                stack.append(after)
        if len(known) > limit:
            raise MemoryError
    return final, hangs


def registers_read(agent: Agent) -> set[int]:
    """Registers that some operation of the agent reads."""
    found: set[int] = set()

    def visit(value: object) -> None:
        if isinstance(value, Expr):
            if hasattr(value, "bound"):
                found.add(value.index)
            for name in ("left", "right"):
                if hasattr(value, name):
                    visit(getattr(value, name))
        elif isinstance(value, Span):
            visit(value.start)
        elif type(value).__name__ == "WordRef":
            visit(value.index)
        elif isinstance(value, tuple):
            for part in value:
                visit(part)

    for op in agent.ops:
        for name in op.__dataclass_fields__:
            visit(getattr(op, name))
    return found
