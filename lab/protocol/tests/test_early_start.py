"""Launches that start early: what the language promises, that the kernels' scheme holds, and what breaks it."""

from collections.abc import Callable

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.library import load, signal
from lab.protocol.library.staging import scatter_slot
from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQUIRE,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    WAVE,
    Block,
    Declare,
    Host,
    Reg,
    protocol,
)
from lab.sim.change.mutate import judge, mutants
from lab.sim.check import check
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute

KERNELS = ("one_shot", "two_shot", "low_latency")
COLLECTIVES = (*KERNELS, "reduce_scatter", "all_gather")
EARLY = ("overlapped", "overlapped_when_met", "overlapped_grids", "overlapped_in_part", "overlapped_and_seen")
EVERYWHERE = "so it stands for every schedule, and for every memory model that keeps release and acquire"

# ---- the language


def words(m: Declare) -> None:
    m.words("before")
    m.words("after")
    m.words("seen", 2)


def second_starts_early(h: Host) -> None:
    h.launch(nbytes=512)
    h.launch(nbytes=512, overlap=True, start=h.options["start"])
    h.sync()


@protocol(
    memory=words,
    world=1,
    blocks=2,
    bytes=512,
    scenarios={"second_starts_early": second_starts_early},
    options={"lets": True, "fence": False, "order": RELAXED, "start": RELAXED},
)
def two_launches(b: Block) -> None:
    """The first stores a word before it lets the second start, and one after; the second says what it sees, plus 1."""
    if b.call == 1:
        b.leader.add(b.mine.before, 1, RELAXED, DEVICE)
        b.barrier()
        if b.options["fence"]:
            b.fence(RELEASE, DEVICE)
        if b.options["lets"]:
            b.let_successor_start(b.options["order"])
        b.leader.add(b.mine.after, 1, RELAXED, DEVICE)
    elif b.block == 0:
        for k, name in enumerate(("before", "after")):
            seen = b.leader.load(getattr(b.mine, name), RELAXED, DEVICE)
            b.leader.store(b.mine.seen[k], seen + 1, RELAXED, DEVICE)


def seen_by_the_second(memory: str, waves: int = 1, **options: object) -> set[tuple[int, int]]:
    """(before, after) as the second launch sees them, over many schedules."""
    tables = compile_tables(two_launches.program(waves=waves, options=tuple(options.items())))
    at = next(int(tables.word_base[r.id]) for r in tables.program.regions if r.name == "seen")
    found = set()
    for seed in range(300):
        execution = execute(tables, memory, m.RANDOM if seed % 2 else m.PCT, seed)
        assert execution.outcome == m.DONE
        found.add(tuple(int(word) - 1 for word in execution.state.word[at : at + 2]))
    return found


@pytest.mark.parametrize("waves", [1, 2])
def test_a_launch_starts_when_all_blocks_ahead_have_let_it(waves):
    assert seen_by_the_second("sc", waves) == {(2, 0), (2, 1), (2, 2)}


@pytest.mark.parametrize("waves", [1, 2])
def test_a_launch_starts_when_all_blocks_ahead_have_ended(waves):
    assert seen_by_the_second("sc", waves, lets=False) == {(2, 2)}


def test_letting_nobody_start_is_nothing():
    def alone(h: Host) -> None:
        h.launch(nbytes=512)

    found = protocol(
        memory=words, world=1, bytes=512, scenarios={"alone": alone}, options=dict(two_launches.defaults.options)
    )
    ops = [
        [
            op.describe()
            for agent in found(two_launches.kernel).program(options=(("lets", lets),)).agents
            for op in agent.ops
        ]
        for lets in (True, False)
    ]
    assert ops[0] == ops[1]


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({}, False),
        ({"fence": True}, False),
        ({"start": ACQUIRE}, False),
        ({"fence": True, "start": ACQUIRE}, True),
        ({"order": RELEASE, "start": ACQUIRE}, True),
        ({"lets": False}, False),
        ({"lets": False, "start": ACQUIRE}, True),
    ],
)
def test_the_start_orders_memory_only_by_a_release_and_an_acquire(options, sees):
    assert all(before == 2 for before, _ in seen_by_the_second("weak", **options)) == sees


def test_only_an_early_start_can_acquire():
    def late(h: Host) -> None:
        h.launch(nbytes=512, start=ACQUIRE)

    def releases(h: Host) -> None:
        h.launch(nbytes=512, overlap=True, start=RELEASE)

    for scenario in (late, releases):
        with pytest.raises(ProtocolError, match="a launch"):
            protocol(memory=words, world=1, bytes=512, scenarios={"own": scenario})(two_launches.kernel).program()


# ---- the kernels


def verdict_of(name: str, scenario: str = "overlapped", memory: str = "weak", **config):
    found = load(name)
    config = {"blocks": 2, "bytes": (2100, 1008, 48), "world": 2, **config}
    return check(found, found.config(scenario=scenario, **config), memory=memory, executions=64, minimise=False)


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("scenario", EARLY)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_kernels_hold_when_they_start_early(name, scenario, memory):
    """Though the start orders nothing, as documented; and whichever launches start early."""
    verdict = verdict_of(name, scenario, memory, world=3, blocks=3, calls=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("scenario", ["overlapped_graph", "overlapped_neighbours"])
@pytest.mark.parametrize("name", KERNELS)
def test_they_hold_behind_producers_and_other_libraries_kernels(name, scenario, memory):
    verdict = verdict_of(name, scenario, memory, calls=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("scenario", [*EARLY, "overlapped_graph", "overlapped_neighbours"])
def test_the_kernels_hold_early_in_one_stream(scenario):
    calls = 4 if scenario == "overlapped_graph" else 29
    verdict = verdict_of("mixed_algorithms", scenario, calls=calls, world=3)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


WAVES = {"waves": 2, "bytes": (8192, 1008)}  # the second wave has vectors of its own


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_kernels_hold_early_when_a_block_is_several_waves(name, memory):
    """Which wave lets the successor start depends on the schedule, so no proof."""
    assert verdict_of(name, "overlapped_grids", memory, **WAVES).verdict == "ok"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_kernels_hold_early_on_as_many_slots_as_a_grid_has_blocks(name):
    assert verdict_of(name, resident=2).verdict == "ok"


# ---- faults


Begin = Callable[[Block], signal.Turn]


def begun(b: Block, wait: Callable[[Block], None], first: bool = False, block: int | None = None) -> signal.Turn:
    """`signal.begin_call` with a wait of its own, with the number read in front of it, or with another block's."""

    def number() -> Reg:
        scope = SYSTEM if b.early else WAVE
        return b.let(b.load(b.mine.epoch[b.block if block is None else block], RELAXED, scope, "last") + 1, "epoch")

    early = number() if first else None
    wait(b)
    if signal.lets_at_once(b):
        b.let_successor_start()
    epoch = number() if early is None else early
    aborted_at = b.load(b.mine.aborted_at, RELAXED, SYSTEM)
    return signal.Turn(epoch, b.let(epoch % 2, "parity"), (aborted_at != 0) & (aborted_at < epoch))


def does_not_wait(b: Block) -> signal.Turn:
    return begun(b, lambda b: None)


def number_read_before_the_wait(b: Block) -> signal.Turn:
    return begun(b, Block.wait_previous, first=True)


def number_of_another_block(b: Block) -> signal.Turn:
    return begun(b, Block.wait_previous, block=(b.block + 1) % b.blocks)


def pushes_before_the_wait(b: Block) -> signal.Turn:
    """Into the parity that the call would have if all launches took one after the other."""
    for j in b.peers:
        b.copy(b.input, scatter_slot(b, j, b.call % 2, b.rank)[: b.elements], 8, ragged=True)
    return signal.begin_call(b)


def lets_before_the_wait(b: Block) -> signal.Turn:
    """Not the kernels' order: a third launch may then start beside the first."""
    b.let_successor_start()
    return signal.begin_call(b)


def reads_the_input_before_the_wait(b: Block) -> signal.Turn:
    if b.early:
        b.copy(b.input, b.output, 8, ragged=True)
    return signal.begin_call(b)


BOTH = ("one_shot", "low_latency")
FAULTS: list[tuple[Begin, tuple[str, ...], dict[str, object]]] = [
    (does_not_wait, BOTH, {"memory": "sc"}),
    (number_read_before_the_wait, BOTH, {"memory": "sc"}),
    (number_of_another_block, BOTH, {"memory": "sc", "scenario": "overlapped_grids"}),
    (pushes_before_the_wait, ("one_shot",), {"memory": "sc"}),
    (reads_the_input_before_the_wait, BOTH, {"memory": "sc", "scenario": "overlapped_graph"}),
]


@pytest.mark.parametrize(("begin", "names", "where"), FAULTS, ids=[begin.__name__ for begin, _, _ in FAULTS])
def test_a_fault_of_the_beginning_is_found(begin, names, where, monkeypatch):
    for name in names:
        monkeypatch.setattr(f"lab.protocol.library.{name}.begin_call", begin)
        assert verdict_of(name, calls=3, **where).verdict != "ok"


@pytest.mark.parametrize("name", KERNELS)
def test_a_number_advanced_before_all_have_read_it_is_found(name, monkeypatch):
    """Some waves then take the next call's."""

    def at_once(b: Block) -> signal.Turn:
        turn = signal.begin_call(b)
        signal.advance_epoch(b, turn)
        return turn

    monkeypatch.setattr(f"lab.protocol.library.{name}.begin_call", at_once)
    assert verdict_of(name, memory="sc", waves=2, bytes=(32768, 1008)).verdict != "ok"


@pytest.mark.parametrize("scenario", EARLY)
@pytest.mark.parametrize("name", KERNELS)
def test_a_third_launch_beside_the_first_would_do_no_harm(name, scenario, monkeypatch):
    """Each launch waits for the end of the one ahead, which has waited for the end of the one ahead of it."""
    monkeypatch.setattr(f"lab.protocol.library.{name}.begin_call", lets_before_the_wait)
    verdict = verdict_of(name, scenario, world=3, blocks=3, calls=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("scenario", ["overlapped", "overlapped_when_met"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_mutant_of_an_early_start_is_caught_or_proved_to_be_slack(name, scenario):
    """Letting the successor start is slack: without it, that starts later."""
    program = load(name).program(world=2, blocks=2, bytes=(2048,), calls=3, scenario=scenario)
    outcomes = [(o.state, o.mutant.what, o.mutant.line) for o in map(judge, mutants(program))]
    assert [o for o in outcomes if o[0] == "survived"] == []
    states = {(state, what) for state, what, _ in outcomes}
    never = (name, scenario) == ("low_latency", "overlapped_when_met")  # its end says that it has met its peers
    assert ("slack", "drop the rmw") in states or never


# ---- neighbours in the stream


def with_neighbours(h: Host) -> None:
    """A call, another library's kernel that lets its successor start at once, and two calls."""

    def foreign(b: Block) -> None:
        b.let_successor_start()
        if h.options["waits"]:
            b.wait_previous()

    x = h.input(2048)
    outs = [h.output(2048) for _ in range(3)]
    for n, out in enumerate(outs):
        if n == 1:
            h.launch(kernel=foreign, nbytes=512, overlap=True)
        h.launch(x, out, overlap=n > 0 or h.options["first_early"])
    h.sync()
    for out in outs:
        h.expect(out, x)


ONE_SHOT = load("one_shot")
neighbours = protocol(
    memory=ONE_SHOT.memory,
    blocks=2,
    threads=512,
    bytes=2048,
    world=2,
    scenarios={"with_neighbours": with_neighbours},
    options={"first_early": True, "waits": True},
    abort_record=ONE_SHOT.abort_record,
)(ONE_SHOT.kernel)


@pytest.mark.parametrize(
    ("options", "memory", "holds"),
    [
        ({}, "weak", True),
        ({"first_early": False}, "weak", True),
        ({"waits": False}, "sc", False),  # it may end before the first call, for which nobody waits: PTX forbids it
    ],
)
def test_neighbours_in_the_stream(options, memory, holds):
    config = neighbours.config(options=tuple(options.items()))
    assert check(neighbours, config, memory=memory, executions=64, minimise=False).ok == holds


# ---- room


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize(
    ("lets_at_once", "resident", "verdict"),
    [(True, 4, "abort"), (True, 5, "ok"), (False, 2, "abort"), (False, 3, "ok")],
)
def test_two_communicators_need_a_slot_beside_what_the_other_may_hold(lets_at_once, resident, verdict, memory):
    """Launches of two blocks: four slots where the successor is let in at once, two where it is when they have met."""
    found = load("two_communicators")
    config = found.config(options=(("lets_at_once", lets_at_once),), resident=resident)
    assert check(found, config, memory=memory, executions=200, minimise=False).verdict == verdict
