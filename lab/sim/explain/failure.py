"""How an execution failed: wrong elements and what they average to, who waits for what, whether and why it aborted.

An execution aborts if the protocol's record says so, or if a bounded wait gave up and its agent returned. A wait that
gives up and goes on (`rescue`) is part of the protocol: what it spoils shows as wrong elements or as a hang.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.write import Protocol
from lab.sim.explain.hang import before_giving_up, waiting
from lab.sim.explain.values import outputs
from lab.sim.explain.wrong import Explainer
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order.verdict import Wrong

_NO_RECORD = "a bounded wait gave up and its agent returned; the protocol writes no abort record"


@dataclass(frozen=True)
class Failure:
    """What went wrong in one execution.

    Attributes:
        wrong, means: Wrong elements, and what the outputs average to.
        hang: Who waits for what.
        abort: The abort record, decoded.
        gave_up: Who waited for what when the first bounded wait gave up, where nothing else could move then.
    """

    wrong: tuple[Wrong, ...] = ()
    means: tuple[str, ...] = ()
    hang: tuple[str, ...] = ()
    abort: str | None = None
    gave_up: tuple[str, ...] = ()

    @property
    def kind(self) -> str | None:
        """abort, wrong or hang; None: nothing. An aborted call leaves its output unwritten, so an abort comes first."""
        return "abort" if self.abort else "wrong" if self.wrong else "hang" if self.hang else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that went wrong: of abort and wrong the first alone, for the same reason, and a hang."""
        values = "abort" if self.abort else "wrong" if self.wrong else None
        return tuple(kind for kind in (values, "hang" if self.hang else None) if kind)


def failure_of(protocol: Protocol, execution: Execution) -> Failure:
    """What went wrong in an execution of `protocol`."""
    abort = abort_record(protocol, execution)
    if abort is None and execution.state.counts[m.C_ABORTS]:
        abort = _NO_RECORD
    if not execution.state.counts[m.C_WRONG]:
        wrong, means = (), ()
    else:
        wrong, means = tuple(Explainer(execution).wrong()), tuple(wrong_means(execution))
    hang = tuple(waiting(execution)) if execution.outcome == m.HANG else ()
    stuck = before_giving_up(execution)
    return Failure(wrong, means, hang, abort, () if stuck is None else tuple(waiting(stuck)))


def wrong_means(execution: Execution) -> list[str]:
    """What the wrong outputs average to, in the program's dtype, with constant inputs (rank + 1) * call."""
    return [
        f"rank {o.rank}, call {o.call}: mean {o.mean:.4g} where {o.due:.4g} is due, "
        f"{o.wrong_share:.2%} of elements wrong"
        for o in outputs(execution)
        if o.wrong_share
    ]


def abort_record(protocol: Protocol, execution: Execution) -> str | None:
    """The protocol's own abort record after an execution, decoded; None: no rank wrote one."""
    tables = execution.tables
    by_name = {(r.rank, r.name): r for r in tables.program.regions if r.kind == "words"}
    for rank in range(tables.program.world):

        def words(name: str, index: int, rank: int = rank) -> int:
            return int(execution.state.word[int(tables.word_base[by_name[rank, name].id]) + index])

        record = protocol.abort_record(words)
        if record is not None:
            return f"rank {rank}: {record}"
    return None
