"""What polls see under memory model weak, from the text: which stores reach them only with a release, or not at all.

The rules are those of `weak_history.visible`.
"""

from __future__ import annotations

import numpy as np

from lab.protocol import tables as t
from lab.protocol.program import Scope
from lab.protocol.tables import Tables
from lab.sim.machine.weak_history import needed_scope
from lab.sim.machine.weak_state import Static, static
from lab.sim.order.conflicts import Touch, touches


def every_poll_sees(tables: Tables) -> bool:
    """Whether every store becomes visible to whoever polls for it, without help: no wait hangs for want of it."""
    s, touched = static(tables), touches(tables, "weak")
    return not polls_of_caches(tables, s, touched) and not _short_sighted(tables, s, touched)


def polls_of_caches(tables: Tables, s: Static, touched: list[Touch | None]) -> set[int]:
    """Rows of waits for what another rank stores and may keep in its cache until a release at system scope."""
    return {
        wait
        for wait, stores, _ in _polls(tables, touched)
        if any(not s.at_once[store] and _needed(tables, s, wait, store) == Scope.SYSTEM for store in stores)
    }


def _short_sighted(tables: Tables, s: Static, touched: list[Touch | None]) -> set[int]:
    """Rows of waits that may hit an old copy for ever, because their scope does not reach the agent that stores."""
    found = set()
    for wait, stores, word in _polls(tables, touched):
        scope = tables.ops[wait, t.SYNC] >> 4 if tables.ops[wait, t.KIND] == t.WAIT else Scope.SYSTEM
        past_caches = word >= 0 and s.uncached[word] and scope >= Scope.DEVICE
        if not past_caches and any(scope < _needed(tables, s, wait, store) for store in stores):
            found.add(wait)
    return found


def _polls(tables: Tables, touched: list[Touch | None]) -> list[tuple[int, list[int], int]]:
    """(row of a wait, rows that store to it, word) for each word and cell (word -1) that a wait polls."""
    words: dict[int, list[int]] = {}
    cells: dict[int, list[int]] = {}
    for row, touch in enumerate(touched[: len(tables.ops)]):
        if touch is not None:
            for kept, written in ((words, touch.writes), (cells, touch.cells_written)):
                for place in written:
                    kept.setdefault(place, []).append(row)
    found = []
    for row in np.flatnonzero(np.isin(tables.ops[:, t.KIND], (t.WAIT, t.WAIT_STAMP))).tolist():
        touch = touched[row] or Touch.nothing()
        found += [(row, words.get(word, []), word) for word in touch.reads]
        found += [(row, cells.get(cell, []), -1) for cell in touch.cells_read]
    return found


def _needed(tables: Tables, s: Static, row: int, other: int) -> int:
    agents = int(tables.ops[row, t.AGENT]), int(tables.ops[other, t.AGENT])
    return int(needed_scope(*agents, s.agent_device, s.agent_block))
