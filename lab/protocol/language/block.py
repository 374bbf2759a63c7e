"""The verbs of one block of one launch: the argument of a protocol function."""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.expr import MASK, Expr, enumerate_index, registers_of, word
from lab.protocol.language.config import ACQ_REL, ACQUIRE, BLOCK, DEVICE, RELAXED, RELEASE, SYSTEM, VECTOR_BYTES
from lab.protocol.language.early_start import Permit
from lab.protocol.language.launch import Launch
from lab.protocol.language.layout import Buffer, View
from lab.protocol.language.owned import Owned
from lab.protocol.language.record import (
    Recorder,
    Rescue,
    Verbs,
    check_bound,
    condition,
    counted,
    masked,
    span_of,
    values_of,
)
from lab.protocol.language.recording import Recording
from lab.protocol.program import Barrier, Cache, Cond, Mapping, Move, Order, Rmw, Scope, Wait, WaitStamp

# Words that the waves of a block share: barrier arrivals, two values in turn, and whether the leader has returned.
_ARRIVED, _SHARED, _EXITED = 0, 1, 3
SHARED_WORDS = 4
_ALL_ARRIVED = 1 << 20  # added by a leader that returns, so that every later barrier is passed


class Block(Verbs):
    """One block (or one wave of it) of one launch: the argument of a protocol function.

    Attributes:
        rank, world, block, blocks, threads: As in the kernel.
        wave, waves: The wave of the block that this agent is, and how many there are; with `waves=1`, the whole block.
        call: What the host counted when it made this launch: the rank's launches and captures, from 1, or what
            `h.launch(..., call=)` said. A captured launch keeps its number, as it keeps its `args`, in every replay; so
            a protocol that must tell replays apart keeps its epoch in a word of device memory. Where one call of the
            collective takes several launches, each of them counts.
        input, output: The payload buffers of this call.
        elements, itemsize: The size of this call.
        peers: The other ranks, starting with the next one: (rank + k) % world.
        mine: The regions of this rank; `on(j)`: those of rank j.
        leader: Verbs of thread 0 only.
        early: Whether this launch overlaps the one ahead of it on the stream.
        args: What `h.launch(..., args=)` gave; a captured launch keeps it in every replay.
        options: The protocol's options.
    """

    def __init__(
        self,
        builder: Recording,
        recorder: Recorder,
        rank: int,
        call: int,
        block: int,
        launch: Launch,
        permit: Permit | None = None,
    ) -> None:
        super().__init__(recorder)
        config = builder.config
        self.rank, self.world, self.call, self.block = rank, config.world, launch.call or call, block
        self.blocks, self.threads = launch.blocks, launch.threads
        self.itemsize = config.itemsize
        self.bytes, self.elements = launch.bytes, launch.bytes // config.itemsize
        self.max_elements = config.max_bytes // config.itemsize
        self.peers = [(rank + k) % config.world for k in range(1, config.world)]
        self.args, self.options = launch.args, builder.options
        self.early = launch.overlap
        self._launch, self._builder, self._permit = launch, builder, permit
        self.wave, self.waves, self._barriers = 0, config.waves, 0
        self._shared: Buffer | None = None
        self.leader = Verbs(recorder)

    def as_wave(self, wave: int, shared: Buffer) -> Block:
        """This block's wave `wave`, which shares the words `shared` with the other waves."""
        self.wave, self._shared = wave, shared
        if wave:
            self.leader = Verbs(None, muted=self._recorder)
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

    @property
    def own_threads(self) -> range:
        """The threads of the block that this agent is: all of them, or those of its wave."""
        threads = self.threads // self.waves
        return range(self.wave * threads, (self.wave + 1) * threads)

    def mapping(self, vector: int = 1, ragged: bool = False, alone: bool = False) -> Mapping:
        """The thread-to-element mapping of a grid-stride loop over vectors of `vector` elements.

        `alone`: of a loop over the threads of this block, which takes all elements that it is given.
        """
        threads, blocks = self.own_threads, 1 if alone else self.blocks
        first, grid = (0 if alone else self.block) * self.threads + threads.start, blocks * self.threads
        if not 1 <= vector <= grid:
            # The elements that the vectors leave over are taken one a thread, so there must be as many threads.
            raise ProtocolError(
                f"a vector has 1 to {grid} elements in a grid of {grid} threads", value=vector, site=user_site()
            )
        return Mapping(first, len(threads), grid, vector, ragged)

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
        ragged: bool = False,
        alone: bool = False,
        count: Expr | int | None = None,
    ) -> None:
        """Copy this agent's share of `source` to `dst`.

        Args:
            source: A slot, a buffer, or a slice of one, of any rank.
            dst: As many elements of any rank.
            vector: Elements that a thread copies at once, see `mapping`.
            cache: `Cache.BYPASS` writes past the caches.
            stamp: Written beside each element in the same store: the span becomes packets, which `wait_stamps` polls. A
                packet that the hardware may tear, such as 128 bits that arrive as twice 64, is two copies: the part
                that carries the flag, stamped, and then the rest.
            ragged: The last vector may be shorter.
            alone: This block copies the whole span, not its share of the grid's.
            count: Copy only so many elements from the start of both: a number, or a register that is bounded by the
                length (`n % (length + 1)`), a size that the kernel knows only when it runs.
        """
        self.reduce([source], dst, vector, cache, stamp, ragged, alone, count)

    def reduce(
        self,
        sources: list[View | Buffer],
        dst: View | Buffer,
        vector: int = 1,
        cache: Cache = Cache.CACHED,
        stamp: Expr | int | None = None,
        ragged: bool = False,
        alone: bool = False,
        count: Expr | int | None = None,
        fn: str = "sum",
    ) -> None:
        """Sum this agent's share of `sources`, in the order given, in fp32, and write it to `dst` rounded once.

        `fn="max"` takes the maximum instead, and stands for any other function that may be grouped as one likes; what
        is due then, `h.expect(..., fn="max")` says. The other arguments are those of `copy`.
        """
        if fn not in ("sum", "max"):
            raise ProtocolError("`fn` is `sum` or `max`", value=fn, site=user_site())
        spans, target = tuple(span_of(source) for source in sources), span_of(dst)
        if not spans:
            raise ProtocolError("there is nothing to reduce: the list of sources is empty", site=user_site())
        if not isinstance(vector, int):
            raise ProtocolError("a vector is a whole number of elements", value=vector, site=user_site())
        for span in spans:
            if span.length != target.length:
                raise ProtocolError(
                    f"{span.label} has {span.length} elements, {target.label} {target.length}", site=user_site()
                )
        self._emit(
            Move,
            dst=target,
            sources=spans,
            mapping=self.mapping(vector, ragged, alone),
            cache=cache,
            stamp=None if stamp is None else word(stamp),
            fn=fn,
            count=counted(count),
        )

    def put_constant(
        self,
        dst: View | Buffer,
        value: int,
        vector: int = 1,
        cache: Cache = Cache.CACHED,
        stamp: Expr | int | None = None,
        ragged: bool = False,
        alone: bool = False,
        count: Expr | int | None = None,
    ) -> None:
        """Write one known value into this agent's share of `dst`: zeroes, or the sentinel of an empty buffer.

        `h.expect_constant` compares with it; the other arguments are those of `copy`.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise ProtocolError("a constant is a whole number that stands for the bits", value=value, site=user_site())
        self._emit(
            Move,
            dst=span_of(dst),
            sources=(),
            mapping=self.mapping(vector, ragged, alone),
            cache=cache,
            stamp=None if stamp is None else word(stamp),
            constant=value & MASK,
            count=counted(count),
        )

    def clear(
        self, span: View | Buffer, stamp: Expr | int, vector: int = 1, ragged: bool = False, alone: bool = False
    ) -> None:
        """Write packets without data over this agent's share of `span`: the stamp alone."""
        self._emit(
            Move,
            dst=span_of(span),
            sources=(),
            mapping=self.mapping(vector, ragged, alone),
            cache=Cache.CACHED,
            stamp=word(stamp),
        )

    def wait_stamps(
        self,
        span: View | Buffer,
        cond: str,
        value: Expr | int,
        vector: int = 1,
        bound: int | None = None,
        on_timeout: Callable[[], None] | Rescue | None = None,
        seconds: float | None = None,
        ragged: bool = False,
        alone: bool = False,
        mask: Expr | int | None = None,
        count: Expr | int | None = None,
    ) -> None:
        """Poll this agent's share of a span of packets until every stamp meets the condition.

        `cond`, `value`, `mask` and the bounds are those of `wait`; `vector`, `ragged`, `alone`, `count` those of
        `copy`. A poll is relaxed, at system scope, and of whole packets: the data that it reads came with the stamp.
        """
        check_bound(bound, seconds, on_timeout)
        if condition(cond) is Cond.SUM_LE:
            raise ProtocolError("stamps are compared one by one, not summed", value=cond, site=user_site())
        self._bounded(
            WaitStamp,
            on_timeout,
            span=span_of(span),
            mapping=self.mapping(vector, ragged, alone),
            cond=condition(cond),
            value=word(value),
            bound=bound,
            seconds=seconds,
            of=masked(mask),
            count=counted(count),
        )

    def barrier(self) -> None:
        """`__syncthreads()`: the waves of this block, nothing else."""
        if self._shared is None:
            self._emit(Barrier)
            return
        self._meet(ACQ_REL, ACQUIRE)

    def _meet(self, arrive: Order, leave: Order) -> None:
        assert self._shared is not None
        self._barriers += 1
        counter = self._shared[_ARRIVED]
        self._emit(Rmw, fn="add", word=counter, value=word(1), expected=None, dst=None, order=arrive, scope=BLOCK)
        self.wait(counter, ">=", self._barriers * self.waves, leave, BLOCK)
        exited = self.load(self._shared[_EXITED], RELAXED, BLOCK, "exited")
        with self.when(exited != 0):
            Verbs.ret(self)

    def bare_barrier(self) -> None:
        """The waves of this block meet, and that is all: `s_barrier`, or `__builtin_amdgcn_s_barrier()`, alone.

        It orders no access to memory. A store that a wave made before it may still be on its way when the others go on,
        unless that wave drained; a read behind it may see what is older, unless it comes behind an acquire of its own.
        `barrier` is what `__syncthreads()` and PTX `bar.sync` are, which order memory among the threads of the block.
        Where the block is one agent (`waves=1`), nothing can go wrong between its waves: check it with `waves=2`.
        """
        if self._shared is None:
            self._emit(Barrier, bare=True)
            return
        self._meet(RELAXED, RELAXED)

    def share(self, value: Expr | int) -> Expr:
        """Thread 0's `value`, known to the whole block after a block barrier (`__shared__` in the kernel)."""
        if self._shared is None:
            shared = self.let(value)
            self.barrier()
            return shared
        slot = self._shared[_SHARED + self._barriers % 2]
        self.leader.store(slot, value, RELAXED, BLOCK)
        self.barrier()
        return self.load(slot, RELAXED, BLOCK, values=values_of(word(value)))

    def ret(self) -> None:
        """The block returns; waves that wait at its barrier return too."""
        if self._shared is not None and self.wave == 0:
            self.store(self._shared[_EXITED], 1, RELAXED, BLOCK)
            self.add(self._shared[_ARRIVED], _ALL_ARRIVED, RELEASE, BLOCK)
        super().ret()

    def wait_previous(self) -> None:
        """In a launch that overlaps the kernel ahead on the stream, wait until that has ended; others have already."""
        before = self._builder.running(self.rank, self._launch.stream) if self._launch.overlap else []
        for done, agents in before[-1:]:
            self.after_kernel(done, agents)

    def let_successor_start(self, order: Order = RELAXED, scope: Scope = DEVICE) -> None:
        """Let a launch that overlaps this one start, as far as this block goes; the first of its waves counts.

        Relaxed, it publishes nothing but what a fence before it releases; what of that the successor sees at its start
        is for `h.launch(..., start=)` to say. Without a successor that overlaps it does nothing.
        """
        if self._permit is not None and self._recorder is not None:
            self._permit.give(self._recorder, order, scope)

    def after_kernel(self, at: Buffer, value: int) -> None:
        """A kernel boundary: all that comes before `at` has reached `value` happens before what follows."""
        fields = {"bound": None, "seconds": None, "on_timeout": None}
        self._emit(
            Wait, word=at.word, cond=Cond.GE, value=word(value), order=ACQUIRE, scope=SYSTEM, boundary=True, **fields
        )

    def _payload(self, buffer: Buffer | None, name: str) -> Buffer:
        if buffer is None:
            raise ProtocolError(f"this launch was given no {name}", site=user_site())
        return buffer


def _aligned(start: Expr, width: int) -> bool:
    for register in registers_of(start):
        if register.values is not None:
            register.values.fixed = True
    return all(value % width == 0 for value in enumerate_index(start)[1][0])
