"""The `Program`: agents that run operations over named memory regions.

Everything downstream (machine, race check, timing model, trace comparison) consumes this and nothing else. It is made
of frozen dataclasses; `lab.protocol.tables` turns it into integer arrays, `Program.listing` into text. Positions in the
listing ("op 12") are the positions that verdicts name.

Memory orders and scopes have the meaning of the LLVM AMDGPU memory model: an access with scope S synchronises only with
agents inside S of *its own* rank, block or wave; two accesses synchronise when each scope includes the other agent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from lab.protocol.expr import BINARY, MASK, Binary, Const, Expr, Reg, to_signed


class Order(IntEnum):
    """Memory order of one access."""

    RELAXED = 0
    ACQUIRE = 1
    RELEASE = 2
    ACQ_REL = 3

    @property
    def acquires(self) -> bool:
        """Whether reads made with this order acquire."""
        return bool(self & 1)

    @property
    def releases(self) -> bool:
        """Whether writes made with this order release."""
        return bool(self & 2)


class Scope(IntEnum):
    """The agents that an access or a fence orders with, from the issuing wave outwards."""

    WAVE = 0
    BLOCK = 1
    DEVICE = 2
    SYSTEM = 3


class Memory(IntEnum):
    """How a region is cached."""

    UNCACHED = 0
    CACHED = 1
    HOST_MAPPED = 2
    BLOCK_SHARED = 3


class Cache(IntEnum):
    """Cache policy of one access to cached memory."""

    CACHED = 0
    BYPASS = 1


class Cond(IntEnum):
    """When a wait is met, comparing the word w with the value v."""

    EQ = 0
    NE = 1
    GE = 2
    """Unsigned w >= v."""
    GE_SIGNED = 3
    GE_MOD = 4
    """w - v, modulo 2**32, is less than 2**31: correct across the wrap."""
    SUM_LE = 5
    """The signed sum of the words is at most v."""
    LT = 6
    """Unsigned w < v."""
    LE = 7
    GT = 8
    TRUE = 9
    """w, or the function of it that the wait names, is not 0."""

    @property
    def symbol(self) -> str:
        """How the condition is written in a protocol."""
        return ("==", "!=", ">=", ">=s", ">=mod", "sum<=", "<", "<=", ">", "!= 0")[self]

    def met(self, word: int, value: int, count: int = 1) -> bool:
        """Whether `count` equal words meet the condition."""
        return (
            word == value,
            word != value,
            word >= value,
            to_signed(word) >= to_signed(value),
            (word - value) % (1 << 32) < 1 << 31,
            count * to_signed(word) <= to_signed(value),
            word < value,
            word <= value,
            word > value,
            word != 0,
        )[self]


@dataclass(frozen=True)
class Function:
    """What a wait computes of the word that it polls, before it compares: one operation after the other.

    Attributes:
        steps: (operator of `expr.BINARY`, other operand, whether that stands on the left). At most two of the operands,
            and what the wait compares with, are registers.
        text: How it is written, of `word`.
    """

    steps: tuple[tuple[str, Expr, bool], ...]
    text: str

    def operands(self) -> list[Expr]:
        """The operands that are known only while the protocol runs, each once."""
        found: list[Expr] = []
        for _, operand, _ in self.steps:
            if not isinstance(operand, Const) and all(operand is not other for other in found):
                found.append(operand)
        return found

    def of(self, word: int) -> int:
        """The function of a word, where all operands are known."""
        for op, operand, left in self.steps:
            assert isinstance(operand, Const)
            word = BINARY[op](operand.value, word) & MASK if left else BINARY[op](word, operand.value) & MASK
        return word


@dataclass(frozen=True)
class Site:
    """Where in the user's source an operation was written.

    Attributes:
        file, line, text: The line itself.
        called_at: The line of the protocol function that called a helper that holds it; 0: the line is the protocol's
            own.
        called_in: Its file.
        function: The helper's name.
    """

    file: str
    line: int
    text: str
    called_at: int = 0
    called_in: str = ""
    function: str = ""

    def __str__(self) -> str:
        own = f"{self.file.rsplit('/', 1)[-1]}:{self.line}"
        if not self.called_at:
            return own
        helper = f"{self.function}:{self.line}" if self.called_in == self.file else f"{self.function}, {own}"
        return f"{self.called_in.rsplit('/', 1)[-1]}:{self.called_at} ({helper})"


@dataclass(frozen=True)
class Region:
    """One named piece of memory on one rank.

    Attributes:
        id: Position in `Program.regions`.
        name: What the protocol calls it.
        rank: The rank whose memory it is.
        kind: `"payload"` (elements) or `"words"` (32-bit words).
        memory: How it is cached.
        length: Elements or words.
        shape: Named leading dimensions, outermost first, as (name, extent); the last extent is implied.
        initial: What it holds before the program runs: words, the initial value; payload, ignored.
        source: For payload that exists before the program runs, (rank, version) of its values; None: poison.
        constant: Every element of `source` has the same value, so that index errors do not show.
    """

    id: int
    name: str
    rank: int
    kind: str
    memory: Memory
    length: int
    shape: tuple[tuple[str, int], ...] = ()
    initial: int = 0
    source: tuple[int, int] | None = None
    constant: bool = False

    def slot(self, index: int) -> tuple[str, int]:
        """The slot (payload) or word that holds element `index`, and the element's place in it."""
        if not self.shape:
            if self.kind == "payload" or self.length == 1:
                return self.name, index if self.kind == "payload" else 0
            return f"{self.name}[{index}]", 0
        inner, parts = self.length, []
        for name, extent in self.shape:
            inner //= extent
            parts.append(f"{name} {index // inner}" if name else str(index // inner))
            index %= inner
        return f"{self.name}[{', '.join(parts)}]", index


@dataclass(frozen=True)
class WordRef:
    """`count` consecutive words of `region` from `index` on."""

    region: Region
    index: Expr
    label: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.label} of rank {self.region.rank}"


@dataclass(frozen=True)
class Span:
    """Elements `[start, start + length)` of a payload region."""

    region: Region
    start: Expr
    length: int
    label: str

    def __str__(self) -> str:
        return f"{self.label} of rank {self.region.rank}"


@dataclass(frozen=True)
class Mapping:
    """Which elements of a span one agent handles, and in which iteration of its loop.

    Thread `g` of a grid of `grid` threads takes vector `g`, `g + grid`, ... of `vector` elements each; what the vectors
    leave over (fewer than `vector` elements) is taken one element a thread or, if `ragged`, is the last vector, a
    shorter one. This agent has threads `[first, first + threads)`.
    """

    first: int
    threads: int
    grid: int
    vector: int = 1
    ragged: bool = False

    def vectored(self, length: int) -> int:
        """Elements of a span of `length` that are handled in vectors."""
        return length if self.ragged else length // self.vector * self.vector

    def chunks(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield (iteration, lo, hi): the contiguous elements of a span of `length` that this agent handles."""
        whole = self.vectored(length)
        step, width = self.grid * self.vector, self.threads * self.vector
        for iteration, lo in enumerate(range(self.first * self.vector, whole, step)):
            yield iteration, lo, min(lo + width, whole)
        iterations = max(0, -(-(whole - self.first * self.vector) // step))
        lo, hi = whole + self.first, min(whole + self.first + self.threads, length)
        if lo < hi:
            yield iterations, lo, hi


CONSTANT = -1
"""In place of a rank: the values are a constant, the version."""
WHOLE = Mapping(0, 1 << 40, 1 << 40)
"""One agent handles everything, in one iteration (hosts; kernels that the protocol does not describe)."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of an agent. `site` is the user's line, `phase` the protocol's name for this part of the kernel."""

    site: Site
    phase: str = ""

    def describe(self) -> str:
        """The operation in the words of the protocol language."""
        raise NotImplementedError


def _at(order: Order, scope: Scope) -> str:
    return f"({order.name.lower()}, {scope.name.lower()})"


def _condition(cond: Cond, value: Expr, of: Function | None) -> str:
    if cond is Cond.TRUE:
        return f"until {of.text}" if of else "!= 0"
    return f"{cond.symbol} {value}" if of is None else f"with {of.text} {cond.symbol} {value}"


def _limit(bound: int | None, seconds: float | None) -> str:
    return f", at most {bound} polls" if bound else f", at most {seconds} s" if seconds else ""


@dataclass(frozen=True, kw_only=True)
class Load(Op):
    """Read a word into register `dst`."""

    dst: int
    word: WordRef
    order: Order
    scope: Scope
    cache: Cache = Cache.CACHED

    def describe(self) -> str:
        """See `Op.describe`."""
        return f"load {self.word} {_at(self.order, self.scope)}"


@dataclass(frozen=True, kw_only=True)
class Store(Op):
    """Write a word."""

    word: WordRef
    value: Expr
    order: Order
    scope: Scope
    cache: Cache = Cache.CACHED

    def describe(self) -> str:
        """See `Op.describe`."""
        return f"store {self.word} = {self.value} {_at(self.order, self.scope)}"


@dataclass(frozen=True, kw_only=True)
class Rmw(Op):
    """Read-modify-write; `dst`, if any, gets the old value.

    `fn`: `add`, `sub`, `max`, `min`, `and`, `or`, `xor`, `exchange`, `cas`, or `update`, whose `value` is an expression
    in `dst`, a loop around `cas` that tries until nobody came between. `patient`: a `cas` that is tried until it
    succeeds; after `bound` tries, or `seconds`, it gives up as a wait does. `boundary`: the end of a kernel; it orders
    as an `acq_rel` fence before it does, too.
    """

    fn: str
    word: WordRef
    value: Expr
    expected: Expr | None
    dst: int | None
    order: Order
    scope: Scope
    boundary: bool = False
    patient: bool = False
    bound: int | None = None
    seconds: float | None = None
    on_timeout: int | None = None

    def describe(self) -> str:
        """See `Op.describe`."""
        form = {
            "add": "add {value} to {word}",
            "sub": "subtract {value} from {word}",
            "max": "raise {word} to at least {value}",
            "min": "lower {word} to at most {value}",
            "and": "and {value} into {word}",
            "or": "or {value} into {word}",
            "xor": "xor {value} into {word}",
            "update": "update {word} to {value}",
            "exchange": "exchange {word} for {value}",
            "cas": "cas {word} {expected} -> {value}",
        }[self.fn]
        what = form.format(word=self.word, value=self.value, expected=self.expected)
        tries = ", until it succeeds" if self.patient else ""
        return f"{what} {_at(self.order, self.scope)}{tries}{_limit(self.bound, self.seconds)}"


@dataclass(frozen=True, kw_only=True)
class Wait(Op):
    """Poll until the condition holds, of the word, of `of` it, or of any of the word and `others`.

    After `bound` polls, or `seconds`, give up and jump to `on_timeout` (an op position). `boundary`: the start of a
    kernel; it orders as an `acq_rel` fence behind it does, too.
    """

    word: WordRef
    cond: Cond
    value: Expr
    order: Order
    scope: Scope
    bound: int | None = None
    seconds: float | None = None
    on_timeout: int | None = None
    boundary: bool = False
    of: Function | None = None
    others: tuple[WordRef, ...] = ()

    @property
    def words(self) -> tuple[WordRef, ...]:
        """All words that it polls."""
        return (self.word, *self.others)

    def describe(self) -> str:
        """See `Op.describe`."""
        limit = _limit(self.bound, self.seconds)
        which = f"any of {', '.join(map(str, self.words))}" if self.others else str(self.word)
        return f"wait {which} {_condition(self.cond, self.value, self.of)} {_at(self.order, self.scope)}{limit}"


@dataclass(frozen=True, kw_only=True)
class Fence(Op):
    """Order this agent's accesses; covers the issuing agent only."""

    order: Order
    scope: Scope

    def describe(self) -> str:
        """See `Op.describe`."""
        return f"fence {_at(self.order, self.scope)}"


@dataclass(frozen=True, kw_only=True)
class Barrier(Op):
    """A block barrier where the block is one agent: it orders threads that are one agent here anyway.

    `bare`: the threads meet, and that is all (`s_barrier` without what `__syncthreads` puts around it).
    """

    bare: bool = False

    def describe(self) -> str:
        """See `Op.describe`."""
        return "bare block barrier" if self.bare else "block barrier"


@dataclass(frozen=True, kw_only=True)
class Drain(Op):
    """Wait until what this agent itself loaded and stored before is complete (`s_waitcnt vmcnt(0)`, `vscnt(0)`)."""

    def describe(self) -> str:
        """See `Op.describe`."""
        return "drain: wait for the own loads and stores"


@dataclass(frozen=True, kw_only=True)
class Set(Op):
    """Compute a register."""

    dst: int
    value: Expr
    name: str

    def describe(self) -> str:
        """See `Op.describe`."""
        return f"{self.name} = {self.value}"


@dataclass(frozen=True, kw_only=True)
class Branch(Op):
    """Jump to op `target` when the condition is zero; `cond` None jumps always."""

    cond: Expr | None
    target: int

    def describe(self) -> str:
        """See `Op.describe`."""
        return f"goto op {self.target}" + (f" unless {self.cond}" if self.cond is not None else "")


@dataclass(frozen=True, kw_only=True)
class Move(Op):
    """`dst[i] = sum(src[i] for src in sources)` over the agent's share of the span; one source is a copy.

    `stamp`, when given, is written beside every element in the same store: a packet of data and flag, one relaxed
    atomic store. Without sources it is a packet without data, or writes `constant` into every element. `fn`: `sum` or
    `max`. `count`: of the spans, only so many elements from their start, known when it runs; None: all.
    """

    dst: Span
    sources: tuple[Span, ...]
    mapping: Mapping
    cache: Cache = Cache.CACHED
    stamp: Expr | None = None
    constant: int | None = None
    fn: str = "sum"
    count: Expr | None = None

    def describe(self) -> str:
        """See `Op.describe`."""
        how = {1: "scalar"}.get(self.mapping.vector, f"vector of {self.mapping.vector}")
        how += f", the first {self.count}" if self.count is not None else ""
        if self.constant is not None:
            text = f"put the constant {self.constant} into {self.dst} ({how})"
        elif not self.sources:
            text = f"clear {self.dst} ({how})"
        elif len(self.sources) == 1:
            text = f"copy {self.sources[0]} -> {self.dst} ({how})"
        else:
            all_of = " + ".join(map(str, self.sources))
            text = f"reduce {all_of} -> {self.dst} ({how})"
            if self.fn == "max":
                text = f"maximum of {', '.join(map(str, self.sources))} -> {self.dst} ({how})"
        return text + (f" stamped {self.stamp}" if self.stamp is not None else "")


@dataclass(frozen=True, kw_only=True)
class WaitStamp(Op):
    """Poll a span of packets until every stamp in the agent's share meets the condition."""

    span: Span
    mapping: Mapping
    cond: Cond
    value: Expr
    bound: int | None = None
    seconds: float | None = None
    on_timeout: int | None = None
    of: Function | None = None
    count: Expr | None = None

    def describe(self) -> str:
        """See `Op.describe`."""
        condition = _condition(self.cond, self.value, self.of)
        some = f" (the first {self.count})" if self.count is not None else ""
        return f"wait stamps of {self.span}{some} {condition}{_limit(self.bound, self.seconds)}"


@dataclass(frozen=True, kw_only=True)
class Fill(Op):
    """Write new values: the input that `source` = (rank, version) names, or poison when None.

    `(CONSTANT, value)` names a constant.
    """

    dst: Span
    source: tuple[int, int] | None
    constant: bool
    mapping: Mapping

    def describe(self) -> str:
        """See `Op.describe`."""
        what = "poison" if self.source is None else f"input version {self.source[1]}"
        if self.source is not None and self.source[0] == CONSTANT:
            what = f"the constant {self.source[1]}"
        return f"fill {self.dst} with {what}"


@dataclass(frozen=True, kw_only=True)
class Expect(Op):
    """Read a span and compare it with the sum of the inputs `due`, whose element `first` is due at the span's first.

    `due` may hold several versions of a rank, which are added, and constants, as in `Fill`. `fn`: `sum`, or `max` of
    the first version, to which the others are added. Register `dst`, if any, gets 1 if any element differs.
    """

    span: Span
    due: tuple[tuple[int, int], ...]
    constant: bool
    mapping: Mapping
    first: int = 0
    dst: int | None = None
    fn: str = "sum"

    @property
    def combined(self) -> list[tuple[int, int]]:
        """Of `due`, what `fn` combines: the inputs of the first version."""
        return [source for source in self.due if source[0] != CONSTANT and source[1] == self.due[0][1]]

    def describe(self) -> str:
        """See `Op.describe`."""
        combined = self.combined
        ranks = ", ".join(str(rank) for rank, _ in combined)
        fn = "maximum" if self.fn == "max" else "sum"
        whose = f"{fn} over ranks {ranks} of input" if len(combined) > 1 else f"input of rank {ranks},"
        parts = [f"{whose} version {self.due[0][1]}"] if combined else []
        for rank, version in self.due:
            if (rank, version) not in combined:
                parts.append(
                    f"the constant {version}" if rank == CONSTANT else f"input of rank {rank}, version {version}"
                )
        return f"expect {self.span} = {' + '.join(parts)}"


@dataclass(frozen=True)
class Agent:
    """One thread of control: a block (or wave) of one launch, or a host thread.

    Attributes:
        id: Position in `Program.agents`.
        rank: Its rank.
        call: The launch it belongs to, counted per rank from 1; for a producer or consumer, the launch before it; for a
            host, 0.
        sequence: Its place among all kernels of its rank, in the order of launch.
        block: Block index; -1 for a host.
        wave: Wave in the block; 0 when the block is one agent.
        kind: `"block"`, `"wave"`, `"kernel"` (a producer or consumer on the stream) or `"host"`.
        chain: Clock component; agents of one chain never run at the same time.
        ops: Its operations.
    """

    id: int
    rank: int
    call: int
    block: int
    wave: int
    kind: str
    chain: int
    ops: tuple[Op, ...]
    sequence: int = 0

    @property
    def name(self) -> str:
        """How verdicts call it."""
        if self.kind == "host":
            return f"rank {self.rank} host"
        if self.kind == "kernel":
            phase = next(op.phase for op in self.ops if isinstance(op, (Fill, Expect, Move)))
            after = f", after call {self.call}" if self.call else ""
            return f"rank {self.rank} {phase} kernel {self.sequence}{after}"
        wave = f" wave {self.wave}" if self.kind == "wave" else ""
        return f"rank {self.rank} block {self.block}{wave}, call {self.call}"


def _key(value: object) -> object:
    """Everything that `value` says except where in the source it was written, in a form whose repr is short."""
    if isinstance(value, Op):
        return (type(value).__name__, *(_key(getattr(value, f)) for f in value.__dataclass_fields__ if f != "site"))
    if isinstance(value, WordRef):
        return value.region.id, _key(value.index), value.count
    if isinstance(value, Span):
        return value.region.id, _key(value.start), value.length
    if isinstance(value, Function):
        return tuple((op, _key(operand), left) for op, operand, left in value.steps)
    if isinstance(value, Reg):
        return f"r{value.index}"
    if isinstance(value, Binary):
        return value.op, _key(value.left), _key(value.right)
    return tuple(map(_key, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Residency:
    """A GPU on which more blocks may want to run than it has slots for (`lab.protocol.language.dispatch`).

    Attributes:
        gpu: Its number.
        count: Blocks that it runs at once.
        words: Ids of the regions through which blocks wait for a slot and give it back.
    """

    gpu: int
    count: int
    words: frozenset[int]


@dataclass(frozen=True)
class Program:
    """Agents over regions: one protocol at one configuration.

    Attributes:
        protocol: Name of the protocol (or `file.py:name`).
        config: The parameters it was built with, as sorted (name, value) pairs.
        world: Ranks.
        itemsize: Bytes an element.
        dtype: `"fp16"`, `"bf16"` or `"fp32"`.
        residency: The GPUs whose slots may run out.
    """

    protocol: str
    config: tuple[tuple[str, object], ...]
    world: int
    dtype: str
    itemsize: int
    regions: tuple[Region, ...]
    agents: tuple[Agent, ...]
    chains: int
    residency: tuple[Residency, ...] = ()

    @property
    def n_ops(self) -> int:
        """Operations of all agents together."""
        return sum(len(agent.ops) for agent in self.agents)

    def fingerprint(self) -> str:
        """Twelve hex digits that change whenever any operation or region does."""
        digest = hashlib.sha256()
        digest.update(repr((self.protocol, self.config, self.world, self.dtype)).encode())
        for region in self.regions:
            digest.update(repr(region).encode())
        for agent in self.agents:
            digest.update(f"{agent.rank},{agent.call},{agent.block},{agent.wave},{agent.kind}".encode())
            for op in agent.ops:
                digest.update(repr(_key(op)).encode())
        return digest.hexdigest()[:12]

    def listing(self, agent: Agent) -> str:
        """The operations of one agent, one a line: position, user's source line, phase, operation."""
        lines = [f"{agent.name} ({len(agent.ops)} ops)"]
        phase = None
        for position, op in enumerate(agent.ops):
            if op.phase != phase:
                phase = op.phase
                lines.append(f"  -- {phase}")
            lines.append(f"  {position:>4}  {op.site!s:<38} {op.describe()}")
        return "\n".join(lines)
