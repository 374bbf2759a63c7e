"""Repairs: which single changes of a protocol close a defect, tried by the checker itself.

Each candidate (`lab.sim.repairs`) is made in the program at a small configuration that shows the defect, and what
comes out is judged like any other program; then again with one call more and with one rank more, so that a change which
only moves the defect is not praised (where the unchanged program has other defects, this cannot be asked, and the
report says so); then at the configuration that was asked for. A race is closed when it is gone, no other kind of race
has come, and nothing hangs or gives up. What cannot be proved at the small configuration is not
called a repair; where it was only explored at a larger one, the repair says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from lab.errors import LabError
from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.change.judge import Basis, Judgement, Limits, judge_program, judge_report
from lab.sim.change.repairs.candidate import Candidate
from lab.sim.change.repairs.candidates import for_outcome, for_race
from lab.sim.change.repairs.waits import blocks_of
from lab.sim.explain.hang import Crowd, before_giving_up, crowds
from lab.sim.explain.minimise import Key, key_of, smaller
from lab.sim.explain.wrong import Explainer
from lab.sim.explore.explore import INTERRUPTED, explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order.determinate import why_not_determinate
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Race, Repair
from lab.sim.search.search import INTERLEAVED

_AFFORDABLE = 60_000  # operations of a program that is judged at the configuration asked for
_EXECUTIONS, _STATES, _SECONDS = 100, 100_000, 2.0  # of one judgement
_STATES_LARGER, _SECONDS_LARGER = 20_000, 0.5  # where one is explored at least
_HANGS_LOOKED_FOR = 64  # executions
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Defect:
    """What is to be repaired.

    Attributes:
        races: The races that were found.
        kind: The verdict.
        memory, early_timeout: As the protocol was checked.
        program: The program that was checked.
        failing: A failing execution, if there is one.
        shown: For some races, by their place, a small configuration that shows them.
    """

    races: tuple[Race, ...]
    kind: str
    memory: str
    early_timeout: float
    program: Program
    failing: Execution | None
    shown: dict[int, Config]


@dataclass
class Repairs:
    """What was found.

    Attributes:
        found: Changes that close something, the cheapest first.
        tried: Candidates tried.
        unproved: Candidates against which nothing was found in small, and of which nothing was proved.
        seconds: Time spent.
        stopped: What ended it before all were tried; None: nothing.
        unconfirmed: Larger configurations at which no change was judged, and why.
        advice: What else can be done.
    """

    found: list[Repair] = field(default_factory=list)
    tried: int = 0
    unproved: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    unconfirmed: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """How much was tried, in words."""
        open_ = f", {self.unproved} held as far as they were explored but were not proved" if self.unproved else ""
        early = f", not all: {self.stopped}" if self.stopped else ""
        tried = f"{self.tried} single changes tried" if self.tried else "no single change tried"
        return "\n".join((*self.advice, f"{tried} in {self.seconds:.1f} s{early}{open_}", *self.unconfirmed))


def find_repairs(
    protocol: Protocol,
    config: Config,
    defect: Defect,
    seconds: float,
    seed: int = 0,
    progress: Progress = lambda tried, found: None,
) -> Repairs:
    """Try single changes of a protocol.

    Args:
        protocol: What was checked.
        config: At which configuration.
        defect: What was found.
        seconds: Time to spend.
        seed: Of the schedulers.
        progress: Called with the candidates tried and the repairs found so far.

    Returns:
        The repairs. Ctrl-C keeps what was found until then.
    """
    search = _Search(protocol, config, defect, seconds, seed, progress)
    try:
        search.run()
    except KeyboardInterrupt:
        search.repairs.stopped = INTERRUPTED
    search.repairs.seconds = time.perf_counter() - search.started
    search.repairs.found.sort(key=lambda repair: repair.cost)
    return search.repairs


@dataclass(frozen=True)
class _Trial:
    """A program in which a change is tried.

    Attributes:
        config, program: Its configuration, and the program.
        keys: The kinds of its races.
        determinate: Whether one execution decides them.
        outcomes: What is wrong with its first execution beside these races, in words.
    """

    config: Config
    program: Program
    keys: frozenset[Key]
    determinate: bool
    outcomes: frozenset[str] = frozenset()

    @cached_property
    def fingerprint(self) -> str:
        """Of the program."""
        return self.program.fingerprint()


class _Search:
    def __init__(
        self, protocol: Protocol, config: Config, defect: Defect, seconds: float, seed: int, progress: Progress
    ) -> None:
        self.protocol, self.config, self.defect, self.progress = protocol, config, defect, progress
        self.seconds, self.started = seconds, time.perf_counter()
        self.limits = Limits(
            executions=_EXECUTIONS,
            states=_STATES,
            seconds=_SECONDS,
            seed=seed,
            models=tuple(dict.fromkeys((*INTERLEAVED, defect.memory))),
            early_timeout=defect.early_timeout,
        )
        self.repairs = Repairs()
        self.larger = replace(self.limits, states=_STATES_LARGER, seconds=_SECONDS_LARGER)
        self._asked = _Trial(config, defect.program, frozenset(map(key_of, defect.races)), False)
        self._closing: set[str] = set()

    def run(self) -> None:
        """Go through the defects; each gets its share of the time that is left."""
        targets: list[int | None] = list(range(len(self.defect.races)))
        if not targets or self.defect.kind in ("hang", "abort"):
            targets.append(None)
        for place, target in enumerate(targets):
            left = self.seconds - (time.perf_counter() - self.started)
            self._target(target, time.perf_counter() + left / (len(targets) - place))
        if self.defect.failing is not None and not self.repairs.found:
            self.repairs.advice += map(self._fewer_blocks, _crowds(self.defect.failing))

    def _target(self, target: int | None, until: float) -> None:
        trial, candidates = self._prepared(target, until)
        if trial is None:
            return
        key = None if target is None else key_of(self.defect.races[target])
        others = list(self._others(trial))
        for candidate in candidates:
            if time.perf_counter() > until:
                of = "" if target is None or len(self.defect.races) == 1 else f" for race {target + 1}"
                self.repairs.stopped = f"the time{of} was up"
                return
            if self._known(candidate, target) or self._closing.intersection(candidate.unless):
                continue
            self.repairs.tried += 1
            judged = self._tried((trial, *others), candidate, key, until)
            if judged is not None:
                self._keep(candidate, key, judged)
            self.progress(self.repairs.tried, len(self.repairs.found))

    def _known(self, candidate: Candidate, target: int | None) -> bool:
        """Whether a candidate is known to close a race, from another race that it was tried on."""
        known = (repair for repair in self.repairs.found if repair.what == candidate.what)
        return any(target is None or target + 1 in repair.closes for repair in known)

    def _prepared(self, target: int | None, until: float) -> tuple[_Trial | None, Iterator[Candidate]]:
        """A small program that has the defect, and the candidates for it."""
        if target is None:
            trial = self._small_failing(until)
            if trial is None:
                return None, iter(())
            regions = [] if self.defect.failing is None else _misread(self.defect.failing)
            return trial, for_outcome(trial.program, regions, self.defect.memory == "weak")
        trial = self._small_racing(target, until)
        if trial is None:
            return None, iter(())
        report = find_races(compile_tables(trial.program))
        same = [race for race in report.races if key_of(race) == key_of(self.defect.races[target])]
        nearest = min(same, key=lambda race: abs(race.second.call - race.first.call), default=None)
        return (None, iter(())) if nearest is None else (trial, for_race(trial.program, nearest, report))

    # ---- configurations

    def _trial(self, config: Config) -> _Trial | None:
        try:
            return self._accepted(config)
        except LabError:
            return None  # a configuration that the protocol refuses shows nothing

    def _accepted(self, config: Config) -> _Trial:
        """A configuration's trial.

        Raises:
            LabError: The protocol refuses it.
        """
        self.protocol.accept(config)
        program = self.protocol.program(config)
        report = find_races(compile_tables(program))
        determinate = why_not_determinate(report.execution, bool(report.races)) is None
        keys = frozenset(key_of(race) for race in report.races)
        return _Trial(config, program, keys, determinate, frozenset(_outcomes(report.execution, keys)))

    def _small_racing(self, target: int, until: float) -> _Trial | None:
        key = key_of(self.defect.races[target])
        shown = self.defect.shown.get(target)
        for config in [shown] if shown else smaller(self.config):
            trial = self._trial(config)
            if trial is not None and key in trial.keys:
                # Where one execution does not decide, two blocks have too many schedules to search.
                wide = self._trial(self._with_blocks(trial.config)) if trial.determinate else None
                return wide if wide is not None and key in wide.keys else trial
            if time.perf_counter() > until:
                break
        return self._asked

    def _with_blocks(self, config: Config) -> Config:
        """With a second block that has something to do, if the protocol is asked for with more than one."""
        if config.blocks != 1 or blocks_of(self.defect.program) == 1:
            return config
        sizes = tuple(min(4 * small, asked) for small, asked in zip(config.bytes, self.config.bytes, strict=True))
        return replace(config, blocks=2, bytes=sizes)

    def _small_failing(self, until: float) -> _Trial | None:
        for config in (*smaller(self.config), self.config):
            trial = self._trial(config)
            if trial is not None and judge_program(trial.program, self.limits).verdict.startswith(self.defect.kind):
                return trial
            if time.perf_counter() > until:
                return None
        return None

    def _others(self, trial: _Trial) -> Iterator[_Trial]:
        """One call more, one rank more, where the program as it is has no defects but those that are to be repaired."""
        for what in ("calls", "world"):
            number = getattr(trial.config, what) + 1
            try:
                found = self._accepted(replace(trial.config, **{what: number}))
            except LabError as refused:
                why = f"the protocol is refused there ({str(refused).splitlines()[0]})"
            else:
                more = self._more(trial, found)
                if not more:
                    yield found
                    continue
                why = f"the protocol has other defects there ({'; '.join(more)})"
            said = f"not confirmed at {what} {number}: {why}"
            if said not in self.repairs.unconfirmed:
                self.repairs.unconfirmed.append(said)

    def _more(self, trial: _Trial, larger: _Trial) -> list[str]:
        """Defects of a larger program that neither the one asked for nor the small one has, in words."""
        known = set(trial.outcomes)
        if not self.defect.races or self.defect.kind in ("hang", "abort"):
            known.add(_OUTCOMES.get(self.defect.kind, ""))
        races = larger.keys - trial.keys - self._asked.keys
        return sorted({_where(key) for key in races} | (larger.outcomes - known))

    def _fewer_blocks(self, crowd: Crowd) -> str:
        """What to do where blocks that wait hold the slots of those they wait for, tried if it can be."""
        slots, fitting = crowd.slots.count, crowd.fitting
        short = (
            f"GPU {crowd.slots.gpu}: {crowd.waiting} of {crowd.blocks} blocks wait for its {slots} "
            f"slot{'s' if slots > 1 else ''}, shared by {crowd.launches} launch{'es' if crowd.launches > 1 else ''}"
        )
        if not fitting:
            return f"{short}: not even one block of each fits; fewer ranks a GPU, or launches that do not overlap"
        fits = self._trial(replace(self.config, blocks=fitting))
        free = fits is not None and not judge_program(fits.program, self.larger).verdict.startswith(("hang", "abort"))
        tried = f" (tried: with --blocks {fitting} nothing hung)" if free else ""
        return f"{short}: at most {fitting} block{'s' if fitting > 1 else ''} a launch{tried}"

    # ---- one candidate

    def _tried(
        self, trials: tuple[_Trial, ...], candidate: Candidate, key: Key | None, until: float
    ) -> list[tuple[_Trial, Judgement]] | None:
        """What the checker says of a candidate at each configuration; None: it does not close the defect at one."""
        judged: list[tuple[_Trial, Judgement]] = []
        for trial in (*trials, self._asked):
            if trial is self._asked and (trial.program.n_ops > _AFFORDABLE or time.perf_counter() > until):
                break
            if trial.config in [done.config for done, _ in judged]:
                continue
            judgement = self._judged(trial, candidate, key, self.limits if not judged else self.larger)
            if judgement is None:
                return None
            if not judged and judgement.basis is Basis.EXPLORATION:
                self.repairs.unproved += 1
                return None
            judged.append((trial, judgement))
        return judged

    def _judged(self, trial: _Trial, candidate: Candidate, key: Key | None, limits: Limits) -> Judgement | None:
        """The judgement on a program with a candidate; None: the race `key`, or whatever is wrong, is not closed."""
        try:
            program = candidate.change(trial.program)
            if program is None or program.fingerprint() == trial.fingerprint:
                return None
            report = find_races(compile_tables(program))
        except LabError:
            return None  # it has an address outside its region, say
        if key is not None and key in {key_of(race) for race in report.races}:
            return None
        judgement = judge_report(report, limits)
        if not judgement.caught:
            return judgement
        left = {key_of(race) for race in judgement.races}
        if key is None or not left or not left <= trial.keys - {key} or self._stuck(report.execution.tables):
            return None
        return judgement

    def _stuck(self, tables: Tables) -> bool:
        """Whether a program that still races elsewhere hangs or gives up."""
        found = explore(tables, executions=_HANGS_LOOKED_FOR, seed=self.limits.seed)
        if found.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        return bool(found.hangs or found.aborts)

    def _keep(self, candidate: Candidate, key: Key | None, judged: list[tuple[_Trial, Judgement]]) -> None:
        """Keep a candidate that closes the defect, with what it does to the other races where it was asked for."""
        asked = next((judgement for trial, judgement in judged if trial.config == self.config), None)
        left = {key_of(race) for race in asked.races} if asked else set(map(key_of, self.defect.races)) - {key}
        everything = asked is not None and asked.proved
        self._closing.add(candidate.what)
        self.repairs.found.append(
            Repair(
                kind=candidate.cost.name.lower().replace("_", " "),
                cost=int(candidate.cost),
                closes=tuple(k for k, race in enumerate(self.defect.races, 1) if key_of(race) not in left),
                everything=everything,
                what=candidate.what,
                write=candidate.write,
                tried_at=tuple(_said(trial.config) + _basis(judgement) for trial, judgement in judged),
                covered=asked.covered if asked is not None and everything else "",
            )
        )


_WRONG = "wrong values that no race explains"
_OUTCOMES = {"wrong": _WRONG, "hang": "a hang", "abort": "an abort"}


def _outcomes(execution: Execution, keys: frozenset[Key]) -> Iterator[str]:
    """What is wrong with an execution that none of the races `keys` explains, in words."""
    if execution.outcome == m.HANG:
        yield _OUTCOMES["hang"]
    if execution.state.counts[m.C_ABORTS]:
        yield _OUTCOMES["abort"]
    if execution.state.counts[m.C_WRONG]:
        explainer = Explainer(execution)
        if any(explainer.race_key(fault) not in keys for _, _, fault in explainer.faults(limit=64)):
            yield _WRONG


def _where(key: Key) -> str:
    """A kind of race by its lines."""
    lines = dict.fromkeys(site for site, _ in key[0])  # type: ignore[attr-defined]
    return f"a race of {' and '.join(lines)}"


def _crowds(failing: Execution) -> list[Crowd]:
    """The GPUs whose slots had run out when nothing could move."""
    stuck = failing if failing.outcome == m.HANG else before_giving_up(failing)
    return [] if stuck is None else crowds(stuck)


def _basis(judgement: Judgement) -> str:
    return " (explored, not proved)" if judgement.basis is Basis.EXPLORATION else ""


def _said(config: Config) -> str:
    blocks = "own grid" if config.blocks is None else f"{config.blocks} block{'s' if config.blocks > 1 else ''}"
    calls = f"{config.calls} call{'s' if config.calls > 1 else ''}"
    return f"world {config.world}, {calls}, {blocks}, {max(config.bytes)} bytes"


def _misread(execution: Execution) -> list[str]:
    """Names of the regions in which a read of a failing execution saw what it must not see."""
    if not execution.state.counts[m.C_WRONG]:
        return []
    tables = execution.tables
    cells = [fault.cell for _, _, fault in Explainer(execution).faults(limit=64)]
    names = [tables.program.regions[int(tables.cell_region[cell])] for cell in cells]
    return list(dict.fromkeys(region.name for region in names if region.source is None))
