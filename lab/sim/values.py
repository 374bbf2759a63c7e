"""Numbers for an execution: what the outputs hold in fp16, bf16 or fp32, as the kernel would give them.

The steps of a recorded execution are repeated on numbers, one a cell: sums are taken in fp32 in the order of the sources and rounded
once, to nearest even, where a value is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Expect
from lab.sim.races import Execution

NumberOf = Callable[[int, int], float]


def rank_times_version(rank: int, version: int) -> float:
    """The self-test's input: (rank + 1) * trial."""
    return float((rank + 1) * version)


@dataclass(frozen=True)
class Output:
    """What an output held when it was compared: mean over elements, the mean due, and the share of elements that differ."""

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
    cell = np.full(len(tables.cell_start), poison, np.float32)
    for region in program.regions:
        if region.kind == "payload" and region.source is not None:
            cell[tables.cells_of(region)] = store(np.float32(number(*region.source)))
    pending: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    found = []
    for step in range(execution.steps):
        row = int(log.op[step])
        if row == -1:
            if int(log.row[step]) in pending:
                items, values = pending.pop(int(log.row[step]))
                cell[items] = values
            continue
        if row < 0:
            continue
        kind = int(tables.ops[row, t.KIND])
        if kind == t.EXPECT:
            found.append(_output(execution, step, cell, number))
        elif kind == t.FILL:
            source = tables.op(row).source  # type: ignore[attr-defined]
            cell[_items(tables, log.row[step])] = poison if source is None else store(np.float32(number(*source)))
        elif kind == t.MOVE:
            values = store(_sum(tables, int(log.row[step]), cell))
            if _travels(execution, step):
                pending[step] = (_items(tables, log.row[step]), values)
            else:
                cell[_items(tables, log.row[step])] = values
    return found


def _travels(execution: Execution, step: int) -> bool:
    row = int(execution.log.op[step])
    rank = int(execution.tables.agent_rank[execution.tables.ops[row, t.AGENT]])
    return execution.memory == "posted" and int(execution.tables.moves[execution.log.row[step], t.M_RANK]) != rank


def _items(tables: t.Tables, row: int) -> np.ndarray:
    move = tables.moves[row]
    return tables.items[move[t.M_DST] : move[t.M_DST] + move[t.M_COUNT]]


def _sum(tables: t.Tables, row: int, cell: np.ndarray) -> np.ndarray:
    move = tables.moves[row]
    total = None
    for k in range(int(move[t.M_N_SOURCES])):
        offset = int(tables.sources[move[t.M_SOURCES] + k])
        term = cell[tables.items[offset : offset + move[t.M_COUNT]]]
        total = term if total is None else total + term
    assert total is not None
    return total


def _output(execution: Execution, step: int, cell: np.ndarray, number: NumberOf) -> Output:
    tables = execution.tables
    op = tables.op(int(execution.log.op[step]))
    assert isinstance(op, Expect)
    move = tables.moves[execution.log.row[step]]
    offset = int(tables.sources[move[t.M_SOURCES]])
    cells = tables.items[offset : offset + move[t.M_COUNT]]
    weight = tables.cell_length[cells]
    due = float(_rounding(tables.program.dtype)(np.float32(sum(np.float32(number(*source)) for source in op.due))))
    share = float(np.sum(weight * (cell[cells] != due)) / np.sum(weight))
    agent = tables.program.agents[int(tables.ops[execution.log.op[step], t.AGENT])]
    return Output(agent.rank, op.due[0][1], float(np.average(cell[cells], weights=weight)), due, share)


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
