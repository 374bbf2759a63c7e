"""Few slots: a GPU runs only so many blocks at once, and a block that finds no slot starts when another one ends.

What is modelled, with `Config.resident` slots on each GPU, and rank r on GPU r % `Config.gpus`:

* A block holds one slot from before its first operation until the last of its waves has done its last. It is not
  preempted and gives its slot to nobody while it waits. A kernel of one operation (`h.produce`, `h.consume`) is one
  block.
* The blocks of one stream start in the order in which they were launched, and in the order of their index. The blocks
  of a launch that overlaps the one ahead of it come after all blocks of that one: a dependent launch waits until every
  block ahead has started (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"), and the
  packets of an AQL queue are launched in order (HSA Platform System Architecture Specification, "Barrier bit").
* Which stream gets the next free slot, and which rank where ranks share a GPU, is not specified anywhere: every order
  is a schedule.
* A slot orders in time only. The block that takes it need not see what the block before stored: the additions and waits
  below release nothing and acquire nothing, whatever fences stand around them. They do not wait for stores on their
  way either.

Not modelled: slots of different sizes (registers, shared memory, threads a block), how slots spread over compute units,
preemption and time slicing between processes.

Later rooms see additions and waits:

* A counter says how often a slot was free: the number of slots, and one more for each block that has ended. On a stream
  that has a GPU to itself, the n-th block in line, from 0, waits until it is n + 1.
* Where streams compete, the next block of each takes a ticket, by an atomic addition on a word of the GPU, and the
  holder of ticket t waits until the counter is t + 1. Every order in which hardware may fill its slots is an order of
  tickets: that in which blocks take them just before they start.
* Where no more blocks than slots can want to run at once, nothing is added.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from lab.protocol.expr import Expr, word
from lab.protocol.language.config import BLOCK_SHARED, HOST_MAPPED, RELAXED, SYSTEM, WAVE
from lab.protocol.language.layout import Buffer
from lab.protocol.language.record import Recorder
from lab.protocol.language.recording import Recording
from lab.protocol.program import Cond, Memory, Residency, Rmw, Wait, WordRef

Stream = tuple[int, int]
"""(rank, stream)."""


@dataclass(frozen=True)
class Kernel:
    """One launch: the how-manieth of its rank, its stream, whether it overlaps the one ahead, blocks, their waves."""

    rank: int
    sequence: int
    stream: int
    overlap: bool
    blocks: int
    waves: int = 1


@dataclass
class _Gpu:
    """A GPU whose slots may run out. Where streams compete, `tickets` and `freed` are words of the whole GPU."""

    number: int
    slots: int
    tickets: WordRef | None = None
    freed: WordRef | None = None
    words: set[int] = field(default_factory=set)


@dataclass
class _Line:
    """Blocks of one stream that may have to wait for each other: all since a launch that did not overlap.

    `count` is, on a stream that has its GPU to itself, how often a slot was free; else how many have their ticket.
    """

    count: WordRef
    length: int = 0


@dataclass(frozen=True)
class Turn:
    """When one block may start, and what it does at its end."""

    slots: int
    place: int
    freed: WordRef
    tickets: WordRef | None
    order: WordRef | None
    waves: int
    started: WordRef | None
    ended: WordRef | None

    def start(self, recorder: Recorder, wave: int) -> None:
        """Record, in wave `wave` of the block, that it waits for a slot."""
        if self.tickets is None or self.order is None:
            if self.place >= self.slots:
                _await(recorder, self.freed, self.place + 1)
        elif wave and self.started is not None:
            _await(recorder, self.started, 1)
        else:
            if self.place:
                _await(recorder, self.order, self.place)
            ticket = recorder.register("ticket")
            _count(recorder, self.tickets, ticket.index)
            _count(recorder, self.order)
            _await(recorder, self.freed, ticket + 1)
            if self.started is not None:
                _count(recorder, self.started)

    def end(self, recorder: Recorder, wave: int) -> None:
        """Record that wave `wave` has ended; wave 0 gives the slot back when all have."""
        if self.ended is not None:
            _count(recorder, self.ended)
            if wave:
                return
            _await(recorder, self.ended, self.waves)
        _count(recorder, self.freed)


class Dispatch:
    """The slots of every GPU of one configuration."""

    def __init__(self, builder: Recording, kernels: list[Kernel]) -> None:
        """`kernels` are all that the hosts will launch; nothing, when slots do not matter."""
        self._builder = builder
        self._gpus: dict[int, _Gpu] = {}
        self._lines: dict[Stream, _Line] = {}
        for number, wanted in self._wanted(kernels).items():
            slots = builder.config.resident
            if slots is not None and sum(wanted.values()) > slots:
                self._gpus[number] = gpu = _Gpu(number, slots)
                if len(wanted) > 1:
                    gpu.tickets = self._word(gpu, f"tickets for slots of GPU {number}")
                    gpu.freed = self._word(gpu, f"slots freed of GPU {number}", initial=slots)

    def residency(self) -> tuple[Residency, ...]:
        """The GPUs whose slots may run out."""
        return tuple(Residency(gpu.number, gpu.slots, frozenset(gpu.words)) for gpu in self._gpus.values())

    def turns(self, kernel: Kernel) -> list[Turn | None]:
        """The turn of each block of a kernel that is launched now; None: at once."""
        gpu = self._gpus.get(self._gpu_of(kernel.rank))
        if gpu is None:
            return [None] * kernel.blocks
        line = self._line(gpu, kernel)
        first, line.length = line.length, line.length + kernel.blocks
        return [self._turn(gpu, line, kernel, first, block) for block in range(kernel.blocks)]

    def _gpu_of(self, rank: int) -> int:
        return rank % (self._builder.config.gpus or self._builder.config.world)

    def _wanted(self, kernels: list[Kernel]) -> dict[int, dict[Stream, int]]:
        """By GPU and stream, the most blocks that may want to run at once."""
        most: dict[int, dict[Stream, int]] = defaultdict(dict)
        line: dict[Stream, int] = {}
        for kernel in kernels:
            stream = (kernel.rank, kernel.stream)
            line[stream] = kernel.blocks + (line.get(stream, 0) if kernel.overlap else 0)
            known = most[self._gpu_of(kernel.rank)]
            known[stream] = max(known.get(stream, 0), line[stream])
        return most

    def _line(self, gpu: _Gpu, kernel: Kernel) -> _Line:
        """The line in which the kernel's blocks stand: a new one unless it overlaps the kernel ahead of it."""
        stream = (kernel.rank, kernel.stream)
        if not kernel.overlap or stream not in self._lines:
            alone = gpu.freed is None
            name = "slots freed" if alone else "blocks in line"
            count = self._word(
                gpu, f"{name} from call {kernel.sequence} on", kernel.rank, initial=gpu.slots if alone else 0
            )
            self._lines[stream] = _Line(count)
        return self._lines[stream]

    def _turn(self, gpu: _Gpu, line: _Line, kernel: Kernel, first: int, block: int) -> Turn:
        started, ended = None, None
        if kernel.waves > 1:
            name = f"waves of call {kernel.sequence} block {block}"
            started, ended = (
                self._word(gpu, f"{name} {what}", kernel.rank, BLOCK_SHARED) for what in ("started", "ended")
            )
        freed, order = (line.count, None) if gpu.freed is None else (gpu.freed, line.count)
        return Turn(gpu.slots, first + block, freed, gpu.tickets, order, kernel.waves, started, ended)

    def _word(
        self, gpu: _Gpu, name: str, rank: int | None = None, memory: Memory = HOST_MAPPED, initial: int = 0
    ) -> WordRef:
        owner = gpu.number if rank is None else rank
        region = self._builder.region(name, owner, "words", memory, 1, initial=initial)
        gpu.words.add(region.id)
        return Buffer(region).word


def _count(recorder: Recorder, at: WordRef, dst: int | None = None) -> None:
    # At the scope of the wave that adds, nothing is released, not even by a fence before it.
    recorder.emit(Rmw, fn="add", word=at, value=word(1), expected=None, dst=dst, order=RELAXED, scope=WAVE)


def _await(recorder: Recorder, at: WordRef, value: Expr | int) -> None:
    # System scope, so that the poll looks past every cache; there is nothing to acquire.
    recorder.emit(Wait, word=at, cond=Cond.GE, value=word(value), order=RELAXED, scope=SYSTEM)
