"""`check`: a protocol at a configuration -> a verdict: races, a failing schedule, a small witness, what was covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lab.errors import UnknownNameError
from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.change.repair import Defect, Repairs, find_repairs
from lab.sim.explain.coverage import Basis, proof
from lab.sim.explain.failure import Failure, failure_of
from lab.sim.explain.minimise import Witness, smallest_witness
from lab.sim.explain.notes import Looked, effects, notes, story
from lab.sim.explore.deadline import Deadline, DeadlineError
from lab.sim.explore.directed import DIRECTED, Plan, plan_of
from lab.sim.explore.executor import Executor
from lab.sim.explore.explore import INTERRUPTED, KINDS, NAMES, Exploration, Failing, Outcomes, explore
from lab.sim.explore.recorded import races_of_all, recorded
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.schedule import Schedule
from lab.sim.order.determinate import holds_under_every_model, why_not_determinate
from lab.sim.order.findings import findings
from lab.sim.order.kinds import key_of
from lab.sim.order.leaning import leans_on_kernel_end, only_memory_orders
from lab.sim.order.races import RaceReport, find_races
from lab.sim.order.verdict import Outcome, Race, Verdict
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
    for name in schedulers:
        if name not in (*NAMES, EXHAUSTIVE):
            raise UnknownNameError("scheduler", name, (*NAMES, EXHAUSTIVE))
    config = config or protocol.config()
    compile_engines((memory,), EXHAUSTIVE in schedulers, compiling)
    run = _Run(protocol, config, memory, seed, deadline, minimise, phase)
    run.look_for_races(DIRECTED in schedulers)
    run.explore(schedulers, executions, early_timeout, progress, pct_depth, executor)
    if EXHAUSTIVE in schedulers:
        run.search(limit_states, memory_limit, checkpoint)
    run.take_in_races_of_failures()
    run.look_for_witnesses()
    verdict = run.verdict()
    if verdict.ok or verdict.interrupted or not repair_seconds:
        return verdict
    return run.with_repairs(verdict, early_timeout, repair_seconds, repair_progress, compiling)


@dataclass(frozen=True)
class _Shown:
    """An execution that fails, how, and which one it is, in words; `line` repeats it."""

    execution: Execution
    failure: Failure
    found_by: str
    line: str


@dataclass
class _Run:
    """One check, as far as it has come: what each step finds, and what the verdict is made of."""

    protocol: Protocol
    config: Config
    memory: str
    seed: int
    deadline: float | None
    minimise: bool
    phase: Callable[[str], None]
    races: tuple[Race, ...] = ()
    why_not: str | None = "the deadline came before it was looked at"
    everywhere: bool = False
    raced: int = 1
    plan: Plan = field(default_factory=Plan)
    found: Exploration = field(default_factory=Exploration)
    asked: int = 0
    searched: SearchResult | None = None
    small: dict[int, Witness] = field(default_factory=dict)
    sought: int = 0

    def __post_init__(self) -> None:
        self.until = Deadline(self.deadline)
        self.phase("race check")
        self.program, self.tables, self.first = self.until.keep(self._race_checked, "the race check")
        self.races = self.first.races

    def _race_checked(self) -> tuple[Program, Tables, RaceReport]:
        program = self.protocol.program(self.config)
        tables = compile_tables(program)
        return program, tables, find_races(tables)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came."""
        return self.found.stopped == INTERRUPTED

    @property
    def share(self) -> float:
        """Of the time that is left, for exploration and for the search: the rest is kept for the witnesses."""
        return _SHARE if self.races and self.minimise else 1.0

    @property
    def confirming(self) -> bool:
        """Whether one execution is proved to stand for all under every memory model."""
        return self.why_not is None and not self.races and self.everywhere

    # ---- races

    def look_for_races(self, directed: bool) -> None:
        """The races of the first execution; where it does not stand for all, of others; and how to turn them round."""
        first, keep = self.first.execution, self.until.keep
        try:
            self.why_not = keep(lambda: why_not_determinate(first, bool(self.races)), "determinacy")
            if not self.races and self.why_not is None:
                self.everywhere = keep(lambda: holds_under_every_model(first), "every memory model")
            self.races = keep(lambda: races_of_all(self._recorded()), "the race check of more executions")
            if self.races and directed:
                keys = [key_of(race) for race in self.races]
                self.plan = keep(
                    lambda: plan_of(self.tables, self.memory, keys, self.seed, first=self.first),
                    "the schedules of races",
                )
        except KeyboardInterrupt:
            self.found.stopped = INTERRUPTED
            self.why_not = self.why_not and self.why_not.replace("the deadline", "Ctrl-C")
        except DeadlineError:
            return  # what was not looked at keeps its cautious answer, and the proof says so

    def _recorded(self) -> Iterator[RaceReport]:
        """The first execution; where it does not stand for all, others under sc and the memory model asked for."""
        yield self.first
        models = [*(["sc"] if self.why_not is not None else []), *([self.memory] if not self.everywhere else [])]
        for memory in dict.fromkeys(models):
            if memory == "sc" and self.why_not is None:
                continue
            for report in recorded(self.tables, memory, self.seed, self.first):
                if report is not self.first:
                    self.raced += 1
                    yield report

    def take_in_races_of_failures(self) -> None:
        """The races of the executions that fail."""
        if self.interrupted:
            return
        try:
            reports = self.until.keep(
                lambda: [find_races(self.tables, shown.execution) for shown in self._explored()],
                "the race check of the executions that fail",
            )
        except KeyboardInterrupt:
            self.found.stopped = INTERRUPTED
            return
        except DeadlineError:
            return
        self.races = races_of_all([replace(self.first, races=self.races), *reports])
        self.raced += len(reports)

    # ---- executions

    def explore(
        self,
        schedulers: tuple[str, ...],
        executions: int,
        early_timeout: float,
        progress: Callable[[Exploration], None] | None,
        pct_depth: int,
        executor: Executor | None,
    ) -> None:
        """Run executions under the schedulers that explore."""
        self.asked = executions
        explorers = tuple(name for name in schedulers if name != EXHAUSTIVE)
        if not explorers or self.interrupted:
            return
        if self.confirming and not early_timeout:
            operations, least = _CONFIRMING
            executions = min(executions, max(least, operations // self.first.execution.steps))
        self.phase("exploration")
        self.found = explore(
            self.tables,
            self.memory,
            explorers,
            executions,
            self.seed,
            self.until.part(self.share),
            early_timeout,
            progress,
            pct_depth,
            executor,
            self.plan,
        )
        self.found.stopped = self._of_the_whole(self.found.stopped)

    def search(self, limit_states: int | None, memory_limit: int | None, checkpoint: str | None) -> None:
        """Search all schedules."""
        if self.interrupted:
            return
        self.phase("search of all schedules")
        searched = search(
            self.tables,
            self.memory,
            limit_states=limit_states,
            deadline=self.until.part(self.share),
            memory_limit=memory_limit,
            checkpoint=checkpoint,
            progress=lambda result: self.phase(f"search of all schedules: {result.states} states"),
        )
        self.searched = replace(searched, stopped=self._of_the_whole(searched.stopped))
        _take_over(self.found, searched)

    def _of_the_whole(self, stopped: str | None) -> str | None:
        """Why a part ended early, of the deadline that was asked for; the part itself knows only its share."""
        if stopped is None or self.deadline is None or not stopped.startswith("deadline"):
            return stopped
        kept = ", of which a part is kept for the witnesses" if self.share < 1 else ""
        return f"deadline of {self.deadline:g} s{kept}"

    # ---- witnesses

    def look_for_witnesses(self) -> None:
        """For each race, by its place, a small witness, where there is one; and how many were looked at to the end."""
        if not self.minimise:
            self.sought = len(self.races)
            return
        try:
            for place, race in enumerate(self.races):
                if self.until.passed or self.interrupted:
                    return
                self.phase(f"smallest witness of race {place + 1} of {len(self.races)}")
                several = self.why_not is not None or key_of(race) not in map(key_of, self.first.races)
                witness = smallest_witness(
                    self.protocol, self.config, self.memory, key_of(race), self.seed, self.until, several
                )
                if witness is not None:
                    self.small[place] = witness
                elif self.until.passed:
                    return
                self.sought = place + 1
        except KeyboardInterrupt:
            self.found.stopped = INTERRUPTED

    # ---- the verdict

    def verdict(self) -> Verdict:
        """What all of it says."""
        shown = self._failing()
        worst = next(iter(shown), None)
        small = next(iter(self.small.values()), None)
        outcomes = tuple(self._outcome(kind, each) for kind, each in shown.items())
        relaxed = frozenset(only_memory_orders(self.first)) if self.races else frozenset()
        looked = Looked(self.memory, self.small, self.found.turned, self.sought, tuple(shown), relaxed)
        none = Failure()
        wrong, hang, abort = (shown[kind].failure if kind in shown else none for kind in KINDS)
        line = small.line(self.protocol) if small is not None and worst in (None, "wrong") else None
        return Verdict(
            verdict=worst or ("race" if self.races else "ok"),
            protocol=self.protocol.name,
            config=dict(self.config.items()),
            memory=self.memory,
            races=self.races,
            findings=findings(self.races),
            effects=tuple(effects(self.protocol, self.races, looked)),
            outcomes=outcomes,
            means=wrong.means,
            wrong=wrong.wrong,
            hang=hang.hang,
            abort=abort.abort,
            gave_up=next((f.gave_up for f in (abort, wrong, hang) if f.gave_up), ()),
            schedule=line or (outcomes[0].schedule if outcomes else None),
            witness=tuple(story(small)) if small is not None else (),
            executions=self.found.executions,
            failing=self.found.failing,
            proof=proof(self._basis(worst is None and not self.races)),
            notes=tuple(notes(self.config, self.program)),
            interrupted=self.interrupted,
        )

    def _basis(self, ok: bool) -> Basis:
        return Basis(
            program=self.program,
            memory=self.memory,
            why_not=self.why_not,
            racy=bool(self.races),
            everywhere=self.everywhere,
            raced=self.raced,
            asked=self.asked,
            confirming=self.confirming,
            found=self.found,
            searched=self.searched,
            leans=ok and leans_on_kernel_end(self.first),
        )

    def _explored(self) -> Iterator[_Shown]:
        """The executions that exploration and search found to fail, the first of each kind."""
        for failing in self.found.failures.values():
            execution = execute(self.tables, self.memory, m.REPLAY, choices=failing.choices)
            yield self._shown(execution, _found_by(failing), self.config)

    def _failing(self) -> dict[str, _Shown]:
        """For each kind of failure, the worst first, an execution: explored, else the first one, else a witness."""
        candidates = [
            *self._explored(),
            self._shown(self.first.execution, "the execution of the race check", self.config),
        ]
        for place, small in self.small.items():
            found_by = f"the smallest witness of race {place + 1}"
            candidates.append(self._shown(small.execution, found_by, small.config))
        by_kind: dict[str, _Shown] = {}
        for each in candidates:
            for kind in each.failure.kinds:
                by_kind.setdefault(kind, each)
        return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}

    def _shown(self, execution: Execution, found_by: str, config: Config) -> _Shown:
        steps = execution.log.choice[: execution.steps]
        schedule = Schedule.of(self.protocol, config, execution.tables.program, execution.memory, steps)
        return _Shown(execution, failure_of(self.protocol, execution), found_by, schedule.line(self.protocol.defaults))

    def _outcome(self, kind: str, shown: _Shown) -> Outcome:
        count = self.found.outcomes.count(kind)
        share = count / self.found.executions if self.found.executions else None
        return Outcome(kind, count, share, shown.found_by, shown.line)

    # ---- repairs

    def with_repairs(
        self,
        verdict: Verdict,
        early_timeout: float,
        seconds: float,
        progress: Callable[[int, int], None],
        compiling: Callable[[], None],
    ) -> Verdict:
        """The verdict with the changes of the text that close what was found."""
        if self.until.passed:
            late = f"no change of the text tried: the deadline of {self.deadline:g} s had passed"
            return replace(verdict, repairs_tried=late)
        self.phase("repairs")
        shown = {place: witness.config for place, witness in self.small.items()}
        failing = next((each.execution for each in self._failing().values()), None)
        defect = Defect(self.races, verdict.verdict, self.memory, early_timeout, self.program, failing, shown)
        try:
            compile_engines(m.MEMORY_MODELS, True, compiling)  # whatever judges a changed text
        except KeyboardInterrupt:
            return replace(verdict, repairs_tried="no change of the text tried: Ctrl-C came before", interrupted=True)
        left = min(seconds, self.until.left)
        return _with_repairs(verdict, find_repairs(self.protocol, self.config, defect, left, self.seed, progress))


def _found_by(failing: Failing) -> str:
    """Which explored execution it is, in words."""
    if failing.scheduler == EXHAUSTIVE:
        return "the first that the search of all schedules found"
    what = "schedule" if failing.scheduler == DIRECTED else "seed"
    return f"the first that fails so, {failing.scheduler}, {what} {failing.seed}"


def _take_over(found: Exploration, searched: SearchResult) -> None:
    """Let a failing schedule of the search count as one of the exploration."""
    kinds = {"wrong": searched.wrong, "hang": searched.hang, "abort": searched.abort}
    kind = next((kind for kind, met in kinds.items() if met), None)
    if searched.choices is not None and kind is not None and kind not in found.failures:
        found.failures[kind] = Failing(EXHAUSTIVE, 0, searched.choices)
        found.outcomes += Outcomes(1, 1, searched.wrong, searched.hang, searched.abort)
    if searched.stopped == INTERRUPTED:
        found.stopped = INTERRUPTED


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


def witnesses(
    protocol: Protocol, config: Config, memory: str = "sc", seed: int = 0
) -> list[tuple[Race, Witness | None]]:
    """Each race of a protocol with its small witness, for pictures and notebooks."""
    races = find_races(compile_tables(protocol.program(config))).races
    return [(race, smallest_witness(protocol, config, memory, key_of(race), seed)) for race in races]
