"""Where regions are declared and used in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lab.sim.change.repairs.scene import Scene
from lab.sim.change.text.source import Source, Splice

_DECLARING = frozenset({"payload", "words"})


def declarations(scene: Scene, name: str) -> list[tuple[Source, ast.Call]]:
    """The declarations of a region by its name in plain text."""
    return [
        (source, call)
        for source in scene.texts.sources.values()
        for call in source.calls(source.tree, _DECLARING)
        if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == name
    ]


def uses(scene: Scene, name: str) -> Iterator[tuple[Source, ast.Attribute]]:
    """Each `something.name` of the text."""
    for source in scene.texts.sources.values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                yield source, node


def named_by_text(scene: Scene, name: str) -> bool:
    """Whether the region may be reached in ways that `uses` does not see: `getattr`, or its name in a table."""
    declared = {id(call.args[0]) for _, call in declarations(scene, name)}
    return any(
        isinstance(node, ast.Constant) and node.value == name and id(node) not in declared
        for source in scene.texts.sources.values()
        for node in ast.walk(source.tree)
    )


def with_dimension(scene: Scene, name: str, dimension: str, extent: int, index: str) -> tuple[Splice, ...] | None:
    """A region with one more leading dimension, in its declaration and at every use; `{b}` in `index` is the block.

    None: not every use can be changed.
    """
    if named_by_text(scene, name):
        return None
    splices: list[Splice] = []
    for source, call in declarations(scene, name):
        dims = [k for k in call.keywords if k.arg not in (None, "memory", "elements", "count", "initial")]
        if any(k.arg == dimension for k in dims) or any(k.arg is None for k in call.keywords):
            return None
        if dims:
            at = source.span(dims[0].value)[0] - len(f"{dims[0].arg}=")
            if source.text[at : at + len(dims[0].arg or "")] != dims[0].arg:
                return None
            splices.append(Splice(source.path, at, at, f"{dimension}={extent}, "))
        else:
            last = max([*call.args, *(k.value for k in call.keywords)], key=lambda node: source.span(node)[1])
            end = source.span(last)[1]
            splices.append(Splice(source.path, end, end, f", {dimension}={extent}"))
    for source, node in uses(scene, name):
        actor = scene.actor(source, node)
        splice = None if actor is None else _indexed(source, node, index.format(b=actor))
        if splice is None:
            return None
        splices.append(splice)
    return tuple(splices) if len(splices) > 1 else None


def _indexed(source: Source, node: ast.Attribute, index: str) -> Splice | None:
    """A use of a region with `index` in front of the indices that it has."""
    parent = source.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr == "whole":
        return source.replace(parent, f"{source.segment(node)}[{index}]")
    if isinstance(parent, ast.Attribute):
        return None  # `.elements`, `.words(...)`
    if isinstance(parent, ast.Subscript) and parent.value is node and not isinstance(parent.slice, ast.Slice):
        start = source.span(parent.slice)[0]
        if isinstance(parent.slice, ast.Tuple) and source.text[start] == "(":
            return None
        return Splice(source.path, start, start, f"{index}, ")
    end = source.span(node)[1]
    return Splice(source.path, end, end, f"[{index}]")
