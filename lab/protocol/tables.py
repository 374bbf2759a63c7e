"""A `Program` as integer arrays: what the machine, the race check and the timing model run on.

Payload is cut into *cells*: maximal runs of elements that every operation of the program treats alike. Boundaries come
from the chunks of each thread-to-element mapping and from the ends of spans, and are carried through every copy until
source and destination cells correspond one to one. One cell then holds one value, whatever its length.

A cell's value is a 64-bit fingerprint that adds like the payload does: an input element is a random word that depends
on its (rank, version, element), and a sum is the sum of the words modulo 2**64. Equal fingerprints mean equal
provenance, up to a chance of 2**-64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.protocol.errors import ProtocolError
from lab.protocol.expr import BINARY, Binary, Const, Expr, Reg, enumerate_index
from lab.protocol.program import (
    Barrier,
    Branch,
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
    Set,
    Span,
    Store,
    Wait,
    WaitStamp,
    WordRef,
)

# Columns of `Tables.ops`, one 64-byte row an operation.
KIND, ADDR, SELECT, VALUE, DST, FN, TARGET, SYNC, COUNT, EXPECTED, AGENT, POSITION, STAMP, CLOCK, RESUMES = range(15)
COLUMNS = 16
BOUNDARY = 4  # in SYNC = order | scope << 4: a kernel starts or ends, which orders as a fence does
MAX_DEPTH = 16  # places on the stack that evaluates an operand
# KIND
LOAD, STORE, RMW, WAIT, FENCE, SET, BRANCH, MOVE, FILL, EXPECT, WAIT_STAMP, NOP = range(12)
# FN of RMW, in the order of `record.RMW_FUNCTIONS`
ADD, SUB, MAX, OR, EXCHANGE, CAS = range(6)
# Columns of `Tables.moves`
M_DST, M_COUNT, M_SOURCES, M_N_SOURCES, M_ITERATION, M_RANK, M_VALUES = range(7)
# Columns of `Tables.exprs`: MODE says how (A, B) give a word
E_MODE, E_A, E_B = range(3)
IMMEDIATE, REGISTER, REGISTER_PLUS, POSTFIX = range(4)
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
}
_RMW = {"add": ADD, "sub": SUB, "max": MAX, "or": OR, "exchange": EXCHANGE, "cas": CAS}
OPERATORS = tuple(BINARY)
PUSH_CONST, PUSH_REG = -1, -2  # postfix opcodes besides the positions of OPERATORS


@dataclass(frozen=True)
class Tables:
    """The arrays. n = operations of all agents together.

    Attributes:
        ops: int32 (n, 16), columns KIND.. above.
        exprs: int64 (e, 3), word operands.
        postfix: int64 (k, 2), (opcode, argument) of the longer operands.
        addresses: int32, word ids by selector value (ops with SELECT >= 0).
        moves: int32 (m, 7), one row a payload operation and selector value.
        sources: int32, offsets in `items` of each source.
        items: int32, cell ids; `M_COUNT` of them for the destination and for each source.
        iterations: int32, the loop iteration in which each item is handled.
        values: uint64, fingerprints that FILL writes and EXPECT compares with.
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
        return [row + 1, target] if kind in (WAIT, WAIT_STAMP) and target >= 0 else [row + 1]

    def resumes(self) -> np.ndarray:
        """bool, one a row: a bounded wait after whose handler the agent goes on; after the others it returns.

        To go on is to come back to where an agent gets that never gives up. Where nothing is left there but the end of
        the kernel, that is to return.
        """
        found = np.zeros(len(self.ops), bool)
        bounded = np.isin(self.ops[:, KIND], (WAIT, WAIT_STAMP)) & (self.ops[:, TARGET] >= 0)
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
                waits = int(self.ops[now, KIND]) in (WAIT, WAIT_STAMP)
                todo += [now + 1] if waits and not gives_up else self.successors(now)
        return seen

    def words_of(self, row: int) -> list[int]:
        """The word ids that a load, store, read-modify-write or wait at row `row` may touch, each once."""
        ref = self.op(row).word  # type: ignore[attr-defined]
        base = int(self.word_base[ref.region.id])
        return sorted({base + k + i for k in enumerate_index(ref.index)[1][0] for i in range(ref.count)})

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


_MIX = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        x = x + _MIX
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def leaf(source: tuple[int, int] | None, elements: np.ndarray, constant: bool, region: int = 0) -> np.ndarray:
    """Fingerprints (uint64) of the input elements of (rank, version), or of poison in `region` where source is None."""
    kind = 1 if source is not None else 2
    key = (source[0] << 40 | source[1] << 8 | kind) if source is not None else (region << 8 | kind)
    place = np.zeros(len(elements), np.uint64) if constant else elements.astype(np.uint64)
    return _mix(_mix(np.full(len(elements), key, np.uint64)) ^ place)


class _Compiler:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.exprs: list[tuple[int, int, int]] = []
        self.expr_index: dict[tuple[int, int, int], int] = {}
        self.postfix: list[tuple[int, int]] = []
        self.addresses: list[int] = []
        self.moves: list[tuple[int, ...]] = []
        self.sources: list[int] = []
        self.items: list[np.ndarray] = []
        self.item_count = 0
        self.iterations: list[np.ndarray] = []
        self.iteration_count = 0
        self.values: list[np.ndarray] = []
        self.value_count = 0
        self.item_cache: dict[tuple[object, ...], tuple[int, int, np.ndarray]] = {}

    def compile(self) -> Tables:
        program = self.program
        self._number_words()
        self._cut_cells()
        rows = np.zeros((program.n_ops, COLUMNS), np.int32)
        starts, ends = [], []
        row = 0
        for agent in program.agents:
            starts.append(row)
            base, width = row, len(agent.ops)
            for position, op in enumerate(agent.ops):
                rows[row, :14] = self._row(op, base, agent.id, position)
                row += 1
            ends.append(base + width)
        registers = 1 + max(
            (dst for agent in program.agents for op in agent.ops if isinstance(dst := getattr(op, "dst", None), int)),
            default=0,
        )
        tables = Tables(
            program=program,
            ops=rows,
            exprs=_array(self.exprs, np.int64, 3),
            postfix=_array(self.postfix, np.int64, 2),
            addresses=np.array(self.addresses or [0], np.int32),
            moves=_array(self.moves, np.int32, 7),
            sources=np.array(self.sources or [0], np.int32),
            items=_joined(self.items, np.int32),
            iterations=_joined(self.iterations, np.int32),
            values=_joined(self.values, np.uint64),
            agent_start=np.array(starts, np.int32),
            agent_end=np.array(ends, np.int32),
            agent_rank=np.array([agent.rank for agent in program.agents], np.int32),
            agent_chain=np.array([agent.chain for agent in program.agents], np.int32),
            registers=registers,
            **self.word_arrays,  # type: ignore[arg-type]
            **self.cell_arrays,
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

    def _variants(self, op: Op, *exprs: Expr) -> tuple[Expr, list[list[int]]]:
        try:
            return enumerate_index(*exprs)
        except ValueError as problem:
            raise ProtocolError(str(problem), site=op.site) from None

    def _word_address(self, ref: WordRef, op: Op) -> tuple[int, int]:
        """(ADDR, SELECT) of a word operand."""
        selector, (indices,) = self._variants(op, ref.index)
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
        return at, self._operand(selector)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _operand(self, expr: Expr) -> int:
        """The row of `exprs` that computes `expr`."""
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
            self.exprs.append(row)
            return len(self.exprs) - 1
        if row not in self.expr_index:
            self.expr_index[row] = len(self.exprs)
            self.exprs.append(row)
        return self.expr_index[row]

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

    # -- payload -------------------------------------------------------------------------------------------------------

    def _spans(self, op: Op) -> tuple[tuple[Span, ...], Mapping] | None:
        if isinstance(op, Move):
            return (op.dst, *op.sources), op.mapping
        if isinstance(op, Fill):
            return (op.dst,), op.mapping
        if isinstance(op, (Expect, WaitStamp)):
            return (op.span,), op.mapping
        return None

    def _starts(self, span: Span, op: Op) -> list[int]:
        _, (starts,) = self._variants(op, span.start)
        for start in starts:
            if not 0 <= start <= span.region.length - span.length:
                raise ProtocolError(
                    f"{span.label} lies outside {span.region.name}, which has {span.region.length} elements",
                    value=f"elements {start}..{start + span.length - 1}",
                    site=op.site,
                )
        return starts

    def _cut_cells(self) -> None:
        """Find the cells: boundaries of all chunks, carried through all copies to a fixed point."""
        program = self.program
        payload = [region for region in program.regions if region.kind == "payload"]
        bounds: dict[object, np.ndarray] = {r.id: np.array([0, r.length], np.int64) for r in payload}
        chunks: dict[tuple[int, int, int, int, int, int], None] = {}
        links: dict[tuple[object, int, object, int, int], None] = {}
        for region in payload:
            if region.source is not None and not region.constant:
                links[region.id, 0, ("version", region.source[1]), 0, region.length] = None
        for agent in program.agents:
            for op in agent.ops:
                found = self._spans(op)
                if found is None:
                    continue
                spans, mapping = found
                starts = [self._starts(span, op) for span in spans]
                for span, first in zip(spans, starts, strict=True):
                    for start in first:
                        whole = mapping.vectored(span.length)
                        chunks[span.region.id, start, span.length, whole, mapping.threads, mapping.vector] = None
                for other, second in zip(spans[1:], starts[1:], strict=True):
                    for a in starts[0]:
                        for b in second:
                            links[spans[0].region.id, a, other.region.id, b, spans[0].length] = None
                version = op.source if isinstance(op, Fill) else op.due[0] if isinstance(op, Expect) else None
                if version is not None and isinstance(op, (Fill, Expect)) and not op.constant:
                    element = op.first if isinstance(op, Expect) else 0
                    links[spans[0].region.id, starts[0][0], ("version", version[1]), element, spans[0].length] = None
        cuts: dict[object, list[np.ndarray]] = {key: [value] for key, value in bounds.items()}
        for region_id, start, length, whole, threads, vector in chunks:
            cuts[region_id].append(_chunk_bounds(start, length, whole, threads, vector))
        bounds = {key: _sorted_unique(np.concatenate(parts)) for key, parts in cuts.items()}
        for key in {key for link in links for key in (link[0], link[2])} - bounds.keys():
            bounds[key] = np.zeros(0, np.int64)
        _carry(bounds, list(links))
        self._number_cells(payload, bounds)

    def _number_cells(self, payload: list[Region], bounds: dict[object, np.ndarray]) -> None:
        self.bounds = bounds
        self.cell_base = np.full(len(self.program.regions), -1, np.int64)
        region_of, starts, lengths, ranks, initial = [], [], [], [], []
        total = 0
        for region in payload:
            cut = bounds[region.id]
            count = len(cut) - 1
            self.cell_base[region.id] = total
            total += count
            region_of.append(np.full(count, region.id, np.int32))
            starts.append(cut[:-1])
            lengths.append(np.diff(cut))
            ranks.append(np.full(count, region.rank, np.int8))
            initial.append(leaf(region.source, cut[:-1], region.constant, region.id))
        self.cell_arrays = {
            "cell_region": _joined(region_of, np.int32),
            "cell_start": _joined(starts, np.int64),
            "cell_length": _joined(lengths, np.int64),
            "cell_rank": _joined(ranks, np.int8),
            "cell_initial": _joined(initial, np.uint64),
            "cell_base": self.cell_base,
        }

    def _items(self, span: Span, start: int, mapping: Mapping) -> tuple[int, int, np.ndarray]:
        """(offset in items, offset in iterations, cells) of one agent's share of a span."""
        key = (span.region.id, start, span.length, mapping)
        if key not in self.item_cache:
            self.item_cache[key] = self._new_items(span, start, mapping)
        return self.item_cache[key]

    def _new_items(self, span: Span, start: int, mapping: Mapping) -> tuple[int, int, np.ndarray]:
        chunks = _chunk_table(mapping, span.length)
        bounds = self.bounds[span.region.id]
        first = np.searchsorted(bounds, chunks[:, 1] + start)
        counts = np.searchsorted(bounds, chunks[:, 2] + start) - first
        cells = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        cells = (cells + self.cell_base[span.region.id]).astype(np.int32)
        found = (self.item_count, self.iteration_count, cells)
        self.items.append(cells)
        self.iterations.append(np.repeat(chunks[:, 0], counts).astype(np.int32))
        self.item_count += len(cells)
        self.iteration_count += len(cells)
        return found

    def _payload_rows(self, op: Op) -> tuple[int, int]:
        """(ADDR, SELECT) of a payload operation: its first row of `moves`, and what selects among them."""
        found = self._spans(op)
        assert found is not None
        spans, mapping = found
        selector, starts = self._variants(op, *(span.start for span in spans))
        first = len(self.moves)
        for variant in range(len(starts[0])):
            self._payload_row(op, spans, mapping, [choices[variant] for choices in starts])
        return first, -1 if len(starts[0]) == 1 else self._operand(selector)

    def _payload_row(self, op: Op, spans: tuple[Span, ...], mapping: Mapping, starts: list[int]) -> None:
        lists = [self._items(span, start, mapping) for span, start in zip(spans, starts, strict=True)]
        offset, iteration, cells = lists[0]
        count = len(cells)
        if any(len(found[2]) != count for found in lists):
            raise ProtocolError("internal: source and destination cells do not correspond", site=op.site)
        values = -1
        reads = lists[1:]
        if isinstance(op, (Expect, WaitStamp)):
            reads = lists
        if isinstance(op, (Fill, Expect)):
            values = self._values(op, cells, starts[0])
        sources = len(self.sources)
        self.sources += [found[0] for found in reads]
        writes = isinstance(op, (Move, Fill))
        self.moves.append(
            (offset if writes else -1, count, sources, len(reads), iteration, spans[0].region.rank, values)
        )

    def _values(self, op: Fill | Expect, cells: np.ndarray, start: int) -> int:
        elements = self.cell_arrays["cell_start"][cells] - start
        if isinstance(op, Fill):
            values = leaf(op.source, elements, op.constant, op.dst.region.id)
        else:
            values = np.zeros(len(cells), np.uint64)
            for source in op.due:
                values += leaf(source, elements + op.first, op.constant)
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
            row[SYNC] = int(op.order) | int(op.scope) << 4
            row[COUNT] = op.word.count
            if isinstance(op, (Wait, Rmw)) and op.boundary:
                row[SYNC] |= BOUNDARY
        elif self._spans(op) is not None:
            row[ADDR], row[SELECT] = self._payload_rows(op)
        if isinstance(op, Fence):
            row[SYNC] = int(op.order) | int(op.scope) << 4
        if isinstance(op, (Store, Rmw, Wait, Set, WaitStamp)):
            row[VALUE] = self._operand(op.value)
        if isinstance(op, Move) and op.stamp is not None:
            row[STAMP] = self._operand(op.stamp)
        if isinstance(op, Branch):
            row[VALUE] = -1 if op.cond is None else self._operand(op.cond)
            row[TARGET] = base + op.target
        if isinstance(op, (Wait, WaitStamp)):
            row[FN] = int(op.cond)
            row[TARGET] = -1 if op.on_timeout is None else base + op.on_timeout
        if isinstance(op, (Wait, WaitStamp)) and op.seconds is not None:
            row[CLOCK] = 1
        if isinstance(op, Rmw):
            row[FN] = _RMW[op.fn]
            row[EXPECTED] = -1 if op.expected is None else self._operand(op.expected)
        dst = getattr(op, "dst", None)
        if isinstance(dst, int):
            row[DST] = dst
        return row


def _depth(expr: Expr) -> int:
    """Places that `expr` needs on the evaluation stack."""
    if not isinstance(expr, Binary):
        return 1
    return max(_depth(expr.left), 1 + _depth(expr.right))


def _chunk_bounds(start: int, length: int, whole: int, threads: int, vector: int) -> np.ndarray:
    vectors = np.arange(0, whole, threads * vector, dtype=np.int64)
    tail = np.arange(whole, length, threads, dtype=np.int64)
    return start + np.concatenate((vectors, tail, np.array([0, length], np.int64)))


def _chunk_table(mapping: Mapping, length: int) -> np.ndarray:
    """`Mapping.chunks` as an array of (iteration, lo, hi)."""
    whole = mapping.vectored(length)
    lo = np.arange(mapping.first * mapping.vector, whole, mapping.grid * mapping.vector, dtype=np.int64)
    hi = np.minimum(lo + mapping.threads * mapping.vector, whole)
    tail_lo, tail_hi = whole + mapping.first, min(whole + mapping.first + mapping.threads, length)
    if tail_lo < tail_hi:
        lo, hi = np.append(lo, tail_lo), np.append(hi, tail_hi)
    return np.stack((np.arange(len(lo)), lo, hi), axis=1)


def _carry(bounds: dict[object, np.ndarray], links: list[tuple[object, int, object, int, int]]) -> None:
    """Carry boundaries through `links` (region, start, region, start, length), in place, until nothing changes."""
    touching: dict[object, list[int]] = {}
    for index, (a, _, b, _, _) in enumerate(links):
        touching.setdefault(a, []).append(index)
        touching.setdefault(b, []).append(index)
    dirty = dict.fromkeys(range(len(links)))
    while dirty:
        index = next(iter(dirty))
        del dirty[index]
        a, start_a, b, start_b, length = links[index]
        for source, at, dst, to in ((a, start_a, b, start_b), (b, start_b, a, start_a)):
            cut = bounds[source]
            inside = cut[np.searchsorted(cut, at) : np.searchsorted(cut, at + length, "right")] - at + to
            known = bounds[dst]
            if not _contains(known, inside):
                bounds[dst] = _sorted_unique(np.concatenate((known, inside)))
                dirty.update(dict.fromkeys(i for i in touching[dst] if i != index))
                if dst == source:
                    dirty[index] = None


def _contains(known: np.ndarray, values: np.ndarray) -> bool:
    """Whether every one of `values` is in the sorted array `known`."""
    if not len(values) or not len(known):
        return not len(values)
    return bool(np.array_equal(known[np.searchsorted(known[:-1], values)], values))


def _sorted_unique(values: np.ndarray) -> np.ndarray:
    """`np.unique` by sorting: several times faster on runs that are already sorted."""
    values = np.sort(values, kind="stable")
    keep = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def _array(rows: Sequence[tuple[int, ...]], dtype: type, width: int) -> np.ndarray:
    return np.array(rows, dtype).reshape(-1, width)
