"""Repairs: which changes of a protocol's text close a defect, each judged as it is printed.

The way of the data: `Texts.of` finds the files that the protocol's text is made of. `Trials` says at which
configurations a change has to hold. The candidates (`lab.sim.change.repairs`) are edits of these files. Each edited
text is run as a module of its own, recorded anew at every trial, and what comes out is judged like any other program
(`judge.py`); nothing of what a candidate was meant to do counts. It is a repair if it is proved right at all of them,
still does at every line what it did, and reads nothing that lost its writer (`intent.py`). Its patch is the difference
between the author's files and the text that was judged.

Where no single change closes everything, one that closes a part of it and brings nothing new is taken further: the
rest is looked for in the changed text. What was only explored at some trial is no repair; it is advice, and so is what
cannot be written as a change of the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lab.errors import LabError
from lab.protocol.program import Program
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.change.edit import is_own
from lab.sim.change.intent import Intent, leaves_output_unwritten
from lab.sim.change.judge import Basis, Judgement, Limits, judge_program, judge_report
from lab.sim.change.keys import RaceKey, keyed, told
from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.candidates import for_outcome, for_race
from lab.sim.change.repairs.scene import Scene
from lab.sim.change.slots import spans_of
from lab.sim.change.text.patch import Patch
from lab.sim.change.text.source import Splice
from lab.sim.change.text.texts import Texts
from lab.sim.change.trials import Doubt, Trial, Trials, said
from lab.sim.explain.hang import Crowd, before_giving_up, crowds
from lab.sim.explain.minimise import smaller
from lab.sim.explain.wrong import Explainer
from lab.sim.explore.explore import INTERRUPTED, explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Advice, Race, Repair

_EXECUTIONS, _STATES, _SECONDS = 100, 100_000, 1.0  # of one judgement
_HANGS_LOOKED_FOR = 64  # executions
_PARTS = 3  # changes that are put together, at most
_TAKEN_FURTHER = 4  # partial changes of each number of parts
_ENOUGH = 12  # repairs
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Defect:
    """What is to be repaired.

    Attributes:
        races: The races that were found, in whatever execution.
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
        found: Changes that close everything, the cheapest first.
        advice: What else can be done, or closes a part.
        tried: Candidates tried.
        seconds: Time spent.
        stopped: What ended it before all were tried; None: nothing.
        left_out: Configurations at which no change was judged, and why.
    """

    found: list[Repair] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    tried: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """How much was tried, in words."""
        early = f", not all: {self.stopped}" if self.stopped else ""
        tried = f"{self.tried} changes of the text tried" if self.tried else "no change of the text tried"
        return "\n".join((f"{tried} in {self.seconds:.1f} s{early}", *self.left_out))


def find_repairs(
    protocol: Protocol,
    config: Config,
    defect: Defect,
    seconds: float,
    seed: int = 0,
    progress: Progress = lambda tried, found: None,
) -> Repairs:
    """Try changes of a protocol's text.

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
    search.repairs.found.sort(key=lambda repair: (bool(repair.not_at), repair.parts, repair.cost))
    return search.repairs


@dataclass(frozen=True)
class _Seen:
    """What was found out about a text at one trial.

    Attributes:
        protocol, config, program, judgement: The text's protocol, where it was recorded, and what is said of that.
        races: Its races by their keys.
        outcome: What else is wrong: wrong, hang or abort; empty: nothing, or the races come first.
    """

    protocol: Protocol
    config: Config
    program: Program
    judgement: Judgement
    races: dict[RaceKey, Race]
    outcome: str

    @property
    def keys(self) -> frozenset[object]:
        """All that is wrong."""
        return frozenset(self.races) | ({self.outcome} if self.outcome else frozenset())


@dataclass(eq=False)
class _Node:
    """A text on the way to a repair: what was changed until now, and what was found out about it, by trial."""

    texts: Texts
    parts: tuple[Candidate, ...] = ()
    seen: dict[int, _Seen] = field(default_factory=dict)
    fails_at: int = 0

    @property
    def cost(self) -> int:
        """Of the costliest part."""
        return max((part.cost for part in self.parts), default=0)


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
            early_timeout=defect.early_timeout,
        )
        self.repairs = Repairs()
        self.trials: list[Trial] = []
        self._tried: set[tuple[str, ...]] = set()
        self._unproved: dict[str, str] = {}
        self._made: list[_Node] = []  # the texts of `repairs.found`

    @property
    def _over(self) -> bool:
        return time.perf_counter() - self.started > self.seconds

    def run(self) -> None:
        """Look for single changes; where there is none, for two together, then three."""
        texts = Texts.of(self.protocol)
        if texts is None:
            self._advise("change the protocol where it lies in a file", "its text is in none, so that none was tried")
        else:
            self._from(texts)
        if self.defect.failing is not None and not self.repairs.found:
            for crowd in _crowds(self.defect.failing):
                self.repairs.advice.append(self._fewer_blocks(crowd))

    def _from(self, texts: Texts) -> None:
        trials = Trials(texts, self.protocol, self.config, self.defect.kind, self._smallest(texts))
        self.trials = trials.all()
        self.repairs.left_out = trials.left_out
        level = [_Node(texts)]
        for parts in range(1, _PARTS + 1):
            partial: list[_Node] = []
            for node in level:
                if not self._over:
                    partial += self._expanded(node, whole=parts == 1)
            if self._over or any(repair.cost < Cost.HANDSHAKE for repair in self.repairs.found):
                break
            level = sorted(partial, key=lambda node: node.cost)[:_TAKEN_FURTHER]
            if parts == 1:
                self._partly(level)
        self._settle(trials.doubts)
        self._drop_needless()
        if self.repairs.found:
            self.repairs.advice = []
        elif self._unproved:
            for what, why in list(self._unproved.items())[:3]:
                self._advise(what, why)
        if self._over:
            self.repairs.stopped = "the time was up"

    def _settle(self, doubts: list[Doubt]) -> None:
        """Judge the repairs at trials that may not count; where one of them holds, those that do not are said."""
        for doubt in doubts:
            at = len(self.trials)
            self.trials.append(doubt.trial)
            seen = [self._holds(node, at) for node in self._made]
            if any(seen):
                here = said(doubt.trial.config)
                self.repairs.found = [
                    _settled(repair, held, here) for repair, held in zip(self.repairs.found, seen, strict=True)
                ]
            elif not any(doubt.what in line for line in self.repairs.left_out):
                self.repairs.left_out.append(str(doubt))

    def _drop_needless(self) -> None:
        """Drop the repairs that do what another one does, and more."""
        done = [frozenset(part.what for part in node.parts) for node in self._made]
        needed = [not any(less < parts for less in done) for parts in done]
        self._made = [node for node, keep in zip(self._made, needed, strict=True) if keep]
        self.repairs.found = [repair for repair, keep in zip(self.repairs.found, needed, strict=True) if keep]

    def _holds(self, node: _Node, at: int) -> _Seen | None:
        """What is found out about a text that is proved right at a trial; None: it is not."""
        seen = self._look(node.texts, at)
        return seen if seen is not None and not seen.judgement.caught and seen.judgement.proved else None

    def _advise(self, what: str, why: str) -> None:
        self.repairs.advice.append(Advice(what, why))

    def _partly(self, nodes: list[_Node]) -> None:
        """Say what closes a part, for where nothing closes all."""
        for node in nodes:
            seen = node.seen[node.fails_at]
            left = sorted({told(node.texts, seen.program, race) for race in seen.races.values()})
            left += [f"a {seen.outcome}"] if seen.outcome else []
            at = said(self.trials[node.fails_at].config)
            self._advise(node.parts[0].what, f"closes a part; the text is still wrong at {at}: {'; '.join(left)}")

    # ---- configurations

    def _smallest(self, texts: Texts) -> Config:
        """The smallest configuration that shows the defect, as far as can be told quickly."""
        if self.defect.races:
            shown = [self.defect.shown.get(place) for place in range(len(self.defect.races))]
            if len(shown) == 1 and shown[0] is not None:
                return shown[0]
            keys = frozenset(keyed(texts, self.defect.program, self.defect.races))
            return next((c for c in smaller(self.config) if self._shows(texts, c, keys)), self.config)
        for config in smaller(self.config):
            if self._over:
                break
            if self._fails(config):
                return config
        return self.config

    def _shows(self, texts: Texts, config: Config, keys: frozenset[RaceKey]) -> bool:
        """Whether the first execution at a configuration has all of some races."""
        try:
            tables = self._made_for(config)
        except LabError:
            return False  # a configuration that the protocol refuses shows nothing
        if tables is None:
            return False
        return keys <= keyed(texts, tables.program, find_races(tables).races).keys()

    def _fails(self, config: Config) -> bool:
        try:
            tables = self._made_for(config)
        except LabError:
            return False  # as above
        return tables is not None and judge_program(tables.program, self.limits).verdict.startswith(self.defect.kind)

    def _made_for(self, config: Config) -> Tables | None:
        """The program at a configuration; None: it leaves there some output to nobody.

        Raises:
            LabError: The protocol refuses it.
        """
        self.protocol.accept(config)
        tables = compile_tables(self.protocol.program(config))
        return None if leaves_output_unwritten(tables) else tables

    def _fewer_blocks(self, crowd: Crowd) -> Advice:
        """What to do where blocks that wait hold the slots of those they wait for, tried if it can be."""
        slots, fitting = crowd.slots.count, crowd.fitting
        short = (
            f"GPU {crowd.slots.gpu}: {crowd.waiting} of {crowd.blocks} blocks wait for its {slots} "
            f"slot{'s' if slots > 1 else ''}, shared by {crowd.launches} launch{'es' if crowd.launches > 1 else ''}"
        )
        if not fitting:
            fewer = "fewer ranks a GPU, or launches that do not overlap"
            return Advice(fewer, f"{short}: not even one block of each fits")
        config = replace(self.config, blocks=fitting)
        free = False
        try:
            self.protocol.accept(config)
            judged = judge_program(self.protocol.program(config), self.limits)
            free = not judged.verdict.startswith(("hang", "abort"))
        except LabError:
            pass  # fewer blocks are refused, so that this was not tried
        tried = f" (tried: with --blocks {fitting} nothing hung)" if free else ""
        return Advice(f"at most {fitting} block{'s' if fitting > 1 else ''} a launch{tried}", short)

    # ---- one text

    def _look(
        self, texts: Texts, at: int, without: RaceKey | str | None = None, regions: tuple[str, ...] = ()
    ) -> _Seen | None:
        """What is found out about a text at a trial; None: it is no text, has `without`, or has lost its intent."""
        trial = self.trials[at]
        first = texts.parent is None
        try:
            protocol = self.protocol if first else texts.protocol
            config = trial.config
            if first:
                program, report = trial.program, trial.report
            else:
                protocol.accept(config)
                program = protocol.program(config)
                report = find_races(compile_tables(program))
        except LabError:
            return None  # it has an address outside its region, say
        races = keyed(texts, program, report.races)
        if without is not None and without in races:
            return None
        if not first and not trial.intent.kept_by(Intent.of(texts, report.execution)):
            return None
        if not all(_passes_values_on(program, region) for region in regions):
            return None
        judgement = judge_report(report, self.limits)
        races = keyed(texts, program, judgement.races)
        outcome = "" if races or not judgement.caught else judgement.verdict.split()[0]
        return _Seen(protocol, config, program, judgement, races, outcome)

    def _of(self, node: _Node, at: int) -> _Seen | None:
        """As `_look`, of a node, remembered."""
        if at not in node.seen:
            seen = self._look(node.texts, at)
            if seen is None:
                return None
            node.seen[at] = seen
        return node.seen[at]

    def _also(self, node: _Node, at: int, outcome: str) -> bool:
        """Whether a text whose races come first has an outcome too, such as a hang."""
        seen = self._of(node, at)
        if seen is None or not seen.races:
            return seen is not None and seen.outcome == outcome
        found = explore(compile_tables(seen.program), executions=_HANGS_LOOKED_FOR, seed=self.limits.seed)
        if found.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        return bool({"wrong": found.wrong, "hang": found.hangs, "abort": found.aborts}.get(outcome))

    def _failing_at(self, node: _Node) -> int | None:
        """The first trial at which a text is wrong; None: at none."""
        for at in range(len(self.trials)):
            seen = self._of(node, at)
            if seen is not None and seen.judgement.caught:
                return at
        return None

    # ---- changes of one text

    def _expanded(self, node: _Node, whole: bool) -> list[_Node]:
        """Try the candidates for what is wrong with a text; returns those that close a part of it.

        `whole`: for each race; else for the first, since all have to be closed.
        """
        at = self._failing_at(node)
        if at is None:
            return []
        seen = node.seen[at]
        targets: list[RaceKey | str] = list(seen.races) or [seen.outcome]
        partial: list[_Node] = []
        families: set[tuple[str, str]] = set()
        for place, target in enumerate(targets if whole else targets[:1]):
            left = self.seconds - (time.perf_counter() - self.started)
            until = time.perf_counter() + left / (len(targets) - place if whole else 1)
            for candidate in self._candidates(node, seen, target):
                if time.perf_counter() > until or len(self.repairs.found) >= _ENOUGH:
                    break
                if (candidate.family, "whole") in families:
                    continue
                kept = self._kept(node, candidate, at, target)
                if kept is not None and kept.fails_at < 0:
                    families.add((candidate.family, "whole"))
                elif kept is not None and place == 0 and (candidate.family, "part") not in families:
                    families.add((candidate.family, "part"))
                    partial.append(kept)
        return partial

    def _candidates(self, node: _Node, seen: _Seen, target: RaceKey | str) -> Iterator[Candidate]:
        race = seen.races.get(target) if isinstance(target, tuple) else None
        scene = Scene(
            node.texts,
            seen.protocol,
            seen.config,
            seen.program,
            race,
            wide=any(trial.config.blocks is None or trial.config.blocks > 1 for trial in self.trials),
            varies=any(trial.varies for trial in self.trials),
        )
        if race is None:
            regions = [] if self.defect.failing is None else _misread(self.defect.failing)
            return for_outcome(scene, regions, self.defect.memory == "weak")
        return for_race(scene, lambda splices: self._closed_by(node, splices, target))  # type: ignore[arg-type]

    def _closed_by(self, node: _Node, splices: tuple[Splice, ...], key: RaceKey) -> bool:
        texts = node.texts.edited(splices)
        if texts is None:
            return False
        try:
            program = texts.protocol.program(node.seen[self._failing_at(node) or 0].config)
            return key not in keyed(texts, program, find_races(compile_tables(program)).races)
        except LabError:
            return False  # a text that cannot be recorded closes nothing

    def _kept(self, node: _Node, candidate: Candidate, at: int, target: RaceKey | str) -> _Node | None:
        """The text with a candidate, if it closes the target at every trial that it was put to, and brings nothing new.

        Its `fails_at` is -1 if nothing is left.
        """
        texts = node.texts.edited(candidate.splices)
        if texts is None:
            return None
        text = tuple(source.text for source in texts.sources.values())
        if text in self._tried:
            return None
        self._tried.add(text)
        self.repairs.tried += 1
        self.progress(self.repairs.tried, len(self.repairs.found))
        made = _Node(texts, (*node.parts, candidate))
        for number in (at, *(k for k in range(len(self.trials)) if k != at)):
            seen = self._look(texts, number, target, candidate.regions)
            if seen is None or target in seen.keys:
                return None
            made.seen[number] = seen
            if seen.judgement.caught:
                made.fails_at = number
                return made if self._less(node, seen, number) else None
            if not seen.judgement.proved:
                why = f"no fault was found in it, and it was not proved right at {said(self.trials[number].config)}"
                self._unproved.setdefault(candidate.what, why)
                return None
        made.fails_at = -1
        self._keep(made)
        return made

    def _less(self, node: _Node, seen: _Seen, at: int) -> bool:
        """Whether what is still wrong was wrong before."""
        before = self._of(node, at)
        if before is None or not frozenset(seen.races) <= before.keys:
            return False
        return not seen.outcome or seen.outcome in before.keys or self._also(node, at, seen.outcome)

    def _keep(self, node: _Node) -> None:
        self._made.append(node)
        patch = Patch.of(node.texts)
        judged = list(node.seen.items())
        weakest = min((seen.judgement for _, seen in judged), key=lambda j: j.basis is Basis.ONE_EXECUTION)
        self.repairs.found.append(
            Repair(
                kind=Cost(node.cost).name.lower().replace("_", " "),
                cost=node.cost,
                parts=len(node.parts),
                closes=tuple(range(1, len(self.defect.races) + 1)),
                what="; and ".join(part.what for part in node.parts),
                hunks=patch.hunks,
                diff=patch.diff(),
                texts=patch.digests,
                models=tuple(
                    name for name in m.MEMORY_MODELS if all(name in seen.judgement.models for _, seen in judged)
                ),
                judged_at=tuple(said(self.trials[at].config) for at, _ in sorted(judged)),
                covered=weakest.covered,
            )
        )


def _settled(repair: Repair, held: _Seen | None, here: str) -> Repair:
    """A repair that was judged at one more configuration, where it held or did not."""
    if held is None:
        return replace(repair, not_at=tuple(dict.fromkeys((*repair.not_at, here))))
    models = tuple(name for name in repair.models if name in held.judgement.models)
    return replace(repair, judged_at=tuple(dict.fromkeys((*repair.judged_at, here))), models=models)


def _passes_values_on(program: Program, region: str) -> bool:
    """Whether the kernels both write a region and read it."""
    fields = {
        field == "dst"
        for agent in program.agents
        if is_own(agent)
        for op in agent.ops
        for field, _, span in spans_of(op)
        if span.region.name == region
    }
    return len(fields) == 2


def _crowds(failing: Execution) -> list[Crowd]:
    """The GPUs whose slots had run out when nothing could move."""
    stuck = failing if failing.outcome == m.HANG else before_giving_up(failing)
    return [] if stuck is None else crowds(stuck)


def _misread(execution: Execution) -> list[str]:
    """Names of the regions in which a read of a failing execution saw what it must not see."""
    if not execution.state.counts[m.C_WRONG]:
        return []
    tables = execution.tables
    cells = [fault.cell for _, _, fault in Explainer(execution).faults(limit=64)]
    names = [tables.program.regions[int(tables.cell_region[cell])] for cell in cells]
    return list(dict.fromkeys(region.name for region in names if region.source is None))
