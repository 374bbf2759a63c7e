"""Conditions of waits, and read-modify-writes that try again: what is recorded, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.protocol.errors import ProtocolError
from lab.protocol.expr import BINARY, MASK, Const, Expr
from lab.protocol.language.record import function_of
from lab.protocol.program import Cond, Program, Rmw, Wait
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, SYSTEM, Block, Declare, protocol
from lab.sim.machine import words


def recorded(kernel: Callable[[Block], None]) -> Program:
    """One launch a rank over two words, which the kernel writes itself."""

    def memory(d: Declare) -> None:
        d.words("flag", 4)
        d.words("abort")

    def made(b: Block) -> None:
        b.store(b.mine.abort, 1, RELAXED, SYSTEM)
        for k in range(4):
            b.store(b.mine.flag[k], 1, RELAXED, SYSTEM)
        kernel(b)

    return protocol(memory=memory, blocks=1, bytes=64)(made).program()


def ops_of(kernel: Callable[[Block], None], kind: type) -> list:
    return [op for agent in recorded(kernel).agents for op in agent.ops if isinstance(op, kind) and not op.phase][:1]


@pytest.mark.parametrize("cond", ["==", "!=", "<", "<=", ">", ">=", ">=s", ">=mod"])
def test_every_condition_is_recorded_as_it_is_written(cond):
    (op,) = ops_of(lambda b: b.wait(b.mine.abort, cond, 3, ACQUIRE, SYSTEM), Wait)
    assert op.describe() == f"wait abort of rank 0 {cond} 3 (acquire, system)"


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            lambda b: b.wait(b.mine.abort, ">=", 3, ACQUIRE, SYSTEM, mask=0xFF),
            "wait abort of rank 0 with word & 255 >= 3 (acquire, system)",
        ),
        (
            lambda b: b.wait_until(b.mine.abort, lambda w: ((w - 5) & 0xFFFF) < 0x8000, ACQUIRE, SYSTEM),
            "wait abort of rank 0 until (((word - 5) & 65535) < 32768) (acquire, system)",
        ),
        (
            lambda b: b.wait_any([b.mine.flag[2], b.mine.abort], "!=", 0, RELAXED, DEVICE),
            "wait any of flag[2] of rank 0, abort of rank 0 != 0 (relaxed, device)",
        ),
    ],
)
def test_a_listing_says_the_condition(kernel, text):
    (op,) = ops_of(kernel, Wait)
    assert op.describe() == text


def test_a_listing_says_what_is_tried_again():
    (lock,) = ops_of(lambda b: b.cas_until(b.mine.abort, 0, 1, ACQUIRE, DEVICE, bound=9, on_timeout=b.ret), Rmw)
    (update,) = ops_of(lambda b: b.update(b.mine.abort, lambda old: (old + 1) % 4, RELAXED, DEVICE, "old"), Rmw)
    assert lock.describe() == "cas abort of rank 0 0 -> 1 (acquire, device), until it succeeds, at most 9 polls"
    assert update.describe() == "update abort of rank 0 to ((old + 1) % 4) (relaxed, device)"


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda b: b.wait_until(b.mine.abort, lambda w: (w & 1) == (w >> 1), ACQUIRE, SYSTEM), "occurs once"),
        (lambda b: b.wait_until(b.mine.abort, lambda w: 1, ACQUIRE, SYSTEM), "here it does not"),
        (lambda b: b.wait_until(b.mine.abort, lambda w: 0 < w < 5, ACQUIRE, SYSTEM), "`&` and `|`"),
        (lambda b: b.wait_until(b.mine.abort, 5, ACQUIRE, SYSTEM), "a function of the word"),
        (lambda b: b.wait_until(b.mine.abort, lambda w: None, ACQUIRE, SYSTEM), "an expression of registers"),
        (lambda b: b.wait_any([], ">=", 1, ACQUIRE, SYSTEM), "at least one"),
        (lambda b: b.wait_any([b.mine.flag.words(0, 2)], ">=", 1, ACQUIRE, SYSTEM), "several words"),
        (lambda b: b.wait_any([b.mine.abort], "sum<=", 1, ACQUIRE, SYSTEM), "not of any"),
        (lambda b: b.wait(b.mine.flag.words(0, 2), ">=", 1, ACQUIRE, SYSTEM), "wait_any"),
        (lambda b: b.wait(b.mine.flag.words(0, 2), "sum<=", 1, ACQUIRE, SYSTEM, mask=1), "no mask"),
        (lambda b: b.rmw("nand", b.mine.abort, 1, RELAXED, SYSTEM), "xor"),
        (lambda b: b.update(b.mine.abort, lambda old: "x", RELAXED, SYSTEM), "an expression of registers"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_line(kernel, message):
    with pytest.raises(ProtocolError, match=message) as raised:
        recorded(kernel)
    assert "test_conditions.py" in str(raised.value)


def test_at_most_two_registers_in_a_condition():
    def kernel(b: Block) -> None:
        one, two, three = (b.load(b.mine.flag[k], RELAXED, SYSTEM, f"r{k}") for k in range(3))
        b.wait_until(b.mine.abort, lambda w: ((w - one) ^ two) < three, ACQUIRE, SYSTEM)

    with pytest.raises(ProtocolError, match="two registers"):
        compile_tables(recorded(kernel))


def test_a_wait_that_its_first_value_meets_needs_no_writer():
    def memory(d: Declare) -> None:
        d.words("still", initial=0x105)

    def kernel(b: Block) -> None:
        b.wait(b.mine.still, "==", 5, ACQUIRE, SYSTEM, mask=0xFF)
        b.wait(b.mine.still, mask_condition, 5, ACQUIRE, SYSTEM, mask=0xFF)

    mask_condition = "<="
    assert protocol(memory=memory, blocks=1, bytes=64)(kernel).program()
    mask_condition = "<"
    with pytest.raises(ProtocolError, match="this wait hangs"):
        protocol(memory=memory, blocks=1, bytes=64)(kernel).program()


_WORD = st.sampled_from([0, 1, 2, 5, 255, 256, 0x7FFF_FFFF, 0x8000_0000, MASK - 1, MASK])


@given(_WORD, st.lists(st.tuples(st.sampled_from(sorted(BINARY)), _WORD, st.booleans()), max_size=4), _WORD)
def test_a_function_means_in_the_machine_what_it_means_in_the_text(word, steps, value):
    """The compiled function against the expression evaluated by Python; and every condition against `Cond.met`."""
    steps = [(op, max(other, 1), False if op in ("%", "//") else left) for op, other, left in steps]

    def test(w: Expr) -> Expr:
        from lab.protocol.expr import binary

        for op, other, left in steps:
            w = binary(op, other, w) if left else binary(op, w, other)
        return w

    of = function_of(test)
    for cond in Cond:
        if cond is Cond.SUM_LE:
            continue
        program = recorded(lambda b, cond=cond: b._emit(Wait, **_fields(b, cond, value, of)))
        tables = compile_tables(program)
        row = next(k for k in range(len(tables.ops)) if isinstance(tables.op(k), Wait) and tables.op(k).of is of)
        wanted = value if cond is not Cond.TRUE else 0
        assert words.met.py_func(tables.tests, int(tables.ops[row, 5]), word, wanted) == cond.met(of.of(word), value)


def _fields(b: Block, cond: Cond, value: int, of) -> dict:
    fields = {"bound": None, "seconds": None, "on_timeout": None, "order": ACQUIRE, "scope": SYSTEM}
    return {"word": b.mine.abort.word, "cond": cond, "value": Const(value), "of": of, **fields}
