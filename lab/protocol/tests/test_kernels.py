"""The protocols of the lab's own kernels: right in every scenario, and each part of them is needed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.protocol.library import load
from lab.protocol.program import Mapping, Move
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.change.mutate import judge, mutants
from lab.sim.check import check
from lab.sim.order.races import find_races

KERNELS = ("one_shot", "two_shot", "low_latency")
SCENARIOS = ("back_to_back", "isolated", "different_grids", "graph", "overlapped")
MIXED = (2048, 1002, 34)  # bytes: whole vectors, a ragged one, less than a vector a rank
EVERYWHERE = "so it stands for every schedule, and for every memory model that keeps release and acquire"


def verdict_of(name: str, memory: str = "sc", **config):
    """A check with little exploration: what counts is the proof."""
    found = load(name)
    return check(found, found.config(**{"blocks": 2, "bytes": MIXED, **config}), memory=memory, executions=16)


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("name", KERNELS)
def test_they_hold_at_every_world_under_every_model(name, world):
    verdict = verdict_of(name, world=world)
    assert verdict.verdict == "ok", verdict
    assert EVERYWHERE in verdict.proof


@pytest.mark.parametrize("memory", ["posted", "weak"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", KERNELS)
def test_they_hold_in_every_scenario(name, scenario, memory):
    verdict = verdict_of(name, memory, world=3, scenario=scenario)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


@pytest.mark.parametrize("name", KERNELS)
def test_they_hold_when_a_block_is_several_waves(name):
    verdict = verdict_of(name, world=2, waves=4)
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict
    assert "threads of a block" not in verdict.proof


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_a_lost_rank_is_recorded_and_later_calls_touch_nothing(name, waves):
    verdict = verdict_of(name, world=3, waves=waves, scenario="lost_rank", calls=3)
    assert verdict.verdict == "abort" and not verdict.races
    phase = "packet" if name == "low_latency" else "scatter"
    assert f"lost: {name} call 3, phase {phase}, rank 2" in verdict.abort


@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_is_caught_or_proved_to_be_slack(name):
    outcomes = [judge(mutant) for mutant in mutants(load(name).program(world=2, blocks=2, bytes=(2048,), calls=3))]
    assert [f"{o.mutant.change} {o.mutant.line}" for o in outcomes if o.state == "survived"] == []
    assert sum(o.state == "caught" for o in outcomes) >= 5
    changes = {o.mutant.what for o in outcomes if o.state == "caught"}
    wanted = {"write no stamp", "drop the packet"} if name == "low_latency" else {"drop the fence", "drop the store"}
    wait = "drop the wait for packets" if name == "low_latency" else "drop the wait"
    assert {wait, *wanted} <= changes


def test_any_three_in_a_row_share_the_staging():
    from lab.protocol.library.mixed_algorithms import ORDER

    assert len({(ORDER + ORDER[:2])[k : k + 3] for k in range(27)}) == 27
    assert load("mixed_algorithms").config().calls == 29


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_kernels_hold_in_one_stream(scenario):
    """Each scenario at another world; sizes and grids have other periods than the kernels."""
    world = 2 + SCENARIOS.index(scenario) % 3
    calls = 4 if scenario == "graph" else 29
    found = load("mixed_algorithms")
    verdict = check(
        found,
        found.config(world=world, blocks=2, bytes=(2048, 1002, 34, 64), calls=calls, scenario=scenario),
        executions=2,
    )
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof, verdict


def test_in_one_stream_a_single_buffer_is_too_few():
    """Alone, two_shot needs one buffer of each region; beside the others it does not."""
    outcomes = {}
    for name in ("two_shot", "mixed_algorithms"):
        program = load(name).program(world=2, blocks=2, bytes=(2048,), calls=29)
        found = [judge(mutant) for mutant in mutants(program) if mutant.kind == "buffer"]
        outcomes[name] = {o.mutant.what.split()[3]: o.state for o in found}
    assert outcomes["two_shot"] == {"scatter": "slack", "gather": "slack"}
    assert outcomes["mixed_algorithms"]["scatter"] == outcomes["mixed_algorithms"]["packets"] == "caught"


def meeting(fence_before_the_barrier: bool):
    """The exchange with the acquire where every wave makes it itself, or where the waves that polled make it."""

    def memory(m: Declare) -> None:
        m.payload("box", m.max_elements, UNCACHED, source=m.world)
        m.words("flag", m.world)

    @protocol(memory=memory, bytes=2048, waves=2)
    def meets(b: Block) -> None:
        for j in b.peers:
            b.copy(b.input, b.on(j).box[b.rank])
        b.barrier()
        for j in b.peers:
            b.leader.store(b.on(j).flag[b.rank], 1, RELEASE, SYSTEM)
            b.leader.wait(b.mine.flag[j], ">=", 1, RELAXED, SYSTEM)
        if fence_before_the_barrier:
            b.leader.fence(ACQUIRE, SYSTEM)
        b.barrier()
        if not fence_before_the_barrier:
            b.fence(ACQUIRE, SYSTEM)
        b.reduce([b.input if j == b.rank else b.mine.box[j] for j in range(b.world)], b.output)

    return meets


def test_the_acquire_belongs_to_the_wave_that_polled():
    """A relaxed poll of one wave gives order through a fence of that wave; the barrier passes it on, not the poll."""
    assert check(meeting(True), memory="weak", executions=64).verdict == "ok"
    late = check(meeting(False), memory="weak", executions=64)
    assert late.verdict == "wrong" and "wave 1" in late.races[0].second.agent


# ---- what their text needs from the language


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 400),
    vector=st.sampled_from([1, 2, 4, 8]),
    blocks=st.integers(1, 5),
    threads=st.integers(1, 9),
    ragged=st.booleans(),
)
def test_a_mapping_is_the_grid_stride_loop_of_the_kernel(length, vector, blocks, threads, ragged):
    grid = blocks * threads
    owner = np.full(length, -1)
    for block in range(blocks):
        mapping = Mapping(block * threads, threads, grid, vector, ragged)
        for iteration, lo, hi in mapping.chunks(length):
            assert np.all(owner[lo:hi] == -1)
            owner[lo:hi] = block
            if ragged:
                assert np.all(np.arange(lo, hi) // vector // grid == iteration)
    if vector <= grid or ragged:  # the language refuses wider ones: their remainder would have no thread
        assert np.all(owner >= 0)
    if ragged:
        np.testing.assert_array_equal(owner, np.arange(length) // vector % grid // threads)


@pytest.mark.parametrize("nbytes", [2, 14, 18, 1002, 2050])
def test_a_ragged_message_has_the_cells_of_its_mapping(nbytes):
    program = load("two_shot").program(world=3, blocks=2, bytes=(nbytes,), calls=2)
    tables = compile_tables(program)
    for agent in program.agents:
        for position, op in enumerate(agent.ops):
            if isinstance(op, Move):
                row = tables.moves[tables.ops[tables.agent_start[agent.id] + position, 1]]
                cells = tables.items[row[0] : row[0] + row[1]]
                handled = sum(hi - lo for _, lo, hi in op.mapping.chunks(op.dst.length))
                assert tables.cell_length[cells].sum() == handled
    assert not find_races(tables).races


def test_a_rescued_wait_goes_on_behind_the_body():
    def memory(m: Declare) -> None:
        m.words("never")
        m.words("skipped")
        m.words("seen", 2)

    def record(words):
        return f"{words('seen', 0)} {words('seen', 1)} {words('skipped', 0)}" if words("seen", 0) else None

    @protocol(memory=memory, bytes=512, world=2, abort_record=record)
    def goes_on(b: Block) -> None:
        gave_up = b.leader.let(0, "gave_up")
        with b.leader.rescue(lambda: b.assign(gave_up, 1)) as late:
            b.leader.wait(b.mine.never, ">=", 1, RELAXED, SYSTEM, seconds=1.0, on_timeout=late)
            b.leader.store(b.mine.skipped, 1, RELAXED, SYSTEM)
        b.leader.store(b.mine.seen[0], 1, RELAXED, SYSTEM)
        b.leader.store(b.mine.seen[1], gave_up, RELAXED, SYSTEM)
        b.copy(b.input, b.output)

    assert check(goes_on, executions=4).abort == "rank 0: 1 1 0"


def test_a_proof_is_confirmed_by_few_executions_of_a_large_program():
    """The exploration can find nothing there: the answer for a grid of real size comes in seconds."""
    found = load("two_shot")
    config = found.config(world=8, blocks=8, calls=2, bytes=(16384, 65536))
    verdict = check(found, config, memory="weak")
    assert verdict.verdict == "ok" and EVERYWHERE in verdict.proof
    assert 8 <= verdict.executions < 200
