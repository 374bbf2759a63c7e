"""The `--json` convention: stdout carries one JSON document and nothing else; words go to stderr."""

import dataclasses
import json
import math
import sys


def emit_json(document: object) -> None:
    """Print `document` as JSON on stdout.

    Dataclasses become objects, tuples and arrays lists, numpy scalars numbers.
    JSON has no infinity and no NaN: they become null.
    """
    json.dump(_plain(document), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


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
