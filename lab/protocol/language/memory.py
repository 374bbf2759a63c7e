"""What a rank owns, as the protocol declares it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.language.config import CACHED, UNCACHED
from lab.protocol.language.layout import Buffer
from lab.protocol.language.recording import Recording
from lab.protocol.program import Memory

_MOST = {"payload": 1 << 40, "words": 1 << 22}


def _extent(dimension: str) -> str:
    return {"payload": "elements", "words": "words"}.get(dimension, dimension)


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
        """Declare payload of shape `dims` x `elements`: `m.payload("staging", n, UNCACHED, parity=2, source=m.world)`.

        The order of the keywords is the order of the indices: the slot of that region is `staging[parity, source]`, and
        one slot has `elements` elements. Without keywords the region is one slot. It holds poison at first.

        Args:
            name: How the kernel finds it: `b.mine.staging`, `b.on(rank).staging`.
            elements: Elements of one slot.
            memory: CACHED, UNCACHED (no cache of a rank holds it), HOST_MAPPED, BLOCK_SHARED.
            **dims: Named leading dimensions and their extents, outermost first.
        """
        self._declare(name, "payload", memory, elements, tuple(dims.items()), 0)

    def words(self, name: str, count: int = 1, memory: Memory = UNCACHED, initial: int = 0, **dims: int) -> None:
        """Declare 32-bit words of shape `dims` x `count`, all `initial`: `m.words("flags", 16, row=2)`.

        That is indexed `flags[row, k]`, and without keywords `flags[k]`; a region of one word needs no index.

        Args:
            name: How the kernel finds them: `b.mine.flags`, `b.on(rank).flags`.
            count: Words of the last dimension.
            memory: As for `payload`.
            initial: What each word holds at first.
            **dims: Named leading dimensions and their extents, outermost first.
        """
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
        length = 1
        for dimension, extent in ((kind, inner), *dims):
            if isinstance(extent, bool) or not isinstance(extent, int):
                raise ProtocolError(
                    f"{_extent(dimension)} of region {name} is no whole number", value=extent, site=user_site()
                )
            if extent < 1:
                raise ProtocolError(
                    f"region {name} would be empty: {_extent(dimension)}", value=extent, site=user_site()
                )
            length *= extent
        if length > _MOST[kind]:
            raise ProtocolError(
                f"region {name} is too large: a rank has regions of at most {_MOST[kind]:,} {_extent(kind)}",
                value=length,
                site=user_site(),
            )
        if isinstance(initial, bool) or not isinstance(initial, int) or not -(1 << 31) <= initial < 1 << 32:
            raise ProtocolError(f"what the words of {name} hold at first fits 32 bits", value=initial, site=user_site())
        if not isinstance(memory, Memory):
            known = ", ".join(member.name for member in Memory)
            raise ProtocolError(f"this is no kind of memory; use {known}", value=memory, site=user_site())
        region = self._builder.region(name, self.rank, kind, memory, length, shape=dims if shape is None else shape)
        self._builder.owned[self.rank][name] = Buffer(replace(region, initial=initial & 0xFFFF_FFFF))
        self._builder.regions[region.id] = self._builder.owned[self.rank][name].region
