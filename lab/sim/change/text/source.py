"""One file of a protocol's text: its statements, its calls, and where something can be written.

Places in a file are offsets in characters; those of the syntax tree are lines and columns in bytes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_LINE_END = re.compile(r"\r\n|\r|\n")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_LINE = 120  # characters
_PEERS = re.compile(r"\b(peers|world)\b")


@dataclass(frozen=True)
class Splice:
    """Characters `start` to `end` of a file replaced by `new`.

    Attributes:
        path: The file.
        start, end: Offsets in the text as it is.
        new: What stands there instead.
        moved_from: Where `new` comes from, if it was moved or copied there as it is; -1: it is new.
    """

    path: str
    start: int
    end: int
    new: str
    moved_from: int = -1


@dataclass(frozen=True, eq=False)
class Source:
    """One file.

    Attributes:
        path: Where it lies.
        module: The name under which Python knows it.
        text: What it says.
        version: 0 as its author wrote it; a text that was changed has another number.
    """

    path: str
    module: str
    text: str
    version: int = 0

    @property
    def code_name(self) -> str:
        """The file name of its compiled code: of a changed text another, since its lines are others."""
        return self.path if self.version == 0 else f"{self.path}~{self.version}"

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node above each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(end.end() for end in _LINE_END.finditer(self.text))]

    @property
    def newline(self) -> str:
        """How its lines end."""
        found = _LINE_END.search(self.text)
        return found.group() if found else "\n"

    def line_start(self, line: int) -> int:
        """The offset of a line, counted from 1; of the one behind the last, the end."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def line_of(self, offset: int) -> int:
        """The line of an offset."""
        from bisect import bisect_right

        return bisect_right(self._starts, offset)

    def line_text(self, line: int) -> str:
        """A line with its end."""
        return self.text[self.line_start(line) : self.line_start(line + 1)]

    def _offset(self, line: int, column: int) -> int:
        return self.line_start(line) + len(self.line_text(line).encode()[:column].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """Offsets of a node."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    # ---- finding

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    @cached_property
    def functions(self) -> list[Function]:
        """All functions, outer ones first."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that covers a line."""
        covering = [s for s in self._statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
        return min(covering, key=lambda s: ((s.end_lineno or s.lineno) - s.lineno, -s.col_offset), default=None)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes above a node, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def enclosing(self, node: ast.AST) -> list[Function]:
        """The functions around a node, the innermost first."""
        return [above for above in self.above(node) if isinstance(above, Function)]

    def chain(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statement and those around it inside its function, from the inside out."""
        found = [statement]
        for above in self.above(statement):
            if isinstance(above, Function):
                return found
            if isinstance(above, ast.stmt):
                found.append(above)
        return found

    def function_at(self, line: int) -> Function | None:
        """The function whose definition (or first decorator) begins at a line."""
        for function in self.functions:
            if line in (function.lineno, *(decorator.lineno for decorator in function.decorator_list)):
                return function
        return None

    def calls(self, node: ast.AST, verbs: frozenset[str]) -> list[ast.Call]:
        """Calls of methods of some names below a node."""
        return [
            call
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in verbs
        ]

    # ---- writing

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself, so that others can be written before and after it."""
        start, end = self.span(statement)
        before = self.text[self.line_start(statement.lineno) : start]
        after = self.text[end : self.line_start((statement.end_lineno or statement.lineno) + 1)].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def indent(self, statement: ast.stmt) -> str:
        """What stands before a statement in its first line."""
        return self.text[self.line_start(statement.lineno) : self.span(statement)[0]]

    def lines_of(self, statement: ast.stmt) -> tuple[int, int]:
        """Offsets of the whole lines of a statement."""
        return self.line_start(statement.lineno), self.line_start((statement.end_lineno or statement.lineno) + 1)

    def insert(self, statement: ast.stmt, before: bool, lines: list[str]) -> Splice:
        """New lines before or after a statement, at its indentation."""
        start, end = self.lines_of(statement)
        at = start if before else end
        block = "".join(f"{self.indent(statement)}{line}{self.newline}" for line in lines)
        if at == len(self.text) and not self.text.endswith(("\n", "\r")):
            block = self.newline + block
        return Splice(self.path, at, at, block)

    def replace(self, node: ast.expr | ast.stmt, new: str) -> Splice:
        """A node replaced."""
        return Splice(self.path, *self.span(node), new)

    def drop(self, statement: ast.stmt) -> Splice:
        """A statement taken away, with the loops and conditions that hold nothing else."""
        for above in self.above(statement):
            lone = isinstance(above, (ast.For, ast.If, ast.With)) and not getattr(above, "orelse", None)
            if not lone or above.body != [statement]:  # type: ignore[attr-defined]
                break
            statement = above  # type: ignore[assignment]
        start, end = self.lines_of(statement)
        parent = self.parents[statement]
        only = any(block == [statement] for _, block in ast.iter_fields(parent))
        return Splice(self.path, start, end, f"{self.indent(statement)}pass{self.newline}" if only else "")

    def over_peers(self, statement: ast.stmt) -> bool:
        """Whether a statement is a loop over the ranks."""
        return isinstance(statement, ast.For) and bool(_PEERS.search(self.segment(statement.iter)))

    def free_name(self, statement: ast.stmt, names: tuple[str, ...]) -> str:
        """The first of `names` that code at a statement may assign without changing what its function means."""
        function = next(iter(self.enclosing(statement)), None)
        for name in names:
            if function is None or not self._clashes(function, statement, name):
                return name
        return f"{names[-1]}_{len(self._statements)}"

    def _clashes(self, function: Function, statement: ast.stmt, name: str) -> bool:
        """Whether a name is bound around the statement, or read anywhere but in a loop that binds it."""
        if any(self._binds(above, name) for above in self.above(statement)):
            return True
        for node in ast.walk(function):
            if isinstance(node, ast.arg) and node.arg == name:
                return True
            if isinstance(node, ast.Name) and node.id == name:
                if not any(self._binds(above, name) for above in self.above(node)):
                    return True
        return False

    @staticmethod
    def _binds(node: ast.AST, name: str) -> bool:
        targets: list[ast.expr] = []
        if isinstance(node, ast.For):
            targets = [node.target]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            targets = [generator.target for generator in node.generators]
        return any(isinstance(t, ast.Name) and t.id == name for target in targets for t in ast.walk(target))

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that the module binds."""
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            else:
                found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return frozenset(found)

    def importing(self, names: set[str]) -> list[Splice]:
        """What makes names of the language known in the file, as far as they are not."""
        missing = sorted(names - self.bound)
        if not missing:
            return []
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "lab.protocol.write" and node.names[0].name != "*":
                return [self._imports(node, missing)]
        imports = (node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
        anchor = next((node for node in imports if not _future(node)), None)
        if anchor is None:
            return []
        return [self.insert(anchor, False, [f"from lab.protocol.write import {', '.join(missing)}"])]

    def _imports(self, node: ast.ImportFrom, names: list[str]) -> Splice:
        """An import with more names: in order if it is one plain line, else at its end."""
        start, end = self.span(node)
        all_names = sorted({*names, *(alias.name for alias in node.names)}, key=_import_order)
        line = f"from {node.module} import {', '.join(all_names)}"
        if "(" in self.text[start:end] or any(alias.asname for alias in node.names) or len(line) > _LINE:
            at = self.span(node.names[-1])[1]
            return Splice(self.path, at, at, "".join(f", {name}" for name in names))
        return Splice(self.path, start, end, line)


def _import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
