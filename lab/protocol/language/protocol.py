"""What a user's text becomes: a function of one block with its memory, grid, scenarios and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lab.errors import LabError, UnknownNameError
from lab.protocol.errors import ProtocolError, raised_in_text, user_site
from lab.protocol.language.block import Block
from lab.protocol.language.build import Builder
from lab.protocol.language.config import ITEMSIZE, MAX_BLOCKS, Config
from lab.protocol.language.host import Host
from lab.protocol.language.memory import Declare
from lab.protocol.language.scenario import SCENARIOS
from lab.protocol.program import Program, Site

AbortWords = Callable[[str, int], int]
AbortRecord = Callable[[AbortWords], "str | None"]


@dataclass(frozen=True)
class Protocol:
    """A protocol function with its memory, grid and defaults. `program()` records it at one configuration."""

    name: str
    kernel: Callable[[Block], None]
    memory: Callable[[Declare], None]
    blocks: Callable[[int], int]
    threads: int
    defaults: Config
    scenarios: dict[str, Callable[[Host], None]]
    accepts: Callable[[Config], str | None]
    abort_record: Callable[[AbortWords], str | None]
    about: str

    def named(self, name: str) -> Protocol:
        """The same protocol under the name by which the user refers to it."""
        return replace(self, name=name)

    def config(self, **changes: Any) -> Config:
        """The defaults with `changes`; unknown options are refused.

        Raises:
            LabError: A value is out of range, or the protocol refuses it.
        """
        known = set(Config.__dataclass_fields__)
        options = dict(self.defaults.options)
        for name, value in dict(changes.pop("options", ())).items():
            if name not in options:
                raise UnknownNameError(f"option of {self.name}", name, options, hint=None if options else "it has none")
            options[name] = value
        for name in changes:
            if name not in known:
                raise UnknownNameError("parameter", name, known)
        changes = {name: value for name, value in changes.items() if value is not None}
        if "bytes" in changes:
            changes["bytes"] = _sizes(changes["bytes"])
        config = replace(self.defaults, **changes, options=tuple(sorted(options.items())))
        self.accept(config)
        return config

    def program(self, config: Config | None = None, **changes: Any) -> Program:
        """Record the protocol.

        Args:
            config: A configuration from `config()`; None: the defaults with `changes`.
            **changes: As for `config()`.

        Raises:
            ProtocolError: The text of the protocol is wrong; the message begins with its line.
            LabError: The configuration is out of range.
        """
        return Builder(self, config if config is not None else self.config(**changes)).build()

    def accept(self, config: Config) -> None:
        """Refuse a configuration that is out of range or that the protocol does not take.

        Raises:
            LabError: It says which value, and what to use.
        """
        _in_range("world", config.world, 1, 8)
        _in_range("calls", config.calls, 1, 4096)
        _in_range("waves", config.waves, 1, 32)
        if config.blocks is not None:
            _in_range("blocks", config.blocks, 1, MAX_BLOCKS)
        if config.resident is not None:
            _in_range("resident", config.resident, 1, 1 << 20)
        if config.gpus is not None:
            _in_range("gpus", config.gpus, 1, 8)
            if config.resident is None:
                raise LabError(
                    "ranks that share a GPU compete for its slots, so say how many it has",
                    value=f"gpus {config.gpus}",
                    hint="resident is the number of blocks that a GPU runs at once",
                )
        if config.dtype not in ITEMSIZE:
            raise UnknownNameError("dtype", config.dtype, ITEMSIZE)
        if config.scenario not in self.scenarios:
            raise UnknownNameError(f"scenario of {self.name}", config.scenario, self.scenarios)
        if self.threads % config.waves:
            raise LabError(
                "the block does not divide into that many waves", value=config.waves, hint=f"{self.threads} threads"
            )
        if config.gate is not None and (isinstance(config.gate, bool) or not isinstance(config.gate, int)):
            raise LabError("gate is no whole number of bytes", value=config.gate)
        for size in config.bytes:
            if isinstance(size, bool) or not isinstance(size, int):
                raise LabError(
                    "bytes is no whole number of bytes",
                    value=size,
                    hint="in a protocol's text write 64 * KIB, on the command line 64KiB",
                )
            if size <= 0 or size % config.itemsize:
                raise LabError(
                    "bytes is not a positive number of whole elements",
                    value=size,
                    hint=f"{config.dtype} takes {config.itemsize} bytes an element",
                )
            if size > config.max_bytes:
                raise LabError("bytes is above the gate", value=size, hint=f"the gate is {config.max_bytes} bytes")
        try:
            refusal = self.accepts(config)
        except LabError:
            raise
        except (Exception, SystemExit) as problem:
            raise raised_in_text(problem, "`accepts`") from problem
        if refusal is not None and not isinstance(refusal, str):
            raise LabError(f"`accepts` of {self.name} returns why it refuses a configuration, or None", value=refusal)
        if refusal:
            raise LabError(f"{self.name} refuses this configuration: {refusal}", hint=f"asked for: {config}")


def _in_range(name: str, value: int, lo: int, hi: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LabError(f"{name} is no whole number", value=value, hint=f"use {lo} to {hi}")
    if not lo <= value <= hi:
        raise LabError(f"{name} is out of range", value=value, hint=f"use {lo} to {hi}")


def _sizes(given: object) -> object:
    """Message sizes as a tuple; one that is no size stays what it is, to be refused."""
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _check_defaults(config: Config, threads: object, blocks: object, site: Site) -> None:
    """Refuse defaults that are no numbers where numbers belong.

    Raises:
        ProtocolError: It names the line of the decorator.
    """
    if not isinstance(blocks, int) and not callable(blocks):
        raise ProtocolError("`blocks` is a number, or a function of a size in bytes", value=blocks, site=site)
    numbers = [(name, getattr(config, name)) for name in ("world", "calls", "waves")] + [("threads", threads)]
    numbers += [(name, getattr(config, name)) for name in ("gate", "blocks", "resident", "gpus")]
    numbers += [("bytes", size) for size in config.bytes]
    for name, value in numbers:
        if value is None and name in ("gate", "blocks", "resident", "gpus"):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            hint = "write it as a number of bytes, 64 * KIB" if name in ("bytes", "gate") else None
            raise ProtocolError(f"the default of `{name}` is a whole number", value=value, site=site, hint=hint)


def protocol(
    *,
    memory: Callable[[Declare], None],
    blocks: Callable[[int], int] | int = 1,
    threads: int = 256,
    scenarios: dict[str, Callable[[Host], None]] | None = None,
    accepts: Callable[[Config], str | None] = lambda config: None,
    abort_record: AbortRecord = lambda words: None,
    options: dict[str, object] | None = None,
    **defaults: Any,
) -> Callable[[Callable[[Block], None]], Protocol]:
    """Make a protocol of a function of one block.

    Args:
        memory: Declares the regions of one rank.
        blocks: The grid for a message of so many bytes; a number is the default of a grid that the configuration sets.
        threads: Threads a block.
        scenarios: What the hosts do, by name, besides `back_to_back` and `isolated`; the first given is the default.
        accepts: Why a configuration is refused, or None.
        abort_record: Decodes the protocol's own abort record of one rank from `words(region name, index)`; None: no
            abort.
        options: The protocol's own options with their defaults, found in `b.options`.
        **defaults: Defaults of `Config`.
    """
    site = user_site()

    def wrap(kernel: Callable[[Block], None]) -> Protocol:
        own = scenarios or {}
        first = next(iter(own), "back_to_back")
        given = {"scenario": first, **defaults}
        if isinstance(blocks, int):
            given["blocks"] = blocks
        if "bytes" in given:
            given["bytes"] = _sizes(given["bytes"])
        for key in given:
            if key not in Config.__dataclass_fields__ or key == "options":
                raise ProtocolError(
                    "this is no default of a configuration",
                    value=key,
                    site=site,
                    hint=f"it has {', '.join(Config.__dataclass_fields__)}",
                )
        config = Config(**given, options=tuple(sorted((options or {}).items())))
        _check_defaults(config, threads, blocks, site)
        about = inspect.getdoc(kernel) or ""
        name = kernel.__name__
        grid = (lambda nbytes: MAX_BLOCKS) if isinstance(blocks, int) else blocks
        return Protocol(name, kernel, memory, grid, threads, config, {**SCENARIOS, **own}, accepts, abort_record, about)

    return wrap
