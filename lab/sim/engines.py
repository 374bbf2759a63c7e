"""Which engine runs a memory model: a module with `static`, `new_state`, `new_log`, `run`, `batch` and `movable`."""

from __future__ import annotations

from types import ModuleType

from lab.errors import UnknownNameError
from lab.sim import machine, weak

ENGINES: dict[str, ModuleType] = {"sc": machine, "posted": machine, "weak": weak}
assert tuple(ENGINES) == machine.MEMORY_MODELS


def engine_of(memory: str) -> ModuleType:
    """The engine of a memory model.

    Raises:
        UnknownNameError: There is no such model.
    """
    if memory not in ENGINES:
        raise UnknownNameError("memory model", memory, tuple(ENGINES))
    return ENGINES[memory]
