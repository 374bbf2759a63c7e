"""Candidates about waits that are there: compared better, for another number, copied, longer, for what is stored."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator

from lab.protocol.expr import Const
from lab.protocol.program import Cond, Fence, Load, Op, Rmw, Store, Wait, WaitStamp
from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.counting import Counting, by_call, by_launch, by_word
from lab.sim.change.repairs.scene import Line, Place, Scene, argument
from lab.sim.change.text.source import Function, Source, Splice

_PATIENCE = 30  # seconds of a wait that gave up after polls
_BETTER = {Cond.EQ: (Cond.GE, Cond.GE_MOD), Cond.GE: (Cond.GE_MOD,), Cond.GE_SIGNED: (Cond.GE_MOD,)}


def conditions(scene: Scene) -> Iterator[Candidate]:
    """Each wait for a number with a comparison that misses less."""
    for line in (*scene.lines, *scene.payload):
        node = argument(line.call, 1, "cond")
        if not isinstance(line.op, (Wait, WaitStamp)) or node is None:
            continue
        for cond in _BETTER.get(line.op.cond, ()):
            what = f"`{cond.symbol}` instead of `{line.op.cond.symbol}` in the wait at {line.label}"
            yield Candidate(Cost.ORDER, what, what, (line.source.replace(node, f'"{cond.symbol}"'),))


def thresholds(scene: Scene) -> Iterator[Candidate]:
    """Each wait for one more, or one less, such as a credit."""
    for line in scene.lines:
        node = argument(line.call, 2, "value")
        if isinstance(line.op, Wait) and node is not None:
            for sign, said in (("+", "more"), ("-", "less")):
                text = line.source.segment(node)
                text = text if isinstance(node, (ast.Name, ast.Constant, ast.Call, ast.Attribute)) else f"({text})"
                what = f"the wait at {line.label} for one {said}"
                yield Candidate(Cost.ORDER, what, what, (line.source.replace(node, f"{text} {sign} 1"),))


def patience(scene: Scene) -> Iterator[Candidate]:
    """Waits bounded in polls, bounded in time instead."""
    splices, labels = [], []
    for line in scene.lines:
        timed = _timed(line) if isinstance(line.op, Wait) and line.op.bound is not None else []
        splices += timed
        labels += [line.label] * bool(timed)
    if splices:
        what = f"a bound in seconds instead of polls in the waits at {', '.join(dict.fromkeys(labels))}"
        yield Candidate(Cost.ORDER, "patience", what, tuple(splices))


def _timed(line: Line) -> list[Splice]:
    """A wait's bound in seconds, where it is given as `bound=...`, or in its function as `{"bound": ...}`."""
    source, given = line.source, next((k for k in line.call.keywords if k.arg == "bound"), None)
    if given is not None:
        value, end = source.span(given.value)
        start = value - len("bound=")
        timed = source.text[start:end].startswith("bound=")
        return [Splice(source.path, start, end, f"seconds={_PATIENCE}")] if timed else []
    dicts = [n for function in source.enclosing(line.statement) for n in ast.walk(function) if isinstance(n, ast.Dict)]
    return [
        splice
        for node in dicts
        for key, bound in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "bound"
        for splice in (source.replace(key, '"seconds"'), source.replace(bound, str(_PATIENCE)))
    ]


# ---- flags that are always 1


def grow_only(scene: Scene) -> Iterator[Candidate]:
    """Each flag that is set to one value every time, then all of them: the number of the meeting instead, no reset."""
    flags = _constant_flags(scene)
    for names in [(name,) for name in flags] + ([tuple(flags)] if len(flags) > 1 else []):
        lines = [line for line in scene.lines if _word(line.op) in names]
        what = f"{_said(names)}: the number of the meeting, never reset"
        for counted in ("launch", "call", "word"):
            splices = _grown(scene, lines, counted)
            if splices:
                yield Candidate(Cost.ORDER, f"grow {names}", what, splices)


def _said(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"a value of {names[0]} that only grows"
    return f"values of {' and '.join(names)} that only grow"


def _word(op: Op) -> str | None:
    return None if isinstance(op, Fence) else op.word.region.name  # type: ignore[attr-defined]


def _constant_flags(scene: Scene) -> list[str]:
    """Words that the protocol only stores to and waits for, with one number other than 0 and perhaps 0."""
    uses: dict[str, list[Op]] = {}
    for agent in scene.program.agents:
        for op in agent.ops:
            if isinstance(op, (Load, Store, Rmw, Wait)):
                uses.setdefault(op.word.region.name, []).append(op)
    found = []
    for name in dict.fromkeys(_word(line.op) for line in scene.lines if isinstance(line.op, Store)):
        ops = uses[name]  # type: ignore[index]
        if not all(isinstance(op, (Store, Wait)) and isinstance(op.value, Const) for op in ops):
            continue
        values = {op.value.value for op in ops if isinstance(op, Store)}  # type: ignore[union-attr]
        if len(values - {0}) == 1 and any(isinstance(op, Wait) for op in ops):
            found.append(name)
    return found  # type: ignore[return-value]


def _grown(scene: Scene, lines: list[Line], counted: str) -> tuple[Splice, ...] | None:
    """The stores and waits of some flags with a number that grows; None: they cannot be counted so.

    A function that tells, and waits, several times counts each of its meetings.
    """
    splices: list[Splice] = []
    declared: list[str] = []
    by_function: dict[tuple[Source, Function], list[Line]] = {}
    for line in lines:
        functions = line.source.enclosing(line.statement)
        if not functions:
            return None
        by_function.setdefault((line.source, functions[0]), []).append(line)
    for (source, function), own in by_function.items():
        actor = scene.actor(source, own[0].statement)
        raised = [line for line in own if not _is_zero(line)]
        if actor is None:
            return None
        splices += [source.drop(line.statement) for line in own if _is_zero(line)]
        if not raised:
            continue
        first = min((source.chain(line.statement)[-1] for line in raised), key=lambda s: s.lineno)
        place = Place(source, first, True, actor, "")
        counting = _counting(scene, place, counted, function)
        if counting is None:
            return None
        if counting.setup:
            splices.append(place.write(list(counting.setup)))
        declared += counting.declared
        splices += source.importing(set(counting.names))
        for kind in (Store, Wait):
            own_kind = [line for line in raised if isinstance(line.op, kind)]
            turns = sorted(own_kind, key=lambda line: (line.call.lineno, line.call.col_offset))
            for number, line in enumerate(turns, 1):
                splices += _valued(line, _numbered(counting, number, len(turns)))
    if declared:
        written = scene.declare(*declared)
        if written is None:
            return None
        splices.append(written)
    return tuple(dict.fromkeys(splices))


def _counting(scene: Scene, place: Place, counted: str, function: Function) -> Counting | None:
    if counted == "launch":
        return by_launch(place)
    if counted == "call":
        return by_call(scene, place) if scene.launches > 1 else None
    name = "turn" if function.name == scene.protocol.kernel.__name__ else f"turn_of_{function.name}"
    return by_word(scene, place, name)


def _numbered(counting: Counting, number: int, of: int) -> str:
    """The number of one meeting of several a turn."""
    if of == 1:
        return counting.turn
    left = f" - {of - number}" if number < of else ""
    turn = counting.turn if counting.turn.replace(".", "_").isidentifier() else f"({counting.turn})"
    return f"{of} * {turn}{left}"


def _is_zero(line: Line) -> bool:
    value = line.op.value  # type: ignore[attr-defined]
    return isinstance(value, Const) and value.value == 0


def _valued(line: Line, value: str) -> list[Splice]:
    """A store of another value, or a wait for at least that."""
    store = isinstance(line.op, Store)
    node, cond = argument(line.call, 1 if store else 2, "value"), argument(line.call, 1, "cond")
    if node is None or (not store and cond is None):
        return []
    splices = [line.source.replace(node, value)]
    if not store and cond is not None and line.op.cond is not Cond.GE:  # type: ignore[attr-defined]
        splices.append(line.source.replace(cond, '">="'))
    return splices


# ---- waits in other places


def copied(scene: Scene) -> Iterator[Candidate]:
    """Before the second access, a wait that stands elsewhere in its function."""
    for place in scene.places(scene.sides[1], True):
        for line in scene.lines:
            if not isinstance(line.op, Wait) or line.source is not place.source:
                continue
            if line.source.enclosing(line.statement)[:1] != place.source.enclosing(place.statement)[:1]:
                continue
            whole = _with_its_loop(line)
            lines = _lines(line.source, whole)
            what = f"the wait of {line.label} {place.where} too"
            text = place.write([*lines, f"{place.actor}.barrier()"])
            yield Candidate(Cost.WAIT, what, what, (text,))


def _with_its_loop(line: Line) -> ast.stmt:
    """A statement with the loops over ranks that hold nothing else."""
    statement = line.statement
    for above in line.source.chain(line.statement)[1:]:
        if not isinstance(above, ast.For) or above.body != [statement]:
            break
        statement = above
    return statement


def _lines(source: Source, statement: ast.stmt) -> list[str]:
    start, end = source.lines_of(statement)
    return textwrap.dedent(source.text[start:end]).splitlines()


def for_stored(scene: Scene) -> Iterator[Candidate]:
    """Before the second access, a wait for the words of this rank that others store, of this turn or an earlier one."""
    for place in scene.places(scene.sides[1], True):
        for line in scene.lines:
            if not isinstance(line.op, Store) or line.source is not place.source:
                continue
            heard = _heard(scene, line, place)
            for back in (0, 1, 2) if heard else ():
                of = f", {back} turn{'s' if back > 1 else ''} back" if back else ""
                what = f"a wait {place.where} for what {line.label} stores{of}"
                text = place.write([*_minus(heard, back), f"{place.actor}.barrier()"])
                yield Candidate(Cost.WAIT, what, what, (text, *place.source.importing({"ACQUIRE", "SYSTEM"})))


class _Heard(ast.NodeTransformer):
    """A store to `b.on(j).word[..., b.rank]` as the wait for `b.mine.word[..., j]`."""

    def __init__(self, actor: str) -> None:
        self.actor, self.other = actor, ""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`b.on(j)` is this rank."""
        own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == f"{self.actor}.on"
        if own and len(node.args) == 1:
            self.other = ast.unparse(node.args[0])
            return ast.parse(f"{self.actor}.mine", mode="eval").body
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`b.rank` is the other rank."""
        if self.other and ast.unparse(node) == f"{self.actor}.rank":
            return ast.parse(self.other, mode="eval").body
        return self.generic_visit(node)


def _heard(scene: Scene, line: Line, place: Place) -> tuple[list[str], str, str] | None:
    """(loops, word, value) of the wait that hears a store."""
    word, value = argument(line.call, 0, "at"), argument(line.call, 1, "value")
    if word is None or value is None:
        return None
    turned = _Heard(place.actor)
    other = ast.unparse(turned.visit(copy.deepcopy(word)))
    loops = [
        f"for {ast.unparse(above.target)} in {ast.unparse(above.iter)}:"
        for above in reversed(line.source.chain(line.statement)[1:])
        if isinstance(above, ast.For) and line.source.over_peers(above)
    ]
    if not turned.other or scene.actor(line.source, line.statement) != place.actor:
        return None
    return loops, other, ast.unparse(value)


def _minus(heard: tuple[list[str], str, str], back: int) -> list[str]:
    loops, word, value = heard
    wanted = value if back == 0 else f"{value} - {back}" if back == 1 else f"max({value} - {back}, 0)"
    actor = word.split(".")[0]
    body = f'{actor}.leader.wait({word}, ">=", {wanted}, ACQUIRE, SYSTEM)'
    return [*("    " * depth + loop for depth, loop in enumerate(loops)), "    " * len(loops) + body]
