"""`lab.check` for a kernel's own tests: a protocol that must hold, or an assertion that says why it does not.

import lab

def test_my_all_reduce():
lab.check("my_protocol.py:my_all_reduce", world=4, calls=3, bytes=(65536, 2002))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.protocol.library import BUILT_IN, load
from lab.protocol.write import Protocol
from lab.sim import check as sim
from lab.sim.explain.report import report
from lab.sim.explore.executor import executor
from lab.sim.order.verdict import Verdict


class ProtocolDefect(AssertionError):
    """A protocol did not hold; the message is the whole report.

    Attributes:
        verdict: The verdict behind it.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(report(verdict))
        self.verdict = verdict


def check(
    protocol: Protocol | str,
    *,
    memory: str = "sc",
    schedulers: Sequence[str] = sim.SCHEDULERS,
    executions: int = 1000,
    seed: int = 0,
    deadline: float | None = 30.0,
    workers: int = 1,
    repair_seconds: float = 10.0,
    states: int | None = None,
    memory_limit: int | None = None,
    checkpoint: str | Path | None = None,
    **config: Any,
) -> Verdict:
    """Check a protocol and return its verdict, which is ok.

    Args:
        protocol: A protocol, a name from `lab list`, or `path/to/file.py:name`.
        memory: Memory model of the exploration.
        schedulers: What explores: "directed", "random", "pct", "run_on", and "exhaustive", a search of all schedules.
        executions: Executions to explore.
        seed: Of the schedulers.
        deadline: Seconds that all of it may take; None: no limit.
        workers: Threads that explore.
        repair_seconds: Time to look for changes of the text that close a defect; 0: do not look.
        states: Most states of a search of all schedules.
        memory_limit: Most bytes that they may take; None: a quarter of what there is.
        checkpoint: A file from which the search goes on, and to which it writes.
        **config: Fields of `Config`: world, calls, bytes, blocks, dtype, waves, scenario, options, ...

    Raises:
        ProtocolDefect: A race, a wrong result, a hang or an abort was found.
        LabError: There is no such protocol, or it refuses the configuration.
    """
    found = load(protocol) if isinstance(protocol, str) else _referable(protocol)
    with executor(workers=workers) as explorers:
        verdict = sim.check(
            found,
            found.config(**config),
            memory=memory,
            schedulers=tuple(schedulers),
            limit_states=states,
            memory_limit=memory_limit,
            checkpoint=None if checkpoint is None else str(checkpoint),
            executions=executions,
            seed=seed,
            deadline=deadline,
            repair_seconds=repair_seconds,
            executor=explorers,
        )
    if not verdict.ok:
        raise ProtocolDefect(verdict)
    return verdict


def _referable(protocol: Protocol) -> Protocol:
    """The protocol under a name by which its schedule lines can be replayed: its own file, unless the lab knows it."""
    if protocol.name in BUILT_IN or ":" in protocol.name:
        return protocol
    return protocol.named(f"{protocol.kernel.__code__.co_filename}:{protocol.name}")
