"""The states of a search on disk, so that it can go on another time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from lab.errors import LabError

_EVERY = 60.0  # seconds between two checkpoints, at least
_SHARE = 20  # and this many times as long as the last one took to write


class Checkpoint:
    """The file of one search; without a path, none.

    A file that cannot be written ends no search: `said` says so beside what was found.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        self.path = path
        self._identity = identity
        self._next = time.monotonic() + _EVERY
        self._said = ""

    @property
    def due(self) -> bool:
        """Whether it is time to write what there is."""
        return self.path is not None and time.monotonic() >= self._next

    @property
    def said(self) -> str:
        """What a person should know of it, to be added to what was covered."""
        return self._said

    def read(self) -> dict[str, np.ndarray] | None:
        """What an earlier search wrote; None: there is no such file.

        Raises:
            LabError: It cannot be read, or belongs to another search.
        """
        if self.path is None or not self.path.exists():
            return None
        return _read(self.path, self._identity)

    def write(self, parts: dict[str, np.ndarray], last: bool = False) -> None:
        """Write the states found so far, whole or not at all; `last` when the search ends here."""
        if self.path is None:
            return
        started = time.monotonic()
        try:
            _write(self.path, self._identity, parts)
        except OSError as problem:
            self._said = f"; the checkpoint {self.path} could not be written: {problem.strerror or problem}"
        else:
            self._said = f"; to go on from here, repeat the command: {self.path} holds what was found" if last else ""
        now = time.monotonic()
        self._next = now + max(_EVERY, _SHARE * (now - started))


def checkpoint_path(checkpoint: str | Path | None) -> Path | None:
    """The file of a checkpoint, None for none.

    Raises:
        LabError: It could never be written: its folder does not exist, or it is a folder.
    """
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    if path.is_dir():
        raise LabError("the checkpoint is a folder", value=str(path), hint="name a file")
    if not path.parent.is_dir():
        raise LabError("the folder of the checkpoint does not exist", value=str(path.parent), hint="make it first")
    return path


def _write(path: Path, identity: str, parts: dict[str, np.ndarray]) -> None:
    """Write a checkpoint whole or not at all."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            np.savez(file, identity=np.array(identity), **parts)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _read(path: Path, identity: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as stored:
            parts = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as problem:
        # What numpy says of such a file is for programmers; only the system's own word helps.
        why = problem.strerror if isinstance(problem, OSError) else None
        raise LabError(
            "the checkpoint cannot be read",
            value=str(path),
            hint=why or "it is damaged, or no checkpoint; give another file, or delete it to begin again",
        ) from problem
    if str(parts.pop("identity", "")) != identity:
        raise LabError(
            "the checkpoint belongs to another search",
            value=str(path),
            hint="same program, memory model and reduction, or give another file",
        )
    return parts
