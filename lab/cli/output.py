"""The `--json` convention: stdout carries one JSON document and nothing else; words go to stderr."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class WordsAside(io.TextIOBase):
    """Stands in for stdout where that is for one document: whatever is printed goes to stderr.

    Attributes:
        results: The stdout that takes the document.
        taken: Whether the document was written.
    """

    def __init__(self, results: TextIO) -> None:
        self.results = results
        self.taken = False

    @property
    def encoding(self) -> str:
        """That of stderr, where words go."""
        return sys.stderr.encoding

    def write(self, text: str) -> int:
        """Write words to stderr."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush both streams."""
        sys.stderr.flush()
        self.results.flush()

    def writable(self) -> bool:
        """It is."""
        return True


@contextmanager
def stdout_of_a_command(document: bool) -> Iterator[TextIO]:
    """While a command runs: a stdout that can say every character, and with `document` only takes that one.

    Yields:
        What the command sees as stdout.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not document:
        yield sys.stdout
        return
    with redirect_stdout(WordsAside(sys.stdout)) as aside:
        yield aside


def emit_json(document: object) -> None:
    """Print `document` as JSON on stdout.

    Dataclasses become objects, tuples and arrays lists, numpy scalars numbers.
    JSON has no infinity and no NaN: they become null.
    """
    text = json.dumps(_plain(document), indent=2, allow_nan=False)
    stdout = sys.stdout
    if isinstance(stdout, WordsAside):
        stdout.taken = True
        stdout = stdout.results
    stdout.write(f"{text}\n")


def close_stdout() -> None:
    """Let what is still buffered for a stdout that takes nothing more go nowhere, so that Python ends quietly."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # no file: a stream of the caller's own
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy, without importing it
        return _plain(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")
