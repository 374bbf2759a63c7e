"""A change of a protocol's text as its author reads it: hunks, a unified diff, and the files written."""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.sim.change.text.texts import LAB, Texts, read
from lab.sim.order.verdict import Hunk, Repair


@dataclass(frozen=True)
class Patch:
    """What becomes of each file that changes.

    Attributes:
        files: (path, text as it was judged, text with the change) of each.
    """

    files: tuple[tuple[str, str, str], ...]

    @staticmethod
    def of(texts: Texts) -> Patch:
        """From the author's text to this one."""
        before = texts.original.sources
        changed = [path for path, source in texts.sources.items() if source.text != before[path].text]
        return Patch(tuple((path, before[path].text, texts.sources[path].text) for path in changed))

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """What changes, in the order of the files and lines."""
        return tuple(hunk for file in self.files for hunk in _hunks(*file))

    @property
    def digests(self) -> tuple[tuple[str, str], ...]:
        """(path, digest of the text as it was judged) of each file."""
        return tuple((path, digest(old)) for path, old, _ in self.files)

    def diff(self) -> str:
        """A short unified diff; files are named by the last part of their paths."""
        return "".join(_diff(Path(path).name, old, new, 1) for path, old, new in self.files)


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def changed_files(repair: Repair) -> list[tuple[str, str, str]]:
    """(path, text as it is, text with the repair) of each file that a repair changes.

    Raises:
        LabError: A file is no longer what was judged, or cannot be read.
    """
    found = []
    for path, judged in repair.texts:
        text, _ = _read(path)
        if digest(text) != judged:
            raise LabError("the file has changed since it was checked, so nothing was written", value=path)
        found.append((path, text, _with(text, [hunk for hunk in repair.hunks if hunk.file == path])))
    return found


def apply(repair: Repair) -> list[str]:
    """Write a repair into the files that it is about; returns their names.

    Raises:
        LabError: A file is no longer what was judged, or cannot be read or written; then none is changed.
    """
    files = changed_files(repair)
    for path, _, new in files:
        _write(path, new.encode(_read(path)[1]))
    return [path for path, _, _ in files]


def of_the_lab(repair: Repair) -> bool:
    """Whether a repair changes a protocol that comes with the lab."""
    return any(Path(path).is_relative_to(LAB) for path, _ in repair.texts)


def write_patch(repair: Repair, name: str) -> str:
    """Write a repair of the lab's own text as a patch for the folder that holds the package; returns `name`.

    Raises:
        LabError: As in `apply`.
    """
    parts = [_diff(str(Path(path).relative_to(LAB.parent)), old, new, 3) for path, old, new in changed_files(repair)]
    try:
        Path(name).write_text("".join(parts), encoding="utf-8")
    except OSError as problem:
        raise LabError("the patch cannot be written", value=name, hint=str(problem)) from problem
    return name


def _diff(name: str, old: str, new: str, context: int) -> str:
    lines = difflib.unified_diff(_lines(old), _lines(new), name, name, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _read(path: str) -> tuple[str, str]:
    try:
        return read(path)
    except (OSError, SyntaxError, UnicodeDecodeError) as problem:
        raise LabError("the file cannot be read any more", value=path, hint=str(problem)) from problem


def _with(text: str, hunks: list[Hunk]) -> str:
    """A text with some hunks; its line ends, and whether the last line has one, stay."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(newline)
    for hunk in sorted(hunks, key=lambda hunk: -hunk.line):
        at = hunk.line - 1
        if tuple(lines[at : at + len(hunk.old)]) != hunk.old:
            raise LabError("the file mixes line ends, so nothing was written", value=hunk.file)
        lines[at : at + len(hunk.old)] = hunk.new
    return newline.join(lines)


def _write(path: str, data: bytes) -> None:
    """The whole file or nothing, with the rights it had."""
    target = Path(path).resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.chmod(name, target.stat().st_mode & 0o7777)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise LabError("the file cannot be written", value=path, hint=str(problem)) from problem


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its end."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(path: str, old: str, new: str) -> Iterator[Hunk]:
    before, after = (text.replace("\r\n", "\n").split("\n") for text in (old, new))
    for tag, lo, hi, at, to in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            yield Hunk(path, lo + 1, tuple(before[lo:hi]), tuple(after[at:to]))
