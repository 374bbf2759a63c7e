"""Early start: a launch that overlaps the one ahead of it starts while that one still runs.

That is programmatic dependent launch on NVIDIA (`griddepcontrol` in PTX). What is modelled:

* A launch with `overlap=True` starts when every block of the launch ahead has let it (`b.let_successor_start()`,
  `launch_dependents` in PTX) or has ended. A block lets it when the first of its waves does. A kernel that never does
  lets its successor start when it ends.
* `b.wait_previous()` (`griddepcontrol.wait`) waits until the launch ahead has ended, and makes visible what it stored.
  It is the only order of memory that the documentation promises (PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide,
  "Programmatic Dependent Launch and Synchronization").
* Whether the start itself is one is for the scenario to say. `h.launch(..., overlap=True)` starts by a relaxed wait:
  order in time and nothing else. With `start=ACQUIRE` what a block released before it let the successor start, by a
  fence or by the order of `let_successor_start`, is visible to the successor from its first operation on. An
  implementation does that whose fence waits for the stores to reach the cache that all blocks share, and whose
  successor reads there. It is an assumption, and a program that needs it fails without.

Later rooms see words. One counts the blocks of a launch that let its successor start. One of each block counts what its
waves did: their number for each time that one lets the successor start, one for each that ends. So it says which wave
is the first to let it, and which is the last to end where none has. Where no launch overlaps the one ahead, there is
none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.protocol.expr import Expr, word
from lab.protocol.language.config import RELAXED, RELEASE, SYSTEM, WAVE
from lab.protocol.language.dispatch import Kernel
from lab.protocol.language.record import Recorder, When
from lab.protocol.program import Cond, Order, Rmw, Scope, Wait, WordRef


def followed_early(kernels: Iterable[Kernel]) -> frozenset[tuple[int, int]]:
    """The launches, as (rank, sequence), behind which the next one of their stream overlaps them."""
    last: dict[tuple[int, int], Kernel] = {}
    followed = set()
    for kernel in kernels:
        ahead = last.get((kernel.rank, kernel.stream))
        if kernel.overlap and ahead is not None:
            followed.add((ahead.rank, ahead.sequence))
        last[kernel.rank, kernel.stream] = kernel
    return frozenset(followed)


@dataclass(frozen=True)
class Permit:
    """How one block lets the launch behind it start.

    Attributes:
        given: How many blocks of the launch have; of the launch.
        block: What the waves of this block did.
        waves: Waves of the block.
    """

    given: WordRef
    block: WordRef
    waves: int

    def give(self, recorder: Recorder, order: Order, scope: Scope) -> None:
        """Record that a wave of the block lets the successor start; only the first counts."""
        before = self._count(recorder, self.waves)
        with When(recorder, before < self.waves):
            _add(recorder, self.given, 1, order, scope)

    def end(self, recorder: Recorder) -> None:
        """Record that a wave of the block ends: the last lets the successor start, unless one has before."""
        before = self._count(recorder, 1)
        with When(recorder, before == self.waves - 1):
            _add(recorder, self.given, 1, RELEASE, SYSTEM)

    def _count(self, recorder: Recorder, value: int) -> Expr:
        before = recorder.register("before")
        _add(recorder, self.block, value, RELAXED, WAVE, before.index)
        return before


@dataclass(frozen=True)
class Start:
    """When a launch that overlaps the one ahead starts: once `blocks` blocks of that have let it."""

    given: WordRef
    blocks: int
    order: Order

    def wait(self, recorder: Recorder) -> None:
        """Record the wait."""
        fields = {"bound": None, "seconds": None, "on_timeout": None}
        recorder.emit(
            Wait, word=self.given, cond=Cond.GE, value=word(self.blocks), order=self.order, scope=SYSTEM, **fields
        )


def _add(recorder: Recorder, at: WordRef, value: int, order: Order, scope: Scope, dst: int | None = None) -> None:
    recorder.emit(Rmw, fn="add", word=at, value=word(value), expected=None, dst=dst, order=order, scope=scope)
