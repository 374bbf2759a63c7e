"""The language: what one block does in one call, in the order it does it.

    @protocol(memory=my_memory, blocks=my_grid, bytes=64 * KIB)
    def my_all_reduce(b):
        seq = b.share(b.leader.load(b.mine.epoch, ACQUIRE, DEVICE) + 1)
        for j in b.peers:
            b.copy(b.input, b.on(j).staging[seq % 2, b.rank][: b.elements])
        b.barrier()
        for j in b.peers:
            b.leader.store(b.on(j).flags[b.rank], seq, RELEASE, SYSTEM)
        ...

Python runs once for every (rank, block, call) and is the macro language: loops and ifs over rank, block, call and size are
ordinary Python. Only verbs are recorded. Values that exist at run time are registers (`lab.protocol.expr`).

A scenario says what the hosts do: `back_to_back` and `isolated` (`lab.protocol.scenario`), or your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lab.errors import LabError, UnknownNameError, nearest
from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.expr import Expr, Reg, enumerate_index, word
from lab.protocol.layout import Buffer, View
from lab.protocol.program import (
    WHOLE,
    Agent,
    Barrier,
    Branch,
    Cache,
    Expect,
    Fill,
    Load,
    Mapping,
    Memory,
    Move,
    Order,
    Program,
    Region,
    Rmw,
    Scope,
    Store,
    Wait,
    WaitStamp,
)
from lab.protocol.record import CONDITIONS, Recorder, Verbs, span_of

RELAXED, ACQUIRE, RELEASE, ACQ_REL = Order
WAVE, BLOCK, DEVICE, SYSTEM = Scope
UNCACHED, CACHED, HOST_MAPPED, BLOCK_SHARED = Memory
KIB = 1024
MIB = 1024 * KIB
AbortWords = Callable[[str, int], int]
AbortRecord = Callable[[AbortWords], "str | None"]
ITEMSIZE = {"fp16": 2, "bf16": 2, "fp32": 4}
VECTOR_BYTES = 16
MAX_BLOCKS = 1024
# Words that the waves of a block share: barrier arrivals, two values in turn, and whether the leader has returned.
_ARRIVED, _SHARED, _EXITED = 0, 1, 3
_ALL_ARRIVED = 1 << 20  # added by a leader that returns, so that every later barrier is passed


@dataclass(frozen=True)
class Config:
    """One configuration of a protocol.

    Attributes:
        world: Ranks, 2 to 8 (1 for what one rank does alone).
        bytes: Message size of each call, cycled when there are more calls.
        calls: Calls of each rank.
        blocks: Cap on the grid, or None for the protocol's own grid.
        gate: Largest message the staging is laid out for, in bytes; None: the largest of `bytes`.
        dtype: fp16, bf16 or fp32.
        waves: Waves a block; 1 makes the block one agent.
        options: The protocol's own keyword arguments.
    """

    world: int = 2
    bytes: tuple[int, ...] = (64 * KIB,)
    calls: int = 1
    blocks: int | None = None
    gate: int | None = None
    dtype: str = "fp16"
    waves: int = 1
    scenario: str = "back_to_back"
    options: tuple[tuple[str, object], ...] = ()

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return ITEMSIZE[self.dtype]

    @property
    def max_bytes(self) -> int:
        """The gate in bytes."""
        return self.gate if self.gate is not None else max(self.bytes)

    def items(self) -> tuple[tuple[str, object], ...]:
        """All parameters as (name, value), sorted by name."""
        return tuple(sorted((name, getattr(self, name)) for name in self.__dataclass_fields__))


class Declare:
    """Handed to a protocol's `memory` function once per rank: declares what that rank owns.

    Attributes:
        rank, world, itemsize, options: As in `Block`.
        max_bytes, max_elements: The gate.
        blocks: The largest grid of any call.
    """

    def __init__(self, builder: _Builder, rank: int) -> None:
        self._builder = builder
        self.rank = rank
        self.world = builder.config.world
        self.itemsize = builder.config.itemsize
        self.max_bytes = builder.config.max_bytes
        self.max_elements = self.max_bytes // self.itemsize
        self.blocks = max(builder.grid(size) for size in (*builder.config.bytes, self.max_bytes))
        self.options: dict[str, Any] = builder.options

    def payload(self, name: str, elements: int, memory: Memory = CACHED, **dims: int) -> None:
        """Declare payload of shape `dims` x `elements`, e.g. `payload("staging", n, UNCACHED, parity=2, source=world)`."""
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


class Owned:
    """The regions of one rank, as attributes."""

    def __init__(self, rank: int, regions: dict[str, Buffer]) -> None:
        self._rank, self._regions = rank, regions

    def __getattr__(self, name: str) -> Buffer:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._regions:
            guess = nearest(name, self._regions)
            hint = f"did you mean {' or '.join(guess)}?" if guess else f"it has {', '.join(self._regions) or 'none'}"
            raise ProtocolError(f"rank {self._rank} has no region", value=name, site=user_site(), hint=hint)
        return self._regions[name]


@dataclass(frozen=True)
class Launch:
    """What one kernel launch was given."""

    kernel: Callable[[Block], None]
    input: Buffer | None
    output: Buffer | None
    bytes: int
    blocks: int
    threads: int
    stream: int
    overlap: bool
    args: dict[str, Any]


class Block(Verbs):
    """One block (or one wave of it) of one launch: the argument of a protocol function.

    Attributes:
        rank, world, block, blocks, threads: As in the kernel.
        call: This rank's launches, counted from 1.
        input, output: The payload buffers of this call.
        elements, itemsize: The size of this call.
        peers: The other ranks, starting with the next one: (rank + k) % world.
        mine: The regions of this rank; `on(j)`: those of rank j.
        leader: Verbs of thread 0 only.
        args, options: Launch arguments; the protocol's options.
    """

    def __init__(self, builder: _Builder, recorder: Recorder, rank: int, call: int, block: int, launch: Launch) -> None:
        super().__init__(recorder)
        config = builder.config
        self.rank, self.world, self.call, self.block = rank, config.world, call, block
        self.blocks, self.threads = launch.blocks, launch.threads
        self.itemsize = config.itemsize
        self.bytes, self.elements = launch.bytes, launch.bytes // config.itemsize
        self.max_elements = config.max_bytes // config.itemsize
        self.peers = [(rank + k) % config.world for k in range(1, config.world)]
        self.args, self.options = launch.args, builder.options
        self._launch, self._builder = launch, builder
        self._wave, self._waves, self._barriers = 0, config.waves, 0
        self._shared: Buffer | None = None
        self.leader = Verbs(recorder)

    def as_wave(self, wave: int, shared: Buffer) -> Block:
        """This block's wave `wave`, which shares the words `shared` with the other waves."""
        self._wave, self._shared = wave, shared
        if wave:
            self.leader = Verbs(None)
        return self

    @property
    def input(self) -> Buffer:
        """The input of this call."""
        return self._payload(self._launch.input, "input")

    @property
    def output(self) -> Buffer:
        """The output of this call."""
        return self._payload(self._launch.output, "output")

    @property
    def mine(self) -> Owned:
        """This rank's regions."""
        return self.on(self.rank)

    def on(self, rank: int) -> Owned:
        """The regions of `rank`."""
        return self._builder.owner(rank)

    def phase(self, name: str) -> None:
        """Name the part of the kernel that follows, for listings, verdicts and traces."""
        assert self._recorder is not None
        self._recorder.phase = name

    def mapping(self, vector: int = 1) -> Mapping:
        """The thread-to-element mapping of a grid-stride loop over vectors of `vector` elements."""
        threads = self.threads // self._waves
        first = self.block * self.threads + self._wave * threads
        return Mapping(first, threads, self.blocks * self.threads, vector)

    def vector_elements(self, *spans: View | Buffer) -> int:
        """Elements of a 16-byte vector where all `spans` are 16-byte aligned, else 1."""
        width = VECTOR_BYTES // self.itemsize
        return width if all(_aligned(span_of(span).start, width) for span in spans) else 1

    def copy(
        self,
        source: View | Buffer,
        dst: View | Buffer,
        vector: int = 1,
        cache: Cache = Cache.CACHED,
        stamp: Expr | int | None = None,
    ) -> None:
        """Copy this agent's share of `source` to `dst`; `vector` elements a thread (see `mapping`)."""
        self.reduce([source], dst, vector, cache, stamp)

    def reduce(
        self,
        sources: list[View | Buffer],
        dst: View | Buffer,
        vector: int = 1,
        cache: Cache = Cache.CACHED,
        stamp: Expr | int | None = None,
    ) -> None:
        """Sum this agent's share of `sources`, in the order given, in fp32, and write it to `dst` rounded once."""
        spans, target = tuple(span_of(source) for source in sources), span_of(dst)
        for span in spans:
            if span.length != target.length:
                raise ProtocolError(
                    f"{span.label} has {span.length} elements, {target.label} {target.length}", site=user_site()
                )
        self._emit(
            Move,
            dst=target,
            sources=spans,
            mapping=self.mapping(vector),
            cache=cache,
            stamp=None if stamp is None else word(stamp),
        )

    def wait_stamps(
        self,
        span: View | Buffer,
        cond: str,
        value: Expr | int,
        vector: int = 1,
        bound: int | None = None,
        on_timeout: Callable[[], None] | None = None,
    ) -> None:
        """Poll this agent's share of a span of packets until every stamp meets the condition."""
        self._emit(
            WaitStamp,
            span=span_of(span),
            mapping=self.mapping(vector),
            cond=CONDITIONS[cond],
            value=word(value),
            bound=bound,
            on_timeout=self._handler(on_timeout),
        )

    def barrier(self) -> None:
        """`__syncthreads()`: the waves of this block, nothing else."""
        if self._shared is None:
            self._emit(Barrier)
            return
        self._barriers += 1
        counter = self._shared[_ARRIVED]
        self._emit(Rmw, fn="add", word=counter, value=word(1), expected=None, dst=None, order=ACQ_REL, scope=BLOCK)
        self.wait(counter, ">=", self._barriers * self._waves, ACQUIRE, BLOCK)
        exited = self.load(self._shared[_EXITED], RELAXED, BLOCK, "exited")
        with self.when(exited != 0):
            Verbs.ret(self)

    def share(self, value: Expr) -> Expr:
        """Thread 0's `value`, known to the whole block after a block barrier (`__shared__` in the kernel)."""
        if self._shared is None:
            shared = self.let(value)
            self.barrier()
            return shared
        slot = self._shared[_SHARED + self._barriers % 2]
        self.leader.store(slot, value, RELAXED, BLOCK)
        self.barrier()
        return self.load(slot, RELAXED, BLOCK)

    def ret(self) -> None:
        """The block returns; waves that wait at its barrier return too."""
        if self._shared is not None and self._wave == 0:
            self.store(self._shared[_EXITED], 1, RELAXED, BLOCK)
            self.add(self._shared[_ARRIVED], _ALL_ARRIVED, RELEASE, BLOCK)
        super().ret()

    def wait_previous(self) -> None:
        """Wait for the kernel before this one on the stream, in a launch that overlaps it."""
        for done, agents in self._builder.running(self.rank, self._launch.stream)[-1:]:
            self.wait(done, ">=", agents, ACQUIRE, SYSTEM)

    def _payload(self, buffer: Buffer | None, name: str) -> Buffer:
        if buffer is None:
            raise ProtocolError(f"this launch was given no {name}", site=user_site())
        return buffer


def _aligned(start: Expr, width: int) -> bool:
    return all(value % width == 0 for value in enumerate_index(start)[1][0])


class Host(Verbs):
    """The host thread of one rank: the argument of a scenario.

    Attributes:
        rank, world: As in `Block`.
        config: The configuration, with `bytes`, `calls`, `gate`.
        mine: The regions of this rank.
    """

    def __init__(self, builder: _Builder, recorder: Recorder, rank: int) -> None:
        super().__init__(recorder)
        self.rank, self.world, self.config = rank, builder.config.world, builder.config
        self.options = builder.options
        self._builder, self._version, self._barriers, self._calls = builder, 0, 0, 0

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
        elements = nbytes // self.config.itemsize
        region = self._builder.region(name, self.rank, "payload", CACHED, elements, source=source, constant=constant)
        return Buffer(region)

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
        args: dict[str, Any] | None = None,
    ) -> Launch:
        """Launch the protocol's kernel (or `kernel`) on a stream; returns what was launched, for `replay`.

        `overlap` lets it start before the kernel ahead of it on the stream has ended (programmatic dependent launch).
        """
        launch = self.capture(
            input, output, kernel=kernel, nbytes=nbytes, blocks=blocks, stream=stream, overlap=overlap, args=args
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
        args: dict[str, Any] | None = None,
    ) -> Launch:
        """Capture a launch, as a graph does, without running it: its arguments are frozen; `replay` runs it."""
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
            args or {},
        )

    def replay(self, launch: Launch) -> None:
        """Launch again with frozen arguments, as a captured graph does."""
        self._calls += 1
        go = self._builder.new_launch(self.rank, self._calls, launch)
        self._emit(Store, word=go.word, value=word(1), order=RELEASE, scope=SYSTEM)

    def produce(self, buffer: View | Buffer, stream: int = 0) -> None:
        """A kernel on the stream that writes new values into `buffer` (the next input, in place)."""
        self._version += 1
        source, span = (self.rank, self._version), span_of(buffer)
        self._stream_kernel(stream, Fill, "produce", dst=span, source=source, constant=span.region.constant)

    def consume(self, output: View | Buffer, version: int | None = None, stream: int = 0) -> None:
        """A kernel on the stream that reads `output`, due to hold the sum of the inputs of `version` (default: the last)."""
        due = self._due(version)
        self._stream_kernel(stream, Expect, "consume", span=span_of(output), due=due, constant=False)

    def fill(self, buffer: View | Buffer, poison: bool = False) -> None:
        """The host writes new values (or poison) into `buffer`."""
        if not poison:
            self._version += 1
        source = None if poison else (self.rank, self._version)
        span = span_of(buffer)
        self._emit(Fill, dst=span, source=source, constant=span.region.constant, mapping=WHOLE)

    def expect(self, output: View | Buffer, input: Buffer, failed: bool = False) -> Reg | None:
        """The host compares `output` with the sum of all ranks' `input`. With `failed`, returns 1 if any element differs."""
        assert input.region.source is not None
        dst = self._register("failed") if failed else None
        self._emit(
            Expect,
            span=span_of(output),
            due=self._due(input.region.source[1]),
            constant=input.region.constant,
            mapping=WHOLE,
            dst=None if dst is None else dst.index,
        )
        return dst

    def sync(self, stream: int = 0) -> None:
        """Wait until everything launched on the stream is done."""
        for done, agents in self._builder.running(self.rank, stream):
            self.wait(done, ">=", agents, ACQUIRE, SYSTEM)

    def barrier(self) -> None:
        """A barrier of all hosts."""
        self._barriers += 1
        counter = self._builder.host_barrier
        self._emit(
            Rmw, fn="add", word=counter.word, value=word(1), expected=None, dst=None, order=ACQ_REL, scope=SYSTEM
        )
        self.wait(counter, ">=", self._barriers * self.world, ACQUIRE, SYSTEM)

    def _due(self, version: int | None) -> tuple[tuple[int, int], ...]:
        wanted = self._version if version is None else version
        return tuple((rank, wanted) for rank in range(self.world))

    def _stream_kernel(self, stream: int, kind: type, phase: str, **fields: object) -> None:
        self._calls += 1
        go = self._builder.new_stream_kernel(self.rank, self._calls, stream, kind, phase, fields)
        self._emit(Store, word=go.word, value=word(1), order=RELEASE, scope=SYSTEM)


@dataclass(frozen=True)
class Protocol:
    """A protocol function with its memory, grid and defaults. `program()` records it at one configuration."""

    name: str
    kernel: Callable[[Block], None]
    memory: Callable[[Declare], None]
    blocks: Callable[[int], int]
    threads: int
    defaults: Config
    scenarios: dict[str, Callable[[Host], None]]
    accepts: Callable[[Config], str | None]
    abort_record: Callable[[AbortWords], str | None]
    about: str

    def named(self, name: str) -> Protocol:
        """The same protocol under the name by which the user refers to it."""
        return replace(self, name=name)

    def config(self, **changes: Any) -> Config:
        """The defaults with `changes`; unknown options are refused.

        Raises:
            LabError: A value is out of range, or the protocol refuses it.
        """
        known = set(Config.__dataclass_fields__)
        options = dict(self.defaults.options)
        for name, value in dict(changes.pop("options", ())).items():
            if name not in options:
                raise UnknownNameError(f"option of {self.name}", name, options)
            options[name] = value
        for name in changes:
            if name not in known:
                raise UnknownNameError("parameter", name, known)
        changes = {name: value for name, value in changes.items() if value is not None}
        config = replace(self.defaults, **changes, options=tuple(sorted(options.items())))
        self._check(config)
        return config

    def program(self, config: Config | None = None, **changes: Any) -> Program:
        """Record the protocol.

        Args:
            config: A configuration from `config()`; None: the defaults with `changes`.

        Raises:
            ProtocolError: The text of the protocol is wrong; the message begins with its line.
            LabError: The configuration is out of range.
        """
        return _Builder(self, config if config is not None else self.config(**changes)).build()

    def _check(self, config: Config) -> None:
        _in_range("world", config.world, 1, 8)
        _in_range("calls", config.calls, 1, 4096)
        _in_range("waves", config.waves, 1, 32)
        if config.blocks is not None:
            _in_range("blocks", config.blocks, 1, MAX_BLOCKS)
        if config.dtype not in ITEMSIZE:
            raise UnknownNameError("dtype", config.dtype, ITEMSIZE)
        if config.scenario not in self.scenarios:
            raise UnknownNameError(f"scenario of {self.name}", config.scenario, self.scenarios)
        if self.threads % config.waves:
            raise LabError(
                "the block does not divide into that many waves", value=config.waves, hint=f"{self.threads} threads"
            )
        for size in config.bytes:
            if size <= 0 or size % config.itemsize:
                raise LabError(
                    "bytes is not a positive number of whole elements",
                    value=size,
                    hint=f"{config.dtype} takes {config.itemsize} bytes an element",
                )
            if size > config.max_bytes:
                raise LabError("bytes is above the gate", value=size, hint=f"the gate is {config.max_bytes} bytes")
        refusal = self.accepts(config)
        if refusal:
            raise LabError(f"{self.name} refuses this configuration: {refusal}", value=dict(config.items()))


def _in_range(name: str, value: int, lo: int, hi: int) -> None:
    if not lo <= value <= hi:
        raise LabError(f"{name} is out of range", value=value, hint=f"use {lo} to {hi}")


def protocol(
    *,
    memory: Callable[[Declare], None],
    blocks: Callable[[int], int] | int = 1,
    threads: int = 256,
    scenarios: dict[str, Callable[[Host], None]] | None = None,
    accepts: Callable[[Config], str | None] = lambda config: None,
    abort_record: AbortRecord = lambda words: None,
    options: dict[str, object] | None = None,
    **defaults: Any,
) -> Callable[[Callable[[Block], None]], Protocol]:
    """Make a protocol of a function of one block.

    Args:
        memory: Declares the regions of one rank.
        blocks: The grid for a message of so many bytes; a number is the default of a grid that the configuration sets.
        threads: Threads a block.
        scenarios: What the hosts do, by name, besides `back_to_back` and `isolated`; the first given is the default.
        accepts: Why a configuration is refused, or None.
        abort_record: Decodes the protocol's own abort record of one rank from `words(region name, index)`; None: no abort.
        options: The protocol's own options with their defaults, found in `b.options`.
        **defaults: Defaults of `Config`.
    """
    from lab.protocol.scenario import SCENARIOS

    def wrap(kernel: Callable[[Block], None]) -> Protocol:
        own = scenarios or {}
        first = next(iter(own), "back_to_back")
        given = {"scenario": first, **defaults}
        if isinstance(blocks, int):
            given["blocks"] = blocks
        if isinstance(given.get("bytes"), int):
            given["bytes"] = (given["bytes"],)
        config = Config(**given, options=tuple(sorted((options or {}).items())))
        about = inspect.getdoc(kernel) or ""
        name = kernel.__name__
        grid = (lambda nbytes: MAX_BLOCKS) if isinstance(blocks, int) else blocks
        return Protocol(name, kernel, memory, grid, threads, config, {**SCENARIOS, **own}, accepts, abort_record, about)

    return wrap


@dataclass
class _Builder:
    """Records all agents of one configuration."""

    protocol: Protocol
    config: Config
    regions: list[Region] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)
    before: dict[tuple[int, int], list[tuple[Buffer, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options: dict[str, Any] = dict(self.config.options)
        self.owned: list[dict[str, Buffer]] = [{} for _ in range(self.config.world)]
        self.outputs = [0] * self.config.world
        self._owners = [Owned(rank, regions) for rank, regions in enumerate(self.owned)]
        self._chains: dict[tuple[object, ...], int] = {}
        self.host_barrier = Buffer(self.region("host barrier", 0, "words", HOST_MAPPED, 1))

    def build(self) -> Program:
        for rank in range(self.config.world):
            self.protocol.memory(Declare(self, rank))
        scenario = self.protocol.scenarios[self.config.scenario]
        for rank in range(self.config.world):
            recorder = Recorder(phase="host")
            scenario(Host(self, recorder, rank))
            recorder.place(recorder.end)
            self._agent(rank, 0, -1, 0, "host", ("host", rank), recorder)
        program = Program(
            self.protocol.name,
            self.config.items(),
            self.config.world,
            self.config.dtype,
            self.config.itemsize,
            tuple(self.regions),
            tuple(self.agents),
            len(self._chains),
        )
        _check_waits(program)
        return program

    def region(self, name: str, rank: int, kind: str, memory: Memory, length: int, **fields: Any) -> Region:
        region = Region(len(self.regions), name, rank, kind, memory, length, **fields)
        self.regions.append(region)
        return region

    def owner(self, rank: int) -> Owned:
        if not 0 <= rank < self.config.world:
            raise ProtocolError(f"there is no rank {rank} in a world of {self.config.world}", site=user_site())
        return self._owners[rank]

    def grid(self, nbytes: int) -> int:
        blocks = self.protocol.blocks(nbytes)
        return blocks if self.config.blocks is None else min(blocks, self.config.blocks)

    def running(self, rank: int, stream: int) -> list[tuple[Buffer, int]]:
        """Kernels on the stream that may still run when the next is launched: (word, value when done) of each.

        It is the last one, and with launches that overlap, all since the last that did not.
        """
        return self.before.get((rank, stream), [])

    def _launched(self, rank: int, stream: int, overlap: bool, done: Buffer, agents: int) -> None:
        before = self.running(rank, stream) if overlap else []
        self.before[rank, stream] = [*before, (done, agents)]

    def new_launch(self, rank: int, call: int, launch: Launch) -> Buffer:
        agents = launch.blocks * self.config.waves
        go, done = self._launch_words(rank, call)
        for block in range(launch.blocks):
            shared = None
            if self.config.waves > 1:
                shared = Buffer(self.region(f"shared of call {call} block {block}", rank, "words", BLOCK_SHARED, 4))
            for wave in range(self.config.waves):
                recorder = Recorder()
                b = Block(self, recorder, rank, call, block, launch)
                if shared is not None:
                    b.as_wave(wave, shared)
                self._preamble(b, go, launch.stream, launch.overlap)
                launch.kernel(b)
                self._epilogue(recorder, done)
                kind = "block" if shared is None else "wave"
                turn = call if launch.overlap else 0
                chain = (rank, launch.stream, turn, block, wave)
                self._agent(rank, call, block, wave, kind, chain, recorder)
        self._launched(rank, launch.stream, launch.overlap, done, agents)
        return go

    def new_stream_kernel(
        self, rank: int, call: int, stream: int, kind: type, phase: str, fields: dict[str, object]
    ) -> Buffer:
        go, done = self._launch_words(rank, call)
        recorder = Recorder()
        launch = Launch(lambda b: None, None, None, 0, 1, 1, stream, False, {})
        b = Block(self, recorder, rank, call, 0, launch)
        self._preamble(b, go, stream, False)
        b.phase(phase)
        recorder.emit(kind, mapping=WHOLE, **fields)
        self._epilogue(recorder, done)
        self._agent(rank, call, 0, 0, "kernel", (rank, stream, 0, 0, 0), recorder)
        self._launched(rank, stream, False, done, 1)
        return go

    def _launch_words(self, rank: int, call: int) -> tuple[Buffer, Buffer]:
        go = Buffer(self.region(f"launch of call {call}", rank, "words", HOST_MAPPED, 1))
        done = Buffer(self.region(f"blocks done of call {call}", rank, "words", HOST_MAPPED, 1))
        return go, done

    def _preamble(self, b: Block, go: Buffer, stream: int, overlap: bool) -> None:
        b.phase("launch")
        b.wait(go, ">=", 1, ACQUIRE, SYSTEM)
        for done, agents in [] if overlap else self.running(b.rank, stream):
            # Kernel boundary: everything the kernels before did happens before everything this one does.
            b.wait(done, ">=", agents, ACQUIRE, SYSTEM)
        b.phase("")

    def _epilogue(self, recorder: Recorder, done: Buffer) -> None:
        recorder.returned = False
        recorder.place(recorder.end)
        recorder.phase = "kernel end"
        recorder.emit(
            Rmw, fn="add", word=done.word, value=word(1), expected=None, dst=None, order=ACQ_REL, scope=SYSTEM
        )

    def _agent(
        self, rank: int, call: int, block: int, wave: int, kind: str, chain: tuple[object, ...], recorder: Recorder
    ) -> None:
        ops = recorder.finish()
        index = self._chains.setdefault(chain, len(self._chains))
        self.agents.append(Agent(len(self.agents), rank, call, block, wave, kind, index, ops))


def _check_waits(program: Program) -> None:
    """Refuse a wait on a region that no agent ever writes, on any rank: one rank that never launches is no mistake."""
    written = {op.word.region.name for agent in program.agents for op in agent.ops if isinstance(op, (Store, Rmw))}
    for agent in program.agents:
        for op in agent.ops:
            if isinstance(op, Wait) and op.word.region.name not in written and op.bound is None:
                raise ProtocolError(
                    f"no agent ever writes {op.word.region.name} of rank {op.word.region.rank}, so this wait hangs",
                    site=op.site,
                )


__all__ = [
    "ACQUIRE",
    "ACQ_REL",
    "BLOCK",
    "BLOCK_SHARED",
    "CACHED",
    "DEVICE",
    "HOST_MAPPED",
    "KIB",
    "MIB",
    "RELAXED",
    "RELEASE",
    "SYSTEM",
    "UNCACHED",
    "WAVE",
    "Block",
    "Branch",
    "Cache",
    "Config",
    "Declare",
    "Host",
    "Load",
    "Protocol",
    "protocol",
]
