"""32-bit word expressions: what a protocol computes from a register while it runs.

A `Reg` holds a word that an agent loaded; arithmetic on it builds a tree that the machine evaluates, wrapping modulo
2**32 as the hardware does. An expression that selects an address must be *bounded* (`seq % 2`), so that the compiler
can lay out one address per value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

MASK = 0xFFFF_FFFF


def to_signed(word: int) -> int:
    """The two's complement reading of a 32-bit word."""
    return word - (1 << 32) if word & 0x8000_0000 else word


BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "//": operator.floordiv,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": lambda a, b: a << (b & 31),
    ">>": lambda a, b: a >> (b & 31),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">=": lambda a, b: int(a >= b),
    "<s": lambda a, b: int(to_signed(a) < to_signed(b)),
    ">=s": lambda a, b: int(to_signed(a) >= to_signed(b)),
}
"""Word operators by symbol; operands and results are words in 0..2**32-1.

`<` and `>=` are unsigned, `<s` and `>=s` signed.
"""


class RegisterError(TypeError):
    """A register is used as if its value were known while the protocol is recorded."""


class Expr:
    """A word known only while the protocol runs. Arithmetic and comparison build a new expression."""

    def __bool__(self) -> bool:
        raise RegisterError(
            "a register's value is not known while the protocol is recorded; use `with b.when(expr):` instead of `if`, "
            "and `&` and `|` instead of `and` and `or`"
        )

    def __index__(self) -> int:
        raise RegisterError(
            "a register cannot index a Python sequence; bound it (`seq % 2`) and use it to index a region or a slot"
        )

    __hash__ = object.__hash__

    def __add__(self, other: Expr | int) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: int) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: Expr | int) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: int) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: Expr | int) -> Expr:
        return binary("*", self, other)

    __rmul__ = __mul__

    def __mod__(self, other: int) -> Expr:
        return binary("%", self, other)

    def __floordiv__(self, other: int) -> Expr:
        return binary("//", self, other)

    def __and__(self, other: Expr | int) -> Expr:
        return binary("&", self, other)

    def __or__(self, other: Expr | int) -> Expr:
        return binary("|", self, other)

    def __xor__(self, other: Expr | int) -> Expr:
        return binary("^", self, other)

    def __rand__(self, other: int) -> Expr:
        return binary("&", other, self)

    def __ror__(self, other: int) -> Expr:
        return binary("|", other, self)

    def __rxor__(self, other: int) -> Expr:
        return binary("^", other, self)

    def __invert__(self) -> Expr:
        return binary("^", self, MASK)

    def __lshift__(self, other: int) -> Expr:
        return binary("<<", self, other)

    def __rshift__(self, other: int) -> Expr:
        return binary(">>", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return binary("==", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return binary("!=", self, other)  # type: ignore[arg-type]

    def __lt__(self, other: Expr | int) -> Expr:
        return binary("<", self, other)

    def __gt__(self, other: Expr | int) -> Expr:
        return binary("<", other, self)

    def __le__(self, other: Expr | int) -> Expr:
        return binary(">=", other, self)

    def __ge__(self, other: Expr | int) -> Expr:
        return binary(">=", self, other)

    def signed_lt(self, other: Expr | int) -> Expr:
        """Signed `self < other`."""
        return binary("<s", self, other)

    def signed_ge(self, other: Expr | int) -> Expr:
        """Signed `self >= other`."""
        return binary(">=s", self, other)


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A word known when the protocol is recorded."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(eq=False)
class Values:
    """The words that a register can hold: `least` to `most`, both included. They widen with each assignment.

    `fixed`: something was laid out for these words, so they may not. `feeds`: what other registers hold of expressions
    in this one.
    """

    least: int
    most: int
    fixed: bool = False
    feeds: list[tuple[Values, Expr]] = field(default_factory=list)

    def holds(self, words: range) -> bool:
        """Whether all `words` are among these."""
        return self.least <= words[0] and words[-1] <= self.most

    def widen(self, words: range) -> None:
        """Let `words` be among these."""
        self.least, self.most = min(self.least, words[0]), max(self.most, words[-1])


@dataclass(frozen=True, eq=False)
class Reg(Expr):
    """Register `index` of one agent; `name` is what the listing calls it, `values` what is known of its words."""

    index: int
    name: str
    values: Values | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Binary(Expr):
    """`left op right` on words."""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


def word(value: Expr | int) -> Expr:
    """`value` as an expression; a negative int is its two's complement.

    Raises:
        RegisterError: `value` is neither an int nor an expression, or it does not fit 32 bits.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise RegisterError(f"a word is an int or a register expression, not {value!r}")
    if not -(1 << 31) <= value <= MASK:
        raise RegisterError(f"a word has 32 bits, which {value} does not fit; write `& 0xFFFFFFFF` if it is to wrap")
    return Const(value & MASK)


def binary(op: str, left: Expr | int, right: Expr | int) -> Expr:
    """`left op right`, folded when both sides are known."""
    a, b = word(left), word(right)
    if op in ("%", "//") and not (isinstance(b, Const) and b.value):
        raise RegisterError(f"a word is divided by a number that is known and not 0, not by {b}")
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(BINARY[op](a.value, b.value) & MASK)
    if op in ("+", "-") and isinstance(b, Const) and b.value == 0:
        return a
    if op == "+" and isinstance(a, Const) and a.value == 0:
        return b
    return Binary(op, a, b)


def evaluate(expr: Expr, registers: dict[int, int]) -> int:
    """The word that `expr` has when register i holds `registers[i]`."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Reg):
        return registers[expr.index]
    assert isinstance(expr, Binary)
    return BINARY[expr.op](evaluate(expr.left, registers), evaluate(expr.right, registers)) & MASK


_COMPARISONS = ("==", "!=", "<", ">=", "<s", ">=s")
MOST_VALUES = 4096  # of an index; each is an address of its own


def range_of(expr: Expr) -> range:
    """The words that `expr` can be, as far as its form shows; all words, where it does not."""
    if isinstance(expr, Const):
        return range(expr.value, expr.value + 1)
    if isinstance(expr, Reg):
        return range(expr.values.least, expr.values.most + 1) if expr.values else range(MASK + 1)
    assert isinstance(expr, Binary)
    left, right = range_of(expr.left), range_of(expr.right)
    least, most = _ends(expr.op, left[0], left[-1], right[0], right[-1])
    return range(least, most + 1) if 0 <= least <= most <= MASK else range(MASK + 1)


def _ends(op: str, a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """The least and the most of `x op y` for x in a..b and y in c..d, before it wraps."""
    if op in _COMPARISONS:
        return 0, 1
    if op == "+":
        return a + c, b + d
    if op == "-":
        return a - d, b - c
    if op == "*":
        return a * c, b * d
    if op == "%":
        return 0, min(b, d - 1)
    if op == "//":
        return a // d, b // c
    if op == "&":
        return 0, min(b, d)
    if op in ("|", "^"):
        return 0, (1 << max(b, d).bit_length()) - 1
    if c != d:
        return 0, MASK
    return (a << (c & 31), b << (c & 31)) if op == "<<" else (a >> (c & 31), b >> (c & 31))


def is_bounded(expr: Expr) -> bool:
    """Whether the form of `expr` bounds it: `x % n`, `x & (2**k - 1)`, a register that holds few words."""
    if isinstance(expr, Reg):
        return len(range_of(expr)) <= MOST_VALUES
    if not isinstance(expr, Binary):
        return False
    mask = isinstance(expr.right, Const) and not expr.right.value & (expr.right.value + 1)
    return expr.op == "%" or (expr.op == "&" and mask)


def bounded_roots(expr: Expr) -> list[tuple[Expr, range]]:
    """The outermost bounded sub-expressions that `expr` depends on, each with the words that it can be.

    Raises:
        ValueError: `expr` depends on a register that nothing bounds, or on more values than can be laid out.
    """
    if is_bounded(expr):
        return [(expr, _laid_out(range_of(expr), expr))]
    if isinstance(expr, Const):
        return []
    if isinstance(expr, Binary):
        whole = range_of(expr)
        try:
            roots = bounded_roots(expr.left)
            return roots + [root for root in bounded_roots(expr.right) if not any(_same(root[0], r) for r, _ in roots)]
        except ValueError:
            if len(whole) <= MOST_VALUES:
                return [(expr, whole)]
            raise
    raise ValueError(f"the index depends on register {expr} without a bound; write `{expr} % n`")


def _laid_out(words: range, expr: Expr) -> range:
    if len(words) > MOST_VALUES:
        raise ValueError(f"the index takes {len(words)} values by {expr}; at most {MOST_VALUES} can be told apart")
    return words


def registers_of(expr: Expr) -> Iterator[Reg]:
    """The registers that `expr` reads."""
    if isinstance(expr, Reg):
        yield expr
    elif isinstance(expr, Binary):
        yield from registers_of(expr.left)
        yield from registers_of(expr.right)


def _same(a: Expr, b: Expr) -> bool:
    if a is b or (isinstance(a, Reg) and isinstance(b, Reg) and a.index == b.index):
        return True
    if isinstance(a, Const) and isinstance(b, Const):
        return a.value == b.value
    if isinstance(a, Binary) and isinstance(b, Binary):
        return a.op == b.op and _same(a.left, b.left) and _same(a.right, b.right)
    return False


def enumerate_index(*exprs: Expr) -> tuple[Expr, list[list[int]]]:
    """A selector that takes the values 0..n-1, and for each of `exprs` the n words that it has under them.

    Raises:
        ValueError: An expression depends on a register that nothing bounds.
    """
    if all(type(expr) is Const for expr in exprs):
        return Const(0), [[expr.value] for expr in exprs]  # type: ignore[attr-defined]
    selector, words = _enumerate(_Structure(exprs))
    return selector, [list(values) for values in words]


class _Structure:
    """Expressions that compare equal when they are built alike: blocks of one kernel use the same few over and over."""

    __slots__ = ("exprs", "key")

    def __init__(self, exprs: tuple[Expr, ...]) -> None:
        self.exprs, self.key = exprs, tuple(map(_structure, exprs))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self.key == other.key


def _structure(expr: Expr) -> object:
    if isinstance(expr, Binary):
        return expr.op, _structure(expr.left), _structure(expr.right)
    if isinstance(expr, Reg):
        return expr.index, range_of(expr), expr.name
    return expr.value  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def _enumerate(structure: _Structure) -> tuple[Expr, list[list[int]]]:
    exprs = structure.exprs
    roots: list[tuple[Expr, range]] = []
    for expr in exprs:
        roots += [root for root in bounded_roots(expr) if not any(_same(root[0], known) for known, _ in roots)]
    selector: Expr = Const(0)
    variants = 1
    for root, values in roots:
        variants = len(_laid_out(range(variants * len(values)), root))
        selector = selector * len(values) + (root - values[0])
    cases = [
        list(zip((root for root, _ in roots), chosen, strict=True)) for chosen in product(*(vs for _, vs in roots))
    ]
    return selector, [[_value_under(expr, case) for case in cases] for expr in exprs]


def _value_under(expr: Expr, case: list[tuple[Expr, int]]) -> int:
    """The word that `expr` has when each root of `case` has its value."""
    for root, value in case:
        if _same(expr, root):
            return value
    if isinstance(expr, Const):
        return expr.value
    assert isinstance(expr, Binary)
    return BINARY[expr.op](_value_under(expr.left, case), _value_under(expr.right, case)) & MASK
