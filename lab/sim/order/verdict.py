"""What an analysis says: accesses, races, wrong elements, and the verdict that carries them."""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.tables import AGENT, Tables


@dataclass(frozen=True)
class Access:
    """One operation of one agent, as a verdict names it.

    Attributes:
        rank, block, call: Whose it is; `call` is the launch of the protocol, counted per rank from 1, 0: a host's.
        op: Its place in the agent's listing.
        kind: What it did: read, write, wait, ...
        phase, line, text: Where it is written, and what it is.
        agent: The agent's name.
        launch: Which of all kernels of its rank, counted from 1; 0: a host's.
    """

    rank: int
    block: int
    call: int
    op: int
    kind: str
    phase: str
    line: str
    text: str
    agent: str
    launch: int = 0

    def __str__(self) -> str:
        phase = f" [{self.phase}]" if self.phase else ""
        return f"{self.agent}, op {self.op}{phase} {self.text} ({self.line})"


def access_of(tables: Tables, row: int, kind: str) -> Access:
    """Describe the operation at row `row` of the tables; `kind` says what it did ("read", "write", ...)."""
    op = tables.op(row)
    agent = tables.program.agents[int(tables.ops[row, AGENT])]
    position = row - int(tables.agent_start[agent.id])
    text = op.describe()
    launch = 0 if agent.kind == "host" else agent.sequence
    return Access(agent.rank, agent.block, agent.call, position, kind, op.phase, str(op.site), text, agent.name, launch)


@dataclass(frozen=True)
class Race:
    """Two accesses to the same elements, at least one a write, that no synchronisation orders.

    Attributes:
        first: The access that should come first: the write of a call before its read, the earlier call before the
            later.
        second: The other.
        region: The slot or buffer, in the protocol's words.
        elements: Ranges [lo, hi) of the region's elements where they meet.
        missing: The order that is missing and what each side does instead.
        pairs: How many pairs of operations (ranks, blocks, calls) are of this kind.
        release, acquire: The lines between which the order is missing: where the first agent next releases after its
            access, and where the second last acquired before its own; empty: nowhere.
    """

    first: Access
    second: Access
    region: str
    elements: tuple[tuple[int, int], ...]
    missing: str
    pairs: int
    release: str = ""
    acquire: str = ""

    @property
    def direction(self) -> str:
        """What the second access does after the first, such as "read after write"."""
        return f"{self.second.kind} after {self.first.kind}"

    @property
    def distance(self) -> tuple[int, int]:
        """Launches of the protocol, and kernels of any kind, from the first to the second; (0, 0): one is a host's."""
        if not self.first.launch or not self.second.launch:
            return 0, 0
        return self.second.call - self.first.call, self.second.launch - self.first.launch

    @property
    def what(self) -> str:
        """The accesses by kind, and where they meet."""
        spans = ", ".join(f"{lo}..{hi - 1}" for lo, hi in self.elements[:4])
        more = f" and {len(self.elements) - 4} more ranges" if len(self.elements) > 4 else ""
        return f"{self.first.kind} / {self.second.kind} of {self.region}, elements {spans}{more}"

    def __str__(self) -> str:
        return f"{self.what}\n  {self.first}\n  {self.second}\n  missing: {self.missing}"


@dataclass(frozen=True)
class Wrong:
    """Elements of an output that do not hold what is due.

    Attributes:
        rank, call: Whose output, of which launch.
        region: The output.
        elements: Ranges [lo, hi).
        holds: What they hold, by provenance.
        due: What is due.
        chain: The operations that carried the value, oldest first.
    """

    rank: int
    call: int
    region: str
    elements: tuple[tuple[int, int], ...]
    holds: str
    due: str
    chain: tuple[Access, ...]

    def __str__(self) -> str:
        spans = ", ".join(f"{lo}..{hi - 1}" for lo, hi in self.elements[:4])
        return f"rank {self.rank}, {self.region}, element {spans}: {self.holds}, where {self.due} is due"


@dataclass(frozen=True)
class Hunk:
    """Neighbouring lines of one file that change.

    Attributes:
        file: The file.
        line: The first line that changes, from 1; if nothing goes, the line before which `new` comes.
        old, new: The lines as they are, and as they are to be.
    """

    file: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Repair:
    """A change of a protocol's text that closes everything that was found; it was judged as it is printed.

    Attributes:
        kind: What kind of change it is; of several, the costliest.
        cost: Kinds by what they cost at run time, the cheapest first (`repairs.candidate.Cost`).
        parts: How many changes it is.
        closes: The races that it closes, counted from 1.
        what: The change in words, with the lines of the text as it is.
        hunks: What changes.
        diff: The same as a unified diff.
        texts: (file, SHA-256 of its text) of the files as they were when it was judged.
        judged_at: The configurations at which it was judged, and proved right.
        models: The memory models under which it was; under the others it was explored.
        covered: What that rests on.
        not_at: Configurations at which it is not right, though another repair is: there the text as it is has more
            defects than were to be closed.
    """

    kind: str
    cost: int
    parts: int
    closes: tuple[int, ...]
    what: str
    hunks: tuple[Hunk, ...]
    diff: str
    texts: tuple[tuple[str, str], ...]
    judged_at: tuple[str, ...]
    models: tuple[str, ...]
    covered: str
    not_at: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What may help and is no repair: no change of the text, or none that was proved.

    Attributes:
        what: What to do.
        why: Why it is no repair, or what it rests on.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Finding:
    """Races that lack one order: where the one side releases and the other acquires, no path leads from there to here.

    Attributes:
        races: Its races, counted from 1.
        direction: What the second access does after the first, such as "read after write".
        across: Whether the two are of different ranks.
        missing: The order that is missing, told of the first of the races.
    """

    races: tuple[int, ...]
    direction: str
    across: bool
    missing: str


@dataclass(frozen=True)
class Effect:
    """What a race does, as far as it was looked for.

    Attributes:
        race: Which, counted from 1.
        turned, wrong, hangs, aborts: Executions that turn it round, and how they ended.
        schedule: Of its smallest witness, an execution in which it makes a value wrong; None: none was found.
        said: The same in words.
    """

    race: int
    turned: int = 0
    wrong: int = 0
    hangs: int = 0
    aborts: int = 0
    schedule: str | None = None
    said: str = ""


@dataclass(frozen=True)
class Outcome:
    """One way in which executions fail.

    Attributes:
        kind: wrong, hang or abort.
        executions: How many of those that were explored fail so; one may fail in two ways.
        share: Of all that were explored; None: none was.
        found_by: Which execution is shown, in words.
        schedule: One line that `lab replay` repeats to see it.
    """

    kind: str
    executions: int
    share: float | None
    found_by: str
    schedule: str


@dataclass(frozen=True)
class Verdict:
    """The answer of `lab check`.

    Attributes:
        verdict: The worst that was found: wrong, hang, abort, race, or ok.
        protocol, config: What was checked.
        memory: The memory model.
        races: Racing pairs, one of each kind (see `kinds.Key`).
        findings: The races by the order that they lack.
        effects: What each race does.
        outcomes: How executions fail, the worst first.
        wrong: Wrong elements of the execution that `outcomes` shows for wrong.
        means: What the wrong outputs of that execution average to, with constant inputs (rank + 1) * call.
        hang: Who waits for what, when nothing can move, in the execution that `outcomes` shows for hang.
        abort: The protocol's own abort record, decoded, of the one shown for abort.
        gave_up: Who waited for what when the first bounded wait gave up, where nothing else could move then.
        schedule: One line that `lab replay` repeats: of the smallest witness, or of the worst outcome.
        witness: The steps that matter.
        executions, failing: Executions explored and how many of them failed.
        proof: What the verdict covers and what it does not, a line for each.
        notes: What else is to be known of what was checked.
        repairs: Changes of the text that close all that was found, the cheapest first.
        advice: What else may help.
        repairs_tried: How many were tried, and whether all, and what else is to be said; empty: none was looked for.
        changes_tried: How many were tried.
        interrupted: Ctrl-C ended it; the rest is what was found until then.
    """

    verdict: str
    protocol: str
    config: dict[str, object]
    memory: str
    races: tuple[Race, ...] = ()
    findings: tuple[Finding, ...] = ()
    effects: tuple[Effect, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    means: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    hang: tuple[str, ...] = ()
    abort: str | None = None
    gave_up: tuple[str, ...] = ()
    schedule: str | None = None
    witness: tuple[str, ...] = ()
    executions: int = 0
    failing: int = 0
    proof: str = ""
    notes: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    advice: tuple[Advice, ...] = ()
    repairs_tried: str = ""
    changes_tried: int = 0
    interrupted: bool = False

    @property
    def witness_lines(self) -> tuple[str | None, ...]:
        """For each race, the schedule line of its smallest witness; None: none was found."""
        return tuple(effect.schedule for effect in self.effects)

    @property
    def ok(self) -> bool:
        """Whether no defect was found."""
        return self.verdict == "ok"


def ranges(starts: list[int], lengths: list[int]) -> tuple[tuple[int, int], ...]:
    """Merge cells (start, length) into sorted, disjoint ranges [lo, hi)."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(zip(starts, lengths, strict=True)):
        if merged and merged[-1][1] >= start:
            merged[-1] = (merged[-1][0], max(merged[-1][1], start + length))
        else:
            merged.append((start, start + length))
    return tuple(merged)
