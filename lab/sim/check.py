"""`check`: a protocol at a configuration -> a verdict: races, a failing schedule, a small witness, what was covered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.change.judge import RACE_CHECKED, races_of_several
from lab.sim.change.repair import Defect, Repairs, find_repairs
from lab.sim.explain.coverage import proof
from lab.sim.explain.failure import Failure, failure_of
from lab.sim.explain.minimise import Witness, key_of, smallest_witness
from lab.sim.explain.notes import notes, story
from lab.sim.explore.deadline import Deadline
from lab.sim.explore.directed import DIRECTED, Plan, plan_of
from lab.sim.explore.executor import Executor
from lab.sim.explore.explore import INTERRUPTED, Exploration, explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.schedule import Schedule
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Race, Verdict
from lab.sim.search.search import SearchResult, search
from lab.sim.warmup import compile_engines

EXHAUSTIVE = "exhaustive"
SCHEDULERS = (DIRECTED, "random", "pct")
"""What explores unless others are asked for."""
_CONFIRMING = 500_000, 8
"""Operations, and executions at least, that are explored where one execution is proved to stand for all."""
_SHARE = 0.5  # of the time for exploration, and of what is left for the search, where witnesses are still to be found


def check(
    protocol: Protocol,
    config: Config | None = None,
    *,
    memory: str = "sc",
    schedulers: tuple[str, ...] = SCHEDULERS,
    executions: int = 1000,
    seed: int = 0,
    deadline: float | None = None,
    early_timeout: float = 0.0,
    pct_depth: int = m.PCT_DEPTH,
    minimise: bool = True,
    limit_states: int | None = None,
    memory_limit: int | None = None,
    checkpoint: str | None = None,
    repair_seconds: float = 0.0,
    progress: Callable[[Exploration], None] | None = None,
    phase: Callable[[str], None] = lambda what: None,
    executor: Executor | None = None,
    repair_progress: Callable[[int, int], None] = lambda tried, found: None,
    compiling: Callable[[], None] = lambda: None,
) -> Verdict:
    """Check a protocol: race check of one execution, then exploration, then a small witness for each race.

    Args:
        protocol: What to check.
        config: At which configuration; None: the protocol's defaults.
        memory: Memory model of the exploration: sc, posted or weak.
        schedulers: As in `explore.explore`; `exhaustive` adds a search of all schedules.
        executions: Executions to explore; of a large program fewer where one is proved to stand for all under every
            memory model, since they can only confirm it.
        seed: First seed.
        deadline: Seconds that all of it may take, once the engines are compiled; None: no limit. Where something races,
            half of them are kept for the witnesses. The race check of the first execution is always finished.
        early_timeout: Probability, at each step, that a bounded wait gives up although others could move.
        pct_depth: Of the scheduler pct: it finds what takes so many orders between steps (Burckhardt et al. 2010).
        minimise: Look for a small witness.
        limit_states: States after which the search stops.
        memory_limit: Bytes that the states may take.
        checkpoint: A file from which the search goes on, and to which it writes when it ends early.
        repair_seconds: Time to look for changes of the text that close what was found; 0: do not look.
        progress: Called after each batch of executions.
        phase: Called with what is done next.
        executor: Who runs the executions (`executor.executor`); None: this thread. The verdict is the same.
        repair_progress: Called with the changes tried and those that close something.
        compiling: Called, from another thread, when engines have been compiling for a second: those that explore, and
            where there is something to repair, those that judge a changed program.

    Returns:
        The verdict. Ctrl-C keeps what was found until then.

    Raises:
        LabError: The configuration is refused, or the protocol's text is wrong.
    """
    config = config or protocol.config()
    compile_engines((memory,), EXHAUSTIVE in schedulers, compiling)
    until = Deadline(deadline)
    phase("race check")
    program = protocol.program(config)
    tables = compile_tables(program)
    report = find_races(tables)
    found, searched, plan = Exploration(), None, Plan()
    races, why_not, everywhere = report.races, "Ctrl-C came before it was looked at", False
    explorers = tuple(name for name in schedulers if name != EXHAUSTIVE)
    try:
        why_not = why_not_determinate(report.execution, bool(report.races))
        races = report.races if why_not is None else races_of_several(tables, report, seed)
        everywhere = why_not is None and not races and holds_under_every_model(report.execution)
        if races and DIRECTED in explorers:
            plan = plan_of(tables, memory, [key_of(race) for race in races], seed, first=report)
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
    share = _SHARE if races and minimise else 1.0
    if everywhere and not early_timeout:
        operations, least = _CONFIRMING
        executions = min(executions, max(least, operations // report.execution.steps))
    if explorers and found.stopped is None:
        phase("exploration")
        left = until.part(share)
        found = explore(
            tables, memory, explorers, executions, seed, left, early_timeout, progress, pct_depth, executor, plan
        )
        found.stopped = _of_the_whole(found.stopped, deadline, share)
    if EXHAUSTIVE in schedulers and found.stopped != INTERRUPTED:
        phase("search of all schedules")
        searched = search(
            tables,
            memory,
            limit_states=limit_states,
            deadline=until.part(share),
            memory_limit=memory_limit,
            checkpoint=checkpoint,
            progress=lambda result: phase(f"search of all schedules: {result.states} states"),
        )
        searched = replace(searched, stopped=_of_the_whole(searched.stopped, deadline, share))
        _take_over(found, searched)
    small, sought = _smallest(protocol, config, memory, races if minimise else (), seed, found, until, phase)
    if not minimise:
        sought = len(races)
    failing, failure = _failing(protocol, tables, memory, found, report.execution, small)
    verdict = _verdict(protocol, config, program, memory, races, found, failing, failure, small, sought)
    raced = 1 if why_not is None else RACE_CHECKED + 1
    verdict = replace(verdict, proof=proof(program, memory, why_not, bool(races), everywhere, raced, found, searched))
    if verdict.ok or verdict.interrupted or not repair_seconds:
        return verdict
    if until.passed:
        return replace(verdict, repairs_tried=f"no change of the text tried: the deadline of {deadline:g} s had passed")
    phase("repairs")
    shown = {place: witness.config for place, witness in small.items()}
    defect = Defect(races, verdict.verdict, memory, early_timeout, program, failing, shown)
    left = min(repair_seconds, until.left)
    try:
        compile_engines(m.MEMORY_MODELS, True, compiling)  # whatever judges a changed text
    except KeyboardInterrupt:
        return replace(verdict, repairs_tried="no change of the text tried: Ctrl-C came before", interrupted=True)
    return _with_repairs(verdict, find_repairs(protocol, config, defect, left, seed, repair_progress))


def _of_the_whole(stopped: str | None, deadline: float | None, share: float) -> str | None:
    """Why a part ended early, of the deadline that was asked for; the part itself knows only its share."""
    if stopped is None or deadline is None or not stopped.startswith("deadline"):
        return stopped
    kept = ", of which a part is kept for the witnesses" if share < 1 else ""
    return f"deadline of {deadline:g} s{kept}"


def _with_repairs(verdict: Verdict, repairs: Repairs) -> Verdict:
    stopped = repairs.stopped == INTERRUPTED
    return replace(
        verdict,
        repairs=tuple(repairs.found),
        advice=tuple(repairs.advice),
        repairs_tried=repairs.said,
        changes_tried=repairs.tried,
        interrupted=stopped,
    )


def _take_over(found: Exploration, searched: SearchResult) -> None:
    """Let a failing schedule of the search count as one of the exploration."""
    if searched.choices is not None and found.failure is None:
        found.failure = (EXHAUSTIVE, 0, searched.choices)
        found.executions += 1
        found.wrong += searched.wrong
        found.hangs += searched.hang
        found.aborts += searched.abort
    if searched.stopped == INTERRUPTED:
        found.stopped = INTERRUPTED


def witnesses(
    protocol: Protocol, config: Config, memory: str = "sc", seed: int = 0
) -> list[tuple[Race, Witness | None]]:
    """Each race of a protocol with its small witness, for pictures and notebooks."""
    races = find_races(compile_tables(protocol.program(config))).races
    return [(race, smallest_witness(protocol, config, memory, key_of(race), seed)) for race in races]


def _failing(
    protocol: Protocol,
    tables: Tables,
    memory: str,
    found: Exploration,
    first: Execution,
    small: dict[int, Witness],
) -> tuple[Execution | None, Failure]:
    """An execution that fails, and how: of the exploration, else the first one, else a witness."""
    if found.failure is not None:
        failing = execute(tables, memory, m.REPLAY, choices=found.failure[2])
        return failing, failure_of(protocol, failing)
    for execution in (first, *(witness.execution for witness in small.values())):
        failure = failure_of(protocol, execution)
        if failure.kind:
            return execution, failure
    return None, Failure()


def _smallest(
    protocol: Protocol,
    config: Config,
    memory: str,
    races: tuple[Race, ...],
    seed: int,
    found: Exploration,
    deadline: Deadline,
    phase: Callable[[str], None],
) -> tuple[dict[int, Witness], int]:
    """For each race, by its place, a small witness, where there is one; and how many were looked at to the end."""
    small: dict[int, Witness] = {}
    place = 0
    try:
        for place, race in enumerate(races):
            if deadline.passed or found.stopped == INTERRUPTED:
                return small, place
            phase(f"smallest witness of race {place + 1} of {len(races)}")
            witness = smallest_witness(protocol, config, memory, key_of(race), seed, deadline)
            if witness is not None:
                small[place] = witness
            elif deadline.passed:
                return small, place
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
        return small, place
    return small, len(races)


def _verdict(
    protocol: Protocol,
    config: Config,
    program: Program,
    memory: str,
    races: tuple[Race, ...],
    found: Exploration,
    failing: Execution | None,
    failure: Failure,
    small: dict[int, Witness],
    sought: int,
) -> Verdict:
    first = next(iter(small.values()), None)
    line = None
    if first is not None:
        line = first.line(protocol)
    elif failing is not None:
        steps = failing.log.choice[: failing.steps]
        line = Schedule.of(protocol, config, program, memory, steps).line(protocol.defaults)
    return Verdict(
        verdict=failure.kind or ("race" if races else "ok"),
        protocol=protocol.name,
        config=dict(config.items()),
        memory=memory,
        races=races,
        means=failure.means,
        wrong=failure.wrong,
        hang=failure.hang,
        abort=failure.abort,
        gave_up=failure.gave_up,
        schedule=line,
        witness=tuple(story(first)) if first is not None else (),
        witness_lines=tuple(small[n].line(protocol) if n in small else None for n in range(len(races))),
        executions=found.executions,
        failing=found.failing,
        notes=tuple(notes(protocol, config, program, memory, races, small, bool(failure.wrong), sought)),
        interrupted=found.stopped == INTERRUPTED,
    )
