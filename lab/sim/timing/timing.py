"""The timing model: a `Program` run in time, with the latencies and bandwidths of a preset, instead of by a scheduler.

    run = simulate(tables, "pcie_v620", seed=1)
    for check in run.checks: print(check.rank, check.call, check.mean, check.wrong_share)

Every payload operation is run one loop iteration at a time, so that a copy that lags another block's reduce by many
iterations does so here too. Payload has a number a cell: input version v of rank r is (r + 1) * v everywhere, so
that 30.0 is due for version 3 of four ranks, as in the seed's self-test. What a run shows is *simulated*: it is as
good as the preset (`lab.sim.timing.presets`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.errors import LabError
from lab.protocol import tables as t
from lab.protocol.errors import ProtocolError
from lab.protocol.program import CONSTANT, Agent, Expect, Fill, Op, Region, Wait, WaitStamp
from lab.protocol.tables import Tables
from lab.sim.machine.words import STACK
from lab.sim.timing import columns, loop
from lab.sim.timing.presets import Preset, preset

MAX_EVENTS = 1 << 40
LONGEST_US = 2_000_000_000  # bounds in seconds are cut to this


@dataclass(frozen=True)
class Check:
    """What one `expect` saw.

    Attributes:
        rank: Whose output.
        call: Which of this agent's expects, counted from 1 in the order of the program text: the call in the
            scenarios here.
        time_us: When, in microseconds.
        due: What every element should be.
        mean: What a self-test would print: the mean of all elements.
        wrong_share: Share of elements that differ from `due`.
        elements: How many there are.
        lowest, highest: The extreme element values.
    """

    rank: int
    call: int
    time_us: float
    due: float
    mean: float
    wrong_share: float
    elements: int
    lowest: float
    highest: float

    @property
    def ok(self) -> bool:
        """Every element is right."""
        return self.wrong_share == 0


@dataclass(frozen=True)
class Timeout:
    """A bounded wait that gave up. `op` is its position in the agent's listing."""

    agent: Agent
    op: int
    time_us: float

    @property
    def wait(self) -> Op:
        """The wait."""
        return self.agent.ops[self.op]

    def __str__(self) -> str:
        return f"{self.agent.name}, op {self.op}: {self.wait.describe()} gave up after {self.time_us:.0f} us"


@dataclass(frozen=True)
class TimedRun:
    """One simulated run.

    Attributes:
        checks: One an `expect` that was reached, in order of time.
        timeouts: Bounded waits that gave up, in order of time.
        words: Final value of every word, int64; see `word`.
        hung: Agents that never ended, with the operation they stand at; kernels that no host launched are not among
            them.
        time_us: Time of the last event, in microseconds.
        events: Events that the loop handled.
        inexact: Writes for which the queue of values under way was too short; 0 means that the model was followed
            exactly.
        span_agent, span_op, span_begin, span_end: With `record`: one an operation that ended, times in nanoseconds;
            `span_op` is the position in the agent's listing.
        spans_lost: Operations that `record` had no room for.
    """

    tables: Tables
    preset: Preset
    seed: int
    checks: tuple[Check, ...]
    timeouts: tuple[Timeout, ...]
    words: np.ndarray
    hung: tuple[tuple[Agent, int], ...]
    time_us: float
    events: int
    inexact: int
    span_agent: np.ndarray
    span_op: np.ndarray
    span_begin: np.ndarray
    span_end: np.ndarray
    spans_lost: int

    @property
    def ok(self) -> bool:
        """All checks right, nothing gave up, nothing hung."""
        return not self.timeouts and not self.hung and all(check.ok for check in self.checks)

    def word(self, name: str, rank: int, index: int = 0) -> int:
        """Final value of word `index` of the region `name` of `rank`.

        Raises:
            LabError: The rank has no such region of words, or it has no such word.
        """
        for region in self.tables.program.regions:
            if region.name == name and region.rank == rank and region.kind == "words":
                if not 0 <= index < region.length:
                    raise LabError(f"{name} of rank {rank} has {region.length} words", value=index)
                return int(self.words[self.tables.word_base[region.id] + index])
        raise LabError(f"rank {rank} has no words of that name", value=name)


@dataclass(frozen=True)
class Plan:
    """A `Program`'s tables with what the timing model adds; make one with `plan` to run it many times."""

    tables: Tables
    arrays: columns.Arrays
    word_initial: np.ndarray
    cell_initial: np.ndarray
    call_of: dict[int, tuple[int, int, float]]
    """Table row of an EXPECT: (rank, call, value due)."""


def value_of(source: tuple[int, int]) -> float:
    """The number that every element of input (rank, version) holds."""
    rank, version = source
    return float((rank + 1) * version)


def plan(tables: Tables) -> Plan:
    """Prepare tables for many runs."""
    program = tables.program
    ops = np.zeros((len(tables.ops), columns.OP_COLUMNS), np.int32)
    ops[:, : t.COLUMNS] = tables.ops
    regions = program.regions
    starts = tables.agent_start
    role = np.zeros(len(ops), np.int8)
    host = tables.is_host
    region_role = np.array([_region_role(region) for region in regions], np.int8)
    kernel = ~host[ops[:, t.AGENT]]
    word_op = np.isin(ops[:, t.KIND], (t.LOAD, t.STORE, t.RMW, t.WAIT))
    direct = word_op & (ops[:, t.SELECT] < 0)
    about = np.zeros(len(ops), np.int8)
    about[direct] = region_role[tables.word_region[ops[direct, t.ADDR]]]
    waits = ops[:, t.KIND] == t.WAIT
    role[kernel & waits & (about == columns.LAUNCH)] = columns.LAUNCH
    role[kernel & (ops[:, t.KIND] == t.RMW) & (about == columns.PREVIOUS)] = columns.KERNEL_END
    for agent in program.agents:
        first = int(starts[agent.id])
        # Only the wait at the head of a kernel is the stream's; the same wait inside a kernel is the kernel's own.
        if agent.kind != "host" and len(agent.ops) > 1 and waits[first + 1] and about[first + 1] == columns.PREVIOUS:
            role[first + 1] = columns.PREVIOUS
    role[~kernel] = columns.HOST
    role[~kernel & (ops[:, t.KIND] == t.STORE) & (about == columns.LAUNCH)] = columns.HOST_LAUNCH
    ops[:, columns.BOUND] = ops[:, columns.LIMIT] = -1
    for pc in np.nonzero(waits | (ops[:, t.KIND] == t.WAIT_STAMP))[0]:
        op = tables.op(pc)
        assert isinstance(op, (Wait, WaitStamp))
        if op.bound is not None:
            ops[pc, columns.BOUND] = op.bound
        seconds = getattr(op, "seconds", None)
        if seconds is not None:
            ops[pc, columns.LIMIT] = min(int(seconds * 1e6), LONGEST_US)
    number = np.full(len(ops), -1, np.int32)
    values: list[float] = []
    call_of: dict[int, tuple[int, int, float]] = {}
    ordinal: dict[int, int] = {}
    for pc in np.nonzero((ops[:, t.KIND] == t.FILL) | (ops[:, t.KIND] == t.EXPECT))[0]:
        op = tables.op(pc)
        number[pc] = len(values)
        if isinstance(op, Fill):
            values.append(np.nan if op.source is None else value_of(op.source))
        else:
            assert isinstance(op, Expect)
            values.append(sum(value_of(source) for source in op.due))
            agent = program.agents[int(ops[pc, t.AGENT])]
            ordinal[agent.id] = ordinal.get(agent.id, 0) + 1
            call = ordinal[agent.id] if agent.kind == "host" else agent.call
            call_of[int(pc)] = (agent.rank, call, values[-1])
    ops[:, columns.ROLE], ops[:, columns.NUMBER] = role, number
    _refuse_untimed(tables)
    memory = np.array([int(region.memory) for region in regions], np.int16)
    initial = np.array([np.nan if r.source is None else value_of(r.source) for r in regions])
    agents, words, cells = len(program.agents), max(1, len(tables.word_initial)), len(tables.cell_start)
    packets = bool((ops[:, t.STAMP] >= 0).any() or (ops[:, t.KIND] == t.WAIT_STAMP).any())
    launches: dict[tuple[int, int], int] = {}
    agent = np.zeros((agents, columns.AGENT_INTEGERS), np.int64)
    agent[:, columns.FIRST], agent[:, columns.END], agent[:, columns.RANK] = starts, tables.agent_end, tables.agent_rank
    agent[:, columns.BLOCK] = [a.block for a in program.agents]
    agent[:, columns.NTH_LAUNCH] = [launches.setdefault((a.rank, a.call), len(launches)) for a in program.agents]
    word = np.zeros((words, columns.WORD_INTEGERS), np.int64)
    word[: len(tables.word_rank), columns.OWNER] = tables.word_rank
    word[: len(tables.word_rank), columns.MEMORY] = memory[tables.word_region]
    cell = np.zeros((cells, columns.PACKET_COLUMNS if packets else columns.CELL_COLUMNS))
    cell[:, columns.LENGTH] = tables.cell_length
    arrays = columns.Arrays(
        ops=ops,
        exprs=tables.exprs if len(tables.exprs) else np.zeros((1, 3), np.int64),
        tests=tables.tests,
        postfix=tables.postfix if len(tables.postfix) else np.zeros((1, 2), np.int64),
        addresses=tables.addresses,
        moves=tables.moves,
        sources=tables.sources,
        items=tables.items,
        iterations=tables.iterations,
        place_of_cell=tables.cell_rank.astype(np.int16) << 8 | memory[tables.cell_region],
        values=np.array(values or [0.0]),
        agent=agent,
        clock=np.zeros((agents, columns.LAST + program.world)),
        registers=np.zeros((agents, tables.registers + STACK), np.int64),
        word=word,
        queue=np.zeros((words, columns.WORD_FLOATS)),
        cells=cell,
        held=np.zeros((agents, _widest_iteration(tables))),
        cell_waiter=np.zeros(cells if packets else 0, np.int32),
        gaps=np.zeros(len(launches)),
        heap=np.zeros((2, agents), np.int32),
        count=np.zeros(columns.COUNTERS, np.int64),
        machine=np.zeros(columns.MACHINE_FLOATS),
        random=np.zeros(1, np.uint64),
        checks=np.zeros((max(1, len(call_of)), 8)),
        timeouts=np.zeros((agents, 3)),
        span_op=np.zeros((0, 2), np.int32),
        span_time=np.zeros((0, 2)),
    )
    return Plan(tables, arrays, tables.word_initial, initial[tables.cell_region], call_of)


def _has_numbers(op: Op) -> bool:
    """Whether the model knows what numbers an operation writes or expects: constants and maxima have none."""
    if isinstance(op, Expect):
        return op.fn == "sum" and all(source[0] != CONSTANT for source in op.due)
    return not isinstance(op, Fill) or op.source is None or op.source[0] != CONSTANT


def _refuse_untimed(tables: Tables) -> None:
    """Refuse what the model has no time for."""
    kinds = tables.ops[:, t.KIND]
    locks = (kinds == t.RMW) & (tables.ops[:, t.PATIENT] > 0)
    several = (kinds == t.WAIT) & (tables.ops[:, t.FN] & t.ANY_OF > 0)
    valued = [k for k in np.flatnonzero(kinds == t.MOVE) if tables.moves[tables.ops[k, t.ADDR], t.M_VALUES] >= 0]
    compared = [k for k in np.flatnonzero(np.isin(kinds, (t.FILL, t.EXPECT))) if not _has_numbers(tables.op(int(k)))]
    for row in [*np.flatnonzero(locks | several).tolist(), *valued, *compared][:1]:
        op = tables.op(int(row))
        raise ProtocolError(f"the timing model does not time this: {op.describe()}", site=op.site)


def _widest_iteration(tables: Tables) -> int:
    """Most cells that one loop iteration of a payload operation handles."""
    moves = tables.moves
    widest = 1
    for row in np.unique(tables.ops[tables.ops[:, t.KIND] == t.MOVE, t.ADDR]):
        at, size = moves[row, t.M_ITERATION], moves[row, t.M_COUNT]
        if size:
            turns = tables.iterations[at : at + size]
            edges = np.flatnonzero(np.diff(turns, prepend=-1, append=-1))
            widest = max(widest, int(np.diff(edges).max()))
    return widest


def _region_role(region: Region) -> int:
    """Whether a word is a launch word or a count of ended blocks: the names that `lab.protocol.write` gives them."""
    if region.name.startswith("launch of call "):
        return columns.LAUNCH
    return columns.PREVIOUS if region.name.startswith("blocks done of call ") else columns.PLAIN


def simulate(
    tables: Tables | Plan,
    machine: str | Preset,
    seed: int,
    *,
    poison: float = 0.0,
    record: int = 0,
    max_events: int = MAX_EVENTS,
) -> TimedRun:
    """Run a program once in time.

    Args:
        tables: Compiled tables, or a `Plan` of them when the same program is run again and again.
        machine: A preset or its name.
        seed: Chooses every random draw; the same seed gives the same run, bit for bit.
        poison: What memory holds that nothing wrote; the H200 measurements poisoned outputs with zeros.
        record: Keep up to so many operations with their begin and end, for a timeline.
        max_events: Give up after so many events.

    Raises:
        LabError: `max_events` was reached, or `seed` is negative.
        UnknownNameError: There is no preset of that name.
    """
    if seed < 0:
        raise LabError("seed is negative", value=seed)
    prepared = tables if isinstance(tables, Plan) else plan(tables)
    chosen = preset(machine)
    arrays = prepared.arrays
    if record:
        arrays = arrays._replace(span_op=np.zeros((record, 2), np.int32), span_time=np.zeros((record, 2)))
    costs = np.array(chosen.costs())
    changing = arrays[columns.Arrays._fields.index("agent") : columns.Arrays._fields.index("checks")]
    loop.reset(*changing, prepared.word_initial, prepared.cell_initial, costs, poison, seed)
    if not loop.run(*arrays, costs, float(prepared.tables.program.itemsize), max_events):
        raise LabError("the simulated run did not end", value=f"{max_events} events")
    return _result(prepared, chosen, seed, arrays)


def _result(prepared: Plan, chosen: Preset, seed: int, s: columns.Arrays) -> TimedRun:
    tables = prepared.tables
    agents, first, reached = tables.program.agents, tables.agent_start, s.agent[:, columns.PC]
    checks = []
    for row in s.checks[: s.count[columns.CHECKS]]:
        rank, call, due = prepared.call_of[int(row[columns.C_PC])]
        elements = int(row[columns.C_ELEMENTS])
        share = float(row[columns.C_WRONG]) / max(elements, 1)
        low, high = float(row[columns.C_LOW]), float(row[columns.C_HIGH])
        checks.append(
            Check(rank, call, row[columns.C_TIME] / 1e3, due, float(row[columns.C_MEAN]), share, elements, low, high)
        )
    timeouts = tuple(
        Timeout(agents[int(agent)], int(pc) - int(first[int(agent)]), time / 1e3)
        for agent, pc, time in s.timeouts[: s.count[columns.TIMEOUTS]]
    )
    loop.settle_all(s.word, s.queue)
    never_launched = (s.ops[reached.clip(max=len(s.ops) - 1), columns.ROLE] == columns.LAUNCH) & (reached == first)
    hung = tuple(
        (agents[a], int(reached[a] - first[a])) for a in np.nonzero((reached < tables.agent_end) & ~never_launched)[0]
    )
    spans = int(s.count[columns.SPANS])
    span_agent = s.span_op[:spans, 0].copy()
    return TimedRun(
        tables=tables,
        preset=chosen,
        seed=seed,
        checks=tuple(checks),
        timeouts=timeouts,
        words=s.word[: len(tables.word_initial), columns.VALUE].copy(),
        hung=hung,
        time_us=float(s.machine[columns.NOW]) / 1e3,
        events=int(s.count[columns.EVENTS]),
        inexact=int(s.count[columns.INEXACT]),
        span_agent=span_agent,
        span_op=s.span_op[:spans, 1] - first[span_agent],
        span_begin=s.span_time[:spans, 0].copy(),
        span_end=s.span_time[:spans, 1].copy(),
        spans_lost=int(s.count[columns.SPANS_LOST]) if len(s.span_op) else 0,
    )
