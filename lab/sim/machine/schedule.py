"""A schedule as one line that a person can paste: what was run, on which program, and which agent moved at each step.

    seed_two_shot?blocks=2&calls=1&world=2#memory=sc&program=3f2a9c01d4e7&steps=eJxj...&check=1c291ca3

Before `#` stands the protocol with the parameters that differ from its defaults; after it the memory model, the
fingerprint of the program (so that a line from another version is refused), the steps, and a checksum of the whole. A
step is an entity of `interleaved.run`; the line ends where the schedule does not matter any more: from there each agent
runs on until it blocks.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import numpy as np

from lab.errors import LabError
from lab.protocol.library import load
from lab.protocol.program import Program
from lab.protocol.write import Config, Protocol
from lab.sim.machine.interleaved import MEMORY_MODELS

_MOST = 1 << 28  # steps and entities; a program of that size would not fit into memory
_HINT = "paste the whole line, in single quotes, as `lab check` printed it"


@dataclass(frozen=True)
class Schedule:
    """A protocol at a configuration under a memory model, and the steps to repeat (int32 entities)."""

    protocol: str
    config: Config
    memory: str
    fingerprint: str
    steps: np.ndarray

    @staticmethod
    def of(protocol: Protocol, config: Config, program: Program, memory: str, steps: np.ndarray) -> Schedule:
        """The schedule of one execution of `program`, which is `protocol` at `config`."""
        return Schedule(protocol.name, config, memory, program.fingerprint(), steps)

    def line(self, defaults: Config) -> str:
        """The schedule as one line; parameters equal to `defaults` are left out."""
        head = f"{quote(self.protocol, safe='/:.')}?{urlencode(_changed(self.config, defaults))}"
        tail = urlencode({"memory": self.memory, "program": self.fingerprint, "steps": _pack(self.steps)}, safe="=")
        body = f"{head}#{tail}"
        return f"{body}&check={zlib.crc32(body.encode()):08x}"


def parse(line: str, protocol: Protocol | None = None) -> tuple[Schedule, Protocol, Program]:
    """The schedule of a line, its protocol, and the program that it was made for.

    Args:
        line: What `Schedule.line` gave.
        protocol: The protocol that it was made from; None: load it by the name in the line.

    Raises:
        LabError: The line is damaged, or was made from another program.
    """
    text = line.strip()
    body, mark, check = text.rpartition("&check=")
    if not mark or "#" not in body or "?" not in body:
        raise LabError("this is not a schedule line", value=_shortened(text), hint=_HINT)
    if check != f"{zlib.crc32(body.encode()):08x}":
        raise LabError("the schedule line is damaged: its checksum does not match", value=_shortened(text), hint=_HINT)
    head, _, tail = body.partition("#")
    quoted, _, query = head.partition("?")
    reference = unquote(quoted)
    fields = dict(parse_qsl(tail))
    if not {"memory", "program", "steps"} <= fields.keys() or fields["memory"] not in MEMORY_MODELS:
        raise LabError("the schedule line lacks its steps", value=_shortened(text), hint=_HINT)
    protocol = protocol or load(reference)
    try:
        parameters = _parameters(dict(parse_qsl(query)), protocol.defaults)
    except ValueError as problem:
        raise LabError("the parameters of the schedule line are damaged", value=query, hint=_HINT) from problem
    config = protocol.config(**parameters)
    program = protocol.program(config)
    if program.fingerprint() != fields["program"]:
        raise LabError(
            f"the schedule belongs to another version of {reference}",
            value=f"{fields['program']}, the program is now {program.fingerprint()}",
            hint="run `lab check` again for a schedule of the protocol as it is now",
        )
    schedule = Schedule(reference, config, fields["memory"], fields["program"], _unpack(fields["steps"]))
    return schedule, protocol, program


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}...{text[-16:]}"


def _changed(config: Config, defaults: Config) -> dict[str, str]:
    changed: dict[str, str] = {}
    for name, value in config.items():
        if name == "options":
            known = dict(defaults.options)
            changed |= {f"option.{key}": str(v) for key, v in config.options if known.get(key) != v}
        elif value != getattr(defaults, name):
            changed[name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return changed


def _parameters(query: dict[str, str], defaults: Config) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    options: dict[str, object] = {}
    for name, text in query.items():
        if name.startswith("option."):
            key = name.removeprefix("option.")
            options[key] = like(dict(defaults.options).get(key), text)
        elif name == "bytes":
            parameters[name] = tuple(int(part) for part in text.split(","))
        elif name in ("dtype", "scenario"):
            parameters[name] = text
        else:
            parameters[name] = int(text)
    return parameters | {"options": tuple(options.items())}


def like(example: object, text: str) -> object:
    """`text` as a value of the type of `example`, for options given as text.

    Raises:
        LabError: It is none.
    """
    kinds = ((bool, _yes_or_no, "yes or no"), (int, int, "a whole number"), (float, float, "a number"))
    for kind, read, called in kinds:
        if isinstance(example, kind):
            try:
                return read(text)
            except ValueError:
                raise LabError(f"this option takes {called}", value=text) from None
    return text


def _yes_or_no(text: str) -> bool:
    word = text.lower()
    if word not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError
    return word in ("1", "true", "yes")


def _pack(steps: np.ndarray) -> str:
    """Run lengths as variable-length integers, deflated, in URL-safe base64."""
    data = bytearray()
    values = np.asarray(steps, np.int64)
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)] if len(values) else []
    for start, end in pairwise(edges):
        for number in (int(values[start]), int(end - start)):
            while number >= 0x80:
                data.append(number & 0x7F | 0x80)
                number >>= 7
            data.append(number)
    return base64.urlsafe_b64encode(zlib.compress(bytes(data), 9)).decode().rstrip("=")


def _unpack(text: str) -> np.ndarray:
    try:
        data = zlib.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, zlib.error) as problem:
        raise LabError("the steps of the schedule line are damaged", value=_shortened(text), hint=_HINT) from problem
    numbers, current, shift = [], 0, 0
    for byte in data:
        current |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(current)
            current = shift = 0
    entities, counts = numbers[::2], numbers[1::2]
    if shift or len(entities) != len(counts) or max(entities, default=0) >= _MOST or sum(counts) >= _MOST:
        raise LabError("the steps of the schedule line are damaged", value=_shortened(text), hint=_HINT)
    return np.repeat(np.array(entities, np.int32), counts)
