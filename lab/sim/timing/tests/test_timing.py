"""The timing model: exact where it claims to be, silent about correct protocols, loud about broken ones."""

from functools import cache

import numpy as np
import pytest

from lab.errors import LabError
from lab.protocol.program import Wait
from lab.protocol.seed.seed_rdna_ar import (
    ALLGATHER,
    ALLGATHER_FLAG,
    GRID_BARRIER,
    ONE_SHOT_BYTES,
    SCATTER,
    SCATTER_FLAG,
    SECOND_GRID_BARRIER,
    announce,
    copy,
    grid,
    seed_auto,
    seed_one_shot,
    seed_two_shot,
    terms,
)
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQ_REL, ACQUIRE, DEVICE, HOST_MAPPED, KIB, RELAXED, RELEASE, SYSTEM, UNCACHED, protocol
from lab.sim.timing.presets import H200, PCIE_V620, PRESETS, UNITS, preset
from lab.sim.timing.timing import plan, simulate

SKEWED = PCIE_V620.changed(start_jitter_ns=6000, block_sigma=0.3, access_sigma=0.5)
UNSTEADY = H200.changed(gap_ns=100, gap_jitter_ns=0, block_sigma=0.8, access_sigma=1.0)
MACHINES = [PCIE_V620, H200, PRESETS["h200_one_gpu"], SKEWED, UNSTEADY]


def memory(m):
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.payload("gathered", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flags", 16, UNCACHED, row=2)
    m.words("arrive", 2)
    m.words("grid")
    m.words("seqbuf")
    m.words("timeout")
    m.words("report", 2, HOST_MAPPED)


@protocol(memory=memory, blocks=grid, world=4, bytes=64 * KIB, options={"pace": 0, "own_region": 1, "grid_barrier": 1})
def mended(b):
    """The seed's two-shot with a grid barrier before the allgather (D1) and a region of its own for it (D2)."""
    part = b.elements // b.world
    chunk = [slice(j * part, (j + 1) * part if j < b.world - 1 else b.elements) for j in range(b.world)]
    size = [c.stop - c.start for c in chunk]
    seq = b.share(b.leader.load(b.mine.seqbuf, ACQUIRE, DEVICE, "seqbuf") + 1)
    p = b.let(seq % 2)
    q = 1 - p
    mine = chunk[b.rank]

    def slot(rank, source):
        owner = b.on(rank)
        return owner.gathered[p, source] if b.options["own_region"] else owner.staging[q, source]

    for j in b.peers:
        copy(b, b.input[chunk[j]], b.on(j).staging[p, b.rank][: size[j]])
    b.barrier()
    announce(b, b.mine.arrive[p], seq, SCATTER, [], (GRID_BARRIER, SCATTER_FLAG), publish=True)
    b.reduce(terms(b, p, slice(size[b.rank]), mine), b.output[mine])
    b.barrier()
    if b.options["grid_barrier"]:
        b.leader.fence(ACQ_REL, SYSTEM)
        b.leader.add(b.mine.grid, 1, RELEASE, DEVICE)
        b.leader.wait(b.mine.grid, ">=", seq * b.blocks, ACQUIRE, DEVICE)
        b.barrier()
    for j in b.peers:
        copy(b, b.output[mine], slot(j, b.rank)[: size[b.rank]])
    b.barrier()
    both = [b.mine.arrive[p], b.mine.arrive[q]]
    announce(b, b.mine.arrive[q], seq, ALLGATHER, both, (SECOND_GRID_BARRIER, ALLGATHER_FLAG), publish=False)
    for j in b.peers:
        copy(b, slot(b.rank, j)[: size[j]], b.output[chunk[j]])


@cache
def prepared(kernel, changes):
    """Plans are shared between tests: recording a program costs more than running it."""
    return plan(compile_tables(PROTOCOLS[kernel].program(**{k: dict(v) if k == "options" else v for k, v in changes})))


PROTOCOLS = {}


def runs(what, machine, seeds, **changes):
    PROTOCOLS[what.kernel] = what
    key = tuple((k, tuple(v.items()) if k == "options" else v) for k, v in sorted(changes.items()))
    return [simulate(prepared(what.kernel, key), machine, seed) for seed in range(seeds)]


def wrong(results):
    return sum(not check.ok for run in results for check in run.checks)


def test_a_seed_gives_one_run_bit_for_bit():
    once = plan(seed_two_shot_tables())
    first, other = simulate(once, "h200", 7), simulate(once, "h200", 8)
    again = simulate(seed_two_shot_tables(), "h200", 7)
    assert first.checks == again.checks and first.time_us == again.time_us and first.events == again.events
    assert np.array_equal(first.words, again.words)
    assert other.time_us != first.time_us


def seed_two_shot_tables():
    return compile_tables(seed_two_shot.program(calls=2))


@pytest.mark.parametrize("machine", MACHINES, ids=["pcie", "h200", "one gpu", "skewed", "unsteady"])
@pytest.mark.parametrize("scenario", ["isolated", "back_to_back"])
def test_correct_protocols_are_never_wrong(machine, scenario):
    for what, kib, blocks in ((seed_one_shot, 16, None), (seed_one_shot, 64, 6), (mended, 64, None), (mended, 256, 6)):
        for run in runs(what, machine, 10, bytes=(kib * KIB,), calls=3, scenario=scenario, blocks=blocks):
            assert run.ok, (what.name, kib, run.checks, run.timeouts)
            assert not run.inexact
            assert len(run.checks) == 12


def test_sizes_that_leave_tails_and_other_worlds_are_right():
    for world, nbytes in ((2, 6), (3, 100_002), (8, 40_000), (5, 70_010)):
        for run in runs(mended, PCIE_V620, 3, world=world, bytes=(nbytes,), calls=2, blocks=5):
            assert run.ok and not run.inexact


@pytest.mark.parametrize("machine", [PCIE_V620, H200], ids=["pcie", "h200"])
def test_wrong_share_of_the_seed_falls_with_size(machine):
    shares = []
    for kib in (64, 256, 1024, 4096):
        results = runs(seed_two_shot, machine, 6 if kib < 4096 else 2, bytes=(kib * KIB,), scenario="isolated")
        shares.append(np.mean([check.wrong_share for run in results for check in run.checks]))
        assert not any(run.inexact for run in results)
    assert shares[0] > 0
    assert shares[0] > 2 * shares[2] > 4 * shares[3] or (shares[0] > shares[3] == 0)


def test_reuse_across_calls_shows_only_back_to_back():
    reused = dict(bytes=(64 * KIB,), calls=4, options={"own_region": 0}, blocks=8)
    assert wrong(runs(mended, UNSTEADY, 40, scenario="isolated", **reused)) == 0
    assert wrong(runs(mended, UNSTEADY, 40, scenario="back_to_back", **reused)) > 0


def test_stale_elements_hold_poison_in_an_isolated_call():
    run = next(run for run in runs(seed_two_shot, PCIE_V620, 5, scenario="isolated") if not run.ok)
    assert {check.lowest for check in run.checks if not check.ok} == {0.0}
    tables = compile_tables(seed_two_shot.program(scenario="isolated"))
    poisoned = simulate(tables, PCIE_V620, run.seed, poison=-5.0)
    assert {check.lowest for check in poisoned.checks if not check.ok} == {-5.0}


def test_the_self_test_stops_after_an_error_and_its_peers_abort():
    results = runs(seed_auto, PCIE_V620, 20, scenario="self_test", gate=1024 * KIB, bytes=(1024,))
    run = next(run for run in results if run.timeouts)
    rank = run.timeouts[0].agent.rank
    low, call = run.word("report", rank, 0), run.word("report", rank, 1)
    phase, peer, kilopolls = low >> 8 & 15, low >> 12 & 15, low >> 16
    assert (phase, call, kilopolls) == (SCATTER_FLAG, run.timeouts[0].agent.call, 1953)
    assert peer != rank and call in (10, 11, 12)
    assert isinstance(run.timeouts[0].wait, Wait)
    stopped = {check.rank for check in run.checks if not check.ok and check.call < call}
    assert peer in stopped
    assert run.time_us > 1e5  # two million polls take their time
    assert not run.hung


def test_the_self_test_cannot_see_stale_numbers_that_are_right():
    """A call that reads the output of two calls before passes: the block is reused and holds the right number."""
    tables = compile_tables(seed_auto.program(scenario="self_test", gate=64 * KIB, bytes=(1024,)))
    due = 30.0
    run = simulate(tables, PCIE_V620, 1, poison=due)
    assert run.ok and len(run.checks) == 48
    assert not simulate(tables, PCIE_V620, 1, poison=0.0).ok


def test_small_messages_take_the_one_shot():
    results = runs(seed_auto, PCIE_V620, 5, bytes=(ONE_SHOT_BYTES,), scenario="self_test", gate=ONE_SHOT_BYTES)
    assert all(run.ok for run in results)


@protocol(memory=memory, blocks=lambda nbytes: 2, world=3, bytes=16 * KIB, options={"fault": ""})
def pushed(b):
    """A push all-gather of one message, with a fault to plant."""
    fault = b.options["fault"]
    n = b.elements
    b.copy(b.input, b.output)
    for j in b.peers:
        b.copy(b.input, b.on(j).staging[b.call % 2, b.rank][:n])
    b.barrier()
    b.leader.fence(ACQ_REL, SYSTEM)
    b.leader.add(b.mine.arrive[0], 1, RELAXED, DEVICE)
    if b.block == 0:
        if fault != "no grid wait":
            b.leader.wait(b.mine.arrive[0], ">=", b.blocks * b.call, ACQUIRE, DEVICE)
        for j in b.peers:
            b.leader.store(b.on(j).flags[0, b.rank], b.call, RELEASE, SYSTEM)
    if fault != "no flag wait":
        for j in b.peers:
            b.leader.wait(b.mine.flags[0, j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.staging[b.call % 2, j][:n] for j in range(b.world)], b.output)


@pytest.mark.parametrize("fault", ["", "no flag wait", "no grid wait"])
def test_a_dropped_wait_is_seen(fault):
    machines = (PCIE_V620, H200, SKEWED)
    found = sum(wrong(runs(pushed, machine, 5, calls=2, options={"fault": fault})) for machine in machines)
    assert (found > 0) == bool(fault)


def test_a_peer_that_never_answers_ends_in_a_hang_not_in_an_endless_run():
    @protocol(memory=memory, blocks=lambda nbytes: 1, world=2, bytes=1024)
    def deaf(b):
        if b.rank == 0:
            b.leader.wait(b.mine.flags[0, 1], ">=", 1, ACQUIRE, SYSTEM)
        else:
            b.leader.store(b.mine.flags[0, 0], 1, RELEASE, SYSTEM)

    (run,) = runs(deaf, H200, 1)
    assert {agent.rank for agent, _ in run.hung} == {0} and not run.ok


def test_spans_cover_each_block_without_gaps():
    tables = compile_tables(seed_two_shot.program(calls=2))
    run = simulate(tables, "h200", 3, record=200_000)
    assert not run.spans_lost and len(run.span_agent) > 1000
    for agent in tables.program.agents:
        own = np.flatnonzero(run.span_agent == agent.id)
        begin, end = run.span_begin[own], run.span_end[own]
        assert (end >= begin).all()
        assert np.array_equal(begin[1:], end[:-1])
        assert (np.diff(run.span_op[own]) > 0).all()  # nothing jumped back
    assert simulate(tables, "h200", 3, record=10).spans_lost > 0


def test_20_mib_takes_as_long_on_pcie_as_reported():
    (run,) = runs(seed_two_shot, PCIE_V620, 1, bytes=(20480 * KIB,), scenario="isolated")
    assert 4500 < run.time_us < 7000  # 5.7 ms a call reported


def test_packets_carry_their_flag():
    def words(m):
        m.payload("box", m.max_elements, UNCACHED, source=m.world)

    @protocol(memory=words, blocks=lambda nbytes: 2, world=4, bytes=8 * KIB, options={"wait": 1})
    def packets(b):
        n = b.elements
        for j in b.peers:
            b.copy(b.input, b.on(j).box[b.rank][:n], stamp=b.call)
        if b.options["wait"]:
            for j in b.peers:
                b.wait_stamps(b.mine.box[j][:n], ">=", b.call)
        b.reduce([b.input if j == b.rank else b.mine.box[j][:n] for j in range(b.world)], b.output)

    for machine in (PCIE_V620, H200):
        for run in runs(packets, machine, 5, calls=1):
            assert run.ok
        assert wrong(runs(packets, machine, 5, calls=1, options={"wait": 0})) > 0


def test_presets_show_every_parameter_with_its_source():
    for machine in PRESETS.values():
        rows = list(machine.table())
        assert [row.name for row in rows] == list(UNITS)
        assert all(row.unit and row.meaning and row.source for row in rows)
    changed = H200.changed(gap_ns=5)
    assert {row.name: row.source for row in changed.table()}["gap_ns"] == "set by the caller"


def test_bad_input_has_one_message():
    tables = compile_tables(seed_two_shot.program(world=2, blocks=1))
    with pytest.raises(LabError, match="unknown timing preset: 'h20'"):
        simulate(tables, "h20", 1)
    with pytest.raises(LabError, match="unknown timing parameter"):
        H200.changed(link_gb=3)
    with pytest.raises(LabError, match="link_gbs of preset h200 is out of range"):
        H200.changed(link_gbs=0)
    with pytest.raises(LabError, match="seed is negative"):
        simulate(tables, "h200", -1)
    with pytest.raises(LabError, match="did not end"):
        simulate(tables, "h200", 1, max_events=10)
    with pytest.raises(LabError, match="no words of that name"):
        simulate(tables, "h200", 1).word("report", 7)
    assert preset(H200) is H200
