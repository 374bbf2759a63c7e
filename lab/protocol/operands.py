"""Word operands: how the machine computes an expression. The commonest forms have a mode; the rest is postfix code."""

from __future__ import annotations

from lab.protocol.expr import BINARY, Binary, Const, Expr, Reg

MAX_DEPTH = 16  # places on the stack that evaluates an operand
# Columns of `Tables.exprs`: MODE says how (A, B) give a word
E_MODE, E_A, E_B = range(3)
IMMEDIATE, REGISTER, REGISTER_PLUS, POSTFIX = range(4)
OPERATORS = tuple(BINARY)
PUSH_CONST, PUSH_REG = -1, -2  # postfix opcodes besides the positions of OPERATORS


class Operands:
    """The rows of `Tables.exprs` and `Tables.postfix` in the making; operands built alike share a row."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.postfix: list[tuple[int, int]] = []
        self._known: dict[tuple[int, int, int], int] = {}

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
