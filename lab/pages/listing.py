"""A protocol's text with the lines marked that a verdict is about."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.protocol.language import scenario
from lab.protocol.program import Program, Site
from lab.protocol.write import Protocol

_LANGUAGE = Path(scenario.__file__).parent


@dataclass(frozen=True)
class Mark:
    """A place in the text, as a verdict writes it (`mine.py:12`), and the finding that it belongs to."""

    place: str
    finding: str


@dataclass(frozen=True)
class Line:
    """One line of text: its number, itself, and the findings that it belongs to."""

    number: int
    text: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """Functions of one file."""

    file: str
    functions: tuple[tuple[Line, ...], ...]


def listings(protocol: Protocol, program: Program, marks: Iterable[Mark]) -> list[Listing]:
    """The functions of a protocol's text that its blocks ran, and the one that declares memory, file by file."""
    sites = {str(op.site): op.site for agent in program.agents for op in agent.ops}
    marked: dict[tuple[str, int], list[str]] = {}
    for mark in marks:
        for place in _places(sites[mark.place]) if mark.place in sites else ():
            found = marked.setdefault(place, [])
            if mark.finding not in found:
                found.append(mark.finding)
    own = {place for a in program.agents if a.kind in ("block", "wave") for op in a.ops for place in _places(op.site)}
    wanted = {*own, *marked, *filter(None, map(_first_line, (protocol.memory, protocol.kernel)))}
    kernel = _first_line(protocol.kernel)
    files = sorted({file for file, _ in wanted}, key=lambda file: (kernel is None or file != kernel[0], file))
    found = []
    for file in files:
        if _LANGUAGE in Path(file).parents:  # the lab's own scenarios
            continue
        functions = _functions(file, {line for name, line in wanted if name == file})
        told = [
            tuple(
                Line(number, linecache.getline(file, number).rstrip("\n"), tuple(marked.get((file, number), ())))
                for number in range(first, last + 1)
            )
            for first, last in functions
        ]
        if told:
            found.append(Listing(file.rsplit("/", 1)[-1], tuple(told)))
    return found


def _places(site: Site) -> list[tuple[str, int]]:
    """The lines of a site: where it stands, and where the helper that holds it was called."""
    inner = [(site.file, site.line)] if site.line else []
    return inner + ([(site.called_in, site.called_at)] if site.called_at else [])


def _first_line(function: Callable[..., object]) -> tuple[str, int] | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _functions(file: str, lines: set[int]) -> list[tuple[int, int]]:
    """(first, last line) of the outermost functions that hold some of the lines, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no text of Python: typed at a prompt, or gone
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if any(first <= line <= node.end_lineno for line in lines):
                found.append((first, node.end_lineno))
    outer = [
        one for one in found if not any(other != one and other[0] <= one[0] <= one[1] <= other[1] for other in found)
    ]
    return sorted(set(outer))
