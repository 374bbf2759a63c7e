"""The main job: why the seed's two-shot fails at a small gate and passes its self-test at a large one.

`reproduce` does the work and returns a `Report`; `lab.cli.repro` prints it, `lab.pages.repro` makes a page of it.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.gate_tables import RUNS, V620, Rows, in_order
from lab.plots.story import Story, story
from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.protocol.write import KIB, MIB, Config, Protocol
from lab.sim.check import check
from lab.sim.explain.minimise import Witness, smallest_witness
from lab.sim.order.kinds import Key, key_of
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Race, Verdict
from lab.sim.timing.gates import GateRow

SEED, REPAIRED = "seed_two_shot", "repaired_two_shot"
GATES = (64 * KIB, 20 * MIB)  # a gate at which the self-test failed, and one at which it passed
Progress = Callable[[str], None]

TITLE = "Why a two-shot all-reduce fails at a 64 KiB gate and passes its self-test at 20 MiB"
LEAD = (
    "The two-shot all-reduce of rdna_ar gave wrong sums in its boot self-test on four Radeon PRO V620 when the "
    "largest message it may take (its gate) was 64 or 128 KiB, and passed at 1 MiB and 20 MiB. That looks like a "
    "defect of small messages. It is not: in two places one block or rank touches memory that another is not done "
    "with, at 20 MiB as at 64 KiB. Only the odds change with size, and a self-test that waits between calls cannot "
    "see the second place at all. Both were found by running the kernel's protocol on a CPU, step by step, and asking"
    " of every two accesses to the same memory whether anything orders them."
)
GATE_WORDS = (
    "The gate is the largest message that the kernel may take; every message here is as large as the gate. A trial "
    "fails when an element is wrong or a rank gives up. The mean is what the self-test prints for a wrong output (the"
    " median of those seen), where 30.0 is due. Messages up to 32 KiB go to the one-shot kernel, which has neither "
    "defect in its own calls. Everything called simulated comes from a timing model on a CPU."
)
WHY = (
    "Both orders are missing at every size; the odds change. A block begins to send when its own reduce is done, from "
    "its first element on. At 64 KiB each thread reduces one element at most, so a block that is a little ahead sends "
    "what others have not reduced yet. At 20 MiB each reduces many, and what a block sends first the others reduced "
    "long before, so that only one that lags by nearly a whole reduce shows. And the self-test helps to hide both: it "
    "waits after every call, so that no two calls overlap, and its outputs still hold the right number of the trial "
    "before."
)
COLUMN_WORDS = (
    ("fails, fail", "trials in which an element is wrong or a rank gives up; a trial is one boot, or one run of calls"),
    ("mean", "what the self-test prints of a wrong output: the median of those seen. 30.0 is due: (1 + 2 + 3 + 4) x 3"),
    ("wrong", "share of the elements that are wrong, in the trials that fail"),
    ("aborts", "trials in which a wait gave up"),
    ("isolated", "the host waits after every call; back to back, or queued: calls are queued and may overlap"),
    ("lowest", "the lowest mean of any wrong output"),
    ("sim, H200", "the timing model, and what was measured on the GPU named above the table"),
)
GATE_CAPTION = (
    "Above: how many trials have a wrong element or an abort. Below: how much of the output is wrong in those. Lines "
    "are simulated; hollow marks are what hardware showed, reported for four V620 and measured on two H200."
)
LIMITS = (
    "What runs here is a model of the kernel's protocol, written from its description: its real geometry, thread "
    "mappings, flags and counters, but not its machine code.",
    "A block is one thread of control here. Order between the threads of one block is not checked on this page.",
    "The race check speaks of the sizes, ranks, grids and numbers of calls that it was given, and of no others.",
    "The simulated shares and means come from a timing model. It is meant for shapes and comparisons: which gates "
    "fail, how the damage shrinks with size. It does not predict how often a particular machine fails.",
    "Nothing here was measured on a V620. Figures marked reported are the maintainers' own; figures marked measured "
    "were taken on NVIDIA H200 GPUs that ran the same protocol, and say nothing about the timing of an AMD GPU.",
    "The repaired protocol was checked as a model. It has not run on AMD hardware.",
    "After an abort the seed leaves counters behind that let later barriers pass early. That third hazard is not "
    "shown here.",
)


@dataclass(frozen=True)
class Words:
    """What a person says about one of the seed's defects; everything else about it is read off the program."""

    name: str
    title: str
    gist: str
    repair: str
    hidden: str


INSIDE_A_CALL = Words(
    name="D1",
    title="A block sends elements that another block has not reduced yet",
    gist=(
        "The reduce deals out elements one a thread, the allgather that follows deals out vectors of eight. So a "
        "block sends elements that other blocks reduce, and between the two stands only a block barrier, which orders"
        " the threads of one block."
    ),
    repair="Give the reduce the mapping of the allgather, so that every thread sends what it reduced itself.",
    hidden=(
        "The larger the message, the further a thread's allgather lags behind the reduce of the others, so wrong "
        "elements become rare with size; but the order is as missing at 20 MiB as at 64 KiB. The self-test reuses "
        "outputs that already hold the right number, so even a stale element can look right."
    ),
)
ACROSS_CALLS = Words(
    name="D2",
    title="The next call overwrites a slot that a slower rank is still copying out",
    gist=(
        "The allgather of a call uses the slots of the other parity, which are the scatter slots of the next call. A "
        "rank that has every flag of a call may start the next one and write into them. No flag says that a peer is "
        "done copying out."
    ),
    repair="Give the allgather a region of its own, so that the scatter of the next call cannot reach it.",
    hidden=(
        "It needs two calls that overlap. A test in which the host waits after every call, as in the self-test, "
        "cannot show it."
    ),
)


@dataclass(frozen=True)
class Finding:
    """One defect of the seed.

    Attributes:
        words: What a person says about it.
        races: What the race check reports at full size, at each of GATES.
        witness, story: A small failing execution, and the same told.
        line: The schedule line that repeats it.
    """

    words: Words
    races: tuple[tuple[Config, Race], ...]
    witness: Witness
    story: Story
    line: str

    def sentences(self) -> list[str]:
        """The defect in a few sentences: what is wrong in general, then this execution."""
        return [self.words.gist, *self.story.sentences()]


@dataclass
class Report:
    """What was reproduced, as far as it got.

    Attributes:
        rows: The gate table.
        findings: D1 and D2.
        full: The configuration at which the race check found them.
        repaired: The verdict on the repaired protocol at that configuration.
        interrupted: Ctrl-C ended it; the rest is what was finished until then.
    """

    rows: list[GateRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    full: Config | None = None
    repaired: Verdict | None = None
    interrupted: bool = False

    @property
    def reproduced(self) -> bool:
        """Whether both defects and the repair are there, and the self-test fails at 64 KiB and passes at 20 MiB."""
        names = {finding.words.name for finding in self.findings}
        fails = {row.gate_kib: row.fail_share for row in self.rows if (row.preset, row.mode) == (V620, "self_test")}
        repaired = self.repaired is not None and self.repaired.ok
        return {"D1", "D2"} <= names and repaired and fails.get(64, 0) > 0 and fails.get(20480) == 0


def findings(seed: int = 0, progress: Progress = lambda text: None) -> tuple[Config, list[Finding]]:
    """Both defects: found at full size by the race check, then shown in the smallest execution that goes wrong.

    Returns:
        The first configuration of the race check, and the findings.
    """
    protocol = load(SEED)
    reports: dict[Key, list[tuple[Config, Race]]] = {}
    full = [protocol.config(world=4, calls=2, bytes=(gate,)) for gate in GATES]
    for config in full:
        progress(f"race check of {SEED}: {described(config)}")
        for race in find_races(compile_tables(protocol.program(config))).races:
            reports.setdefault(key_of(race), []).append((config, race))
    small = protocol.config(world=2, calls=2, bytes=(GATES[0],), blocks=2)
    found = []
    for key, races in sorted(reports.items(), key=lambda entry: _across_calls(entry[1][0][1])):
        words = ACROSS_CALLS if _across_calls(races[0][1]) else INSIDE_A_CALL
        progress(f"smallest failing execution of {words.name}")
        witness = smallest_witness(protocol, small, "sc", key, seed)
        if witness is not None:
            found.append(_finding(words, tuple(races), witness, protocol))
    return full[0], found


def _across_calls(race: Race) -> bool:
    return race.first.call != race.second.call


def _finding(words: Words, races: tuple[tuple[Config, Race], ...], witness: Witness, protocol: Protocol) -> Finding:
    return Finding(
        words=words,
        races=races,
        witness=witness,
        story=story(witness.explainer, witness.fault),
        line=witness.line(protocol),
    )


def repair_diff(seed: Protocol, repaired: Protocol) -> list[str]:
    """All that the repaired protocol's text changes, as a unified diff: memory and kernel, without file headers."""
    return list(difflib.unified_diff(_source(seed), _source(repaired), lineterm="", n=2))[2:]


def _source(protocol: Protocol) -> list[str]:
    return [line for part in (protocol.memory, protocol.kernel) for line in inspect.getsource(part).splitlines()]


def repaired_verdict(full: Config, seed: int = 0) -> Verdict:
    """The verdict on the repaired protocol at the configuration at which the seed's was found wanting."""
    protocol = load(REPAIRED)
    config = protocol.config(world=full.world, calls=full.calls, bytes=full.bytes, blocks=full.blocks)
    return check(protocol, config, executions=20, seed=seed, minimise=False)


def described(config: Config) -> str:
    """A configuration in words."""
    blocks = "the kernel's own grid" if config.blocks is None else _count(config.blocks, "block")
    sizes = " and ".join(size_in_words(size) for size in dict.fromkeys(config.bytes))
    return f"{_count(config.world, 'rank')}, {blocks}, {_count(config.calls, 'call')} of {sizes}"


def size_in_words(nbytes: int) -> str:
    """`64 KiB`, `20 MiB` or `512 bytes`."""
    for unit, name in ((1024 * KIB, "MiB"), (KIB, "KiB")):
        if nbytes % unit == 0 and nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} bytes"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def reproduce(
    seed: int = 0,
    *,
    runs: int = RUNS,
    processes: int = 1,
    progress: Progress = lambda text: None,
    each_row: Callable[[GateRow], None] = lambda row: None,
) -> Report:
    """Do all of it: the gate table, both findings, and the repaired protocol.

    Args:
        seed: Of every random draw.
        runs: Simulated runs a row of the gate table.
        processes: How many processes share the gate table.
        progress: Called with a few words before each part.
        each_row: Called with each row of the gate table as it is finished.

    Returns:
        The report. Ctrl-C keeps what was finished until then and sets `interrupted`.
    """
    report = Report()
    with Rows(seed, runs, processes) as rows:
        try:
            report.full, report.findings = findings(seed, progress)
            progress(f"check of {REPAIRED} at the same size")
            report.repaired = repaired_verdict(report.full, seed)
            if report.repaired.interrupted:
                raise KeyboardInterrupt
            progress("gate table, simulated")
            for row in rows:
                report.rows.append(row)
                each_row(row)
        except KeyboardInterrupt:
            report.interrupted = True
            report.rows += rows.finished()
    report.rows = in_order(report.rows)
    return report
