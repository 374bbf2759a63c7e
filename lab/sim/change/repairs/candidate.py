"""What a candidate for a repair is: one change of a protocol's text, with what it costs at run time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lab.sim.change.text.source import Splice


class Cost(IntEnum):
    """What a change costs at run time, the cheapest first."""

    ORDER = 0
    MAPPING = 1
    FENCE = 2
    BLOCK_BARRIER = 3
    MOVE = 4
    WAIT = 5
    EVENT = 6
    HANDSHAKE = 7
    BARRIER = 8
    BUFFER = 9
    HOST = 10


@dataclass(frozen=True)
class Candidate:
    """One change of a protocol's text.

    Attributes:
        cost: What it costs.
        family: Candidates of one family are ways to write one change; the first that holds is enough.
        what: The change in words, with the lines that it is about, as they are in the author's text.
        splices: What is written.
        regions: Regions that the kernels must both write and read with it: else it has only put a write out of the way.
    """

    cost: Cost
    family: str
    what: str
    splices: tuple[Splice, ...]
    regions: tuple[str, ...] = ()
