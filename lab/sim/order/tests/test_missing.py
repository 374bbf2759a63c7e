"""What a race report says of the order that is missing: where the chain from one side to the other breaks."""

import pytest

from lab.protocol.program import Order, Scope
from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQUIRE,
    DEVICE,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    protocol,
)
from lab.sim.check import check
from lab.sim.order.races import find_races


def memory(m: Declare) -> None:
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("flag", m.world)


def missing(text, **changes) -> str:
    found = protocol(memory=memory, **{"bytes": 1024, "world": 2, **changes})(text)
    (race,) = find_races(compile_tables(found.program())).races
    assert race.missing.startswith("nothing makes rank ") and "releases" in race.missing
    return race.missing.rpartition("; and ")[2]


def push(b: Block, order: Order = RELEASE, scope: Scope = SYSTEM, wait: Order = ACQUIRE, seen: Scope = SYSTEM) -> None:
    (peer,) = b.peers
    b.copy(b.input, b.on(peer).inbox[b.rank])
    b.barrier()
    b.leader.store(b.on(peer).flag[b.rank], 1, order, scope)
    b.leader.wait(b.mine.flag[peer], ">=", 1, wait, seen)
    b.barrier()
    b.reduce([b.input, b.mine.inbox[peer]], b.output)


def test_several_blocks_that_write_one_flag_are_told_apart():
    """Block 0 of a rank waits for one flag that both blocks of the peer write: it goes on with the first."""

    def text(b: Block) -> None:
        (peer,) = b.peers
        b.copy(b.input, b.on(peer).inbox[b.rank])
        b.barrier()
        b.leader.store(b.on(peer).flag[b.rank], 1, RELEASE, SYSTEM)
        b.leader.wait(b.mine.flag[peer], ">=", 1, ACQUIRE, SYSTEM)
        b.barrier()
        b.reduce([b.input, b.mine.inbox[peer]], b.output, vector=4)

    said = missing(text, blocks=2)
    assert "(wait flag[1] of rank 0 >= 1 (acquire, system)), is met by rank 1 block " in said
    assert "(store flag[1] of rank 0 = 1 (release, system)), without that" in said


def test_an_earlier_write_that_is_enough_is_named():
    def text(b: Block) -> None:
        (peer,) = b.peers
        b.leader.store(b.on(peer).flag[b.rank], 1, RELEASE, SYSTEM)
        b.copy(b.input, b.on(peer).inbox[b.rank])
        b.leader.store(b.on(peer).flag[b.rank], 2, RELEASE, SYSTEM)
        b.leader.wait(b.mine.flag[peer], ">=", 1, ACQUIRE, SYSTEM)
        b.reduce([b.input, b.mine.inbox[peer]], b.output)

    assert "(store flag[1] of rank 0 = 1 (release, system)), without that" in missing(text)


def test_an_initial_value_that_is_enough_is_named():
    def text(b: Block) -> None:
        (peer,) = b.peers
        b.copy(b.input, b.on(peer).inbox[b.rank])
        b.leader.store(b.on(peer).flag[b.rank], 1, RELEASE, SYSTEM)
        b.leader.wait(b.mine.flag[peer], ">=", 0, ACQUIRE, SYSTEM)
        b.reduce([b.input, b.mine.inbox[peer]], b.output)

    assert "is met by what the word holds at first" in missing(text)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"order": RELAXED}, "the write is relaxed and no release fence stands between"),
        ({"wait": RELAXED}, "the read is relaxed and no acquire fence stands between"),
        ({"scope": DEVICE}, "the write is at device scope, which does not include the other side"),
        ({"seen": DEVICE}, "the read is at device scope, which does not include the other side"),
    ],
    ids=str,
)
def test_a_link_that_gives_no_order_says_why(how, said):
    assert missing(lambda b: push(b, **how)).endswith(said)


def test_where_nothing_is_written_for_the_other_side_there_is_no_path():
    def text(b: Block) -> None:
        (peer,) = b.peers
        b.copy(b.input, b.on(peer).inbox[b.rank])
        b.reduce([b.input, b.mine.inbox[peer]], b.output)

    assert missing(text) == "no path of releases and acquires leads from there to here"


# ---- waves that have nothing to do


@pytest.mark.parametrize(
    ("waves", "nbytes", "said"),
    [(4, 256, "waves 2 and 3 move nothing"), (4, 384, "wave 3 moves nothing"), (4, 512, None), (1, 256, None)],
)
def test_waves_without_elements_are_noted(waves, nbytes, said):
    found = protocol(memory=memory, bytes=512, world=2, threads=256)(push)
    notes = check(found, found.config(waves=waves, bytes=nbytes), executions=4).notes
    said_so = [note for note in notes if "nothing at this size" in note]
    assert said_so == [] if said is None else said_so[0].startswith(said)
