"""The configurations at which a changed text is judged.

The one asked for, the smallest that shows the defect, and around that: one rank more; more calls than any buffer is
deep and any index cycles; sizes that change from call to call, so that blocks have nothing to do in some; one and two
blocks that all have elements; and all of it together. A configuration counts unless the protocol is not made for it: it
refuses it, or is wrong there in a way that no race explains and that was not to be repaired. What does not count is
said.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from lab.errors import LabError
from lab.protocol.program import Move, Program
from lab.protocol.tables import compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.change.edit import is_own
from lab.sim.change.intent import Intent, leaves_output_unwritten
from lab.sim.change.keys import keyed
from lab.sim.change.text.texts import Texts
from lab.sim.explain.wrong import Explainer
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution
from lab.sim.order.kinds import key_of
from lab.sim.order.races import RaceReport, find_races

AFFORDABLE = 60_000  # operations of a program that is judged
_MOST_CALLS = 12
_LARGEST = 64  # times the size of the smallest configuration, where two blocks have work
OUTCOMES = {"wrong": "wrong values that no race explains", "hang": "a hang", "abort": "an abort"}


@dataclass(frozen=True)
class Trial:
    """One configuration, and the author's text there.

    Attributes:
        config, program, report: The configuration, the program, and the race check of its first execution.
        intent: What that execution did.
        outcomes: What is wrong with it beside its races, in words.
    """

    config: Config
    program: Program
    report: RaceReport
    intent: Intent
    outcomes: frozenset[str]

    @cached_property
    def varies(self) -> bool:
        """Whether launches have grids of different sizes."""
        grids: Counter[tuple[int, int]] = Counter((a.rank, a.sequence) for a in self.program.agents if is_own(a))
        return len(set(grids.values())) > 1


@dataclass(frozen=True)
class Doubt:
    """A trial at which the author's text has more defects than were to be repaired.

    Attributes:
        trial: The trial.
        what: What the configuration has more, in words.
        why: Which defects.
    """

    trial: Trial
    what: str
    why: str

    def __str__(self) -> str:
        return _left_out(self.what, self.trial.config, f"the author's text has other defects there ({self.why})")


def _left_out(what: str, config: Config, why: str) -> str:
    return f"not judged at {what} ({said(config)}): {why}"


def said(config: Config) -> str:
    """A configuration, in few words."""
    blocks = "own grid" if config.blocks is None else f"{config.blocks} block{'s' if config.blocks > 1 else ''}"
    calls = f"{config.calls} call{'s' if config.calls > 1 else ''}"
    waves = f", {config.waves} waves" if config.waves > 1 else ""
    return f"world {config.world}, {calls}, {blocks}{waves}, {'/'.join(map(str, config.bytes))} bytes"


@dataclass
class Trials:
    """The trials of one text.

    Attributes:
        texts, protocol: The author's text and its protocol.
        asked: The configuration asked for.
        kind: The verdict there.
        small: The smallest configuration that shows the defect, as far as is known.
    """

    texts: Texts
    protocol: Protocol
    asked: Config
    kind: str
    small: Config

    def __post_init__(self) -> None:
        self.left_out: list[str] = []
        self.doubts: list[Doubt] = []

    def all(self) -> list[Trial]:
        """The trials, the cheapest first; what is left out is said in `left_out`, and may be, in `doubts`."""
        found: list[Trial] = []
        for config, what in self._configs():
            if any(config == trial.config for trial in found):
                continue
            trial = self._trial(config, what) or self._resized(config, what)
            if trial is not None and all(trial.config != other.config for other in found):
                found.append(trial)
        return found

    def _resized(self, config: Config, what: str) -> Trial | None:
        """A trial with more ranks than asked for at sizes that so many divide, where it is not made for the others."""
        if config.world <= max(self.asked.world, self.small.world):
            return None
        said_before, doubts_before = list(self.left_out), list(self.doubts)
        trial = self._trial(replace(config, bytes=tuple(size * config.world for size in config.bytes)), what)
        self.left_out = [line for line in self.left_out if what not in line] if trial else said_before
        self.doubts = [doubt for doubt in self.doubts if doubt.what != what] if trial else doubts_before
        return trial

    def _trial(self, config: Config, what: str) -> Trial | None:
        try:
            self.protocol.accept(config)
            program = self.protocol.program(config)
            if program.n_ops > AFFORDABLE:
                self.left_out.append(f"not judged at {said(config)}: {program.n_ops} operations are too many")
                return None
            report = find_races(compile_tables(program))
        except LabError as refused:
            self._leave_out(what, config, f"the protocol is refused there ({str(refused).splitlines()[0]})")
            return None
        outcomes = frozenset(_outcomes(report))
        trial = Trial(config, program, report, Intent.of(self.texts, report.execution), outcomes)
        unfit = self._unfit(config, report, outcomes)
        if unfit:
            self.doubts.append(Doubt(trial, what, unfit))
            return None
        return trial

    def _leave_out(self, what: str, config: Config, why: str) -> None:
        if config != self.asked and config != self.small:
            if not any(what in line for line in self.left_out):
                self.left_out.append(_left_out(what, config, why))

    def _unfit(self, config: Config, report: RaceReport, outcomes: frozenset[str]) -> str:
        """What tells that the protocol is not made for a configuration, in words; empty: it is."""
        if config in (self.asked, self.small):
            return ""
        if leaves_output_unwritten(report.execution.tables) and not self._known[2]:
            return "elements of its output that nobody writes"
        more = sorted(outcomes - self._known[1])
        if not more and self._wider(config):
            if not self._tells_blocks_apart:
                return "its text does not tell blocks apart"
            races = keyed(self.texts, report.execution.tables.program, report.races)
            lines = sorted({race.first.line for key, race in races.items() if key not in self._known[0]})
            more = [f"a race at {' and '.join(lines)}"] if lines else []
        return "; ".join(more)

    def _wider(self, config: Config) -> bool:
        """Whether a configuration has more blocks than were asked for."""
        return self.asked.blocks is not None and (config.blocks or 0) > self.asked.blocks

    @cached_property
    def _tells_blocks_apart(self) -> bool:
        """Whether the text asks which block it is."""
        nodes = (node for source in self.texts.sources.values() for node in ast.walk(source.tree))
        return any(isinstance(node, ast.Attribute) and node.attr == "block" for node in nodes)

    @cached_property
    def _known(self) -> tuple[frozenset[object], frozenset[str], bool]:
        """What is wrong at the configurations asked for and shown, with more calls too.

        Races, outcomes that no race explains, and whether nobody writes some element of an output.
        """
        races, outcomes, unwritten = set(), set(), False
        for config in (self.asked, self.small, replace(self.small, calls=self.small.calls + 2)):
            try:
                self.protocol.accept(config)
                program = self.protocol.program(config)
                if program.n_ops <= AFFORDABLE:
                    report = find_races(compile_tables(program))
                    races |= keyed(self.texts, program, report.races).keys()
                    outcomes |= set(_outcomes(report))
                    unwritten = unwritten or leaves_output_unwritten(report.execution.tables)
            except LabError:
                continue  # what is refused shows nothing
        if not races or self.kind in ("hang", "abort"):
            outcomes.add(OUTCOMES.get(self.kind, ""))
        return frozenset(races), frozenset(outcomes), unwritten

    # ---- which

    def _configs(self) -> Iterator[tuple[Config, str]]:
        small = self.small
        calls = self.calls()
        more = {"calls": f"{calls} calls", "world": f"{small.world + 1} ranks"}
        yield small, "the smallest that shows it"
        yield replace(small, calls=calls), more["calls"]
        if small.world < 8:
            yield replace(small, world=small.world + 1, calls=max(small.calls, 3)), more["world"]
        for blocks in (1, 2):
            sizes = self._busy(blocks)
            if sizes is None:
                self.left_out.append(f"not judged at {blocks} block{'s' if blocks > 1 else ''} that all have elements")
                continue
            large, less = sizes
            plain = replace(small, blocks=blocks, bytes=(large,), calls=max(small.calls, 3))
            yield plain, f"{blocks} block{'s' if blocks > 1 else ''} with work each"
            changing = "sizes that change from call to call"
            yield replace(plain, bytes=(large, less), calls=calls), changing
            yield replace(plain, bytes=(large, less, large * 3 // 4), calls=min(calls, 5)), changing
            if blocks == 2:
                mixed = (large, less, less)
                yield replace(plain, bytes=mixed, calls=min(calls, 5)), changing
                if small.world < 8:
                    together = replace(plain, bytes=mixed, calls=min(calls, 5), world=small.world + 1)
                    yield together, "all of that together"
        yield self.asked, "what was asked for"
        if self.asked.world < 8:
            yield replace(self.asked, world=self.asked.world + 1), "one rank more than asked for"
        if self.asked.calls < 4096:
            yield replace(self.asked, calls=max(calls, self.asked.calls + 1)), "more calls than asked for"

    def calls(self) -> int:
        """More calls than any buffer is deep, and than the cycle of any index."""
        depth = max((n for r in self._program.regions for name, n in r.shape if name and n <= _MOST_CALLS), default=1)
        cycles = [
            node.right.value
            for source in self.texts.sources.values()
            for node in ast.walk(source.tree)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Constant)
            if isinstance(node.right.value, int)
        ]
        return min(_MOST_CALLS, max(self.small.calls, 2, depth, *cycles, 0) + 3)

    @cached_property
    def _program(self) -> Program:
        return self.protocol.program(self.small)

    def _busy(self, blocks: int) -> tuple[int, int] | None:
        """(large, less): sizes at which all of so many blocks move elements, and at which not all do.

        None: there is no such size up to `_LARGEST` times the smallest, or the gate.
        """
        size = max(self.small.bytes)
        for _ in range(_LARGEST.bit_length()):
            config = replace(self.small, blocks=blocks, bytes=(size,))
            try:
                self.protocol.accept(config)
                if _all_busy(self.protocol.program(config)):
                    return size, self._less(size, blocks)
            except LabError:
                pass  # a size that is refused is no size
            size *= 2
        return None

    def _less(self, size: int, blocks: int) -> int:
        """A size that leaves the last block without elements; with one block, half of it."""
        less = size // 2
        while blocks > 1 and less > 64:
            try:
                config = replace(self.small, blocks=blocks, bytes=(less,), gate=self.small.gate or size)
                self.protocol.accept(config)
                if not _all_busy(self.protocol.program(config)):
                    return less
            except LabError:
                return size // 2
            less //= 2
        return less


def _all_busy(program: Program) -> bool:
    """Whether every block moves elements."""
    blocks: dict[tuple[int, int], bool] = {}
    for agent in program.agents:
        if is_own(agent):
            own = (op for op in agent.ops if isinstance(op, Move))
            busy = any(any(True for _ in op.mapping.chunks(op.dst.length)) for op in own)
            key = (agent.rank, agent.block)
            blocks[key] = blocks.get(key, False) or busy
    return all(blocks.values())


def _outcomes(report: RaceReport) -> Iterator[str]:
    """What is wrong with an execution that none of its races explains, in words."""
    execution: Execution = report.execution
    if execution.outcome == m.HANG:
        yield OUTCOMES["hang"]
    if execution.state.counts[m.C_ABORTS]:
        yield OUTCOMES["abort"]
    if execution.state.counts[m.C_WRONG]:
        keys = {key_of(race) for race in report.races}
        explainer = Explainer(execution)
        if any(explainer.race_key(fault) not in keys for _, _, fault in explainer.faults(limit=64)):
            yield OUTCOMES["wrong"]
