"""Speed of the machine on one core."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lab.protocol import tables as t
from lab.protocol.library import load
from lab.protocol.tables import Tables, compile_tables
from lab.sim.explore import Engine

_CASES = (
    ("seed_two_shot", {"world": 2, "blocks": 1, "calls": 1, "bytes": (2048,)}),
    ("seed_two_shot", {"world": 2, "blocks": 1, "calls": 1}),
    ("seed_two_shot", {"world": 4, "calls": 1}),
)


@dataclass(frozen=True)
class Row:
    """One measurement: a program under a scheduler and a memory model.

    Attributes:
        name: What ran.
        ops_per_s, executions_per_s: Visible operations and whole executions a second.
        cells_per_s: Payload cells read or written a second.
        limit: What most of the time goes into.
    """

    name: str
    scheduler: str
    memory: str
    ops_per_s: float
    executions_per_s: float
    cells_per_s: float
    limit: str


def measure(seconds: float = 2.0) -> list[Row]:
    """Measure each case for about `seconds`, after compilation."""
    rows = []
    for name, changes in _CASES:
        protocol = load(name)
        config = protocol.config(**changes)
        tables = compile_tables(protocol.program(config))
        size = f"W={config.world}, {config.blocks or 'own'} blocks, {max(config.bytes)} B"
        for memory in ("sc", "posted"):
            for scheduler in ("random", "pct"):
                rows.append(_row(f"{name} {size} {memory} {scheduler}", tables, memory, scheduler, seconds))
    return rows


def _row(name: str, tables: Tables, memory: str, scheduler: str, seconds: float) -> Row:
    engine = Engine(tables, memory)
    engine.batch(scheduler, 0, 1)
    runs = ops = 0
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        totals = engine.batch(scheduler, runs, 16)
        runs += int(totals[0])
        ops += int(totals[4])
    cells = _cells(tables) * runs / spent
    limit = _limit(ops / spent, cells, len(tables.cell_start) * runs / spent)
    return Row(name, scheduler, memory, ops / spent, runs / spent, cells, limit)


def _cells(tables: Tables) -> int:
    """Cells that one execution reads and writes, when every payload operation runs once in one variant."""
    total = 0
    for op in tables.ops[tables.ops[:, t.KIND] >= t.MOVE]:
        if op[t.KIND] in (t.MOVE, t.FILL, t.EXPECT):
            move = tables.moves[op[t.ADDR]]
            total += int(move[t.M_COUNT]) * (int(move[t.M_N_SOURCES]) + (move[t.M_DST] >= 0))
    return total


def _limit(ops: float, moved: float, reset: float) -> str:
    """Which count is largest per second: a machine step costs tens of nanoseconds, a cell one or two."""
    if moved + reset < 4 * ops:
        return "one scheduling choice and one dispatch a step"
    return "moving payload cells" if moved > reset else "resetting memory between executions"
