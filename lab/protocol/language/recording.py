"""What the verbs of a block, of a host and of a declaration need of the recording that they are part of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lab.protocol.language.config import Config
from lab.protocol.language.launch import Launch
from lab.protocol.language.layout import Buffer
from lab.protocol.language.owned import Owned
from lab.protocol.program import Memory, Region


class Text(Protocol):
    """The protocol that is recorded, as far as its launches need it."""

    @property
    def name(self) -> str:
        """Its name, by which the user refers to it."""

    @property
    def kernel(self) -> Callable[[Any], None]:
        """The function of one block."""

    @property
    def threads(self) -> int:
        """Threads a block."""

    @property
    def blocks(self) -> Callable[[int], int]:
        """The grid for a message of so many bytes."""

    @property
    def memory(self) -> Callable[[Any], None]:
        """Declares the regions of one rank."""

    @property
    def scenarios(self) -> Mapping[str, Callable[[Any], None]]:
        """What the hosts do, by name."""


class Recording(Protocol):
    """One configuration of one protocol while it is recorded (`build.Builder`)."""

    config: Config
    options: dict[str, Any]
    regions: list[Region]
    owned: list[dict[str, Buffer]]
    outputs: list[int]
    host_barrier: Buffer

    @property
    def protocol(self) -> Text:
        """What is recorded."""

    def region(self, name: str, rank: int, kind: str, memory: Memory, length: int, **fields: Any) -> Region:
        """A new region."""

    def owner(self, rank: int) -> Owned:
        """The regions of `rank`."""

    def grid(self, nbytes: int) -> int:
        """Blocks of a launch for `nbytes`."""

    def running(self, rank: int, stream: int) -> list[tuple[Buffer, int]]:
        """Kernels on the stream that may still run when the next is launched: (word, value when done) of each."""

    def ahead(self, rank: int, stream: int) -> list[tuple[Buffer, int]]:
        """All that is on the stream and may still run: its kernels, and those of streams that it waits for."""

    def join(self, rank: int, stream: int, other: int) -> None:
        """Let the next kernel of `stream` wait for what is on `other` now."""

    def new_launch(self, rank: int, sequence: int, call: int, launch: Launch) -> Buffer:
        """Record the blocks of a launch; returns the word with which the host starts them."""

    def new_stream_kernel(
        self, rank: int, sequence: int, call: int, stream: int, kind: type, phase: str, fields: dict[str, object]
    ) -> Buffer:
        """Record a kernel of one operation on a stream; returns the word with which the host starts it."""
