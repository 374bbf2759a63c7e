"""A `Program` as integer arrays: what the machine, the race check and the timing model run on.

Payload is cut into *cells*: maximal runs of elements that every operation of the program treats alike (`cells.py`), so
that a cell holds one value, whatever its length.

A cell's value is a 64-bit fingerprint that adds like the payload does: an input element is a random word that depends
on its (rank, version, element), and a sum is the sum of the words modulo 2**64. Equal fingerprints mean equal
provenance, up to a chance of 2**-64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.protocol.cells import MAXIMUM, Cells, count_of, joined, leaf, spans_of, variants
from lab.protocol.errors import ProtocolError
from lab.protocol.expr import enumerate_index
from lab.protocol.operands import (  # noqa: F401 (with the columns below, what reads the tables needs)
    ANY_OF,
    CONDITION,
    E_A,
    E_B,
    E_MODE,
    END,
    FIRST,
    FUNCTION,
    IMMEDIATE,
    LEFT,
    MAX_DEPTH,
    OPERATORS,
    POSTFIX,
    PUSH_CONST,
    PUSH_REG,
    REGISTER,
    REGISTER_PLUS,
    SECOND,
    T_CONSTANT,
    T_OPERAND,
    T_OPERATOR,
    Operands,
)
from lab.protocol.program import (
    CONSTANT,
    Barrier,
    Branch,
    Drain,
    Expect,
    Fence,
    Fill,
    Load,
    Mapping,
    Move,
    Op,
    Program,
    Region,
    Rmw,
    Scope,
    Set,
    Span,
    Store,
    Wait,
    WaitStamp,
    WordRef,
)

# Columns of `Tables.ops`, one 64-byte row an operation.
KIND, ADDR, SELECT, VALUE, DST, FN, TARGET, SYNC, COUNT, EXPECTED, AGENT, POSITION, STAMP, CLOCK, RESUMES, PATIENT = (
    range(16)
)
COLUMNS = 16
# In SYNC = order | scope << 4: a kernel starts or ends, which orders as a fence does; a FENCE that is a drain.
BOUNDARY, DRAIN = 4, 8
# KIND
LOAD, STORE, RMW, WAIT, FENCE, SET, BRANCH, MOVE, FILL, EXPECT, WAIT_STAMP, NOP = range(12)
# FN of RMW
ADD, SUB, MAX, OR, EXCHANGE, CAS, MIN, AND, XOR, UPDATE = range(10)
# Columns of `Tables.moves`
M_DST, M_COUNT, M_SOURCES, M_N_SOURCES, M_ITERATION, M_RANK, M_VALUES = range(7)
_KINDS: dict[type[Op], int] = {
    Load: LOAD,
    Store: STORE,
    Rmw: RMW,
    Wait: WAIT,
    Fence: FENCE,
    Set: SET,
    Branch: BRANCH,
    Move: MOVE,
    Fill: FILL,
    Expect: EXPECT,
    WaitStamp: WAIT_STAMP,
    Barrier: NOP,
    Drain: FENCE,
}
_RMW = {"add": ADD, "sub": SUB, "max": MAX, "or": OR, "exchange": EXCHANGE, "cas": CAS}
_RMW |= {"min": MIN, "and": AND, "xor": XOR, "update": UPDATE}


@dataclass(frozen=True)
class Tables:
    """The arrays. n = operations of all agents together.

    Attributes:
        ops: int32 (n, 16), columns KIND.. above.
        exprs: int64 (e, 3), word operands.
        postfix: int64 (k, 2), (opcode, argument) of the longer operands.
        tests: int64 (k, 3), what waits compute of the words that they poll.
        addresses: int32, word ids by selector value (ops with SELECT >= 0), and of waits for any of COUNT words.
        moves: int32 (m, 7), one row a payload operation and selector value.
        sources: int32, offsets in `items` of each source.
        items: int32, cell ids; `M_COUNT` of them for the destination and for each source.
        iterations: int32, the loop iteration in which each item is handled.
        values: uint64, fingerprints that FILL writes, EXPECT compares with, and a MOVE with M_VALUES adds.
        agent_start, agent_end, agent_rank, agent_chain: int32, one an agent.
        word_initial: int64; word_region: int32; word_rank: int8.
        cell_region, cell_start, cell_length: int32/int64; cell_rank: int8; cell_initial: uint64.
        word_base, cell_base: int64, first id of each region (-1: not of that kind).
        registers: Registers an agent needs at most.
    """

    program: Program
    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    tests: np.ndarray
    addresses: np.ndarray
    moves: np.ndarray
    sources: np.ndarray
    items: np.ndarray
    iterations: np.ndarray
    values: np.ndarray
    agent_start: np.ndarray
    agent_end: np.ndarray
    agent_rank: np.ndarray
    agent_chain: np.ndarray
    word_initial: np.ndarray
    word_region: np.ndarray
    word_rank: np.ndarray
    cell_region: np.ndarray
    cell_start: np.ndarray
    cell_length: np.ndarray
    cell_rank: np.ndarray
    cell_initial: np.ndarray
    word_base: np.ndarray
    cell_base: np.ndarray
    registers: int

    def op(self, pc: int) -> Op:
        """The operation at table row `pc`."""
        agent = self.program.agents[int(self.ops[pc, AGENT])]
        return agent.ops[int(self.ops[pc, POSITION])]

    def successors(self, row: int) -> list[int]:
        """Rows that may follow a row; the last row of an agent leads to one behind its end."""
        kind, target = int(self.ops[row, KIND]), int(self.ops[row, TARGET])
        if kind == BRANCH:
            return [target] if self.ops[row, VALUE] < 0 else [row + 1, target]
        return [row + 1, target] if kind in (WAIT, WAIT_STAMP, RMW) and target >= 0 else [row + 1]

    def resumes(self) -> np.ndarray:
        """bool, one a row: a bounded wait after whose handler the agent goes on; after the others it returns.

        To go on is to come back to where an agent gets that never gives up. Where nothing is left there but the end of
        the kernel, that is to return.
        """
        found = np.zeros(len(self.ops), bool)
        bounded = np.isin(self.ops[:, KIND], (WAIT, WAIT_STAMP, RMW)) & (self.ops[:, TARGET] >= 0)
        for agent in np.unique(self.ops[bounded, AGENT]).tolist():
            start, end = int(self.agent_start[agent]), int(self.agent_end[agent])
            patient = self._reached(start, end, {end}, gives_up=False)
            left = {row for row in patient if self.op(row).phase != "kernel end"}
            goes_on: dict[int, bool] = {}
            for row in np.flatnonzero(bounded[start:end]) + start:
                target = int(self.ops[row, TARGET])
                if target not in goes_on:
                    goes_on[target] = not left.isdisjoint(self._reached(target, end, patient, gives_up=True))
                found[row] = goes_on[target]
        return found

    def _reached(self, row: int, end: int, stop: set[int], gives_up: bool) -> set[int]:
        """Rows of an agent, before `end`, that can be reached from a row, without going on from those in `stop`."""
        todo, seen = [row], set()
        while todo:
            now = todo.pop()
            if now >= end or now in seen:
                continue
            seen.add(now)
            if now not in stop:
                waits = int(self.ops[now, KIND]) in (WAIT, WAIT_STAMP, RMW)
                todo += [now + 1] if waits and not gives_up else self.successors(now)
        return seen

    def words_of(self, row: int) -> list[int]:
        """The word ids that a load, store, read-modify-write or wait at row `row` may touch, each once."""
        op, found = self.op(row), set()
        for ref in op.words if isinstance(op, Wait) else (op.word,):  # type: ignore[attr-defined]
            base = int(self.word_base[ref.region.id])
            found |= {base + k + i for k in enumerate_index(ref.index)[1][0] for i in range(ref.count)}
        return sorted(found)

    def cells_of(self, region: Region) -> slice:
        """The cell ids of a payload region."""
        lo = int(self.cell_base[region.id])
        return slice(lo, lo + int(np.count_nonzero(self.cell_region == region.id)))

    @cached_property
    def is_host(self) -> np.ndarray:
        """bool, one an agent."""
        return np.array([agent.kind == "host" for agent in self.program.agents])


def compile_tables(program: Program) -> Tables:
    """Compile `program`.

    Raises:
        ProtocolError: An address is out of range or unbounded; the message begins with the user's line.
    """
    return _Compiler(program).compile()


class _Compiler:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.operands = Operands()
        self.addresses: list[int] = []
        self.moves: list[tuple[int, ...]] = []
        self.sources: list[int] = []
        self.values: list[np.ndarray] = []
        self.value_count = 0

    def compile(self) -> Tables:
        program = self.program
        self._number_words()
        self.cells = Cells(program)
        rows = np.zeros((program.n_ops, COLUMNS), np.int32)
        starts, ends = [], []
        row = 0
        for agent in program.agents:
            starts.append(row)
            base, width = row, len(agent.ops)
            for position, op in enumerate(agent.ops):
                rows[row, :14] = self._row(op, base, agent.id, position)
                rows[row, PATIENT] = isinstance(op, Rmw) and op.patient
                row += 1
            ends.append(base + width)
        registers = 1 + max(
            (dst for agent in program.agents for op in agent.ops if isinstance(dst := getattr(op, "dst", None), int)),
            default=0,
        )
        tables = Tables(
            program=program,
            ops=rows,
            exprs=_array(self.operands.rows, np.int64, 3),
            postfix=_array(self.operands.postfix, np.int64, 2),
            tests=_array(self.operands.tests or [(END, 0, 0)], np.int64, 3),
            addresses=np.array(self.addresses or [0], np.int32),
            moves=_array(self.moves, np.int32, 7),
            sources=np.array(self.sources or [0], np.int32),
            items=joined(self.cells.items, np.int32),
            iterations=joined(self.cells.iterations, np.int32),
            values=joined(self.values, np.uint64),
            agent_start=np.array(starts, np.int32),
            agent_end=np.array(ends, np.int32),
            agent_rank=np.array([agent.rank for agent in program.agents], np.int32),
            agent_chain=np.array([agent.chain for agent in program.agents], np.int32),
            registers=registers,
            **self.word_arrays,  # type: ignore[arg-type]
            **self.cells.arrays,
        )
        rows[:, RESUMES] = tables.resumes()
        return tables

    # -- words ---------------------------------------------------------------------------------------------------------

    def _number_words(self) -> None:
        self.word_base = np.full(len(self.program.regions), -1, np.int64)
        initial: list[int] = []
        region_of: list[int] = []
        rank_of: list[int] = []
        for region in self.program.regions:
            if region.kind == "words":
                self.word_base[region.id] = len(initial)
                initial += [region.initial] * region.length
                region_of += [region.id] * region.length
                rank_of += [region.rank] * region.length
        self.word_arrays = {
            "word_initial": np.array(initial, np.int64),
            "word_region": np.array(region_of, np.int32),
            "word_rank": np.array(rank_of, np.int8),
            "word_base": self.word_base,
        }

    def _word_address(self, ref: WordRef, op: Op) -> tuple[int, int]:
        """(ADDR, SELECT) of a word operand."""
        selector, (indices,) = variants(op, ref.index)
        for index in indices:
            if not 0 <= index <= ref.region.length - ref.count:
                raise ProtocolError(
                    f"{ref.label} lies outside {ref.region.name}, which has {ref.region.length} words",
                    value=index,
                    site=op.site,
                )
        words = [int(self.word_base[ref.region.id]) + index for index in indices]
        if len(words) == 1:
            return words[0], -1
        at = len(self.addresses)
        self.addresses += words
        return at, self.operands.row_of(selector)

    def _any_address(self, op: Wait) -> tuple[int, int]:
        """(ADDR, SELECT) of a wait for any of several words: where they are listed in `addresses`."""
        words = [self._word_address(ref, op) for ref in op.words]
        if any(select >= 0 for _, select in words):
            raise ProtocolError("a wait for any of several words knows which they are", site=op.site)
        at = len(self.addresses)
        self.addresses += [word for word, _ in words]
        return at, -1

    # -- payload -------------------------------------------------------------------------------------------------------

    def _payload_rows(self, op: Op) -> tuple[int, int]:
        """(ADDR, SELECT) of a payload operation: its first row of `moves`, and what selects among them."""
        found = spans_of(op)
        assert found is not None
        spans, mapping = found
        selector, (*starts, counts) = variants(op, *(span.start for span in spans), count_of(op))
        first = len(self.moves)
        for variant, count in enumerate(counts):
            self._payload_row(op, spans, mapping, [choices[variant] for choices in starts], count)
        return first, -1 if len(counts) == 1 else self.operands.row_of(selector)

    def _payload_row(self, op: Op, spans: tuple[Span, ...], mapping: Mapping, starts: list[int], length: int) -> None:
        lists = [self.cells.share(span, start, length, mapping) for span, start in zip(spans, starts, strict=True)]
        offset, cells = lists[0]
        count = len(cells)
        if any(len(found[1]) != count for found in lists):
            raise ProtocolError("internal: source and destination cells do not correspond", site=op.site)
        values = -1
        reads = lists[1:]
        if isinstance(op, (Expect, WaitStamp)):
            reads = lists
        if isinstance(op, (Fill, Expect)) or (isinstance(op, Move) and (op.constant is not None or op.fn != "sum")):
            values = self._values(op, cells, starts[0])
        sources = len(self.sources)
        self.sources += [found[0] for found in reads]
        writes = isinstance(op, (Move, Fill))
        self.moves.append((offset if writes else -1, count, sources, len(reads), offset, spans[0].region.rank, values))

    def _values(self, op: Fill | Expect | Move, cells: np.ndarray, start: int) -> int:
        """Where the fingerprints are that an operation writes, compares with, or adds to those of its sources."""
        elements = self.cells.arrays["cell_start"][cells] - start
        if isinstance(op, Fill):
            values = leaf(op.source, elements, op.constant, op.dst.region.id)
        elif isinstance(op, Move):
            values = np.zeros(len(cells), np.uint64)
            if op.constant is not None:
                values += leaf((CONSTANT, op.constant), elements, True)
            if op.fn == "max":
                values += MAXIMUM * np.uint64(len(op.sources) - 1)
        else:
            values = np.zeros(len(cells), np.uint64)
            for source in op.due:
                values += leaf(source, elements + op.first, op.constant)
            if op.fn == "max":
                values += MAXIMUM * np.uint64(len(op.combined) - 1)
        at = self.value_count
        self.values.append(values)
        self.value_count += len(cells)
        return at

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _row(self, op: Op, base: int, agent: int, position: int) -> list[int]:
        try:
            return self._columns(op, base, agent, position)
        except ValueError as problem:
            raise ProtocolError(str(problem), site=op.site) from None

    def _columns(self, op: Op, base: int, agent: int, position: int) -> list[int]:
        row = [-1] * 14
        row[KIND], row[AGENT], row[POSITION] = _KINDS[type(op)], agent, position
        if isinstance(op, (Load, Store, Rmw, Wait)):
            row[ADDR], row[SELECT] = self._word_address(op.word, op)
            if isinstance(op, Wait) and op.others:
                row[ADDR], row[SELECT] = self._any_address(op)
            row[SYNC] = int(op.order) | int(op.scope) << 4
            row[COUNT] = len(op.words) if isinstance(op, Wait) and op.others else op.word.count
            if isinstance(op, (Wait, Rmw)) and op.boundary:
                row[SYNC] |= BOUNDARY
        elif spans_of(op) is not None:
            row[ADDR], row[SELECT] = self._payload_rows(op)
        if isinstance(op, Fence):
            row[SYNC] = int(op.order) | int(op.scope) << 4
        if isinstance(op, Drain):
            row[SYNC] = DRAIN | int(Scope.SYSTEM) << 4
        if isinstance(op, (Store, Rmw, Set)):
            row[VALUE] = self.operands.row_of(op.value)
        if isinstance(op, Move) and op.stamp is not None:
            row[STAMP] = self.operands.row_of(op.stamp)
        if isinstance(op, Branch):
            row[VALUE] = -1 if op.cond is None else self.operands.row_of(op.cond)
            row[TARGET] = base + op.target
        if isinstance(op, (Wait, WaitStamp)):
            row[FN], row[VALUE], row[EXPECTED] = self.operands.condition(op)
        if isinstance(op, (Wait, WaitStamp, Rmw)):
            row[TARGET] = -1 if op.on_timeout is None else base + op.on_timeout
            row[CLOCK] = -1 if op.seconds is None else 1
        if isinstance(op, Rmw):
            row[FN] = _RMW[op.fn]
            row[EXPECTED] = -1 if op.expected is None else self.operands.row_of(op.expected)
        dst = getattr(op, "dst", None)
        if isinstance(dst, int):
            row[DST] = dst
        return row


def _array(rows: Sequence[tuple[int, ...]], dtype: type, width: int) -> np.ndarray:
    return np.array(rows, dtype).reshape(-1, width)
