"""What the commands on protocols share: turning options into a protocol and a configuration."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lab.errors import LabError

if TYPE_CHECKING:
    from lab.protocol.program import Program
    from lab.protocol.write import Config, Protocol
    from lab.sim.change.judge import Limits

_UNITS = {
    **{"": 1, "b": 1},
    **{"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}
_MOST = 64 * 2**30  # bytes of a message


def sizes(text: str | None) -> tuple[int, ...] | None:
    """`"65536"`, `"64KiB"` or `"64KiB,2002"` as bytes."""
    return None if text is None else tuple(size(part, _MOST) for part in text.split(","))


def size(text: str, most: int | None = None) -> int:
    """`"65536"`, `"64KiB"`, `"20MiB"` or `"8GiB"` in bytes; K, M and G are KiB, MiB and GiB, KB is 1000 bytes.

    Raises:
        LabError: It is no size, or more than `most`.
    """
    number = text.strip().lower()
    digits = number.rstrip("kmgtib")
    if not (digits.isascii() and digits.isdigit()) or number[len(digits) :] not in _UNITS:
        raise LabError(
            "this is not a size",
            value=text,
            hint="write bytes (65536) or 64KiB, 1MiB, 8GiB (also K, M, G, and KB, MB, GB for powers of 1000); several "
            "messages with commas",
        )
    found = int(digits) * _UNITS[number[len(digits) :]]
    if most is not None and found > most:
        raise LabError("this size is too large", value=text, hint=f"the largest message is {most >> 30}GiB")
    return found


def configured(
    name: str,
    *,
    world: int | None,
    blocks: int | None,
    calls: int | None,
    nbytes: str | None,
    gate: str | None,
    dtype: str | None,
    waves: int | None,
    resident: int | None,
    gpus: int | None,
    scenario: str | None,
    settings: list[str],
) -> tuple[Protocol, Config]:
    """The protocol and configuration that a command line asks for; None keeps the protocol's default."""
    from lab.protocol.library import load
    from lab.sim.machine.schedule import like

    protocol = load(name)
    known = dict(protocol.defaults.options)
    options = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise LabError("an option of the protocol is written NAME=VALUE", value=setting)
        options.append((key, like(known.get(key), value)))
    config = protocol.config(
        world=world,
        blocks=blocks,
        calls=calls,
        bytes=sizes(nbytes),
        gate=None if gate is None else size(gate, _MOST),
        dtype=dtype,
        waves=waves,
        resident=resident,
        gpus=gpus,
        scenario=scenario,
        options=tuple(options),
    )
    return protocol, config


def options_of(protocol: Protocol, config: Config) -> str:
    """The options that ask for `config`, as a command line has them: whatever differs from the protocol's defaults."""
    words = []
    for name, value in config.items():
        if name == "options":
            known = dict(protocol.defaults.options)
            words += [f"--set {key}={shlex.quote(str(given))}" for key, given in value if known.get(key) != given]
        elif value != getattr(protocol.defaults, name):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(f"--{name} {shlex.quote(text)}")
    return " ".join(words)


def at(config: Config) -> str:
    """At which configuration a result holds; with one call, that nothing is said of what keeps calls apart."""
    alone = "; what keeps calls apart is not needed by one call: say --calls 3" if config.calls == 1 else ""
    return f"at {config}{alone}"


def require_right(protocol: Protocol, config: Config, program: Program, limits: Limits, otherwise: str) -> None:
    """Refuse a protocol that is wrong as it stands; `otherwise` is what cannot be said of it then."""
    from lab.sim.change.judge import judge_program

    original = judge_program(program, limits)
    if original.caught:
        asked = " ".join(filter(None, ("lab check", shlex.quote(protocol.name), options_of(protocol, config))))
        raise LabError(f"{protocol.name} is {original.verdict} as it stands, so {otherwise}", hint=asked)
