"""Recording one agent: verbs append operations, labels become positions when the agent is finished."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.expr import MASK, MOST_VALUES, Binary, Expr, Reg, Values, range_of, registers_of, word
from lab.protocol.language.layout import Buffer, View
from lab.protocol.program import (
    Branch,
    Cache,
    Cond,
    Drain,
    Fence,
    Function,
    Load,
    Op,
    Order,
    Rmw,
    Scope,
    Set,
    Span,
    Store,
    Wait,
    WordRef,
)

MAX_REGISTERS = 64
MAX_OPS_OF_AGENT = 250_000  # a block in one launch, or a host
MAX_OPS = 6_000_000  # of all agents together; some 600 bytes each
_ASSIGNED = re.compile(r"(\w+)\s*=[^=]")
CONDITIONS = {cond.symbol: cond for cond in Cond if cond is not Cond.TRUE}


@dataclass(eq=False)
class Label:
    """A position that is not known yet."""

    position: int | None = None


@dataclass
class Budget:
    """How many operations of a program have been recorded."""

    ops: int = 0


@dataclass
class Recorder:
    """Operations of one agent in the making."""

    phase: str = ""
    ops: list[tuple[type[Op], dict[str, object]]] = field(default_factory=list)
    registers: int = 0
    end: Label = field(default_factory=Label)
    deferred: list[tuple[Label, Callable[[], None], Label]] = field(default_factory=list)
    returned: bool = False
    muted: int = 0
    budget: Budget = field(default_factory=Budget)
    handling: bool = (
        False  # what follows runs before what was recorded: handlers of timeouts that go on behind the wait
    )

    def emit(self, kind: type[Op], **fields: object) -> None:
        """Append an operation written at the current line of user source."""
        if self.muted:
            return
        site = user_site()
        if self.returned:
            raise ProtocolError("this operation can never run: the agent has returned before it", site=site)
        for name, wanted in (("order", Order), ("scope", Scope)):
            if name in fields and not isinstance(fields[name], wanted):
                known = ", ".join(member.name for member in wanted)
                raise ProtocolError(f"this is no memory {name}; use {known}", value=fields[name], site=site)
        self.budget.ops += 1
        if len(self.ops) >= MAX_OPS_OF_AGENT:
            raise ProtocolError(
                f"more than {MAX_OPS_OF_AGENT:,} operations of one agent are recorded",
                site=site,
                hint="does a loop of the text end?",
            )
        if self.budget.ops > MAX_OPS:
            raise ProtocolError(
                f"more than {MAX_OPS:,} operations are recorded",
                site=site,
                hint="use fewer calls, ranks or blocks; does every loop end?",
            )
        self.ops.append((kind, {"site": site, "phase": self.phase, **fields}))

    def register(self, name: str | None, values: Values | None = None) -> Reg:
        """A fresh register, named after the variable it is assigned to when that can be read from the source."""
        if self.registers >= MAX_REGISTERS:
            raise ProtocolError(f"an agent has at most {MAX_REGISTERS} registers", site=user_site())
        if name is None:
            found = _ASSIGNED.match(user_site().text)
            name = found.group(1) if found else f"r{self.registers}"
        self.registers += 1
        return Reg(self.registers - 1, name, values)

    def place(self, label: Label) -> None:
        """Give `label` the position of the next operation."""
        label.position = len(self.ops)

    def finish(self) -> tuple[Op, ...]:
        """Append the timeout handlers, resolve the labels, and return the operations."""
        if self.deferred:
            stop = Label()
            self.emit(Branch, cond=None, target=stop)
            self.handling = True
            while self.deferred:
                label, handler, behind = self.deferred.pop(0)
                self.place(label)
                self.phase, self.returned = "timeout", False
                handler()
                if not self.returned:
                    self.emit(Branch, cond=None, target=behind)
            self.place(stop)
        built = []
        for kind, fields in self.ops:
            resolved = {k: v.position if isinstance(v, Label) else v for k, v in fields.items()}
            built.append(kind(**resolved))  # type: ignore[arg-type]
        return tuple(built)


class When:
    """`with b.when(expr):` runs its body only when `expr` is not zero; `muted`, the body is another wave's alone."""

    def __init__(self, recorder: Recorder | None, cond: Expr, muted: Recorder | None = None) -> None:
        self._recorder, self._cond, self._muted = recorder, cond, muted

    def __enter__(self) -> None:
        if self._muted is not None:
            self._muted.muted += 1
        if self._recorder is None:
            return
        self._skip = Label()
        self._recorder.emit(Branch, cond=self._cond, target=self._skip)

    def __exit__(self, *_: object) -> None:
        if self._muted is not None:
            self._muted.muted -= 1
        if self._recorder is None:
            return
        self._recorder.returned = False
        self._recorder.place(self._skip)


class Rescue:
    """`with b.rescue(handler) as gives_up:` waits of its body with `on_timeout=gives_up` share a handler.

    The agent then goes on behind the body.
    """

    def __init__(self, recorder: Recorder | None, handler: Callable[[], None]) -> None:
        self._recorder, self._handler = recorder, handler
        self.at = Label()
        self.used = False

    def __enter__(self) -> Rescue:
        return self

    def __exit__(self, *_: object) -> None:
        if self._recorder is None or not self.used:
            return
        behind = Label()
        self._recorder.place(behind)
        self._recorder.deferred.append((self.at, self._handler, behind))


class Verbs:
    """What any agent can do with words. Orders and scopes are explicit where they matter and named as in HIP."""

    def __init__(self, recorder: Recorder | None, muted: Recorder | None = None) -> None:
        # None: this agent is not the one that the text addresses (a wave that is not the leader); nothing is recorded.
        # `muted` is then that agent's recorder, which records nothing in the body of a `when` of the leader either.
        self._recorder, self._muted = recorder, muted

    def _emit(self, kind: type[Op], **fields: object) -> None:
        if self._recorder is not None:
            self._recorder.emit(kind, **fields)

    def _register(self, name: str | None, values: Values | None = None) -> Reg:
        if self._recorder is None:
            return Reg(0, name or "leader value", values)
        return self._recorder.register(name, values)

    def load(
        self, at: WordRef | Buffer, order: Order, scope: Scope, name: str | None = None, values: Values | None = None
    ) -> Reg:
        """Read a word; `values`, what is known of it."""
        dst = self._register(name, values)
        self._emit(Load, dst=dst.index, word=word_ref(at), order=order, scope=scope)
        return dst

    def store(
        self, at: WordRef | Buffer, value: Expr | int, order: Order, scope: Scope, cache: Cache = Cache.CACHED
    ) -> None:
        """Write a word."""
        self._emit(Store, word=word_ref(at), value=word(value), order=order, scope=scope, cache=cache)

    def rmw(
        self,
        fn: str,
        at: WordRef | Buffer,
        value: Expr | int,
        order: Order,
        scope: Scope,
        expected: Expr | int | None = None,
    ) -> Reg:
        """Read-modify-write a word in one step; returns the old value.

        Args:
            fn: add, sub, max, min (both unsigned), and, or, xor, exchange, cas.
            at: A word of any rank, or a region of one word.
            value: What is added, compared, stored, ...; a number or a register expression, modulo 2**32.
            order: RELAXED, ACQUIRE (of the read), RELEASE (of the write), ACQ_REL.
            scope: WAVE, BLOCK, DEVICE or SYSTEM.
            expected: Of `cas`: it stores `value` only if the word holds this.
        """
        if fn not in RMW_FUNCTIONS:
            raise ProtocolError(f"unknown read-modify-write; use one of {RMW_FUNCTIONS}", value=fn, site=user_site())
        if (fn == "cas") != (expected is not None):
            raise ProtocolError("only cas compares: it, and nothing else, takes `expected`", value=fn, site=user_site())
        dst = self._register(None)
        want = None if expected is None else word(expected)
        self._emit(
            Rmw, fn=fn, word=word_ref(at), value=word(value), expected=want, dst=dst.index, order=order, scope=scope
        )
        return dst

    def add(self, at: WordRef | Buffer, value: Expr | int, order: Order, scope: Scope) -> Reg:
        """Atomic add, modulo 2**32; returns the old value."""
        return self.rmw("add", at, value, order, scope)

    def update(
        self,
        at: WordRef | Buffer,
        new: Callable[[Expr], Expr | int],
        order: Order,
        scope: Scope,
        name: str | None = None,
    ) -> Reg:
        """A loop that computes a word's new value of its old one and tries `cas` until nobody came between.

        `new` gets the old value and returns the new one, for instance `lambda old: (old + 1) % 4`. Such a loop ends
        once nobody interferes, so here it is one step: what it loads and computes in vain changes nothing. Returns the
        old value.
        """
        old = self._register(name)
        value = _returned(new(old), "the new value of a word")
        fields = {"expected": None, "dst": old.index, "order": order, "scope": scope}
        self._emit(Rmw, fn="update", word=word_ref(at), value=value, **fields)
        return old

    def cas_until(
        self,
        at: WordRef | Buffer,
        expected: Expr | int,
        value: Expr | int,
        order: Order,
        scope: Scope,
        bound: int | None = None,
        on_timeout: Callable[[], None] | Rescue | None = None,
        seconds: float | None = None,
    ) -> None:
        """Try `cas` until the word held `expected` and now holds `value`: how a lock is taken.

        `while (atomicCAS(&lock, 0, 1) != 0);` is `b.leader.cas_until(lock, 0, 1, ACQUIRE, DEVICE)`; it is given back by
        `b.leader.store(lock, 0, RELEASE, DEVICE)`. Who of several contenders gets it is up to the schedule. Tries that
        fail write nothing and order nothing. `bound`, `on_timeout` and `seconds` are those of `wait`.
        """
        check_bound(bound, seconds, on_timeout)
        self._bounded(
            Rmw,
            on_timeout,
            fn="cas",
            word=word_ref(at),
            value=word(value),
            expected=word(expected),
            dst=None,
            order=order,
            scope=scope,
            patient=True,
            bound=bound,
            seconds=seconds,
        )

    def cas(self, at: WordRef | Buffer, expected: Expr | int, value: Expr | int, order: Order, scope: Scope) -> Reg:
        """Compare and swap; returns the old value."""
        return self.rmw("cas", at, value, order, scope, expected)

    def wait(
        self,
        at: WordRef | Buffer,
        cond: str,
        value: Expr | int,
        order: Order,
        scope: Scope,
        bound: int | None = None,
        on_timeout: Callable[[], None] | Rescue | None = None,
        seconds: float | None = None,
        mask: Expr | int | None = None,
    ) -> None:
        """Poll a word until `word cond value`.

        Args:
            at: A word of any rank, a region of one word, or for `sum<=` several words (`region.words(first, count)`).
            cond: ==, !=, <, <=, >, >= of unsigned words; `>=s` of signed ones; `>=mod`, modulo 2**32, which is right
                across the wrap; `sum<=`, the signed sum of several words.
            value: What is compared with: a number or a register expression.
            order: RELAXED or ACQUIRE.
            scope: How far the poll looks: WAVE, BLOCK, DEVICE or SYSTEM.
            bound: Polls after which it gives up.
            on_timeout: Records what the agent does then: a function, or a `rescue`.
            seconds: Time after which it gives up.
            mask: Compare `word & mask` instead of the word.

        After `bound` polls, or `seconds`, without success it runs `on_timeout`, which records what the agent does then;
        after it the agent returns or, with a `rescue`, goes on behind that. Polls take no known time: their bound may
        be reached while the other side is only late; `seconds` are taken to be longer than any delay, so that they pass
        only when nothing else can happen.
        """
        check_bound(bound, seconds, on_timeout)
        ref, how = word_ref(at), condition(cond)
        if ref.count > 1 and how is not Cond.SUM_LE:
            raise ProtocolError(
                f"{ref.label} are several words, and a wait compares one, or with `sum<=` the sum of several",
                value=cond,
                site=user_site(),
                hint="`wait_any` waits until one of several words meets a condition",
            )
        if mask is not None and how is Cond.SUM_LE:
            raise ProtocolError("a sum of words has no mask", value=mask, site=user_site())
        self._bounded(
            Wait,
            on_timeout,
            word=ref,
            cond=how,
            value=word(value),
            order=order,
            scope=scope,
            bound=bound,
            seconds=seconds,
            of=masked(mask),
        )

    def wait_until(
        self,
        at: WordRef | Buffer,
        test: Callable[[Expr], Expr],
        order: Order,
        scope: Scope,
        bound: int | None = None,
        on_timeout: Callable[[], None] | Rescue | None = None,
        seconds: float | None = None,
    ) -> None:
        """Poll a word until an expression of it is true (not 0).

        `test` gets the word and returns the expression, in which the word occurs once, with at most two registers:
        `b.leader.wait_until(flag, lambda w: ((w - epoch) & 0xFFFF) < 0x8000, ACQUIRE, SYSTEM)`. Operators are those of
        registers: + - * % // & | ^ << >> == != < <= > >=, all on unsigned words modulo 2**32, `signed_lt` and
        `signed_ge`. The other arguments are those of `wait`.
        """
        check_bound(bound, seconds, on_timeout)
        self._bounded(
            Wait,
            on_timeout,
            word=_one_word(at),
            cond=Cond.TRUE,
            value=word(0),
            order=order,
            scope=scope,
            bound=bound,
            seconds=seconds,
            of=function_of(test),
        )

    def wait_any(
        self,
        words: Iterable[WordRef | Buffer],
        cond: str,
        value: Expr | int,
        order: Order,
        scope: Scope,
        bound: int | None = None,
        on_timeout: Callable[[], None] | Rescue | None = None,
        seconds: float | None = None,
        mask: Expr | int | None = None,
    ) -> None:
        """Poll several words, of any regions and ranks, until one of them meets the condition.

        It acquires from the word that met it, the first of the list if several do. Which that was, the protocol finds
        out as the kernel does: with `load`. The other arguments are those of `wait`.
        """
        check_bound(bound, seconds, on_timeout)
        refs = [_one_word(at) for at in words]
        if not refs:
            raise ProtocolError("a wait for any of several words names at least one", site=user_site())
        if condition(cond) is Cond.SUM_LE:
            raise ProtocolError("`sum<=` is of one wait for several words, not of any of them", site=user_site())
        self._bounded(
            Wait,
            on_timeout,
            word=refs[0],
            cond=condition(cond),
            value=word(value),
            order=order,
            scope=scope,
            bound=bound,
            seconds=seconds,
            of=masked(mask),
            others=tuple(refs[1:]),
        )

    def rescue(self, handler: Callable[[], None]) -> Rescue:
        """A body of waits that share what is done when one of them gives up; the agent then goes on behind it."""
        return Rescue(self._recorder, handler)

    def _bounded(self, kind: type[Op], on_timeout: Callable[[], None] | Rescue | None, **fields: object) -> None:
        """Record a wait, and for later its handler."""
        if on_timeout is None or self._recorder is None or self._recorder.muted:
            self._emit(kind, on_timeout=None, **fields)
            return
        if isinstance(on_timeout, Rescue):
            on_timeout.used = True
            self._emit(kind, on_timeout=on_timeout.at, **fields)
            return
        label = Label()
        self._emit(kind, on_timeout=label, **fields)
        self._recorder.deferred.append((label, on_timeout, self._recorder.end))

    def fence(self, order: Order, scope: Scope) -> None:
        """Order this agent's accesses before and after; covers this agent only."""
        self._emit(Fence, order=order, scope=scope)

    def drain(self) -> None:
        """Wait until this agent's own earlier loads and stores are complete: `s_waitcnt vmcnt(0)` (and `vscnt(0)`).

        A store is complete where it is coherent: at every rank for memory that no cache of a rank holds (UNCACHED,
        HOST_MAPPED), in the rank for CACHED memory. Whoever learns of the drain by any chain of stores and loads, of
        whatever order, and then acquires at a scope that includes this agent, comes after those accesses. It covers
        what this wave did, not what it knows of others, and it is no release: nothing that comes later waits for it.
        PTX has no such instruction; write a fence there.
        """
        self._emit(Drain)

    def let(self, value: Expr | int, name: str | None = None) -> Reg:
        """Compute `value` into a register, which may index a region where `value` may: `b.let(1)`, `b.let(seq % 2)`."""
        dst = self._register(name, values_of(word(value)))
        self._emit(Set, dst=dst.index, value=word(value), name=dst.name)
        return dst

    def assign(self, dst: Reg, value: Expr | int) -> None:
        """Compute `value` into the register `dst`, which a `let` made."""
        expr = word(value)
        if dst.values is not None:
            if not dst.values.holds(range_of(expr)):
                _refuse_if_fixed(dst.values, dst.name, expr)
                dst.values.widen(range_of(expr))
            _feed(expr, dst.values)
            if self._recorder is not None and self._recorder.handling:
                _widen_what_follows(dst)
        self._emit(Set, dst=dst.index, value=expr, name=dst.name)

    def when(self, cond: Expr) -> When:
        """`with b.when(expr):` runs the body only when `expr` is not zero."""
        return When(self._recorder, cond, self._muted)

    def ret(self) -> None:
        """Return: the agent does nothing more (its kernel still counts as done)."""
        if self._recorder is None or self._recorder.muted:
            return
        self._emit(Branch, cond=None, target=self._recorder.end)
        self._recorder.returned = True


def values_of(expr: Expr) -> Values | None:
    """What a register holds that `expr` is assigned to; fixed where the text says `% n` or `& mask`; None: any word."""
    words = range_of(expr)
    if len(words) > MOST_VALUES:
        return None
    kept = isinstance(expr, Reg) and expr.values is not None and expr.values.fixed
    values = Values(words[0], words[-1], kept or (isinstance(expr, Binary) and expr.op in ("%", "&")))
    _feed(expr, values)
    return values


def _feed(expr: Expr, values: Values) -> None:
    for register in registers_of(expr):
        if register.values is not None:
            register.values.feeds.append((values, expr))


def _widen_what_follows(changed: Reg) -> None:
    """A handler that goes on behind its wait has assigned: registers made from this one there may hold any word."""
    assert changed.values is not None
    open_ends = [changed.values]
    while open_ends:
        for values, expr in open_ends.pop().feeds:
            if not values.holds(range_of(expr)):
                _refuse_if_fixed(values, f"a register made from {changed.name}", expr)
                values.widen(range(MASK + 1))
                open_ends.append(values)


def _refuse_if_fixed(values: Values, name: str, expr: Expr) -> None:
    if values.fixed:
        raise ProtocolError(
            f"{name} stays below {values.most + 1}, so that it may index a region; this value may not",
            value=str(expr),
            site=user_site(),
            hint=f"write `% {values.most + 1}`, or use another register",
        )


def check_bound(bound: int | None, seconds: float | None, on_timeout: Callable[[], None] | Rescue | None) -> None:
    """Refuse a bound without a handler, a handler without a bound, and bounds that are none.

    Raises:
        ProtocolError: The message begins with the user's line.
    """
    limits = [limit for limit in (bound, seconds) if limit is not None]
    if any(limit <= 0 for limit in limits):
        raise ProtocolError(
            "a wait gives up after a positive number of polls or seconds", value=limits, site=user_site()
        )
    if bool(limits) != (on_timeout is not None):
        raise ProtocolError(
            "a wait with a bound says with `on_timeout` what happens then, and only such a wait does",
            site=user_site(),
            hint="on_timeout=b.ret returns; without a bound the wait is for ever",
        )
    if on_timeout is not None and not isinstance(on_timeout, Rescue) and not callable(on_timeout):
        raise ProtocolError(
            "`on_timeout` is a function that records what happens then", value=on_timeout, site=user_site()
        )


RMW_FUNCTIONS = ("add", "sub", "max", "min", "and", "or", "xor", "exchange", "cas")
_POLLED = Reg(-1, "word")  # stands for what a wait polls while its function is recorded


def counted(count: Expr | int | None) -> Expr | None:
    """A number of elements, known when the protocol is recorded or when it runs; None: all."""
    if isinstance(count, Expr):
        for register in registers_of(count):
            if register.values is not None:
                register.values.fixed = True  # each of its values becomes a span of its own
        return count
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise ProtocolError("a count is a number of elements, or a bounded register", value=count, site=user_site())
    return None if count is None else word(count)


def masked(mask: Expr | int | None) -> Function | None:
    """The function `word & mask`; None: the word itself."""
    if mask is None:
        return None
    return Function((("&", word(mask), False),), f"word & {mask}")


def function_of(test: Callable[[Expr], Expr]) -> Function:
    """The function of a word that `test` computes.

    Raises:
        ProtocolError: It does not depend on the word, or the word occurs in it more than once.
    """
    if not callable(test):
        raise ProtocolError(
            "`wait_until` takes a function of the word, such as `lambda w: w & 1 == 0`", value=test, site=user_site()
        )
    expr = _returned(test(_POLLED), "the condition of a wait")
    steps: list[tuple[str, Expr, bool]] = []
    text = str(expr)
    while expr is not _POLLED:
        sides = (
            [any(r is _POLLED for r in registers_of(side)) for side in (expr.left, expr.right)]
            if isinstance(expr, Binary)
            else []
        )
        if sum(sides) != 1:
            raise ProtocolError(
                "the word occurs once in the condition of a wait"
                + (", not twice" if sum(sides) else "; here it does not"),
                value=text,
                site=user_site(),
            )
        assert isinstance(expr, Binary)
        left, other = (expr.left, expr.right) if sides[0] else (expr.right, expr.left)
        steps.append((expr.op, other, sides[1]))
        expr = left
    return Function(tuple(reversed(steps)), text)


def _returned(value: object, what: str) -> Expr:
    if isinstance(value, (bool, Expr)) or not isinstance(value, int):
        if not isinstance(value, Expr):
            raise ProtocolError(f"{what} is an expression of registers", value=value, site=user_site())
        return value
    return word(value)


def _one_word(at: WordRef | Buffer) -> WordRef:
    ref = word_ref(at)
    if ref.count > 1:
        raise ProtocolError(f"{ref.label} are several words; name each", site=user_site())
    return ref


def condition(symbol: str) -> Cond:
    """The wait condition that is written `symbol`."""
    if symbol not in CONDITIONS:
        raise ProtocolError(
            f"unknown wait condition; use one of {', '.join(CONDITIONS)}", value=symbol, site=user_site()
        )
    return CONDITIONS[symbol]


def word_ref(at: WordRef | Buffer) -> WordRef:
    """A word operand: a word of a region, or a region of one word."""
    if isinstance(at, Buffer):
        return at.word
    if not isinstance(at, WordRef):
        raise ProtocolError("this is not a word of a region (a flag, a counter)", value=_named(at), site=user_site())
    return at


def span_of(at: View | Buffer) -> Span:
    """A payload operand: a slot, a slice of one, or a whole region."""
    if isinstance(at, Buffer):
        return at.whole.span
    if not isinstance(at, View):
        raise ProtocolError(
            "this is not a span of payload (a slot, a buffer, a slice)", value=_named(at), site=user_site()
        )
    return at.span


def _named(at: object) -> object:
    """What an operand is called, for a message."""
    if isinstance(at, View):
        return str(at.span)
    return str(at) if isinstance(at, WordRef) else at.region.name if isinstance(at, Buffer) else at
