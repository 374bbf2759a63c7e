"""Numbers for an execution: what the outputs hold in fp16, bf16 or fp32, as the kernel would give them.

The steps of a recorded execution are repeated on numbers, one a cell, and each read sees what it saw there: sums are
taken in fp32 in the order of the sources and rounded once, to nearest even, where a value is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import CONSTANT, Expect, Move
from lab.sim.machine.execution import Execution

NumberOf = Callable[[int, int], float]


def rank_times_version(rank: int, version: int) -> float:
    """The self-test's input: (rank + 1) * trial."""
    return float((rank + 1) * version)


@dataclass(frozen=True)
class Output:
    """What an output held when it was compared: the mean, the mean due, and the share of elements that differ."""

    rank: int
    call: int
    mean: float
    due: float
    wrong_share: float


def outputs(execution: Execution, number: NumberOf = rank_times_version, poison: float = 0.0) -> list[Output]:
    """The outputs that an execution compared.

    Args:
        execution: Recorded in full.
        number: Input value of (rank, version).
        poison: What memory holds that nobody wrote.
    """
    tables, log = execution.tables, execution.log
    program = tables.program
    store = _rounding(program.dtype)
    initial = np.full(len(tables.cell_start), poison, np.float32)
    for region in program.regions:
        if region.kind == "payload" and region.source is not None:
            initial[tables.cells_of(region)] = store(np.float32(number(*region.source)))
    wrote: dict[int, np.ndarray] = {}
    found = []
    for step in range(execution.steps):
        row = int(log.op[step])
        kind = int(tables.ops[row, t.KIND]) if row >= 0 else -1
        if kind == t.EXPECT:
            found.append(_output(execution, step, _read(execution, step, 0, initial, wrote), number))
        elif kind == t.FILL:
            source = tables.op(row).source  # type: ignore[attr-defined]
            value = np.float32(poison) if source is None else store(_number(source, number))
            wrote[step] = np.full(int(tables.moves[log.row[step], t.M_COUNT]), value, np.float32)
        elif kind == t.MOVE:
            count = int(tables.moves[log.row[step], t.M_N_SOURCES])
            op = tables.op(row)
            assert isinstance(op, Move)
            none = np.full(int(tables.moves[log.row[step], t.M_COUNT]), op.constant or 0, np.float32)
            read = [_read(execution, step, k, initial, wrote) for k in range(count)]
            wrote[step] = store(reduce(np.maximum, read) if op.fn == "max" and read else sum(read, none))
    return found


def _read(
    execution: Execution, step: int, source: int, initial: np.ndarray, wrote: dict[int, np.ndarray]
) -> np.ndarray:
    """The numbers that a step read from one of its sources: what the steps that it saw had written."""
    tables, log = execution.tables, execution.log
    row = int(log.row[step])
    move = tables.moves[row]
    count, offset = int(move[t.M_COUNT]), int(tables.sources[move[t.M_SOURCES] + source])
    cells = tables.items[offset : offset + count]
    first = int(execution.static.reads_at[row]) + source * count
    seen = log.reads[first : first + count]
    numbers = initial[cells]
    for writer in np.unique(seen[seen >= 0]).tolist():
        theirs = _items(tables, int(log.row[writer]))
        order = np.argsort(theirs, kind="stable")
        mine = seen == writer
        numbers[mine] = wrote[writer][order[np.searchsorted(theirs, cells[mine], sorter=order)]]
    return numbers


def _number(source: tuple[int, int], number: NumberOf) -> np.float32:
    """The number that a source of values stands for; a constant stands for itself."""
    return np.float32(source[1] if source[0] == CONSTANT else number(*source))


def _due(op: Expect, number: NumberOf) -> np.float32:
    """The number that is due, before it is rounded."""
    if op.fn == "max":
        combined = op.combined
        added = [source for source in op.due if source not in combined]
        most = max(_number(source, number) for source in combined)
        return np.float32(most + sum(_number(source, number) for source in added))
    return np.float32(sum(_number(source, number) for source in op.due))


def _items(tables: t.Tables, row: int) -> np.ndarray:
    move = tables.moves[row]
    return tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]]


def _output(execution: Execution, step: int, held: np.ndarray, number: NumberOf) -> Output:
    tables = execution.tables
    op = tables.op(int(execution.log.op[step]))
    assert isinstance(op, Expect)
    move = tables.moves[execution.log.row[step]]
    offset = int(tables.sources[move[t.M_SOURCES]])
    cells = tables.items[offset : offset + move[t.M_COUNT]]
    weight = tables.cell_length[cells]
    due = float(_rounding(tables.program.dtype)(_due(op, number)))
    share = float(np.sum(weight * (held != due)) / np.sum(weight))
    agent = tables.program.agents[int(tables.ops[execution.log.op[step], t.AGENT])]
    return Output(agent.rank, op.due[0][1], float(np.average(held, weights=weight)), due, share)


def _rounding(dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    if dtype == "fp32":
        return lambda x: np.asarray(x, np.float32)
    if dtype == "fp16":
        return lambda x: np.asarray(x, np.float32).astype(np.float16).astype(np.float32)
    return _bf16


def _bf16(x: np.ndarray) -> np.ndarray:
    """Round finite values to bf16, nearest even, kept in fp32."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)
