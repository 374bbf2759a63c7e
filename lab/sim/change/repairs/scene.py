"""Where a defect stands in the text: the statements of both accesses, and the places before and after them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lab.protocol.program import Agent, Fence, Load, Move, Op, Program, Rmw, Site, Store, Wait, WaitStamp
from lab.protocol.write import Config, Protocol
from lab.sim.change.edit import SYNCHRONISING, is_barrier, is_own, own_lines
from lab.sim.change.slots import spans_of
from lab.sim.change.text.source import Function, Source, Splice
from lab.sim.change.text.texts import Texts
from lab.sim.order.verdict import Access, Race

VERBS: dict[type[Op], frozenset[str]] = {
    Store: frozenset({"store"}),
    Load: frozenset({"load"}),
    Wait: frozenset({"wait"}),
    Rmw: frozenset({"add", "cas", "rmw"}),
    Fence: frozenset({"fence"}),
    Move: frozenset({"copy", "reduce", "clear"}),
    WaitStamp: frozenset({"wait_stamps"}),
}
_OF_BLOCKS = frozenset(
    {"peers", "leader", "barrier", "copy", "reduce", "mine", "on", "phase", "block", "call", "share", "input", "output"}
)
_OF_HOSTS = frozenset({"launch", "sync", "sizes", "produce", "consume", "wait_stream", "expect", "replay", "capture"})
_DEPTH = 4  # calls from a helper up to the kernel
_PLACES = 6  # on each side of an access


@dataclass(frozen=True)
class Place:
    """Before or after a statement; `actor` is what the block (or the host) is called there."""

    source: Source
    statement: ast.stmt
    before: bool
    actor: str
    label: str

    def write(self, lines: list[str]) -> Splice:
        """New lines there; a block barrier at their ends is left out where one stands already."""
        before, after = self._neighbours
        if len(lines) > 1 and lines[0] == before and _is_barrier(before):
            lines = lines[1:]
        if len(lines) > 1 and lines[-1] == after and _is_barrier(after):
            lines = lines[:-1]
        return self.source.insert(self.statement, self.before, lines)

    @property
    def _neighbours(self) -> tuple[str, str]:
        """The statements that come before and after the place in its body, as text; empty: there is none."""
        blocks = (block for _, block in ast.iter_fields(self.source.parents[self.statement]))
        body = next(block for block in blocks if isinstance(block, list) and self.statement in block)
        at = body.index(self.statement) + (not self.before)
        before = self.source.segment(body[at - 1]) if at else ""
        return before, self.source.segment(body[at]) if at < len(body) else ""

    def loop_name(self, *names: str) -> str:
        """A name for a loop of what is written there."""
        return self.source.free_name(self.statement, names)

    @property
    def where(self) -> str:
        """In words."""
        return f"{'before' if self.before else 'after'} {self.label}"


@dataclass(frozen=True)
class Line:
    """A line of the kernel's own text that does something with words or payload, with an example of what it does."""

    source: Source
    statement: ast.stmt
    call: ast.Call
    op: Op
    label: str


@dataclass(frozen=True)
class Side:
    """One access of a race; `source` and `statement` are None where no text that may be changed holds it."""

    agent: Agent
    position: int
    op: Op
    source: Source | None
    statement: ast.stmt | None

    @property
    def own(self) -> bool:
        """Whether it stands in a kernel's own text, which may be changed."""
        return is_own(self.agent) and self.statement is not None


@dataclass(frozen=True)
class Scene:
    """A text, the program that it makes at one configuration, and what is wrong with that.

    Attributes:
        texts, protocol, config, program: The text and what comes of it.
        race: The race to be closed; None: what is wrong is no race.
        wide: Whether blocks of several are told apart: new words have a dimension of blocks.
        varies: Whether launches have grids of different sizes.
        swapped: Whether the access that the race names second comes first.
    """

    texts: Texts
    protocol: Protocol
    config: Config
    program: Program
    race: Race | None = None
    wide: bool = False
    varies: bool = False
    swapped: bool = False

    # ---- the two accesses

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """The access that should come first, and the other."""
        assert self.race is not None
        first, second = self._side(self.race.first), self._side(self.race.second)
        return (second, first) if self.swapped else (first, second)

    def _side(self, access: Access) -> Side:
        agent = next(agent for agent in self.program.agents if agent.name == access.agent)
        op = agent.ops[access.op]
        source, statement = self.at(op.site)
        return Side(agent, access.op, op, source, statement)

    @property
    def apart(self) -> bool:
        """Whether the accesses belong to different ranks."""
        one, two = self.sides
        return one.agent.rank != two.agent.rank

    @property
    def regions(self) -> tuple[str, ...]:
        """Declared regions that both accesses touch."""
        names = [{span.region.name for _, _, span in spans_of(side.op)} for side in self.sides]
        declared = {r.name for r in self.program.regions if r.source is None}
        return tuple(sorted(names[0] & names[1] & declared))

    @property
    def distance(self) -> int:
        """Launches from the first access to the second."""
        one, two = self.sides
        return two.agent.call - one.agent.call

    @cached_property
    def launches(self) -> int:
        """Launches of kernels a call, where all calls have as many; else 1."""
        launches = max((agent.call for agent in self.program.agents if is_own(agent)), default=1)
        return launches // self.config.calls if launches % self.config.calls == 0 else 1

    # ---- text

    def at(self, site: Site) -> tuple[Source | None, ast.stmt | None]:
        """The statement of an operation; None: no text that may be changed holds it."""
        source = self.texts.source(site.file)
        return source, None if source is None else source.statement(site.line)

    def label(self, source: Source, line: int) -> str:
        """A line as the author knows it."""
        place = self.texts.origin(source.code_name, line)
        name = source.path.rsplit("/", 1)[-1]
        return f"{name}:{place[1]}" if place else f"what was added to {name}"

    @cached_property
    def lines(self) -> list[Line]:
        """Lines that synchronise, in the kernels' own text."""
        return self._lines({op.site: op for op in reversed(list(own_lines(self.program).values()))}.values())

    @cached_property
    def payload(self) -> list[Line]:
        """Lines that move payload, in the kernels' own text."""
        own = [agent for agent in self.program.agents if is_own(agent)]
        return self._lines(op for agent in own for op in agent.ops if isinstance(op, (Move, WaitStamp)))

    def _lines(self, ops) -> list[Line]:
        found: dict[tuple[str, int, int], Line] = {}
        for op in ops:
            if is_barrier(op):
                continue
            source, statement = self.at(op.site)
            if source is None or statement is None:
                continue
            calls = [c for c in source.calls(statement, VERBS[type(op)]) if c.lineno <= op.site.line]
            calls = [c for c in calls if op.site.line <= (c.end_lineno or c.lineno)]
            if len(calls) == 1:
                key = (source.path, calls[0].lineno, calls[0].col_offset)
                label = self.label(source, op.site.line)
                found.setdefault(key, Line(source, statement, calls[0], op, label))
        return list(found.values())

    def strength(self, line: Line) -> list[Op]:
        """All operations of a line."""
        return self._by_site[line.op.site.file, line.op.site.line, type(line.op)]

    @cached_property
    def _by_site(self) -> dict[tuple[str, int, type[Op]], list[Op]]:
        found: dict[tuple[str, int, type[Op]], list[Op]] = defaultdict(list)
        for agent in self.program.agents:
            for op in agent.ops:
                if isinstance(op, (*SYNCHRONISING, Move, WaitStamp)):
                    found[op.site.file, op.site.line, type(op)].append(op)
        return found

    # ---- places

    def actor(self, source: Source, node: ast.AST, host: bool = False) -> str | None:
        """What the block, or the host, is called at a node: the parameter that has its verbs."""
        wanted = _OF_HOSTS if host else _OF_BLOCKS
        for function in source.enclosing(node):
            for arg in (*function.args.posonlyargs, *function.args.args):
                uses = (
                    n.attr
                    for n in ast.walk(function)
                    if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == arg.arg
                )
                if not wanted.isdisjoint(uses):
                    return arg.arg
        return None

    def places(self, side: Side, before: bool) -> list[Place]:
        """Before or after an access: at its statement, around the loops that hold it, where its helper is called."""
        if not side.own:
            return []
        assert side.source is not None and side.statement is not None
        return self.around(side.source, side.statement, before)

    def around(self, source: Source, statement: ast.stmt, before: bool, host: bool = False) -> list[Place]:
        """As `places`, of any statement."""
        found: dict[tuple[str, int], Place] = {}
        for where, level in self._levels(source, statement, _DEPTH):
            actor = self.actor(where, level, host)
            if actor is None or not where.stands_alone(level):
                continue
            line = level.lineno if before else (level.end_lineno or level.lineno)
            place = Place(where, level, before, actor, self.label(where, line))
            start, end = where.lines_of(level)
            found.setdefault((where.path, start if before else end), place)
        return list(found.values())[:_PLACES]

    def _levels(self, source: Source, statement: ast.stmt, depth: int) -> Iterator[tuple[Source, ast.stmt]]:
        chain = source.chain(statement)
        for place, level in enumerate(chain):
            if not any(source.over_peers(outer) for outer in chain[place + 1 :]):
                yield source, level
        functions = source.enclosing(statement)
        if depth and functions:
            for caller, call in self.callers(functions[0]):
                yield from self._levels(caller, call, depth - 1)

    def callers(self, function: Function) -> list[tuple[Source, ast.stmt]]:
        """Statements inside functions that call a function of the text by its name."""
        found: dict[ast.stmt, Source] = {}
        for source in self.texts.sources.values():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Call) and _called(node) == function.name:
                    statement = next((a for a in source.above(node) if isinstance(a, ast.stmt)), None)
                    inside = source.enclosing(node)
                    if statement is not None and inside and function not in inside:
                        found.setdefault(statement, source)
        return [(source, statement) for statement, source in found.items()]

    def kernels(self) -> list[tuple[Source, Function]]:
        """The functions of the text that are launched."""
        found = []
        for source in self.texts.sources.values():
            for function in source.functions:
                if function.name in self._launched:
                    found.append((source, function))
        return found

    def runs(self, source: Source, node: ast.AST) -> bool:
        """Whether a node stands in a kernel of this protocol, or in a function that one calls."""
        return any((source.path, function.name) in self._reached for function in source.enclosing(node))

    @cached_property
    def _reached(self) -> frozenset[tuple[str, str]]:
        open_ends = self.kernels()
        reached: set[tuple[str, str]] = set()
        while open_ends:
            source, function = open_ends.pop()
            if (source.path, function.name) in reached:
                continue
            reached.add((source.path, function.name))
            names = {_called(node) for node in ast.walk(function) if isinstance(node, ast.Call)}
            open_ends += [(s, f) for s in self.texts.sources.values() for f in s.functions if f.name in names]
        return frozenset(reached)

    @cached_property
    def _launched(self) -> frozenset[str]:
        named = {self.protocol.kernel.__name__}
        for source in self.texts.sources.values():
            for call in source.calls(source.tree, frozenset({"launch", "capture"})):
                named |= {k.value.id for k in call.keywords if k.arg == "kernel" and isinstance(k.value, ast.Name)}
        return frozenset(named)

    # ---- declarations

    @cached_property
    def memory(self) -> tuple[Source, Function] | None:
        """The function that declares what a rank owns; None: it cannot be found in the text."""
        code = getattr(self.protocol.memory, "__code__", None)
        source = None if code is None else self.texts.source(code.co_filename)
        function = None if source is None else source.function_at(code.co_firstlineno)
        return None if source is None or function is None else (source, function)

    def declare(self, *declarations: str) -> Splice | None:
        """Lines at the end of the memory function, `{m}` being its argument; None: there is no such function."""
        if self.memory is None:
            return None
        source, function = self.memory
        last = function.body[-1]
        if isinstance(last, ast.Return) or not function.args.args or not source.stands_alone(last):
            return None
        name = function.args.args[0].arg
        return source.insert(last, False, [line.format(m=name) for line in declarations])

    def fresh(self, name: str) -> str:
        """`name`, with a number behind it if a region is called so."""
        taken = {region.name for region in self.program.regions}
        return next(n for n in (name, *(f"{name}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)


def _is_barrier(text: str) -> bool:
    return text.endswith(".barrier()") and "\n" not in text


def _called(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def argument(call: ast.Call, place: int, keyword: str) -> ast.expr | None:
    """An argument of a call, given by place or by name."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    plain = not any(isinstance(a, ast.Starred) for a in call.args[: place + 1])
    return call.args[place] if plain and place < len(call.args) else None


def with_keyword(source: Source, call: ast.Call, keyword: str, value: str) -> Splice:
    """The call with a keyword argument, which it may have already."""
    for given in call.keywords:
        if given.arg == keyword:
            return source.replace(given.value, value)
    last = max([*call.args, *(k.value for k in call.keywords)], key=lambda node: source.span(node)[1])
    end = source.span(last)[1]
    return Splice(source.path, end, end, f", {keyword}={value}")
