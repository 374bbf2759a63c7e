"""Small programs for the tests: litmus text, and programs stripped to the operations that their author wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lab.protocol.language.layout import Buffer, View
from lab.protocol.language.record import span_of
from lab.protocol.program import WHOLE, Branch, Move, Order, Program, Scope
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import RELAXED, SYSTEM, UNCACHED, Block, Declare, Host, protocol
from lab.sim.explore.explore import every_schedule
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.order.races import find_races
from lab.sim.search.canonical import WeakSearch
from lab.sim.search.states import FINISHED

Outcome = dict[str, int]
NAMES = {order.name.lower(): order for order in Order}
SCOPES = {scope.name.lower(): scope for scope in Scope}


def bare(program: Program) -> Program:
    """`program` without its hosts, launches and kernel ends: only the operations that the kernel's author wrote."""
    agents = []
    for agent in program.agents:
        if agent.kind == "host":
            continue
        around = ("launch", "kernel end")
        kept = [k for k, op in enumerate(agent.ops) if op.phase not in around or isinstance(op, Branch)]
        agents.append(replace(agent, id=len(agents), ops=_renumbered(agent.ops, kept)))
    return replace(program, agents=tuple(agents))


def _renumbered(ops: tuple, kept: list[int]) -> tuple:
    """The operations at `kept`, with jumps that lead where they led before."""
    place = [sum(1 for k in kept if k < position) for position in range(len(ops) + 1)]
    renumbered = []
    for position in kept:
        op = ops[position]
        if isinstance(op, Branch):
            op = replace(op, target=place[op.target])
        elif getattr(op, "on_timeout", None) is not None:
            op = replace(op, on_timeout=place[op.on_timeout])
        renumbered.append(op)
    return tuple(renumbered)


def as_waves(program: Program) -> Program:
    """`program` with the blocks of each rank made waves of one block; their chains and operations stay."""
    agents = tuple(
        agent if agent.kind == "host" else replace(agent, kind="wave", wave=agent.block, block=0)
        for agent in program.agents
    )
    return replace(program, agents=agents)


def without(program: Program, agent: int, position: int) -> Program:
    """`program` with one operation of one agent removed."""
    ops = program.agents[agent].ops
    return with_ops(program, agent, _renumbered(ops, [k for k in range(len(ops)) if k != position]))


def with_op(program: Program, agent: int, position: int, **changes: object) -> Program:
    """`program` with fields of one operation changed."""
    ops = list(program.agents[agent].ops)
    ops[position] = replace(ops[position], **changes)
    return with_ops(program, agent, tuple(ops))


def with_ops(program: Program, agent: int, ops: tuple) -> Program:
    """`program` with the operations of one agent replaced."""
    agents = list(program.agents)
    agents[agent] = replace(agents[agent], ops=ops)
    return replace(program, agents=tuple(agents))


def small(
    kernel: Callable[[Block], None],
    *,
    words: Iterable[str] = (),
    payload: dict[str, int | tuple[int, int]] | None = None,
    world: int = 2,
    blocks: int | dict[int, int] = 1,
    inputs: int = 1,
    calls: int = 1,
    stripped: bool = True,
    elements: int = 4,
) -> Program:
    """One launch (or `calls`) a rank of `kernel` over one-word regions and payload buffers that every rank has.

    A kernel finds `inputs` buffers full of its rank's own values in `b.args["inputs"]`. `stripped` leaves out hosts and
    launches.
    """

    def memory(declare: Declare) -> None:
        for name in words:
            declare.words(name)
        for name, length in (payload or {}).items():
            if isinstance(length, tuple):
                declare.payload(name, length[1], UNCACHED, slot=length[0])
            else:
                declare.payload(name, length, UNCACHED)

    def scenario(h: Host) -> None:
        given = [h.input(2 * elements) for _ in range(inputs)]
        count = blocks if isinstance(blocks, int) else blocks.get(h.rank, 0)
        if stripped:
            for name in words:  # a wait on a word that nobody writes is refused; these go with the hosts
                h.store(getattr(h.mine, name), 0, RELAXED, SYSTEM)
        for _ in range(calls):
            if count:
                h.launch(given[0], None, blocks=count, args={"inputs": given})

    made = protocol(memory=memory, blocks=1, scenarios={"once": scenario}, bytes=2 * elements)(kernel)
    program = made.program(made.config(world=world))
    return bare(program) if stripped else program


def move(b: Block, source: View | Buffer, dst: View | Buffer) -> None:
    """Copy all of `source` by this block alone, whatever the grid."""
    b._emit(Move, dst=span_of(dst), sources=(span_of(source),), mapping=WHOLE, stamp=None)


# ---- litmus text


@dataclass(frozen=True)
class Litmus:
    """A litmus program and what its registers are called.

    Attributes:
        program: Its agents, stripped.
        registers: (agent, register) of each named register.
        words: (region id) of each named word.
    """

    program: Program
    registers: dict[str, tuple[int, int]]
    words: dict[str, int]


def litmus(text: str, where: str) -> Litmus:
    """Read a litmus program.

    `text`: threads separated by `|`, each `rank: operation; operation; ...`, with the operations

        x = 1            store           a = x            load into register a
        a = x + 1        atomic add, a gets the old value; `x + 1` alone drops it
        await x >= 1     poll            fence            a fence, acq_rel
        drain            wait for the own loads and stores
        D = new          the rank's own values are copied into payload D
        read D           payload D is read

    A word after the operation is its order (default relaxed, fences acq_rel), `@device` its scope (default system).
    `where`: `x@1 y@0`, the rank whose memory holds each.
    """
    homes = dict(part.split("@") for part in where.split())
    home = {name: int(rank) for name, rank in homes.items()}
    threads: dict[int, list[list[str]]] = {}
    for thread in text.split("|"):
        rank, _, body = thread.partition(":")
        threads.setdefault(int(rank), []).append([op.strip() for op in body.split(";") if op.strip()])
    world = 1 + max(*threads, *home.values(), 1)
    named: dict[str, tuple[int, int, int]] = {}

    def kernel(b: Block) -> None:
        for op in threads[b.rank][b.block]:
            _record(b, op, home, named)

    program = small(
        kernel,
        words=[name for name in home if name.islower()],
        payload={name: 4 for name in home if name.isupper()} | {"sink": 4},
        world=world,
        blocks={rank: len(own) for rank, own in threads.items()},
    )
    by_place = {(agent.rank, agent.block): agent.id for agent in program.agents}
    registers = {name: (by_place[rank, block], register) for name, (rank, block, register) in named.items()}
    regions = {r.name: r.id for r in program.regions if r.kind == "words" and home.get(r.name) == r.rank}
    return Litmus(program, registers, regions)


_OP = re.compile(
    r"(?:(?P<to>[a-w]) = )?(?:(?P<word>[x-z])(?: \+ (?P<add>\d))?)(?: (?P<order>\w+))?(?:@(?P<scope>\w+))?$"
    r"|(?P<st>[x-z]) = (?P<value>\d)(?: (?P<st_order>\w+))?(?:@(?P<st_scope>\w+))?$"
    r"|await (?P<aw>[x-z]) (?P<cond>\S+) (?P<bound>\d)(?: (?P<aw_order>\w+))?(?:@(?P<aw_scope>\w+))?$"
    r"|(?P<drain>drain)$"
    r"|fence(?: (?P<f_order>\w+))?(?:@(?P<f_scope>\w+))?$"
    r"|(?P<new>[A-Z]) = new$|read (?P<read>[A-Z])$"
)


def _record(b: Block, text: str, home: dict[str, int], named: dict[str, tuple[int, int, int]]) -> None:
    found = _OP.match(text)
    assert found, f"not a litmus operation: {text!r}"
    part = found.groupdict()

    def at(name: str):
        return getattr(b.on(home[name]), name)

    if part["st"]:
        order, scope = NAMES[part["st_order"] or "relaxed"], SCOPES[part["st_scope"] or "system"]
        b.store(at(part["st"]), int(part["value"]), order, scope)
    elif part["aw"]:
        order, scope = NAMES[part["aw_order"] or "relaxed"], SCOPES[part["aw_scope"] or "system"]
        b.wait(at(part["aw"]), part["cond"], int(part["bound"]), order, scope)
    elif part["new"]:
        move(b, b.input, at(part["new"]))
    elif part["read"]:
        move(b, at(part["read"]), b.mine.sink)
    elif part["drain"]:
        b.drain()
    elif text.startswith("fence"):
        b.fence(NAMES[part["f_order"] or "acq_rel"], SCOPES[part["f_scope"] or "system"])
    else:
        order, scope = NAMES[part["order"] or "relaxed"], SCOPES[part["scope"] or "system"]
        word = at(part["word"])
        register = b.add(word, int(part["add"]), order, scope) if part["add"] else b.load(word, order, scope)
        if part["to"]:
            named[part["to"]] = (b.rank, b.block, register.index)


def outcomes(test: Litmus, memory: str) -> list[Outcome]:
    """The distinct values of registers and final words over all executions."""
    tables = compile_tables(test.program)
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for registers, words in _all_ends(tables, memory):
        values = {name: int(registers[place]) for name, place in test.registers.items()}
        values |= {name: int(words[tables.word_base[region]]) for name, region in test.words.items()}
        found[tuple(values.items())] = None
    return [dict(values) for values in found]


def _all_ends(tables: Tables, memory: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Registers and words at the end of every execution: of the search under weak, else of every schedule replayed."""
    if memory == "weak":
        search = WeakSearch(tables, reduce=True, stop=False, keep=True)
        assert search.advance(100_000, None) == FINISHED
        yield from ((end.registers, end.words) for end in search.ends())
        return
    engine = Engine(tables, memory)
    schedules, complete = every_schedule(engine)
    assert complete
    for choices in schedules:
        assert engine.follow(choices, m.REPLAY)[0] in (m.DONE, m.HANG)
        yield engine.state.registers, engine.state.word


def shows(found: list[Outcome], wanted: str) -> bool:
    """Whether an outcome like `a=1 b=0` is among those found."""
    want = {name: int(value) for name, value in (part.split("=") for part in wanted.split())}
    return any(want.items() <= outcome.items() for outcome in found)


# ---- running


def races_of(program: Program) -> list[tuple[str, str, str]]:
    """(kind, kind, region) of each race that the race check finds."""
    return [(race.first.kind, race.second.kind, race.region) for race in find_races(compile_tables(program)).races]
