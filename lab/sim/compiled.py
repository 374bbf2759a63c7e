"""Where Numba keeps compiled code: a folder a version of the sources.

Numba asks only whether the file that defines a function has changed. Here functions call each other across files and
take constants from the tables' columns, so that a change in one file would leave stale code of another in use, with
wrong results. Hence the folder's name is a digest of all sources that compiled code can see.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import numba

_UNUSED_SECONDS = 30 * 24 * 3600


def keep_compiled_code(folder: Path | None = None) -> Path:
    """Make Numba cache in a folder that belongs to these sources, and forget folders unused for a month.

    Args:
        folder: Where the folders are; None: Numba's configured cache directory, else the user's cache directory.

    Returns:
        The folder of these sources.
    """
    key = digest()
    base = folder or (Path(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else _user_cache())
    for place in (base, Path(tempfile.gettempdir()) / f"research-kernel-lab-{os.getuid()}"):
        try:
            (place / key).mkdir(parents=True, exist_ok=True)
            os.utime(place / key)
        except OSError:
            continue  # not writable: the next place
        numba.config.CACHE_DIR = str(place / key)
        _forget_unused(place, key)
        return place / key
    return Path(numba.config.CACHE_DIR)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "research-kernel-lab" / "numba"


def digest() -> str:
    """Sixteen hex digits over every source that compiled code takes functions or constants from."""
    here = Path(__file__).parent
    protocol = [here.parent / "protocol" / name for name in ("expr.py", "program.py", "tables.py")]
    digest = hashlib.sha256()
    for source in sorted([*here.glob("*.py"), *protocol]):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _forget_unused(place: Path, key: str) -> None:
    now = time.time()
    for other in place.iterdir():
        if other.name != key and len(other.name) == len(key) and now - other.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
