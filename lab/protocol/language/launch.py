"""One kernel launch: what the host gave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.protocol.language.layout import Buffer
from lab.protocol.program import Order


@dataclass(frozen=True)
class Launch:
    """What one kernel launch was given; `kernel` is a function of one block.

    `call` is the number that it finds in `b.call`, frozen like its `args`.
    """

    kernel: Callable[[Any], None]
    input: Buffer | None
    output: Buffer | None
    bytes: int
    blocks: int
    threads: int
    stream: int
    overlap: bool
    start: Order
    args: dict[str, Any]
    call: int = 0
