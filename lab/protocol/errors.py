"""Errors in a protocol, reported with the line of the user's source."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import FrameType

from lab.errors import LabError
from lab.protocol.expr import RegisterError
from lab.protocol.program import Site

_ROOM = Path(__file__).parent
# The hosts of `scenario.py` are text that a user could have written, so their lines are shown.
_LANGUAGE = frozenset(
    str(path)
    for path in (_ROOM / "errors.py", _ROOM / "expr.py", *(_ROOM / "language").glob("*.py"))
    if path.name != "scenario.py"
)
_PYTHON = str(Path(traceback.__file__).parent)
_WRITTEN = ("library", "seed", "published")  # rooms of what is written in the language


class ProtocolError(LabError):
    """A protocol that cannot be recorded or compiled. The message begins with the line it is about."""

    def __init__(self, what: str, *, value: object = None, site: Site | None = None, hint: str | None = None) -> None:
        where = f"{site.file}:{site.line}: " if site else ""
        shown = f"line: {site.text}" if site and site.text else None
        super().__init__(f"{where}{what}", value=value, hint="\n  ".join(filter(None, (shown, hint))) or None)
        self.site = site


def user_site() -> Site:
    """Where the user's text is: the innermost line outside the language, and the protocol's line that led there."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _LANGUAGE:
        frame = frame.f_back
    if frame is None:
        return Site("<unknown>", 0, "")
    inner = outer = frame
    while frame is not None and frame.f_code.co_filename not in _LANGUAGE:
        outer, frame = frame, frame.f_back
    code, called_at = inner.f_code, outer.f_lineno if outer is not inner else 0
    return _site(code.co_filename, inner.f_lineno, called_at, outer.f_code.co_filename, code.co_name)


def site_of(problem: BaseException) -> Site | None:
    """Where the user's text is that raised `problem`: the innermost line outside the language; None: nowhere.

    What the text calls of Python's own library is not meant, unless it is all there is.
    """
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename not in _LANGUAGE]
    lines = [frame for frame in lines if not frame.filename.startswith(("<frozen", _PYTHON))] or lines
    return _site(lines[-1].filename, lines[-1].lineno or 0, 0, "", "") if lines else None


def raised_in_text(problem: BaseException, text: str = "the protocol") -> BaseException:
    """What a user's text raised, as an error with its line; what nobody's text raised, itself."""
    site = site_of(problem)
    if site is None:
        return problem
    if isinstance(problem, SystemExit):
        return ProtocolError(f"{text} ends the whole program (SystemExit)", value=problem.code, site=site)
    if isinstance(problem, RegisterError):
        return ProtocolError(str(problem), site=site)
    return ProtocolError(f"{type(problem).__name__}: {problem}", site=site)


def site_of_frame(frame: FrameType | None) -> Site | None:
    """The innermost line of a protocol's text on a stack that is running; None: it runs none."""
    while frame is not None:
        if is_text(frame.f_code.co_filename):
            return _site(frame.f_code.co_filename, frame.f_lineno, 0, "", "")
        frame = frame.f_back
    return None


@cache
def is_text(file: str) -> bool:
    """Whether a file is the text of a protocol: one of the lab's protocols, or a file of neither the lab nor Python."""
    path = Path(file)
    if path.is_relative_to(_ROOM.parent):
        return path.is_relative_to(_ROOM) and path.parent.name in _WRITTEN and path.name != "__init__.py"
    libraries = {path for name, path in sysconfig.get_paths().items() if "lib" in name}
    return not file.startswith(("<", *libraries)) and "site-packages" not in path.parts and path.is_file()


@cache
def _site(file: str, line: int, called_at: int, called_in: str, function: str) -> Site:
    return Site(file, line, linecache.getline(file, line).strip(), called_at, called_in, function)
