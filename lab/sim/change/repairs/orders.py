"""Candidates that cost least: stronger orders and scopes, fences, other caches, other mappings."""

from __future__ import annotations

from collections.abc import Iterator

from lab.protocol.expr import enumerate_index
from lab.protocol.program import Cache, Fence, Load, Memory, Move, Op, Order, Rmw, Scope, Store, Wait
from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.declared import declarations
from lab.sim.change.repairs.scene import Line, Place, Scene, argument, with_keyword
from lab.sim.change.slots import spans_of
from lab.sim.change.text.source import Splice

_AT = {"load": 1, "store": 2, "add": 2, "cas": 3, "rmw": 3, "wait": 3, "fence": 0}  # where the order stands


def orders(scene: Scene, scope: Scope) -> Iterator[Candidate]:
    """Each line with the order and the scope that it could have; then all lines of one flag; then all lines."""
    alone = {line: made for line in scene.lines if (made := stronger(scene, line, scope)) is not None}
    for line, (what, splices) in alone.items():
        yield Candidate(Cost.ORDER, f"order {line.label}", f"{what} at {line.label}", tuple(splices))
    words: dict[str, list[Line]] = {}
    for line in alone:
        if not isinstance(line.op, Fence):
            words.setdefault(line.op.word.region.name, []).append(line)  # type: ignore[attr-defined]
    for name, lines in words.items():
        if len(lines) > 1:
            what = f"release and acquire on {name}, at {scope.name.lower()} scope ({_labels(lines)})"
            yield Candidate(Cost.ORDER, f"orders {name}", what, _all(alone, lines))
    if len(words) > 1:
        what = f"release and acquire on {' and '.join(words)}, at {scope.name.lower()} scope"
        yield Candidate(Cost.ORDER, "orders", what, _all(alone, list(alone)))


def every_order(scene: Scene) -> tuple[Splice, ...]:
    """All lines with every order, at system scope: if that is not enough, no order and no fence is."""
    made = {line: found for line in scene.lines if (found := stronger(scene, line, Scope.SYSTEM)) is not None}
    return _all(made, list(made))


def _all(alone: dict[Line, tuple[str, list[Splice]]], lines: list[Line]) -> tuple[Splice, ...]:
    return tuple(dict.fromkeys(splice for line in lines for splice in alone[line][1]))


def _labels(lines: list[Line]) -> str:
    return ", ".join(dict.fromkeys(line.label for line in lines))


def stronger(scene: Scene, line: Line, scope: Scope) -> tuple[str, list[Splice]] | None:
    """What makes a line as strong as it can be, at least at `scope`, in words and as text; None: it is, or none can."""
    ops = scene.strength(line)
    full = {Store: Order.RELEASE, Load: Order.ACQUIRE, Wait: Order.ACQUIRE}.get(type(line.op), Order.ACQ_REL)
    weakest = next((op for op in ops if op.order | full != op.order), None)  # type: ignore[attr-defined]
    narrowest = min(op.scope for op in ops)  # type: ignore[attr-defined]
    place = _AT.get(line.call.func.attr)  # type: ignore[attr-defined]
    if place is None:
        return None
    said, splices, names = [], [], set()
    for wanted, have, at, keyword in (
        (full if weakest else None, weakest and weakest.order, place, "order"),  # type: ignore[attr-defined]
        (scope if narrowest < scope else None, narrowest, place + 1, "scope"),
    ):
        node = argument(line.call, at, keyword)
        if wanted is None:
            continue
        if node is None:
            return None
        said.append(f"{wanted.name.lower()}{' scope' if keyword == 'scope' else ''} instead of {have.name.lower()}")
        splices.append(line.source.replace(node, wanted.name))
        names.add(wanted.name)
    if not splices:
        return None
    return ", ".join(said), [*splices, *line.source.importing(names)]


def fences(scene: Scene, scope: Scope) -> Iterator[Candidate]:
    """A release between the first access and what its agent writes next; an acquire between a read and the second."""
    first, second = scene.sides
    release, acquire = [], []
    if first.own:
        release += scene.places(first, False)
        release += _beside(scene, first.agent.ops[first.position + 1 :], (Store, Rmw), True)
    if second.own:
        acquire += _beside(scene, second.agent.ops[: second.position], (Wait, Load, Rmw), False)
        acquire += scene.places(second, True)
    for order, places in ((Order.RELEASE, release), (Order.ACQUIRE, acquire)):
        for place in places:
            yield fence(place, order, scope)


def fence(place: Place, order: Order, scope: Scope) -> Candidate:
    """A fence at a place."""
    what = f"a fence ({order.name.lower()}, {scope.name.lower()}) {place.where}"
    text = place.write([f"{place.actor}.fence({order.name}, {scope.name})"])
    return Candidate(Cost.FENCE, what, what, (text, *place.source.importing({order.name, scope.name})))


def _beside(scene: Scene, ops: tuple[Op, ...], kinds: tuple[type[Op], ...], before: bool) -> list[Place]:
    """Places beside the lines of some operations."""
    sites = {op.site for op in ops if isinstance(op, kinds)}
    lines = [line for line in scene.lines if any((s.file, s.line) == _where(line) for s in sites)]
    places = [place for line in lines for place in scene.around(line.source, line.statement, before)[:1]]
    return list(dict.fromkeys(places))


def _where(line: Line) -> tuple[str, int]:
    return line.op.site.file, line.op.site.line


def caches(scene: Scene) -> Iterator[Candidate]:
    """Each region in cached memory taken out of it; each line of payload or stores made to bypass the caches."""
    used = {span.region.name for line in scene.payload for _, _, span in spans_of(line.op)}
    used |= {line.op.word.region.name for line in scene.lines if not isinstance(line.op, Fence)}  # type: ignore[attr-defined]
    for name in sorted({r.name for r in scene.program.regions if r.memory is Memory.CACHED and r.name in used}):
        splices = _uncached(scene, name)
        if splices:
            what = f"uncached memory for {name}"
            yield Candidate(Cost.ORDER, what, what, splices)
    for line in (*scene.payload, *scene.lines):
        if isinstance(line.op, (Move, Store)) and line.op.cache is Cache.CACHED:
            what = f"stores that bypass the caches at {line.label}"
            splice = with_keyword(line.source, line.call, "cache", "Cache.BYPASS")
            yield Candidate(Cost.ORDER, what, what, (splice, *line.source.importing({"Cache"})))


def _uncached(scene: Scene, name: str) -> tuple[Splice, ...]:
    splices: list[Splice] = []
    for source, call in declarations(scene, name):
        node = argument(call, 2, "memory")
        declared = (
            with_keyword(source, call, "memory", "UNCACHED") if node is None else source.replace(node, "UNCACHED")
        )
        splices += [declared, *source.importing({"UNCACHED"})]
    return tuple(dict.fromkeys(splices))


def mappings(scene: Scene) -> Iterator[Candidate]:
    """One thread-to-element mapping for both accesses of blocks of one launch."""
    if scene.apart or scene.distance:
        return
    for mine, theirs in (scene.sides, scene.sides[::-1]):
        if not isinstance(mine.op, Move) or not isinstance(theirs.op, Move) or not mine.own:
            continue
        vector = theirs.op.mapping.vector
        line = next((x for x in scene.payload if _where(x) == (mine.op.site.file, mine.op.site.line)), None)
        if line is None or vector == mine.op.mapping.vector or not _aligned(mine.op, vector):
            continue
        like = scene.label(theirs.source, theirs.op.site.line) if theirs.source else str(theirs.op.site)
        what = f"the mapping of {like} at {line.label}, so that a thread meets what it handled itself"
        splice = with_keyword(line.source, line.call, "vector", str(vector))
        yield Candidate(Cost.MAPPING, what, what, (splice,))


def _aligned(op: Op, vector: int) -> bool:
    """Whether every span of an operation starts at a whole vector."""
    return all(start % vector == 0 for _, _, span in spans_of(op) for start in enumerate_index(span.start)[1][0])
