"""Where Numba keeps compiled code: a folder a version of the sources.

Numba asks only whether the file that defines a function has changed. Here functions call each other across files and
take constants from the tables' columns, so that a change in one file would leave stale code of another in use, with
wrong results. Hence the folder's name is a digest of all sources that compiled code can see, and of no others.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numba

from lab.cache import user_cache

_IMPORT = re.compile(r"^\s*from (lab[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)  # the only form used here
_COMPILES = re.compile(r"^from numba import ", re.MULTILINE)
_UNUSED_SECONDS = 30 * 24 * 3600


def keep_compiled_code(folder: Path | None = None) -> Path:
    """Make Numba cache in a folder that belongs to these sources, and forget folders unused for a month.

    Args:
        folder: Where the folders are; None: Numba's configured cache directory, else the user's cache directory.

    Returns:
        The folder of these sources.
    """
    package = Path(__file__).parents[2]
    key = _digest(package, compiled_sources(package))
    base = folder or (Path(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else user_cache() / "numba")
    place = base if _made(base / key) else _fallback(key)
    os.utime(place / key)
    numba.config.CACHE_DIR = str(place / key)
    _drop_damaged(place / key)
    _forget_unused(place, key)
    return place / key


def _made(folder: Path) -> bool:
    """Whether a folder is there now and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _fallback(key: str) -> Path:
    """Where the folders are if not at home: in the temporary directory, in a folder that is this user's alone.

    What lies there is run, so a folder that another user owns, may write to or has put a link for is not taken; then
    the compiled code lives as long as this process.
    """
    place = Path(tempfile.gettempdir()) / f"research-kernel-lab-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    except OSError:
        private = False
    if private and _made(place / key):
        return place
    alone = Path(tempfile.mkdtemp(prefix="research-kernel-lab-"))
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    (alone / key).mkdir()
    return alone


def _drop_damaged(folder: Path) -> None:
    """Delete files of Numba that are empty, cut off or something else, so that what they should hold is made anew.

    Each is a pickle: two known bytes at its beginning and one at its end.
    """
    for file in folder.rglob("*.nb[ci]"):
        with file.open("rb") as opened:
            head = opened.read(2)
            whole = len(head) == 2 and opened.seek(-1, os.SEEK_END) and opened.read(1) == pickle.STOP
        if not whole or head[:1] != pickle.PROTO or head[1] > pickle.HIGHEST_PROTOCOL:
            file.unlink(missing_ok=True)


def digest() -> str:
    """Sixteen hex digits over every source of the simulator and of the language."""
    package = Path(__file__).parents[2]
    return _digest(package, [*_sources(package / "sim"), *_sources(package / "protocol")])


def compiled_sources(package: Path) -> list[Path]:
    """The files of `package`/sim that hold compiled functions, and all files of the package that they import.

    Compiled code takes functions and constants from no other file.
    """
    todo = [path for path in _sources(package / "sim") if _COMPILES.search(path.read_text(encoding="utf-8"))]
    found = set(todo)
    while todo:
        for path in _imported(package, todo.pop().read_text(encoding="utf-8")):
            if path not in found:
                found.add(path)
                todo.append(path)
    return sorted(found)


def _sources(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.py") if "tests" not in path.parts)


def _imported(package: Path, source: str) -> Iterator[Path]:
    """Files of the package that a source imports, wherever in it."""
    for module, names in _IMPORT.findall(source):
        base = package.joinpath(*module.split(".")[1:])
        places = [base, *(base / name for name in re.findall(r"\w+", names))]
        yield from (place.with_suffix(".py") for place in places if place.with_suffix(".py").is_file())


def _digest(package: Path, sources: list[Path]) -> str:
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(str(source.relative_to(package)).encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _forget_unused(place: Path, key: str) -> None:
    now = time.time()
    for other in place.iterdir():
        if other.name != key and len(other.name) == len(key) and now - other.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
