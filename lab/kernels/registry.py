"""What a process knows of its communicators: their names, for the ops, and the room that each has on a GPU.

This is the one thing here that all communicators of a process share. A compiled or captured graph can hold an op's
handle for as long as it likes; so the handle is a name, a name is given once in the life of a process, and the entry
behind it is held weakly: what is gone is reported as gone and never replaced by another object.
"""

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from lab.errors import LabError


@dataclass(frozen=True)
class Claim:
    """Room that a communicator has on a GPU until it is closed, collected or not: graphs may still hold its calls.

    Attributes:
        gpu: in words that are the same for the same GPU in the whole process.
        blocks: how many of its blocks may be on the GPU at a time.
        alone: nothing else on this GPU may wait for a peer.
    """

    gpu: str
    blocks: int
    alone: bool


class Registry:
    """Names and claims; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, int] = {}
        self._live: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._claims: dict[str, Claim] = {}

    def next_number(self, base: str) -> int:
        """The first number of a name `base.number` that this process has not given yet."""
        with self._lock:
            return self._given.get(base, 0) + 1

    def enter(self, base: str, number: int, communicator: object) -> str:
        """Give `communicator` the name `base.number`, which no other one of this process ever gets."""
        name = f"{base}.{number}"
        with self._lock:
            if number <= self._given.get(base, 0):
                raise LabError("this name has been given before", value=name)
            self._given[base] = number
            self._live[name] = communicator
        return name

    def find(self, name: str) -> Any:
        """The communicator of a name. LabError when there is none any more."""
        found = self._live.get(name)
        if found is None:
            raise LabError("no communicator of this name lives in this process", value=name, hint="pass reducer.name")
        return found

    def claimed(self, gpu: str) -> list[Claim]:
        """The claims on a GPU."""
        with self._lock:
            return [claim for claim in self._claims.values() if claim.gpu == gpu]

    def claim(self, name: str, claim: Claim) -> None:
        """Note what a communicator has."""
        with self._lock:
            self._claims[name] = claim

    def give_back(self, name: str) -> None:
        """The communicator is closed; a second time does nothing."""
        with self._lock:
            self._claims.pop(name, None)


registry = Registry()
