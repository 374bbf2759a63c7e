"""`check`: a protocol at a configuration -> a verdict: races, a failing schedule, a small witness, what was covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.errors import LabError
from lab.protocol.program import Expect, Move, Program
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim import machine as m
from lab.sim.determinate import holds_under_every_model, why_not_determinate
from lab.sim.executor import Executor
from lab.sim.explain import Explainer, WitnessStep, witness
from lab.sim.explore import INTERRUPTED, Exploration, explore
from lab.sim.hang import before_giving_up, waiting
from lab.sim.judge import RACE_CHECKED, races_of_several
from lab.sim.minimise import Witness, key_of, smallest_witness
from lab.sim.proof import proof
from lab.sim.races import Execution, execute, find_races
from lab.sim.schedule import Schedule
from lab.sim.search import SearchResult, search
from lab.sim.values import outputs
from lab.sim.verdict import Race, Verdict

EXHAUSTIVE = "exhaustive"
SEARCHED = ("sc", "posted")


def check(
    protocol: Protocol,
    config: Config | None = None,
    *,
    memory: str = "sc",
    schedulers: tuple[str, ...] = ("random", "pct"),
    executions: int = 1000,
    seed: int = 0,
    deadline: float | None = None,
    early_timeout: float = 0.0,
    pct_depth: int = m.PCT_DEPTH,
    minimise: bool = True,
    limit_states: int | None = None,
    memory_limit: int | None = None,
    checkpoint: str | None = None,
    progress: Callable[[Exploration], None] | None = None,
    executor: Executor | None = None,
) -> Verdict:
    """Check a protocol: race check of one execution, then exploration, then a small witness for each race.

    Args:
        protocol: What to check.
        config: At which configuration; None: the protocol's defaults.
        memory: Memory model of the exploration: sc, posted or weak.
        schedulers: As in `explore.explore`; `exhaustive` adds a search of all schedules (sc and posted).
        executions: Executions to explore.
        seed: First seed.
        deadline: Seconds of exploration, and of search, at most; None: no limit.
        early_timeout: Probability, at each step, that a bounded wait gives up although others could move.
        pct_depth: Of the scheduler pct: it finds what takes so many orders between steps (Burckhardt et al. 2010).
        minimise: Look for a small witness.
        limit_states: States after which the search stops.
        memory_limit: Bytes that the states may take.
        checkpoint: A file from which the search goes on, and to which it writes when it ends early.
        progress: Called after each batch of executions.
        executor: Who runs the executions (`executor.executor`); None: this thread. The verdict is the same.

    Returns:
        The verdict. Ctrl-C during the exploration keeps what was found until then.

    Raises:
        LabError: The configuration is refused, or the protocol's text is wrong.
    """
    if EXHAUSTIVE in schedulers and memory not in SEARCHED:
        raise LabError("the exhaustive search does not know this memory model", value=memory, hint="use sc or posted")
    config = config or protocol.config()
    program = protocol.program(config)
    tables = compile_tables(program)
    report = find_races(tables)
    why_not = why_not_determinate(report.execution, bool(report.races))
    races = report.races if why_not is None else races_of_several(tables, report, seed)
    explorers = tuple(name for name in schedulers if name != EXHAUSTIVE)
    found, searched = Exploration(), None
    if explorers:
        found = explore(
            tables, memory, explorers, executions, seed, deadline, early_timeout, progress, pct_depth, executor
        )
    if EXHAUSTIVE in schedulers and found.stopped != INTERRUPTED:
        searched = search(
            tables,
            memory,
            limit_states=limit_states,
            deadline=deadline,
            memory_limit=memory_limit,
            checkpoint=checkpoint,
        )
        _take_over(found, searched)
    failing = _failing(tables, memory, found, report.execution)
    small = _smallest(protocol, config, memory, races, seed, found) if minimise and not found.stopped else []
    raced = 1 if why_not is None else RACE_CHECKED + 1
    everywhere = why_not is None and not races and holds_under_every_model(report.execution)
    covered = proof(program, memory, why_not, bool(races), everywhere, raced, found, searched)
    return _verdict(protocol, config, program, memory, races, found, failing, small, covered)


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


def _failing(tables: Tables, memory: str, found: Exploration, first: Execution) -> Execution | None:
    if found.failure is not None:
        return execute(tables, memory, m.REPLAY, choices=found.failure[2])
    failed = first.outcome == m.HANG or first.state.counts[m.C_WRONG] or first.state.counts[m.C_TIMEOUTS]
    return first if failed else None


def _smallest(
    protocol: Protocol, config: Config, memory: str, races: tuple[Race, ...], seed: int, found: Exploration
) -> list[tuple[Race, Witness]]:
    small = []
    try:
        for race in races:
            witness = smallest_witness(protocol, config, memory, key_of(race), seed)
            if witness is not None:
                small.append((race, witness))
    except KeyboardInterrupt:
        found.stopped = INTERRUPTED
    return small


def _verdict(
    protocol: Protocol,
    config: Config,
    program: Program,
    memory: str,
    races: tuple[Race, ...],
    found: Exploration,
    failing: Execution | None,
    small: list[tuple[Race, Witness]],
    covered: str,
) -> Verdict:
    if failing is None and small:
        failing = small[0][1].execution
    wrong, means, hang, abort = (), (), (), None
    if failing is not None:
        if failing.state.counts[m.C_WRONG]:
            wrong, means = tuple(Explainer(failing).wrong()), tuple(wrong_means(failing))
        stuck = failing if failing.outcome == m.HANG else before_giving_up(failing)
        hang = () if stuck is None else tuple(waiting(stuck))
        abort = abort_record(protocol, failing)
        if abort is None and failing.state.counts[m.C_TIMEOUTS]:
            abort = "a bounded wait gave up; the protocol writes no abort record"
    # An aborted call leaves its output unwritten, so what is wrong then follows from the abort.
    kind = "abort" if abort else "wrong" if wrong else "hang" if hang else "race" if races else "ok"
    line = _schedule_line(protocol, config, program, memory, failing, small)
    return Verdict(
        verdict=kind,
        protocol=protocol.name,
        config=dict(config.items()),
        memory=memory,
        races=races,
        means=means,
        wrong=wrong,
        hang=hang,
        abort=abort,
        schedule=line,
        witness=tuple(story(*small[0])) if small else (),
        executions=found.executions,
        failing=found.failing,
        proof=covered,
        notes=tuple(_notes(protocol, config, program, memory, races, small, bool(wrong))),
        interrupted=found.stopped == INTERRUPTED,
    )


def _paired(races: tuple[Race, ...], small: list[tuple[Race, Witness]]) -> list[tuple[Race, Witness | None]]:
    by_race = {id(race): pair for race, pair in small}
    return [(race, by_race.get(id(race))) for race in races]


def _notes(
    protocol: Protocol,
    config: Config,
    program: Program,
    memory: str,
    races: tuple[Race, ...],
    small: list[tuple[Race, Witness]],
    failed: bool,
) -> Iterator[str]:
    """What each race does to values, and what this check cannot have seen."""
    for number, (race, pair) in enumerate(_paired(races, small), 1):
        phases = f" ({race.first.phase} / {race.second.phase})" if race.first.phase or race.second.phase else ""
        yield f"race {number}{phases}: {_witness_note(protocol, memory, pair, failed)}"
    if config.calls == 1 and len(list(_launches(program))) <= program.world:
        yield "one call only: whether the next call reuses a buffer too early was not looked at (--calls 3)"
    yield from _residency(config, program)
    yield from _idle_waves(program)
    if not any(isinstance(op, Expect) for agent in program.agents for op in agent.ops):
        yield (
            "the scenario compares no output, so only races, hangs and aborts were looked for; end it with "
            "h.expect(output, input) or h.consume(output)"
        )


def _idle_waves(program: Program) -> Iterator[str]:
    """Waves without any element to move: that their blocks are split shows nothing of them."""
    moves: dict[int, bool] = {}
    for agent in program.agents:
        if agent.kind == "wave":
            own = (op for op in agent.ops if isinstance(op, Move))
            busy = moves.get(agent.wave, False) or any(any(op.mapping.chunks(op.dst.length)) for op in own)
            moves[agent.wave] = busy
    idle = [str(wave) for wave, busy in sorted(moves.items()) if not busy]
    if idle and len(idle) < len(moves):
        which = f"waves {', '.join(idle[:-1])} and {idle[-1]} move" if len(idle) > 1 else f"wave {idle[0]} moves"
        yield f"{which} nothing at this size, so what goes wrong between waves may not show (larger --bytes)"


def _residency(config: Config, program: Program) -> Iterator[str]:
    """Where slots are few, whether that matters."""
    if config.resident is None:
        return
    few = [str(slots.gpu) for slots in program.residency]
    if few:
        which = f"GPU{'s' if len(few) > 1 else ''} {', '.join(few)}"
        yield f"{which} may have more blocks to run at once than the {config.resident} that find a slot"
    else:
        yield f"no GPU ever has more than {config.resident} blocks to run at once, so that slots do not matter here"


def _launches(program: Program) -> Iterator[tuple[int, int]]:
    return iter({(agent.rank, agent.call) for agent in program.agents if agent.kind in ("block", "wave")})


def _witness_note(protocol: Protocol, memory: str, pair: Witness | None, failed: bool) -> str:
    if pair is None and failed:
        return "no schedule tried made a value wrong by the order of this pair alone"
    if pair is None:
        weaker = "" if memory == "weak" else "; --memory weak may show one"
        return f"no schedule tried made a value wrong because of it (benign so far{weaker})"
    c, program = pair.config, pair.execution.tables.program
    line = Schedule(protocol.name, c, memory, program.fingerprint(), pair.choices).line(protocol.defaults)
    return (
        f"wrong values with {c.calls} call{'s' if c.calls > 1 else ''}, world {c.world}, "
        f"{c.blocks} block{'s' if c.blocks != 1 else ''}, {max(c.bytes)} bytes; "
        f"{len(witness(pair.explainer, pair.fault))} steps that matter\n  lab replay '{line}'"
    )


def _schedule_line(
    protocol: Protocol,
    config: Config,
    program: Program,
    memory: str,
    failing: Execution | None,
    small: list[tuple[Race, Witness]],
) -> str | None:
    if small:
        pair = small[0][1]
        program, config, choices = pair.execution.tables.program, pair.config, pair.choices
    elif failing is not None:
        choices = failing.log.choice[: failing.steps]
    else:
        return None
    return Schedule(protocol.name, config, memory, program.fingerprint(), choices).line(protocol.defaults)


def story(race: Race, small: Witness) -> list[str]:
    """The steps that matter of a witness, one line each."""
    return [_told(step) for step in witness(small.explainer, small.fault)]


def _told(step: WitnessStep) -> str:
    after = f" (let go by step {step.because})" if step.because >= 0 else ""
    return f"step {step.step}: {step.access}{after}"


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
