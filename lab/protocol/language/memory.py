"""What a rank owns, as the protocol declares it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.language.config import CACHED, UNCACHED
from lab.protocol.language.layout import Buffer
from lab.protocol.language.recording import Recording
from lab.protocol.program import Memory


class Declare:
    """Handed to a protocol's `memory` function once per rank: declares what that rank owns.

    Attributes:
        rank, world, itemsize, options: As in `Block`.
        max_bytes, max_elements: The gate.
        blocks: The largest grid of any call.
    """

    def __init__(self, builder: Recording, rank: int) -> None:
        self._builder = builder
        self.rank = rank
        self.world = builder.config.world
        self.itemsize = builder.config.itemsize
        self.max_bytes = builder.config.max_bytes
        self.max_elements = self.max_bytes // self.itemsize
        self.blocks = max(builder.grid(size) for size in (*builder.config.bytes, self.max_bytes))
        self.options: dict[str, Any] = builder.options

    def payload(self, name: str, elements: int, memory: Memory = CACHED, **dims: int) -> None:
        """Declare payload of shape `dims` x `elements`, e.g.

        `payload("staging", n, UNCACHED, parity=2, source=world)`.
        """
        self._declare(name, "payload", memory, elements, tuple(dims.items()), 0)

    def words(self, name: str, count: int = 1, memory: Memory = UNCACHED, initial: int = 0, **dims: int) -> None:
        """Declare 32-bit words of shape `dims` x `count`, all `initial`, e.g. `words("flags", 16, row=2)`."""
        shape = (*dims.items(), ("", count)) if dims else ()
        self._declare(name, "words", memory, count, tuple(dims.items()), initial, shape)

    def _declare(
        self,
        name: str,
        kind: str,
        memory: Memory,
        inner: int,
        dims: tuple[tuple[str, int], ...],
        initial: int,
        shape: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        if name in self._builder.owned[self.rank]:
            raise ProtocolError("this rank already has a region of that name", value=name, site=user_site())
        length = inner
        for _, extent in dims:
            length *= extent
        if length < 1:
            raise ProtocolError(f"region {name} would be empty", value=length, site=user_site())
        region = self._builder.region(name, self.rank, kind, memory, length, shape=dims if shape is None else shape)
        self._builder.owned[self.rank][name] = Buffer(replace(region, initial=initial & 0xFFFF_FFFF))
        self._builder.regions[region.id] = self._builder.owned[self.rank][name].region
