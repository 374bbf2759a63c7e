"""What word operations mean, for every engine: operands, conditions, read-modify-writes. Words are 0..2**32-1."""

from __future__ import annotations

import numpy as np
from numba import njit

from lab.protocol import tables as t

_MASK = np.int64(0xFFFF_FFFF)
_HALF = np.int64(0x8000_0000)
# Positions in tables.OPERATORS, so that a postfix opcode reads as what it does.
_ADD, _SUB, _MUL, _MOD, _DIV, _AND, _OR, _XOR, _SHL, _SHR, _EQ, _NE, _LT, _GE, _LTS, _GES = range(16)
assert t.OPERATORS == ("+", "-", "*", "%", "//", "&", "|", "^", "<<", ">>", "==", "!=", "<", ">=", "<s", ">=s")
EQ, NE, GE, GE_SIGNED, GE_MOD, SUM_LE, LT, LE, GT, TRUE = range(10)  # lab.protocol.program.Cond
ANY = -1  # met by every word: a load
STACK = t.MAX_DEPTH  # deepest operand; `registers` rows carry this much room at their end


@njit(forceinline=True, cache=True, _nrt=False)
def signed(word):
    """Two's complement value of a word."""
    return word - (_MASK + 1) if word & _HALF else word


@njit(cache=True, _nrt=False)
def _binary(op, a, b):
    if op == _ADD:
        return (a + b) & _MASK
    if op == _SUB:
        return (a - b) & _MASK
    if op == _MUL:
        return (a * b) & _MASK
    if op == _MOD:
        return a % b
    if op == _DIV:
        return a // b
    if op == _AND:
        return a & b
    if op == _OR:
        return a | b
    if op == _XOR:
        return a ^ b
    if op == _SHL:
        return (a << (b & 31)) & _MASK
    if op == _SHR:
        return a >> (b & 31)
    if op == _EQ:
        return np.int64(a == b)
    if op == _NE:
        return np.int64(a != b)
    if op == _LT:
        return np.int64(a < b)
    if op == _GE:
        return np.int64(a >= b)
    if op == _LTS:
        return np.int64(signed(a) < signed(b))
    return np.int64(signed(a) >= signed(b))


@njit(cache=True, _nrt=False)
def _postfix(postfix, at, length, registers, agent):
    # The evaluation stack is the tail of the agent's register row: nothing is allocated in the machine's loop.
    stack = registers[agent]
    top = base = registers.shape[1] - STACK
    for k in range(at, at + length):
        op = postfix[k, 0]
        if op == t.PUSH_CONST:
            stack[top] = postfix[k, 1]
            top += 1
        elif op == t.PUSH_REG:
            stack[top] = registers[agent, postfix[k, 1]]
            top += 1
        else:
            top -= 1
            stack[top - 1] = _binary(op, stack[top - 1], stack[top])
    return stack[base]


@njit(forceinline=True, cache=True, _nrt=False)
def operand(exprs, postfix, row, registers, agent):
    """The word that expression `row` has for `agent`, whose registers are `registers[agent]`."""
    mode = exprs[row, 0]
    if mode == t.IMMEDIATE:
        return exprs[row, 1]
    if mode == t.REGISTER:
        return registers[agent, exprs[row, 1]]
    if mode == t.REGISTER_PLUS:
        return (registers[agent, exprs[row, 1]] + exprs[row, 2]) & _MASK
    return _postfix(postfix, exprs[row, 1], exprs[row, 2], registers, agent)


@njit(forceinline=True, cache=True, _nrt=False)
def wanted(s, st, op, agent):
    """What a wait compares with, and in the upper half what else its function of the word needs: see `met`."""
    if s.ops[op, t.EXPECTED] >= 0:
        return wanted_by(s.ops, s.exprs, s.postfix, st.registers, op, agent)
    return operand(s.exprs, s.postfix, s.ops[op, t.VALUE], st.registers, agent)


@njit(cache=True, _nrt=False)
def wanted_by(ops, exprs, postfix, registers, op, agent):
    """As `wanted`, called, not inlined."""
    value = operand(exprs, postfix, ops[op, t.VALUE], registers, agent)
    if ops[op, t.EXPECTED] >= 0:
        value |= operand(exprs, postfix, ops[op, t.EXPECTED], registers, agent) << 32
    return value


@njit(forceinline=True, cache=True, _nrt=False)
def compares(cond, word, value):
    """Whether a word meets one of the first conditions, those before SUM_LE."""
    if cond == GE:
        return word >= value
    if cond == EQ:
        return word == value
    if cond == NE:
        return word != value
    if cond == GE_SIGNED:
        return signed(word) >= signed(value)
    return ((word - value) & _MASK) < _HALF


@njit(forceinline=True, cache=True, _nrt=False)
def met(tests, fn, word, value):
    """Whether one word meets a wait condition (all but SUM_LE).

    `tests`: `Tables.tests`. `fn`: FN of the wait. `value`: what it compares with, from `wanted`.
    """
    return compares(fn, word, value) if fn < SUM_LE else _meets(tests, fn, word, value)


@njit(cache=True, _nrt=False)
def _meets(tests, fn, word, value):
    if fn >> t.FUNCTION:
        word, value = _function(tests, (fn >> t.FUNCTION) - 1, word, value), value & _MASK
    cond = fn & t.CONDITION
    if cond == LT:
        return word < value
    if cond == LE:
        return word <= value
    if cond == GT:
        return word > value
    if cond == TRUE:
        return word != 0
    return compares(cond, word, value)


@njit(cache=True, _nrt=False)
def _function(tests, row, word, value):
    """What a wait computes of a word before it compares."""
    while tests[row, t.T_OPERATOR] != t.END:
        where, other = tests[row, t.T_OPERAND], tests[row, t.T_CONSTANT]
        if where & 3 == t.FIRST:
            other = value & _MASK
        elif where & 3 == t.SECOND:
            other = (value >> 32) & _MASK
        if where & t.LEFT:
            word = _binary(tests[row, t.T_OPERATOR], other, word)
        else:
            word = _binary(tests[row, t.T_OPERATOR], word, other)
        row += 1
    return word


@njit(forceinline=True, cache=True, _nrt=False)
def any_of(s, op):
    """Whether a wait is met by any of several words, which `addresses` lists from ADDR on."""
    return s.ops[op, t.FN] & t.ANY_OF != 0


@njit(forceinline=True, cache=True, _nrt=False)
def looks_at_several(s, op):
    """Whether an agent at this operation has to look again whatever is written: no one word lets it go."""
    kind = s.ops[op, t.KIND]
    return kind == t.WAIT_STAMP or (kind == t.WAIT and (s.ops[op, t.FN] == SUM_LE or any_of(s, op)))


@njit(forceinline=True, cache=True, _nrt=False)
def rmw(fn, old, value, expected):
    """The word that a read-modify-write leaves."""
    if fn == t.ADD:
        return (old + value) & _MASK
    if fn == t.SUB:
        return (old - value) & _MASK
    if fn == t.MAX:
        return max(old, value)
    if fn == t.OR:
        return old | value
    if fn == t.EXCHANGE or fn == t.UPDATE:
        return value
    if fn == t.MIN:
        return min(old, value)
    if fn == t.AND:
        return old & value
    if fn == t.XOR:
        return old ^ value
    return value if old == expected else old


@njit(forceinline=True, cache=True, _nrt=False)
def address(s, st, op, agent):
    """The word, or the row of `moves`, that operation `op` means for `agent`: the selector's choice where there is one.

    `s` and `st` are the static part and the state of any engine.
    """
    if s.ops[op, t.SELECT] < 0:
        return np.int64(s.ops[op, t.ADDR])
    chosen = operand(s.exprs, s.postfix, s.ops[op, t.SELECT], st.registers, agent)
    kind = s.ops[op, t.KIND]
    if kind == t.MOVE or kind == t.FILL or kind == t.EXPECT or kind == t.WAIT_STAMP:
        return s.ops[op, t.ADDR] + chosen
    return np.int64(s.addresses[s.ops[op, t.ADDR] + chosen])
