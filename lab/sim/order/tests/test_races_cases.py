"""Hand-written cases of happens-before that the litmus text cannot say: reads that decide, launches, streams, hosts."""

import pytest

from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    BLOCK,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Declare,
    Host,
    protocol,
)
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute
from lab.sim.order.determinate import why_not_determinate
from lab.sim.order.races import find_races
from lab.sim.tests.programs import bare, litmus, move, races_of, small

DATA = {"D": 4, "E": 4, "sink": 4}


def racing(kernel, **options) -> list[str]:
    """The buffers that race in a small program."""
    return sorted({region[0] for _, _, region in races_of(small(kernel, payload=DATA, **options))})


# ---- release sequences and scopes


def test_the_head_of_a_release_sequence_needs_a_scope_that_includes_the_reader():
    """Rank 0 releases at device scope; rank 1's own add and wait cannot carry that across the link."""

    def text(scope):
        return f"0: D = new; y = 1 release@{scope} | 1: y + 1 | 1: await y >= 2 acquire@device; read D"

    def across(scope):
        return f"0: D = new; y = 1 release@{scope} | 1: y + 1 | 1: await y >= 2 acquire; read D"

    assert races_of(litmus(text("device"), "D@1 y@1").program)
    assert races_of(litmus(across("device"), "D@1 y@1").program)
    assert not races_of(litmus(across("system"), "D@1 y@1").program)


def test_a_compare_and_swap_that_fails_releases_nothing():
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.cas(b.on(1).x, 7, 9, RELEASE, SYSTEM)  # x is never 7: fails
        elif b.rank == 2:
            b.wait(b.on(1).x, ">=", 1, RELAXED, SYSTEM)
            b.add(b.on(1).x, 1, RELAXED, SYSTEM)
        else:
            b.store(b.mine.x, 1, RELAXED, SYSTEM)
            b.wait(b.mine.x, ">=", 2, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    program = small(kernel, words=["x"], payload=DATA, world=3)
    tables = compile_tables(program)
    assert all(find_races(tables, execute(tables, policy=m.RANDOM, seed=seed)).races for seed in range(20))


def test_a_compare_and_swap_that_succeeds_releases():
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.cas(b.on(1).x, 0, 9, RELEASE, SYSTEM)
        else:
            b.wait(b.mine.x, ">=", 9, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == []


# ---- what a read that nobody uses is worth


def test_an_acquiring_load_that_nobody_looks_at_gives_no_order():
    """In the execution that is checked it happens to see the flag; in another it comes too early."""

    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 1, RELEASE, SYSTEM)
        else:
            b.load(b.mine.x, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == ["D"]


def test_an_acquiring_add_that_nobody_looks_at_gives_no_order():
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
        b.add(b.on(1).x, 1, ACQ_REL, SYSTEM)
        if b.rank == 1:
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == ["D"]


def test_a_load_that_decides_gives_order_where_it_decides():
    """The last of two arrivals reads what both wrote."""

    def kernel(b):
        move(b, b.input, b.on(0).D if b.rank == 0 else b.on(0).E)
        before = b.add(b.on(0).x, 1, ACQ_REL, SYSTEM)
        with b.when(before == 1):
            move(b, b.on(0).D, b.mine.sink)
            move(b, b.on(0).E, b.mine.sink)

    program = small(kernel, words=["x"], payload=DATA)
    tables = compile_tables(program)
    for seed in range(20):
        assert find_races(tables, execute(tables, policy=m.RANDOM, seed=seed)).races == ()
    assert "depends on the schedule" in why_not_determinate(execute(tables), racy=False)


def test_a_load_after_a_wait_sees_what_the_wait_saw():
    """Coherence: the relaxed wait shows that the store is there, the load that acquires cannot see less."""

    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 1, RELEASE, SYSTEM)
        else:
            b.wait(b.mine.x, ">=", 1, RELAXED, SYSTEM)
            b.load(b.mine.x, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == []


def test_a_wait_for_less_than_was_seen_joins_what_was_seen():
    def kernel(b):
        if b.rank == 0:
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 1, RELAXED, SYSTEM)
            b.store(b.on(1).x, 2, RELEASE, SYSTEM)
        else:
            b.wait(b.mine.x, ">=", 2, RELAXED, SYSTEM)
            b.wait(b.mine.x, ">=", 1, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == []


# ---- waits on registers and on sums


@pytest.mark.parametrize("wanted", [1, 2])
def test_a_wait_for_a_register_that_is_set_before_anything_else(wanted):
    def kernel(b):
        if b.rank == 0:
            b.store(b.on(1).x, 1, RELAXED, SYSTEM)
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 2, RELEASE, SYSTEM)
        else:
            value = b.let(wanted)
            b.wait(b.mine.x, ">=", value, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

    assert racing(kernel, words=["x"]) == (["D"] if wanted == 1 else [])


def test_a_wait_for_a_register_that_a_timeout_set():
    def kernel(b):
        if b.rank == 0:
            b.wait(b.mine.y, ">=", 1, ACQUIRE, SYSTEM)
            b.store(b.on(1).x, 1, RELAXED, SYSTEM)
            move(b, b.input, b.on(1).D)
            b.store(b.on(1).x, 2, RELEASE, SYSTEM)
            return
        value = b.let(1)

        def gave_up():
            b.assign(value, 2)
            b.store(b.on(0).y, 1, RELEASE, SYSTEM)
            b.wait(b.mine.x, ">=", value, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)

        b.wait(b.mine.x, ">=", 1, ACQUIRE, SYSTEM, bound=10, on_timeout=gave_up)

    assert racing(kernel, words=["x", "y"]) == []


def test_a_wait_for_a_sum_joins_every_word():
    def kernel(b):
        if b.rank < 2:
            move(b, b.input, b.on(2).D if b.rank == 0 else b.on(2).E)
            b.store(b.on(2).flags[b.rank], 0, RELEASE, SYSTEM)
        else:
            b.wait(b.mine.flags.words(0, 2), "sum<=", 0, ACQUIRE, SYSTEM)
            move(b, b.mine.D, b.mine.sink)
            move(b, b.mine.E, b.mine.sink)

    def memory(declare: Declare) -> None:
        declare.words("flags", 2, initial=1)
        for name, length in DATA.items():
            declare.payload(name, length, UNCACHED)

    def scenario(h: Host) -> None:
        h.launch(h.input(8), None)

    made = protocol(memory=memory, blocks=1, scenarios={"once": scenario}, bytes=8, world=3)(kernel)
    assert races_of(bare(made.program())) == []


def test_a_counter_that_is_awaited_too_low_is_not_decided_by_one_execution():
    """One schedule has rank 0's add first and then no race: the program must not be called determinate."""

    def kernel(b):
        if b.rank == 2:
            b.wait(b.on(0).x, ">=", 1, ACQUIRE, SYSTEM)
            move(b, b.on(0).D, b.mine.sink)
            return
        if b.rank == 0:
            move(b, b.input, b.mine.D)
        b.add(b.on(0).x, 1, ACQ_REL, SYSTEM)

    tables = compile_tables(small(kernel, words=["x"], payload=DATA, world=3))
    assert why_not_determinate(execute(tables), racy=False)
    reports = [find_races(tables, execute(tables, policy=m.RANDOM, seed=seed)).races for seed in range(20)]
    assert any(reports) and not all(reports)


# ---- launches, streams and hosts


def program(kernel, scenario, world=2, blocks=1, waves=1):
    def memory(declare: Declare) -> None:
        declare.words("x", initial=0)
        for name, length in DATA.items():
            declare.payload(name, length, UNCACHED)

    made = protocol(memory=memory, blocks=8, scenarios={"own": scenario}, bytes=8)(kernel)
    return made.program(made.config(world=world, blocks=blocks, waves=waves))


def regions(program) -> set[str]:
    return {region.split(" of ")[0] for _, _, region in races_of(program)}


def write_then_read(b):
    """The first launch writes D, the second reads it."""
    if b.call == 1:
        b.copy(b.input, b.mine.D)
    else:
        b.copy(b.mine.D, b.output)


@pytest.mark.parametrize(
    ("streams", "overlap", "expected"), [((0, 0), False, set()), ((0, 1), False, {"D"}), ((0, 0), True, {"D"})]
)
def test_kernels_of_one_stream_are_ordered_unless_they_overlap(streams, overlap, expected):
    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        h.launch(x, out, stream=streams[0])
        h.launch(x, out, stream=streams[1], overlap=overlap)
        h.sync(streams[0])
        h.sync(streams[1])

    assert regions(program(write_then_read, scenario, world=1)) == expected


def test_a_kernel_that_overlaps_may_wait_for_the_one_before():
    def kernel(b):
        if b.call == 2:
            b.wait_previous()
        write_then_read(b)

    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        h.launch(x, out)
        h.launch(x, out, overlap=True)

    assert regions(program(kernel, scenario, world=1)) == set()


def test_a_stream_is_ordered_with_another_through_a_host_sync():
    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        h.launch(x, out, stream=0)
        h.sync(0)
        h.launch(x, out, stream=1)

    assert regions(program(write_then_read, scenario, world=1)) == set()


@pytest.mark.parametrize("synced", [False, True])
def test_the_host_may_touch_an_input_only_after_a_sync(synced):
    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        h.launch(x, out)
        if synced:
            h.sync()
        h.fill(x)

    def kernel(b):
        b.copy(b.input, b.output)

    assert regions(program(kernel, scenario, world=1)) == (set() if synced else {"input 1"})


@pytest.mark.parametrize("barrier", [False, True])
def test_a_host_barrier_orders_the_ranks(barrier):
    def kernel(b):
        if b.rank == 0:
            b.copy(b.input, b.on(1).D)
        else:
            b.copy(b.mine.D, b.output)

    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        if h.rank == 0:
            h.launch(x, out)
            h.sync()
        if barrier:
            h.barrier()
        if h.rank == 1:
            h.launch(x, out)

    assert regions(program(kernel, scenario)) == (set() if barrier else {"D"})


def test_blocks_of_a_launch_are_not_ordered():
    def kernel(b):
        move(b, b.input, b.mine.D)  # both blocks write the whole buffer

    def scenario(h: Host) -> None:
        h.launch(h.input(8), None)

    assert regions(program(kernel, scenario, world=1, blocks=2)) == {"D"}


@pytest.mark.parametrize("barrier", [False, True])
def test_waves_are_ordered_by_the_block_barrier_only(barrier):
    """Wave 0 reads with another mapping than the one with which wave 1 wrote."""

    def kernel(b):
        b.copy(b.input, b.mine.D)
        if barrier:
            b.barrier()
        if b.wave == 0:
            move(b, b.mine.D, b.mine.sink)

    def scenario(h: Host) -> None:
        h.launch(h.input(8 * 256), None)

    def memory(declare: Declare) -> None:
        declare.payload("D", 4 * 256, UNCACHED)
        declare.payload("sink", 4 * 256, UNCACHED)

    made = protocol(memory=memory, blocks=1, scenarios={"own": scenario}, bytes=8 * 256, waves=2, world=1)(kernel)
    assert regions(made.program()) == (set() if barrier else {"D"})


def test_a_scope_of_the_block_is_enough_between_waves_and_too_little_between_blocks():
    def signal(b):
        b.store(b.mine.x, 1, RELEASE, BLOCK)

    def look(b):
        b.wait(b.mine.x, ">=", 1, ACQUIRE, BLOCK)

    def waves(b):
        if b.wave == 0:
            move(b, b.input, b.mine.D)
            signal(b)
        else:
            look(b)
            move(b, b.mine.D, b.mine.sink)

    def blocks(b):
        if b.block == 0:
            move(b, b.input, b.mine.D)
            signal(b)
        else:
            look(b)
            move(b, b.mine.D, b.mine.sink)

    def scenario(h: Host) -> None:
        h.launch(h.input(8), None)

    assert regions(program(waves, scenario, world=1, waves=2)) == set()
    assert regions(program(blocks, scenario, world=1, blocks=2)) == {"D"}


def test_a_graph_replay_is_a_launch_with_frozen_arguments():
    def kernel(b):
        b.copy(b.input, b.output)

    def scenario(h: Host) -> None:
        x, out = h.input(8), h.output(8)
        graph = h.capture(x, out)
        h.replay(graph)
        h.fill(x)  # the kernel may still be reading
        h.replay(graph)
        h.sync()
        h.expect(out, x)

    assert "input 1" in regions(program(kernel, scenario, world=1))


def test_device_scope_does_not_order_with_the_host():
    def kernel(b):
        b.copy(b.input, b.mine.D)
        b.store(b.mine.x, 1, RELEASE, DEVICE)

    def scenario(h: Host) -> None:
        h.launch(h.input(8), None)
        h.wait(h.mine.x, ">=", 1, ACQUIRE, SYSTEM)
        h.fill(h.mine.D)

    assert regions(program(kernel, scenario, world=1)) == {"D"}
