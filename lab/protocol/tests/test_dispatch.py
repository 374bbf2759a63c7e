"""Few slots: what starts when, what hangs and why, that every order is tried, and that a slot is no memory order."""

import random
from itertools import permutations

import pytest

from lab import cli
from lab.errors import LabError
from lab.protocol.library import load
from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    Host,
    protocol,
)
from lab.sim.check import check
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute
from lab.sim.machine.interleaved import MEMORY_MODELS
from lab.sim.order.kinds import key_of

under_each_memory = pytest.mark.parametrize("memory", MEMORY_MODELS)


def judged(protocol, memory="sc", executions=100, schedulers=("random", "pct"), limit_states=None, **changes):
    config = protocol.config(**changes)
    return check(
        protocol,
        config,
        memory=memory,
        executions=executions,
        schedulers=schedulers,
        limit_states=limit_states,
        minimise=False,
    )


# ---- what hangs and what does not


def one_inbox(m: Declare) -> None:
    m.words("arrive")
    m.words("flags", m.world, block=m.blocks)
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)


def push_and_reduce(b: Block) -> None:
    """One-shot in which block i of every rank waits for block i of the others and, `barrier`, for its grid."""
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank][: b.elements])
    b.barrier()
    if b.options["barrier"]:
        b.leader.add(b.mine.arrive, 1, ACQ_REL, DEVICE)
        b.leader.wait(b.mine.arrive, ">=", b.blocks, ACQUIRE, DEVICE)
    for j in b.peers:
        b.leader.store(b.on(j).flags[b.block, b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.flags[b.block, j], ">=", 1, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j][: b.elements] for j in range(b.world)], b.output)


one_shot = protocol(memory=one_inbox, blocks=4, bytes=4096, options={"barrier": False})(push_and_reduce)
GRID = (("barrier", True),)


@under_each_memory
@pytest.mark.parametrize("waves", [1, 2])
def test_a_grid_barrier_needs_a_slot_for_every_block(memory, waves):
    verdict = judged(one_shot, memory, options=GRID, resident=2, waves=waves)
    assert verdict.verdict == "hang" and verdict.failing == verdict.executions
    first = (
        "GPU 0: its 2 slots are held by rank 0 blocks 0..1, call 1; waiting for one: rank 0 blocks 2..3, call 1",
        "GPU 1: its 2 slots are held by rank 1 blocks 0..1, call 1; waiting for one: rank 1 blocks 2..3, call 1",
    )
    assert verdict.hang[:2] == first
    assert (
        "wait arrive of rank 0 >= 4" in verdict.hang[2] and "still to be written by rank 0 block 2" in verdict.hang[2]
    )
    assert any(line.startswith("each waits for the next: rank 0 block 0") for line in verdict.hang)


@under_each_memory
def test_a_limit_that_nothing_reaches_changes_nothing(memory):
    free, limited = (one_shot.program(options=GRID, resident=slots) for slots in (None, 4))
    assert [free.listing(agent) for agent in free.agents] == [limited.listing(agent) for agent in limited.agents]
    verdict = judged(one_shot, memory, options=GRID, resident=4)
    assert verdict.ok and any("slots do not matter here" in note for note in verdict.notes)


@under_each_memory
@pytest.mark.parametrize(
    "changes", [{"resident": 1}, {"resident": 3, "world": 3}, {"resident": 1, "waves": 2}], ids=str
)
def test_blocks_that_wait_for_their_like_need_one_slot(memory, changes):
    """Blocks start in the order of their index, so the lowest that has not ended runs on every rank."""
    verdict = judged(one_shot, memory, **changes)
    assert verdict.ok and "the program is determinate" in verdict.proof
    assert "for every memory model that keeps release and acquire" in verdict.proof


def ends(needs: list[set[int]], slots: int) -> bool:
    """Whether blocks that each wait until all of `needs` have started all end, worked out by hand."""
    started, running = 0, set()
    while True:
        while started < len(needs) and len(running) < slots:
            running.add(started)
            started += 1
        over = {block for block in running if max(needs[block], default=-1) < started}
        if not over:
            return not running
        running -= over


@pytest.mark.parametrize("seed", range(30))
def test_whether_it_ends_is_the_same_in_every_schedule(seed):
    rng = random.Random(seed)
    needs = [set(rng.sample(range(5), rng.randrange(3))) for _ in range(5)]
    slots = rng.randrange(1, 5)

    @protocol(memory=lambda m: m.words("started", 5), world=1, blocks=5, bytes=512)
    def waits_for_some(b: Block) -> None:
        b.leader.store(b.mine.started[b.block], 1, RELAXED, DEVICE)
        for other in sorted(needs[b.block]):
            b.leader.wait(b.mine.started[other], ">=", 1, RELAXED, DEVICE)
        b.copy(b.input, b.output)

    verdict = judged(waits_for_some, resident=slots, executions=20, schedulers=("random", "exhaustive"))
    assert verdict.verdict == ("ok" if ends(needs, slots) else "hang")
    assert verdict.failing == (0 if verdict.ok else verdict.executions), "some schedules end and some do not"
    assert not verdict.ok or "the program is determinate" in verdict.proof


def test_all_schedules_of_few_slots():
    for schedulers in (("exhaustive",), ("random", "exhaustive")):
        assert judged(one_shot, schedulers=schedulers, blocks=2, resident=1).ok
        assert judged(one_shot, schedulers=schedulers, blocks=2, resident=1, options=GRID).verdict == "hang"


@pytest.mark.parametrize(("slots", "kind"), [(4, "hang"), (7, "hang"), (13, "ok"), (16, "ok")])
def test_four_ranks_on_one_gpu(slots, kind):
    """Four blocks of each rank: 12 can wait for the last of one rank; then a thirteenth slot lets all go on."""
    verdict = judged(one_shot, world=4, gpus=1, resident=slots, executions=400)
    assert verdict.verdict == kind
    if kind == "hang":
        assert verdict.hang[0].startswith(f"GPU 0: its {slots} slots are held by rank ")


def test_ranks_that_share_gpus():
    assert judged(one_shot, world=4, gpus=2, resident=4, executions=300).verdict == "hang"
    assert judged(one_shot, world=4, gpus=2, resident=8).ok


def test_a_bounded_wait_gives_up_and_says_who_held_the_slots():
    verdict = judged(load("seed_two_shot"), world=2, blocks=4, bytes=(16384,), resident=2, executions=20)
    assert verdict.verdict == "abort" and "phase 1 (own grid barrier)" in str(verdict.abort)
    assert verdict.gave_up[0].startswith("GPU 0: its 2 slots are held by rank 0 blocks 0..1, call 1; waiting for one")


@pytest.mark.slow
def test_the_seed_needs_a_slot_for_each_of_its_32_blocks():
    seed = load("seed_two_shot")
    stuck = judged(seed, resident=16, executions=10)
    assert stuck.verdict == "abort"
    assert stuck.gave_up[0].startswith("GPU 0: its 16 slots are held by rank 0 blocks 0..15, call 1; waiting for one")
    assert judged(seed, resident=32, executions=10).races == judged(seed, executions=10).races


# ---- kernels of several streams


def two_inboxes(m: Declare) -> None:
    m.words("flags", m.world, communicator=2, block=m.blocks)
    m.payload("inbox", m.max_elements, UNCACHED, communicator=2, source=m.world)


def on_two_streams(h: Host) -> None:
    """Two all-reduces at once, each with its own communicator; `ordered`, the second waits for the first."""
    calls = [(h.input(4096), h.output(4096)) for _ in range(2)]
    for k, (x, out) in enumerate(calls):
        h.launch(x, out, stream=k, args={"communicator": k})
        if h.options["ordered"]:
            h.sync(k)
    for k, (x, out) in enumerate(calls):
        h.sync(k)
        h.expect(out, x)


@protocol(
    memory=two_inboxes, blocks=2, bytes=4096, scenarios={"two_streams": on_two_streams}, options={"ordered": False}
)
def two_communicators(b: Block) -> None:
    c = b.args["communicator"]
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[c, b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).flags[c, b.block, b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.flags[c, b.block, j], ">=", 1, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[c, j][: b.elements] for j in range(b.world)], b.output)


@under_each_memory
def test_another_kernel_stands_in_front_of_what_the_peer_waits_for(memory):
    verdict = judged(two_communicators, memory, resident=2, executions=300)
    assert verdict.verdict == "hang"
    held = {line.split("held by ")[1] for line in verdict.hang[:2]}
    assert held in (
        {f"rank {a} blocks 0..1, call 1; waiting for one: rank {a} blocks 0..1, call 2"}
        | {f"rank {1 - a} blocks 0..1, call 2; waiting for one: rank {1 - a} blocks 0..1, call 1"}
        for a in (0, 1)
    )


@pytest.mark.parametrize(
    "changes", [{"resident": 3}, {"resident": 4}, {"resident": 2, "options": (("ordered", True),)}]
)
def test_two_streams_that_cannot_block_each_other(changes):
    assert judged(two_communicators, executions=300, **changes).ok
    # Its states are millions; the first of them are looked at.
    assert judged(two_communicators, schedulers=("exhaustive",), limit_states=50_000, **changes).ok


def counters(m: Declare) -> None:
    m.words("inside")
    m.words("too_many")
    m.words("place")
    m.words("order", 16)


def launches(h: Host) -> None:
    """Kernels of two blocks, on streams of their own or, `overlap`, behind each other on one; a third on the first."""
    overlap = h.options["overlap"]
    for k in range(2):
        h.launch(nbytes=512, stream=0 if overlap else k, overlap=overlap and k > 0)
    h.launch(nbytes=512)
    h.sync(0)
    h.sync(1)


@protocol(memory=counters, world=1, blocks=2, bytes=512, scenarios={"launches": launches}, options={"overlap": False})
def counted(b: Block) -> None:
    """Counts the blocks that run at once, and in which order they start."""
    b.let_successor_start()
    place = b.leader.add(b.mine.place, 1, RELAXED, DEVICE)
    b.leader.store(b.mine.order[b.leader.let(place % 16)], 10 * b.call + b.block, RELAXED, DEVICE)
    inside = b.leader.add(b.mine.inside, 1, RELAXED, DEVICE)
    b.barrier()
    with b.leader.when(inside >= 2):
        b.leader.store(b.mine.too_many, 1, RELAXED, DEVICE)
    b.barrier()
    b.leader.rmw("sub", b.mine.inside, 1, RELAXED, DEVICE)


def words_after(tables: Tables, seed: int, memory: str = "sc", policy: int = m.RANDOM) -> dict[str, list[int]]:
    state = execute(tables, memory, policy, seed).state
    bases = {r.name: (int(tables.word_base[r.id]), r.length) for r in tables.program.regions if r.kind == "words"}
    return {name: state.word[at : at + n].tolist() for name, (at, n) in bases.items()}


@under_each_memory
@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_more_blocks_run_than_there_are_slots(memory, waves, overlap):
    def ever(resident):
        config = counted.config(resident=resident, waves=waves, options=(("overlap", overlap),))
        tables = compile_tables(counted.program(config))
        return any(words_after(tables, seed, memory)["too_many"][0] for seed in range(200))

    assert not ever(2), "three blocks ran on two slots"
    assert ever(3), "a third slot was never used"


def test_every_order_of_two_streams_is_tried():
    """Stream 0 has blocks 10, 11 and then 30, 31; stream 1 has 20, 21; on one slot."""
    tables = compile_tables(counted.program(resident=1))
    orders = (words_after(tables, seed, policy=p)["order"][:6] for p in (m.RANDOM, m.PCT) for seed in range(2000))
    seen = set(map(tuple, orders))
    own, other = (10, 11, 30, 31), (20, 21)
    possible = {
        order
        for order in permutations(own + other)
        if tuple(b for b in order if b in own) == own and tuple(b for b in order if b in other) == other
    }
    assert len(possible) == 15 and seen == possible


def test_overlapping_kernels_stand_in_line():
    tables = compile_tables(counted.program(resident=1, options=(("overlap", True),)))
    assert {tuple(words_after(tables, seed)["order"][:6]) for seed in range(200)} == {(10, 11, 20, 21, 30, 31)}


# ---- a slot is no memory order


def mailbox(m: Declare) -> None:
    m.payload("mail", m.max_elements, UNCACHED, copy=2)
    m.words("sent")


@protocol(memory=mailbox, world=1, blocks=2, threads=64, bytes=512, options={"fences": False, "flag": False})
def successor(b: Block) -> None:
    """Each block writes its share of a buffer; block 1 then reads elements 128 to 191, which block 0 wrote."""
    mail = b.mine.mail[0]
    b.copy(b.input, mail)
    if b.options["fences"]:
        b.fence(ACQ_REL, SYSTEM)
    if b.options["flag"] and b.block == 0:
        b.leader.store(b.mine.sent, 1, RELEASE, DEVICE)
    b.copy(b.input, b.output)
    if b.block == 1:
        if b.options["flag"]:
            b.leader.wait(b.mine.sent, ">=", 1, ACQUIRE, DEVICE)
        if b.options["fences"]:
            b.fence(ACQ_REL, SYSTEM)
        b.copy(mail[64:192], b.mine.mail[1][64:192])


@under_each_memory
@pytest.mark.parametrize("resident", [None, 1])
@pytest.mark.parametrize("fences", [False, True])
def test_the_end_of_one_block_and_the_start_of_another_in_its_slot_order_nothing(memory, resident, fences):
    verdict = judged(successor, memory, resident=resident, options=(("fences", fences),))
    assert verdict.verdict == "race" and len(verdict.races) == 1
    assert "the program is determinate, so its races are those of every schedule" in verdict.proof


@under_each_memory
def test_what_the_protocol_orders_is_ordered_with_few_slots_too(memory):
    verdict = judged(successor, memory, resident=1, options=(("flag", True),))
    assert verdict.ok and "for every memory model that keeps release and acquire" in verdict.proof


@pytest.mark.parametrize("name", ["pytorch_137257", "aiter_2890", "tokenspeed_1017", "aiter_3514"])
@pytest.mark.parametrize("slots", [1, 2])
def test_few_slots_hide_no_race(name, slots):
    """The defective protocols have no grid barrier: they end on any number of slots, with the same races."""
    found = load(name)
    with_all, with_few = (judged(found, blocks=3, bytes=(4096,), resident=limit) for limit in (None, slots))
    assert with_all.races and set(map(key_of, with_few.races)) == set(map(key_of, with_all.races))


# ---- requests


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"resident": 0}, "resident"), ({"gpus": 2}, "resident"), ({"resident": 2, "gpus": 9}, "gpus")],
)
def test_requests_that_make_no_sense(changes, named):
    with pytest.raises(LabError, match=named):
        one_shot.config(**changes)


def test_the_command_takes_the_limit_and_repeats_the_schedule(capsys):
    asked = [
        "check",
        "rdna_ar_d1",
        "--set",
        "grid_barrier=yes",
        "--blocks",
        "2",
        "--resident",
        "1",
        "--executions",
        "20",
    ]
    assert cli.main(asked) == 1
    shown = capsys.readouterr().out
    assert (
        "HANG" in shown
        and ", 1 at once," in shown
        and "GPU 0: its only slot is held by rank 0 block 0, call 1" in shown
    )
    line = next(line for line in shown.splitlines() if "lab replay '" in line).split("'")[1]
    assert cli.main(["replay", line]) in (0, 1)
    assert "\nhang; " in capsys.readouterr().out
