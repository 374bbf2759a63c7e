"""`docs/verbs.md`: what the text of a protocol can say, made of `reference.md` and the docstrings of the language.

    python -m lab.protocol.reference > docs/verbs.md

A test compares the file with what this makes of the code as it is.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.resources import files

from lab.protocol.language.protocol import protocol
from lab.protocol.language.record import Verbs
from lab.protocol.write import Block, Buffer, Config, Declare, Host, Reg, View

RECORDING: dict[type, tuple[str, ...]] = {Block: ("as_wave", "after_kernel")}
"""Methods that the recording of a program calls, and no text."""


def page() -> str:
    """The page as text."""
    parts = [files("lab.protocol").joinpath("reference.md").read_text(encoding="utf-8")]
    parts += ["## The function", "", _text(protocol), "", *_entries(protocol, "Args"), ""]
    parts += _class("A block: `b`", Block, "b", _own(Block, Verbs), "Verbs of payload, and of the block as a whole.")
    parts += [
        "## Words: `b`, `b.leader`, and a host",
        "",
        "Verbs on words. `b.leader` is thread 0 alone; on `b` the agent does them: the block, or each of its waves.",
        "",
        *_methods(Verbs, "b.leader", _public(Verbs)),
        "",
    ]
    parts += _class(
        "A host: `h`", Host, "h", _own(Host, Verbs), "Verbs of a scenario; the verbs on words work here too."
    )
    parts += _class("Declarations: `m`", Declare, "m", _public(Declare), "")
    parts += _class("A region: `Buffer`", Buffer, "region", _public(Buffer), "")
    parts += _class("A part of one: `View`", View, "view", _public(View), "")
    parts += _class("A configuration: `Config`", Config, "config", (), _CONFIG)
    parts += ["## Values at run time: `Reg`", "", _text(Reg), ""]
    return "\n".join(parts)


_CONFIG = (
    "`@protocol(..., world=2, bytes=64 * KIB)` sets defaults, the command line (`--world 4 --bytes 64KiB`) and "
    "`protocol.config(world=4)` change them; `h.config` and the function `accepts` see them."
)


def _class(title: str, owner: type, name: str, methods: tuple[str, ...], words: str) -> Iterator[str]:
    yield from (f"## {title}", "")
    if words:
        yield from (words, "")
    attributes = list(_entries(owner, "Attributes"))
    if attributes:
        yield from (*attributes, "")
    if methods:
        yield from (*_methods(owner, name, methods), "")


def _public(owner: type) -> tuple[str, ...]:
    """Names that a text may use, in the order of the source."""
    hidden = RECORDING.get(owner, ())
    return tuple(name for name in vars(owner) if not name.startswith("_") and name not in hidden and _said(owner, name))


def _own(owner: type, base: type) -> tuple[str, ...]:
    return tuple(name for name in _public(owner) if name not in vars(base) or name == "ret")


def _said(owner: type, name: str) -> bool:
    return isinstance(vars(owner)[name], property) or inspect.isfunction(vars(owner)[name])


def _methods(owner: type, name: str, methods: tuple[str, ...]) -> Iterator[str]:
    for method in methods:
        member = vars(owner)[method]
        call = "" if isinstance(member, property) else _signature(member)
        yield f"* **`{name}.{method}{call}`**: {_text(member)}"


_STARS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _signature(function: Callable[..., object]) -> str:
    """The arguments without their types, defaults as the text would write them."""
    shown = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        star = _STARS.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        shown.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(shown)})"


def _default(value: object) -> str:
    return value.name if isinstance(value, enum.Enum) else repr(value)


def _text(thing: object) -> str:
    """A docstring's words, without its sections, as one paragraph."""
    lines = inspect.getdoc(thing) or ""
    before = re.split(r"\n\n(?:Args|Attributes|Returns|Raises|Yields):", lines)[0]
    return " ".join(before.split())


def _entries(thing: object, section: str) -> Iterator[str]:
    """The entries of a docstring's section."""
    found = re.search(rf"(?:^|\n){section}:\n((?:    .*(?:\n|$)|\n)+)", inspect.getdoc(thing) or "")
    entries: list[str] = []
    for line in (found[1] if found else "").splitlines():
        if line.startswith("     "):
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(line.strip())
    for entry in entries:
        names, _, words = entry.partition(": ")
        yield f"* {', '.join(f'`{name.strip()}`' for name in names.split(','))}: {words}"


if __name__ == "__main__":
    print(page(), end="")
