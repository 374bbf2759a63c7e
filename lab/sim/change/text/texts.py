"""The files that a protocol's text is made of, changed or not, and the protocol that they define.

A changed text is run as a module of its own: the user's files and the modules that Python knows stay as they are. Each
of its lines is traced back to the line of the author's text that it was, so that an access in the one is found in the
other.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from lab.errors import LabError
from lab.protocol import program
from lab.protocol.write import Protocol
from lab.sim.change.text.source import Source, Splice

LAB = Path(program.__file__).parents[1]
"""The folder of the lab's own package."""
_OWN_TEXTS = tuple(LAB / "protocol" / room for room in ("library", "published", "seed"))
_VERSIONS = count(1)
Place = tuple[str, int]
"""A file and a line of the author's text."""


@dataclass(frozen=True, eq=False)
class Texts:
    """The files of one protocol.

    Attributes:
        sources: By path; each after those that it imports, the protocol's own last.
        name: What the protocol is called in its module.
        reference: What the user calls it.
        parent: The text that this one was made of by `splices`; None: it is the author's.
        splices: What was changed in the parent.
    """

    sources: dict[str, Source]
    name: str
    reference: str
    parent: Texts | None = None
    splices: tuple[Splice, ...] = field(default=())

    @staticmethod
    def of(protocol: Protocol) -> Texts | None:
        """The text of a protocol; None: it has none that could be changed, such as one made in a notebook's cell."""
        path = Path(protocol.kernel.__code__.co_filename)
        names = [name for name, value in protocol.kernel.__globals__.items() if value_is(value, protocol)]
        if not names or not path.is_file():
            return None
        sources: dict[str, Source] = {}
        try:
            _collect(path, protocol.kernel.__module__, path, sources)
        except (OSError, SyntaxError, UnicodeDecodeError):
            return None  # the file has gone, or is no longer what was run
        return Texts(sources, names[0], protocol.name)

    @property
    def main(self) -> Source:
        """The protocol's own file."""
        return next(reversed(self.sources.values()))

    @property
    def own(self) -> bool:
        """Whether the text belongs to the lab itself."""
        return Path(self.main.path).is_relative_to(LAB)

    @property
    def original(self) -> Texts:
        """The author's text."""
        return self if self.parent is None else self.parent.original

    def source(self, code_name: str) -> Source | None:
        """The file whose compiled code has this name."""
        return next((source for source in self.sources.values() if source.code_name == code_name), None)

    def edited(self, splices: Iterable[Splice]) -> Texts | None:
        """The text with some changes made at once; None: they overlap, or what comes out is no Python."""
        ordered = sorted(dict.fromkeys(splices), key=lambda s: (s.path, s.start, s.end))
        if not ordered:
            return None
        for one, two in pairwise(ordered):
            if one.path == two.path and two.start < one.end:
                return None
        sources = dict(self.sources)
        for path in dict.fromkeys(splice.path for splice in ordered):
            old, parts, at = sources[path], [], 0
            for splice in (s for s in ordered if s.path == path):
                parts += [old.text[at : splice.start], splice.new]
                at = splice.end
            new = replace(old, text="".join((*parts, old.text[at:])), version=next(_VERSIONS))
            try:
                new.tree  # noqa: B018
            except SyntaxError:
                return None
            sources[path] = new
        return replace(self, sources=sources, parent=self, splices=tuple(ordered))

    # ---- back to the author's text

    def origin(self, code_name: str, line: int) -> Place | None:
        """Where a line stands in the author's text; None: it is new, or in none of the files."""
        source = self.source(code_name)
        return None if source is None else self._origin(source.path, line)

    def _origin(self, path: str, line: int) -> Place | None:
        if self.parent is None:
            return path, line
        source = self.sources[path]
        text = source.line_text(line)
        offset = source.line_start(line) + (len(text) - len(text.lstrip()) if text.strip() else 0)
        shift = 0
        for splice in self.splices:
            if splice.path != path:
                continue
            start = splice.start + shift
            if offset < start:
                break
            if offset < start + len(splice.new):
                old = self._inside(splice, offset - start)
                return None if old is None else self.parent._origin(path, self.parent.sources[path].line_of(old))
            shift += len(splice.new) - (splice.end - splice.start)
        return self.parent._origin(path, self.parent.sources[path].line_of(offset - shift))

    def _inside(self, splice: Splice, offset: int) -> int | None:
        """Where a character of a splice comes from."""
        if splice.moved_from >= 0:
            return self.sources_offset(splice, offset)
        return splice.start if splice.end > splice.start else None

    def sources_offset(self, splice: Splice, offset: int) -> int:
        """The offset in the parent of a character that was moved: the same line of it, whatever its indentation."""
        assert self.parent is not None
        old = self.parent.sources[splice.path]
        line = old.line_of(splice.moved_from) + splice.new[:offset].count(old.newline)
        return min(old.line_start(line + 1) - 1, len(old.text) - 1)

    # ---- running it

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol that the text defines.

        Raises:
            LabError: The text cannot be run, or defines no such protocol any more.
        """
        if not any(source.version for source in self.sources.values()):
            raise LabError("this text is the author's, which has been run already", value=self.name)
        module = _run(list(self._to_run()))
        found = vars(module).get(self.name)
        if not isinstance(found, Protocol):
            raise LabError("the changed text defines no such protocol", value=self.name)
        return found.named(self.reference)

    def _to_run(self) -> Iterator[Source]:
        """The changed files and all that import them."""
        stale: set[str] = set()
        for source in self.sources.values():
            if source.version or source is self.main or stale.intersection(_imported(source)):
                stale.add(source.module)
                yield source


def value_is(value: Any, protocol: Protocol) -> bool:
    """Whether a value of a module is the protocol, under whatever name it was loaded."""
    return isinstance(value, Protocol) and value.kernel is protocol.kernel


def read(path: str | Path) -> tuple[str, str]:
    """(text, encoding) of a Python file, its line ends as they are."""
    data = Path(path).read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding), encoding


def _collect(path: Path, module: str, main: Path, sources: dict[str, Source]) -> None:
    """Add a file and, before it, the files of the same text that it imports."""
    source = Source(str(path), module, read(path)[0])
    source.tree  # noqa: B018
    for name in _imported(source):
        known = sys.modules.get(name)
        file = getattr(known, "__file__", None)
        if file and file not in sources and file != str(main) and _belongs(Path(file), main):
            _collect(Path(file), name, main, sources)
    sources[source.path] = source


def _belongs(file: Path, main: Path) -> bool:
    """Whether an imported file is part of the protocol's text: it lies beside it, and is no part of the lab."""
    if file.suffix != ".py":
        return False
    if main.is_relative_to(LAB):
        return any(file.is_relative_to(room) for room in _OWN_TEXTS) and file.name != "__init__.py"
    return file.is_relative_to(main.parent) and not file.is_relative_to(LAB) and "site-packages" not in file.parts


def _imported(source: Source) -> list[str]:
    """Names of the modules that a file imports, or might."""
    names: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return list(dict.fromkeys(names))


def _run(sources: list[Source]) -> ModuleType:
    """Run files as modules, each seeing those before it, and put back what Python knew by their names."""
    known = {source.module: sys.modules.get(source.module) for source in sources}
    attributes: list[tuple[ModuleType, str, object]] = []
    module = ModuleType("none")
    sys.path.insert(0, str(Path(sources[-1].path).parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for source in sources:
                module = ModuleType(source.module)
                module.__file__ = source.path
                sys.modules[source.module] = module
                package, _, short = source.module.rpartition(".")
                if package in sys.modules:
                    attributes.append((sys.modules[package], short, getattr(sys.modules[package], short, None)))
                    setattr(sys.modules[package], short, module)
                exec(compile(source.text, source.code_name, "exec"), vars(module))
    except LabError:
        raise
    except (Exception, SystemExit) as problem:
        raise LabError(f"the changed text raised {type(problem).__name__}: {problem}") from problem
    finally:
        sys.path.pop(0)
        for holder, short, value in reversed(attributes):
            setattr(holder, short, value)
        for name, before in known.items():
            if before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before
    return module


__all__ = ["LAB", "Place", "Texts", "read"]
