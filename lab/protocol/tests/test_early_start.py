"""Launches that start early: what the language promises, that the kernels' scheme holds, and what breaks it."""

from collections.abc import Callable

import pytest

from lab.protocol.errors import ProtocolError
from lab.protocol.library import load, signal
from lab.protocol.library.staging import scatter_slot
from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQ_REL,
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
EARLY = ("overlapped", "overlapped_grids", "overlapped_graph")
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
    config = {"blocks": 2, "bytes": (2048, 1002, 34), "world": 2, **config}
    return check(found, found.config(scenario=scenario, **config), memory=memory, executions=64, minimise=False)


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("scenario", EARLY)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("world", "blocks"), [(2, 1), (2, 2), (4, 3)])
def test_the_kernels_hold_when_they_start_early(name, scenario, memory, world, blocks):
    verdict = verdict_of(name, scenario, memory, world=world, blocks=blocks, calls=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("scenario", EARLY)
def test_the_kernels_hold_early_in_one_stream(scenario):
    calls = 4 if scenario == "overlapped_graph" else 29
    verdict = verdict_of("mixed_algorithms", scenario, calls=calls, world=3)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


WAVES = {"waves": 2, "bytes": (8192, 1002)}  # the second wave has vectors of its own


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_hold_early_when_a_block_is_several_waves(name, memory):
    """Which wave lets the successor start depends on the schedule, so no proof."""
    assert verdict_of(name, memory=memory, **WAVES).verdict == "ok"


def fence_before_the_barrier(b: Block) -> None:
    b.fence(RELEASE, DEVICE)
    b.barrier()


@pytest.mark.parametrize("name", KERNELS)
def test_a_fence_before_the_barrier_does_not_release_what_other_waves_stored(name, monkeypatch):
    """The wave that lets the successor start knows of their numbers behind the barrier alone."""
    monkeypatch.setattr(signal, "publish_to_successor", fence_before_the_barrier)
    assert verdict_of(name, **WAVES).verdict in ("wrong", "abort")


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_hold_early_on_as_many_slots_as_a_grid_has_blocks(name):
    assert verdict_of(name, resident=2).verdict == "ok"


@pytest.mark.parametrize(("memory", "verdict"), [("sc", "ok"), ("posted", "ok"), ("weak", "abort")])
def test_the_kernels_rely_on_more_than_is_documented(memory, verdict):
    """A start that is no order of memory may read the number from before."""
    assert verdict_of("one_shot", "overlapped_as_documented", memory).verdict == verdict


# ---- faults


Begin = Callable[[Block], signal.Turn]


def turn_of(b: Block, epoch: Reg) -> signal.Turn:
    aborted_at = b.load(b.mine.aborted_at, RELAXED, SYSTEM)
    return signal.Turn(epoch, b.let(epoch % 2, "parity"), (aborted_at != 0) & (aborted_at < epoch))


def number(b: Block, block: int) -> Reg:
    return b.let(b.load(b.mine.epoch[block], RELAXED, SYSTEM if b.early else WAVE, "last") + 1, "epoch")


def published_after(b: Block) -> signal.Turn:
    """Written before, published after the successor may start."""
    epoch = number(b, b.block)
    b.barrier()
    signal.write_epoch(b, epoch)
    signal.start_after_predecessor(b)
    signal.publish_to_successor(b)
    return turn_of(b, epoch)


def written_after(b: Block) -> signal.Turn:
    epoch = number(b, b.block)
    b.barrier()
    signal.start_after_predecessor(b)
    signal.write_epoch(b, epoch)
    signal.publish_to_successor(b)
    return turn_of(b, epoch)


def number_of_another_block(b: Block) -> signal.Turn:
    epoch = number(b, (b.block + 1) % b.blocks)
    b.barrier()
    signal.write_epoch(b, epoch)
    signal.publish_to_successor(b)
    signal.start_after_predecessor(b)
    return turn_of(b, epoch)


def written_before_all_have_read(b: Block) -> signal.Turn:
    epoch = number(b, b.block)
    signal.write_epoch(b, epoch)
    signal.publish_to_successor(b)
    signal.start_after_predecessor(b)
    return turn_of(b, epoch)


def pushes_before_the_wait(b: Block) -> signal.Turn:
    epoch = number(b, b.block)
    b.barrier()
    signal.write_epoch(b, epoch)
    signal.publish_to_successor(b)
    parity = b.let(epoch % 2, "parity")
    for j in b.peers:
        b.copy(b.input, scatter_slot(b, j, parity, b.rank)[: b.elements], 8, ragged=True)
    signal.start_after_predecessor(b)
    return turn_of(b, epoch)


def lets_before_the_wait(b: Block) -> signal.Turn:
    """Not the kernels' order: a third launch may then start beside the first."""
    epoch = number(b, b.block)
    b.barrier()
    signal.write_epoch(b, epoch)
    signal.publish_to_successor(b)
    b.let_successor_start()
    b.wait_previous()
    return turn_of(b, epoch)


def reads_the_input_before_the_wait(b: Block) -> signal.Turn:
    if b.early:
        b.copy(b.input, b.output, 8, ragged=True)
    return signal.begin_call(b)


BOTH = ("one_shot", "low_latency")
FAULTS: list[tuple[Begin, tuple[str, ...], dict[str, object]]] = [
    (published_after, BOTH, {}),
    (written_after, BOTH, {"memory": "sc"}),
    (number_of_another_block, BOTH, {"memory": "sc"}),
    (written_before_all_have_read, BOTH, {"memory": "sc", **WAVES}),
    (pushes_before_the_wait, ("one_shot",), {"memory": "sc"}),
    (reads_the_input_before_the_wait, BOTH, {"memory": "sc", "scenario": "overlapped_graph"}),
]


@pytest.mark.parametrize(("begin", "names", "where"), FAULTS, ids=[begin.__name__ for begin, _, _ in FAULTS])
def test_a_fault_of_the_beginning_is_found(begin, names, where, monkeypatch):
    for name in names:
        monkeypatch.setattr(f"lab.protocol.library.{name}.begin_call", begin)
        assert verdict_of(name, calls=3, **where).verdict != "ok"


def without_fence(b: Block) -> None:
    b.barrier()


def without_wait(b: Block) -> None:
    b.let_successor_start()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("part", "fault", "memory"),
    [("publish_to_successor", without_fence, "weak"), ("start_after_predecessor", without_wait, "sc")],
)
def test_a_missing_part_is_found(name, part, fault, memory, monkeypatch):
    monkeypatch.setattr(signal, part, fault)
    assert verdict_of(name, memory=memory, calls=3).verdict != "ok"


@pytest.mark.parametrize("name", KERNELS)
def test_a_number_read_before_the_start_is_found(name, monkeypatch):
    monkeypatch.setattr("lab.protocol.language.early_start.Start.wait", lambda start, recorder: None)
    assert verdict_of(name, memory="sc", calls=3).verdict != "ok"


@pytest.mark.parametrize("scenario", EARLY)
@pytest.mark.parametrize("name", KERNELS)
def test_a_third_launch_beside_the_first_would_do_no_harm(name, scenario, monkeypatch):
    """Numbers go from block to block by release and acquire, and each launch waits for the end of the one ahead."""
    monkeypatch.setattr(f"lab.protocol.library.{name}.begin_call", lets_before_the_wait)
    verdict = verdict_of(name, scenario, world=3, blocks=3, calls=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_of_an_early_start_is_caught_or_proved_to_be_slack(name):
    """Letting the successor start is slack: without it, that starts later."""
    program = load(name).program(world=2, blocks=2, bytes=(2048,), calls=3, scenario="overlapped")
    outcomes = [(o.state, o.mutant.what, o.mutant.line) for o in map(judge, mutants(program))]
    assert [o for o in outcomes if o[0] == "survived"] == []
    begins = {(state, what) for state, what, line in outcomes if "_successor, " in line or "_predecessor, " in line}
    assert {("caught", "drop the fence"), ("caught", "drop the wait"), ("slack", "drop the rmw")} <= begins


# ---- neighbours in the stream


def foreign(waits: bool, fence: bool) -> Callable[[Block], None]:
    """Another library's kernel, which lets its successor start at once."""

    def kernel(b: Block) -> None:
        if fence:
            b.fence(ACQ_REL, DEVICE)
        b.let_successor_start()
        if waits:
            b.wait_previous()

    return kernel


def with_neighbours(h: Host) -> None:
    """A call, what stands between, and two calls."""
    x, first, early = h.input(2048), h.output(2048), h.options["first_early"]
    h.launch(x, first, overlap=early, start=ACQUIRE if early else RELAXED)
    if h.options["between"]:
        kernel = foreign(h.options["waits"], h.options["fence"])
        h.launch(kernel=kernel, nbytes=512, overlap=True, start=ACQUIRE)
    outs = [first, h.output(2048), h.output(2048)]
    for out in outs[1:]:
        h.launch(x, out, overlap=True, start=ACQUIRE)
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
    options={"first_early": True, "between": False, "waits": True, "fence": True},
    abort_record=ONE_SHOT.abort_record,
)(ONE_SHOT.kernel)


@pytest.mark.parametrize(
    ("options", "memory", "holds"),
    [
        ({}, "weak", True),
        ({"first_early": False}, "sc", False),  # it publishes its number after it lets the next one start
        ({"between": True}, "weak", True),
        ({"between": True, "fence": False}, "sc", True),
        ({"between": True, "fence": False}, "weak", False),  # nothing passes on what the first call released
        ({"between": True, "waits": False}, "sc", False),  # it may end before the first call, for which nobody waits
    ],
)
def test_neighbours_in_the_stream(options, memory, holds):
    config = neighbours.config(options=tuple(options.items()))
    assert check(neighbours, config, memory=memory, executions=64, minimise=False).ok == holds
