"""How the ranks of a communicator agree and meet: by the store of their group, bounded, and never with the dead.

A collective of the group would wait for the group's own time limit (half an hour for gloo) when one rank raised an
error and never comes, and a wait that is given up would leave the user's group out of step. Here every rank writes a
word of its own and reads the others', looks several times a second whether they still live, and gives up by itself.
"""

import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lab.errors import LabError

POLL = 0.002  # seconds between looks at the store, at first; it grows to 0.05


class PeerGoneError(LabError):
    """A rank did not come to an agreement: its process has ended, or it was not there in time."""


@dataclass(frozen=True)
class Process:
    """A process of this host, told apart from a later one with the same number.

    Attributes:
        namespace: of process numbers; a process in another one (a container) cannot be looked at.
        number: of the process.
        started: in ticks since the machine started.
    """

    namespace: str
    number: int
    started: int

    @classmethod
    def own(cls) -> "Process":
        """This process."""
        return cls(os.readlink("/proc/self/ns/pid"), os.getpid(), _started(os.getpid()) or 0)

    def ended(self) -> bool:
        """Whether it certainly has ended. False where it cannot be looked at."""
        return self.namespace == os.readlink("/proc/self/ns/pid") and _started(self.number) != self.started


def _started(number: int) -> int | None:
    """When a process started; None when there is none, or one that has ended and is not collected yet."""
    try:
        # The name in parentheses may hold anything; state is the first field behind it, the start the twentieth.
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _without_store(error: Exception) -> PeerGoneError:
    return PeerGoneError(
        f"the ranks of a communicator cannot agree: their store is gone ({str(error).splitlines()[0]})",
        hint="the process that held it, most often rank 0, has ended; find out why",
    )


class Votes:
    """Agreement among the ranks of a group. Every rank makes the same calls in the same order.

    Attributes:
        rank, world: of the group.
    """

    def __init__(self, group: "dist.ProcessGroup", patience: float):
        """Number this communicator among those of the group.

        Args:
            group: of any backend: only its store is used.
            patience: seconds to wait for a rank that lives but does not come.
        """
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.patience = patience
        self._store = dist.distributed_c10d._get_process_group_store(group)
        try:
            number = self._store.add(f"lab/communicators of {self.rank}", 1)
        except dist.DistError as error:
            raise _without_store(error) from None
        self._base = f"lab/{number}"
        self._processes: Sequence[Process] = ()
        self._steps = 0

    def agree(self, work: Callable[[], Any]) -> tuple[list[Any], list[str]]:
        """Do one's part, then tell the others.

        Returns:
            Every rank's result (None where it failed), and a line for every rank that failed.

        Raises:
            PeerGoneError: a rank did not come. What `work` raises is told to the others and not raised, unless it is
                no Exception (Ctrl-C).
        """
        try:
            mine: tuple[Any, str | None] = work(), None
        except Exception as error:  # whatever it is, the peers must hear of it
            mine = None, f"rank {self.rank}: {type(error).__name__}: {error}"
        every = self._exchange(mine)
        return [result for result, _ in every], [failure for _, failure in every if failure]

    def introduce(self) -> None:
        """Tell the others which process this is, so that nobody waits for one that has ended."""
        self._processes = self._exchange(Process.own())

    def gone(self) -> list[int]:
        """The ranks whose process certainly has ended."""
        return [rank for rank, process in enumerate(self._processes) if process.ended()]

    def say(self, what: str) -> None:
        """Let the others meet without waiting for them."""
        self._store.set(self._key(what, self.rank), b"")

    def meet(self, what: str, patience: float) -> list[int]:
        """Wait for the others to say the same `what`, at most `patience` seconds and not for the dead.

        Said once for ever: a rank that gave up can meet the others later.

        Returns:
            The ranks that have not come.
        """
        try:
            return self._gather(what, b"", patience)[0]
        except dist.DistError:  # the process that holds the store has ended, and with it the word of all others
            return [rank for rank in range(self.world) if rank != self.rank]

    def _exchange(self, value: Any) -> list[Any]:
        self._steps += 1
        try:
            missing, words = self._gather(str(self._steps), pickle.dumps(value), self.patience)
        except dist.DistError as error:
            raise _without_store(error) from None
        if missing:
            gone = self.gone()
            what = [f"rank {rank} {'has ended' if rank in gone else 'does not come'}" for rank in missing]
            raise PeerGoneError(
                "the ranks of a communicator cannot agree: " + ", ".join(what),
                hint="find out why it stopped; every rank must make the same calls",
            )
        if self._steps > 1:  # everybody is here, so everybody has read the words before
            self._store.delete_key(self._key(str(self._steps - 1), self.rank))
        return [pickle.loads(words[rank]) for rank in range(self.world)]

    def _gather(self, what: str, word: bytes, patience: float) -> tuple[list[int], dict[int, bytes]]:
        """Publish one's word and collect the others'. Returns (who has not come, the words of those who have)."""
        until = time.monotonic() + patience
        pause = POLL
        words: dict[int, bytes] = {}
        self._store.set(self._key(what, self.rank), word)
        while True:
            gone = self.gone()  # looked at first: who has ended has said all that it ever will
            missing = [rank for rank in range(self.world) if rank not in words]
            for rank in missing:
                if self._store.check([self._key(what, rank)]):
                    words[rank] = self._store.get(self._key(what, rank))
            missing = [rank for rank in missing if rank not in words]
            if not missing or time.monotonic() > until or set(missing) <= set(gone):
                return missing, words
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _key(self, what: str, rank: int) -> str:
        return f"{self._base}/{what}/{rank}"
