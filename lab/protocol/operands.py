"""Word operands: how the machine computes an expression. The commonest forms have a mode; the rest is postfix code."""

from __future__ import annotations

from lab.protocol.expr import BINARY, Binary, Const, Expr, Reg
from lab.protocol.program import Cond, Wait, WaitStamp

MAX_DEPTH = 16  # places on the stack that evaluates an operand
# Columns of `Tables.exprs`: MODE says how (A, B) give a word
E_MODE, E_A, E_B = range(3)
IMMEDIATE, REGISTER, REGISTER_PLUS, POSTFIX = range(4)
OPERATORS = tuple(BINARY)
PUSH_CONST, PUSH_REG = -1, -2  # postfix opcodes besides the positions of OPERATORS

# Columns of `Tables.tests`: an operator, which operand, and the operand where it is a constant
T_OPERATOR, T_OPERAND, T_CONSTANT = range(3)
# T_OPERAND: a constant, or one of the two operands that a wait computes when it begins
CONSTANT, FIRST, SECOND = range(3)
LEFT = 4  # added to T_OPERAND: the operand stands on the left
END = -1  # operator of the row behind a function
# FN of a wait: the condition, whether any of several words is enough, 1 + where its function begins in `tests`
CONDITION, ANY_OF, FUNCTION = 31, 32, 8


class Operands:
    """The rows of `Tables.exprs` and `Tables.postfix` in the making; operands built alike share a row."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.postfix: list[tuple[int, int]] = []
        self.tests: list[tuple[int, int, int]] = []
        self._functions: dict[tuple[tuple[int, int, int], ...], int] = {}
        self._known: dict[tuple[int, int, int], int] = {}

    def condition(self, op: Wait | WaitStamp) -> tuple[int, int, int]:
        """(FN, VALUE, EXPECTED) of a wait.

        Raises:
            ValueError: It needs more operands that are known only when it begins than there are places.
        """
        fn = int(op.cond) | (ANY_OF if getattr(op, "others", ()) else 0)
        if op.of is None:
            return fn, self.row_of(op.value), -1
        known = [] if op.cond is Cond.TRUE else [op.value]
        known += [operand for operand in op.of.operands() if all(operand is not other for other in known)]
        if len(known) > 2:
            raise ValueError("a wait computes with at most two registers; keep a part of the expression in `let`")
        rows = []
        for operator, operand, left in op.of.steps:
            place = next((k for k, other in enumerate(known) if other is operand), -1) + FIRST
            constant = 0
            if isinstance(operand, Const):
                place, constant = CONSTANT, operand.value
            rows.append((OPERATORS.index(operator), place + LEFT * left, constant))
        first, second = [*known, Const(0), Const(0)][:2]
        return fn | (1 + self._function(tuple(rows))) << FUNCTION, self.row_of(first), self.row_of(second)

    def _function(self, rows: tuple[tuple[int, int, int], ...]) -> int:
        """Where a function begins in `tests`."""
        if rows not in self._functions:
            self._functions[rows] = len(self.tests)
            self.tests += [*rows, (END, 0, 0)]
        return self._functions[rows]

    def row_of(self, expr: Expr) -> int:
        """The row that computes `expr`.

        Raises:
            ValueError: It needs more places to compute than there are.
        """
        if isinstance(expr, Const):
            row = (IMMEDIATE, expr.value, 0)
        elif isinstance(expr, Reg):
            row = (REGISTER, expr.index, 0)
        elif (
            isinstance(expr, Binary) and expr.op == "+" and isinstance(expr.left, Reg) and isinstance(expr.right, Const)
        ):
            row = (REGISTER_PLUS, expr.left.index, expr.right.value)
        else:
            at = len(self.postfix)
            self._postfix(expr)
            row = (POSTFIX, at, len(self.postfix) - at)
            self.rows.append(row)
            return len(self.rows) - 1
        if row not in self._known:
            self._known[row] = len(self.rows)
            self.rows.append(row)
        return self._known[row]

    def _postfix(self, expr: Expr) -> None:
        if _depth(expr) > MAX_DEPTH:
            raise ValueError(f"this expression needs {_depth(expr)} places to compute; keep parts of it in `let`")
        self._push(expr)

    def _push(self, expr: Expr) -> None:
        if isinstance(expr, Const):
            self.postfix.append((PUSH_CONST, expr.value))
        elif isinstance(expr, Reg):
            self.postfix.append((PUSH_REG, expr.index))
        else:
            assert isinstance(expr, Binary)
            self._push(expr.left)
            self._push(expr.right)
            self.postfix.append((OPERATORS.index(expr.op), 0))


def _depth(expr: Expr) -> int:
    """Places that `expr` needs on the evaluation stack."""
    if not isinstance(expr, Binary):
        return 1
    return max(_depth(expr.left), 1 + _depth(expr.right))
