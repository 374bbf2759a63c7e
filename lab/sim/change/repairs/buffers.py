"""Candidates that take two accesses apart: one more buffer, or a region of its own for one of the two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations, islice

from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.declared import declarations, named_by_text, uses, with_dimension
from lab.sim.change.repairs.scene import Scene
from lab.sim.change.text.source import Source, Splice

_MORE = (1, 2, 3, 4)  # buffers
_GROUPS = 60  # of uses that are given a region of their own, at most


def buffers(scene: Scene, region: str) -> Iterator[Candidate]:
    """Two buffers of a region that take turns; or, of those that do already, one more."""
    for axis, extent in _rings(scene, region):
        yield from _more(scene, region, axis, extent)
    dims = {name for r in scene.program.regions if r.name == region for name, _ in r.shape}
    name = next(n for n in ("parity", "turn", "buffer", "set") if n not in dims)
    what = f"two buffers of {region} that take turns: {name}=2"
    turns = ["{b}.call % 2"] + ([f"({{b}}.call - 1) // {scene.launches} % 2"] if scene.launches > 1 else [])
    for index in turns[::-1]:
        splices = with_dimension(scene, region, name, 2, index)
        if splices:
            yield Candidate(Cost.BUFFER, f"parity {region}", what, splices)


def _rings(scene: Scene, region: str) -> list[tuple[str, int]]:
    """Named dimensions of a region that number neither ranks nor blocks."""
    shape = next((r.shape for r in scene.program.regions if r.name == region), ())
    return [(name, extent) for name, extent in shape if name and extent > 1 and name not in ("source", "block", "rank")]


def _more(scene: Scene, region: str, axis: str, extent: int) -> Iterator[Candidate]:
    """The extent of a dimension, where it is declared and wherever an index is taken modulo the same."""
    for source, call in declarations(scene, region):
        given = next((k.value for k in call.keywords if k.arg == axis), None)
        if given is None:
            continue
        for more in _MORE:
            deeper = f"{more} more buffers" if more > 1 else "one more buffer"
            what = f"{deeper} of {region}: {axis}={extent + more}"
            for splices in (_raised(scene, source, given, extent, more), _raised_uses(scene, given, more)):
                if splices:
                    yield Candidate(Cost.BUFFER, f"more {region} {axis}", what, splices)


def _raised(scene: Scene, source: Source, given: ast.expr, extent: int, more: int) -> tuple[Splice, ...] | None:
    """Where the extent is a number, or a constant of the module: that, so many higher."""
    if isinstance(given, ast.Constant) and given.value == extent:
        splices = [source.replace(given, str(extent + more))]
        for where in scene.texts.sources.values():
            for node in ast.walk(where.tree):
                modulo = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
                if modulo and isinstance(node.right, ast.Constant) and node.right.value == extent:  # type: ignore[attr-defined]
                    splices.append(where.replace(node.right, str(extent + more)))  # type: ignore[attr-defined]
        return tuple(splices)
    if isinstance(given, ast.Name):
        for node in source.tree.body:
            named = isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [given.id]
            if named and isinstance(node.value, ast.Constant) and node.value.value == extent:  # type: ignore[attr-defined]
                return (source.replace(node.value, str(extent + more)),)  # type: ignore[attr-defined]
    return None


def _raised_uses(scene: Scene, given: ast.expr, more: int) -> tuple[Splice, ...] | None:
    """Where the extent is an option: every use of the option, so many more."""
    option = _option(given)
    if option is None:
        return None
    splices = []
    for where in scene.texts.sources.values():
        for node in ast.walk(where.tree):
            if isinstance(node, ast.Subscript) and _option(node) == option:
                splices.append(where.replace(node, f"({where.segment(node)} + {more})"))
    return tuple(splices)


def _option(node: ast.expr) -> str | None:
    """`slots` of `m.options["slots"]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Attribute):
        return None
    if node.value.attr != "options" or not isinstance(node.slice, ast.Constant):
        return None
    return str(node.slice.value)


def separations(scene: Scene, region: str) -> Iterator[Candidate]:
    """A region of its own for what one of the two sides uses, at the lines of one phase each."""
    if named_by_text(scene, region):
        return
    own = scene.fresh(f"{region}_own")
    declared = declarations(scene, region)
    if len(declared) != 1:
        return
    source, call = declared[0]
    statement = next(a for a in source.above(call) if isinstance(a, ast.stmt))
    if not source.stands_alone(statement):
        return
    start, end = source.lines_of(statement)
    literal = source.span(call.args[0])
    text = source.text[start : literal[0]] + f'"{own}"' + source.text[literal[1] : end]
    copy = Splice(source.path, end, end, text if source.text[:end].endswith(("\n", "\r")) else source.newline + text)
    every = [(where, node) for where, node in uses(scene, region) if scene.runs(where, node)]
    for group in islice(_groups(len(every)), _GROUPS):
        chosen = [every[k] for k in group]
        splices = [copy]
        for where, node in chosen:
            at = where.span(node)[1]
            splices.append(Splice(where.path, at - len(region), at, own))
        labels = dict.fromkeys(scene.label(where, node.lineno) for where, node in chosen)
        what = f"a region of its own, beside {region}, at {', '.join(labels)}"
        yield Candidate(Cost.BUFFER, f"own {region}", what, tuple(splices), (region, own))


def _groups(count: int) -> Iterator[tuple[int, ...]]:
    """Uses that may mean a region of their own: a writing and a reading one at least, and not all.

    What remains is the other region, so half of the groups are enough.
    """
    for size in range(2, count - 1):
        for group in combinations(range(count), size):
            if 2 * size < count or 0 in group:
                yield group
