"""The verbs of one host thread: the argument of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.expr import MASK, Const, Reg, word
from lab.protocol.language.block import Block
from lab.protocol.language.config import ACQ_REL, ACQUIRE, CACHED, RELAXED, RELEASE, SYSTEM
from lab.protocol.language.launch import Launch
from lab.protocol.language.layout import Buffer, View
from lab.protocol.language.owned import Owned
from lab.protocol.language.record import Recorder, Verbs, span_of
from lab.protocol.language.recording import Recording
from lab.protocol.program import CONSTANT, WHOLE, Cache, Expect, Fill, Move, Order, Rmw, Span, Store


class Host(Verbs):
    """The host thread of one rank: the argument of a scenario.

    Attributes:
        rank, world: As in `Block`.
        config: The configuration, with `bytes`, `calls`, `gate`.
        mine: The regions of this rank.
    """

    def __init__(self, builder: Recording, recorder: Recorder, rank: int) -> None:
        super().__init__(recorder)
        self.rank, self.world, self.config = rank, builder.config.world, builder.config
        self.options = builder.options
        self._builder, self._version, self._barriers = builder, 0, 0
        # Everything on the streams; launches of the protocol that run; those that this host made, captured or not.
        self._kernels, self._calls, self._made = 0, 0, 0

    @property
    def mine(self) -> Owned:
        """This rank's regions."""
        return self._builder.owner(self.rank)

    def on(self, rank: int) -> Owned:
        """The regions of `rank` (host-mapped or shared)."""
        return self._builder.owner(rank)

    def phase(self, name: str) -> None:
        """Name what follows."""
        assert self._recorder is not None
        self._recorder.phase = name

    def sizes(self) -> Iterator[int]:
        """The message size of each call, in bytes."""
        for index in range(self.config.calls):
            yield self.config.bytes[index % len(self.config.bytes)]

    def input(self, nbytes: int, constant: bool = False, name: str = "input") -> Buffer:
        """A new input that already holds its values. Inputs created in the same order on all ranks belong together."""
        self._version += 1
        return self._buffer(f"{name} {self._version}", nbytes, (self.rank, self._version), constant)

    def output(self, nbytes: int, name: str = "output") -> Buffer:
        """A new buffer full of poison."""
        self._builder.outputs[self.rank] += 1
        return self._buffer(f"{name} {self._builder.outputs[self.rank]}", nbytes, None, False)

    def _buffer(self, name: str, nbytes: int, source: tuple[int, int] | None, constant: bool) -> Buffer:
        size = self.config.itemsize
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < size or nbytes % size:
            raise ProtocolError(
                f"a buffer has a whole number of elements of {size} bytes", value=nbytes, site=user_site()
            )
        elements = nbytes // self.config.itemsize
        region = self._builder.region(name, self.rank, "payload", CACHED, elements, source=source, constant=constant)
        return Buffer(region)

    def copy(self, dst: View | Buffer, source: View | Buffer, stream: int = 0) -> None:
        """A copy engine on the stream: `hipMemcpyAsync`, SDMA.

        It starts when what is ahead on the stream has ended and copies `source` into `dst`, of any ranks, past the
        caches, in no order that the kernels of other streams could rely on; what follows on the stream sees it whole.
        """
        given, target = span_of(source), span_of(dst)
        if given.length != target.length:
            raise ProtocolError(
                f"{given.label} has {given.length} elements, {target.label} {target.length}", site=user_site()
            )
        self._stream_kernel(stream, Move, "copy", dst=target, sources=(given,), cache=Cache.BYPASS)

    def launch(
        self,
        input: Buffer | None = None,
        output: Buffer | None = None,
        *,
        kernel: Callable[[Block], None] | None = None,
        nbytes: int | None = None,
        blocks: int | None = None,
        stream: int = 0,
        overlap: bool = False,
        start: Order = RELAXED,
        args: dict[str, Any] | None = None,
        call: int | None = None,
    ) -> Launch:
        """Launch the protocol's kernel (or `kernel`) on a stream; returns what was launched, for `replay`.

        Args:
            input: What the kernel finds in `b.input`.
            output: What it finds in `b.output`.
            kernel: Another function of one block, over the same memory.
            nbytes: The size of the call, `b.bytes`; None: that of `input`.
            blocks: The grid; None: the protocol's own for that size.
            stream: Launches of one stream run one after the other.
            overlap: Programmatic dependent launch, see below.
            start: What an overlapping start orders.
            args: What the kernel finds in `b.args`.
            call: What the kernel finds in `b.call`; None: launches and captures of this rank are counted, from 1.

        `overlap` lets it start before the kernel ahead of it on the stream has ended (programmatic dependent launch):
        once every block of that has called `b.let_successor_start()` or has ended, and not before what that kernel
        itself had to wait for. `start` says what the start orders: RELAXED, as documented, nothing but time; with
        ACQUIRE the launch sees what the blocks ahead released before they let it start: `early_start.py` has the rules.
        """
        launch = self.capture(
            input,
            output,
            kernel=kernel,
            nbytes=nbytes,
            blocks=blocks,
            stream=stream,
            overlap=overlap,
            start=start,
            args=args,
            call=call,
        )
        self.replay(launch)
        return launch

    def capture(
        self,
        input: Buffer | None = None,
        output: Buffer | None = None,
        *,
        kernel: Callable[[Block], None] | None = None,
        nbytes: int | None = None,
        blocks: int | None = None,
        stream: int = 0,
        overlap: bool = False,
        start: Order = RELAXED,
        args: dict[str, Any] | None = None,
        call: int | None = None,
    ) -> Launch:
        """Capture a launch, as a graph does, without running it; `replay` runs it. Arguments as for `launch`.

        What the host gave is frozen: buffers, grid, `args`, and `b.call`, which is the number that the host had counted
        to when it captured. Words in device memory are not: an epoch that a kernel loads and stores goes on counting.
        """
        if start not in (RELAXED, ACQUIRE):
            raise ProtocolError("a launch starts RELAXED or by an ACQUIRE", value=start, site=user_site())
        if start is ACQUIRE and not overlap:
            raise ProtocolError("a launch that does not overlap sees everything that ended before it", site=user_site())
        if call is not None and (isinstance(call, bool) or not isinstance(call, int) or call < 1):
            raise ProtocolError("calls are counted from 1", value=call, site=user_site())
        self._made = self._made + 1 if call is None else call
        size = nbytes if nbytes is not None else (input.elements * self.config.itemsize if input else 0)
        grid = blocks if blocks is not None else self._builder.grid(size)
        return Launch(
            kernel or self._builder.protocol.kernel,
            input,
            output,
            size,
            grid,
            self._builder.protocol.threads,
            stream,
            overlap,
            start,
            args or {},
            self._made,
        )

    def replay(self, launch: Launch) -> None:
        """Launch again what `capture` or `launch` returned, as a graph does: with its arguments and its `b.call`."""
        self._kernels += 1
        self._calls += 1
        go = self._builder.new_launch(self.rank, self._kernels, self._calls, launch)
        self._emit(Store, word=go.word, value=word(1), order=RELEASE, scope=SYSTEM)

    def produce(self, buffer: View | Buffer, stream: int = 0) -> None:
        """A kernel on the stream that writes new values into `buffer` (the next input, in place)."""
        self._version += 1
        source, span = (self.rank, self._version), span_of(buffer)
        self._stream_kernel(stream, Fill, "produce", dst=span, source=source, constant=span.region.constant)

    def consume(
        self,
        output: View | Buffer,
        version: int | None = None,
        stream: int = 0,
        of: Iterable[int] | None = None,
        fn: str = "sum",
    ) -> None:
        """A kernel on the stream that reads `output`; due is the sum of the inputs of `version` (None: the last).

        `of`: the ranks whose inputs are due; None: all. `fn="max"`: their maximum is due.
        """
        due = self._due(version, of)
        _check_fn(fn)
        self._stream_kernel(stream, Expect, "consume", span=span_of(output), due=due, constant=False, fn=fn)

    def fill(self, buffer: View | Buffer, poison: bool = False, constant: int | None = None) -> None:
        """The host writes new values, or poison, or one constant into every element of `buffer`."""
        if constant is not None and (poison or isinstance(constant, bool) or not isinstance(constant, int)):
            raise ProtocolError(
                "a buffer is filled with poison, or with a whole number that stands for the bits",
                value=constant,
                site=user_site(),
            )
        if not poison and constant is None:
            self._version += 1
        source = None if poison else (self.rank, self._version)
        if constant is not None:
            source = (CONSTANT, constant & MASK)
        span = span_of(buffer)
        self._emit(Fill, dst=span, source=source, constant=span.region.constant, mapping=WHOLE)

    def expect(
        self,
        output: View | Buffer,
        input: View | Buffer,
        of: Iterable[int] | None = None,
        plus: Iterable[View | Buffer] = (),
        fn: str = "sum",
    ) -> None:
        """The host compares `output` with the sum of all ranks' `input`, element by element.

        Args:
            output: What is read.
            input: A buffer that `h.input` made, or a slice of one; the inputs of the other ranks are those that they
                made in the same place.
            of: The ranks whose inputs are due, where that is not all: `h.expect(out[j * n : (j + 1) * n], x, of=[j])`
                for each j is an allgather.
            plus: Buffers of this rank that are due on top, as long as `input` and sliced alike: a residual.
            fn: `max`: the maximum of the inputs is due, as `b.reduce(..., fn="max")` takes it.
        """
        self._compare(output, input, of, None, plus, fn)

    def expect_constant(self, output: View | Buffer, value: int) -> None:
        """The host compares every element of `output` with what `b.put_constant(..., value)` writes."""
        due = ((CONSTANT, value & MASK),)
        self._emit(Expect, span=span_of(output), due=due, constant=True, mapping=WHOLE)

    def differs(self, output: View | Buffer, input: View | Buffer, of: Iterable[int] | None = None) -> Reg:
        """Like `expect`; returns 1 if any element differs, else 0."""
        dst = self._register(None)
        self._compare(output, input, of, dst.index)
        return dst

    def _compare(
        self,
        output: View | Buffer,
        input: View | Buffer,
        of: Iterable[int] | None,
        dst: int | None,
        plus: Iterable[View | Buffer] = (),
        fn: str = "sum",
    ) -> None:
        _check_fn(fn)
        read, given = span_of(output), span_of(input)
        if read.length != given.length:
            raise ProtocolError(
                f"{read.label} has {read.length} elements, {given.label} {given.length}; slice both alike",
                site=user_site(),
            )
        if given.region.source is None or not isinstance(given.start, Const):
            raise ProtocolError(
                f"{given.label} is no input that h.input() made",
                site=user_site(),
                hint="for a buffer that h.produce() fills use h.consume(output)",
            )
        added = [self._added(span_of(more), given) for more in plus]
        self._emit(
            Expect,
            span=read,
            due=(*self._due(given.region.source[1], of), *added),
            fn=fn,
            constant=given.region.constant,
            mapping=WHOLE,
            first=given.start.value,
            dst=dst,
        )

    def _added(self, more: Span, given: Span) -> tuple[int, int]:
        """The input that is due on top of the sum of `given`."""
        starts = [span.start.value for span in (more, given) if isinstance(span.start, Const)]
        alike = len(starts) == 2 and starts[0] == starts[1]
        if more.region.source is None or more.region.source == given.region.source:
            raise ProtocolError(f"{more.label} is no other input that h.input() made", site=user_site())
        if not alike or more.length != given.length or more.region.constant != given.region.constant:
            raise ProtocolError(f"{more.label} and {given.label} are added; slice both alike", site=user_site())
        return more.region.source

    def sync(self, stream: int = 0) -> None:
        """Wait until everything launched on the stream is done."""
        for done, agents in self._builder.ahead(self.rank, stream):
            self.wait(done, ">=", agents, ACQUIRE, SYSTEM)

    def wait_stream(self, stream: int, other: int) -> None:
        """An event: what is launched on `stream` from now on starts after all that is on `other` so far."""
        self._builder.join(self.rank, stream, other)

    def barrier(self) -> None:
        """A barrier of all hosts."""
        self._barriers += 1
        counter = self._builder.host_barrier
        self._emit(
            Rmw, fn="add", word=counter.word, value=word(1), expected=None, dst=None, order=ACQ_REL, scope=SYSTEM
        )
        self.wait(counter, ">=", self._barriers * self.world, ACQUIRE, SYSTEM)

    def _due(self, version: int | None, of: Iterable[int] | None = None) -> tuple[tuple[int, int], ...]:
        wanted = self._version if version is None else version
        ranks = list(range(self.world) if of is None else of)
        if not ranks or any(not isinstance(rank, int) or not 0 <= rank < self.world for rank in ranks):
            raise ProtocolError(
                f"`of` names some of the ranks 0 to {self.world - 1}, whose inputs are due",
                value=ranks,
                site=user_site(),
            )
        return tuple((rank, wanted) for rank in ranks)

    def _stream_kernel(self, stream: int, kind: type, phase: str, **fields: object) -> None:
        self._kernels += 1
        go = self._builder.new_stream_kernel(self.rank, self._kernels, self._calls, stream, kind, phase, fields)
        self._emit(Store, word=go.word, value=word(1), order=RELEASE, scope=SYSTEM)


def _check_fn(fn: str) -> None:
    if fn not in ("sum", "max"):
        raise ProtocolError("`fn` is `sum` or `max`", value=fn, site=user_site())
