"""Races are told apart by lines, direction and distance; those that lack one order are one finding."""

from lab.protocol.tables import compile_tables
from lab.protocol.write import (
    ACQUIRE,
    BLOCK_SHARED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Declare,
    Host,
    protocol,
)
from lab.sim.check import check
from lab.sim.order.findings import findings
from lab.sim.order.kinds import key_of
from lab.sim.order.races import find_races


def races(made, **changes):
    return find_races(compile_tables(made.program(made.config(**changes)))).races


def one_buffer(m: Declare) -> None:
    """One buffer a rank, which the peers read."""
    m.payload("shared", m.max_elements, UNCACHED)


def collect(b: Block) -> None:
    """The second kernel of a call."""
    b.phase("collect")
    b.reduce([b.on(j).shared[: b.elements] for j in range(b.world)], b.output)


def two_kernels(h: Host) -> None:
    """A call is two launches; nothing orders the ranks."""
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x)
        h.launch(output=out, nbytes=nbytes, kernel=collect)
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


@protocol(memory=one_buffer, blocks=1, bytes=64, calls=2, world=2, scenarios={"two": two_kernels})
def publish(b: Block) -> None:
    """The first kernel of a call."""
    b.phase("publish")
    b.copy(b.input, b.mine.shared[: b.elements])


def test_directions_and_distances_are_races_of_their_own_and_one_missing_order_is_one_finding():
    found = races(publish)
    told = {(race.direction, race.first.phase, race.distance) for race in found}
    assert told == {
        ("read after write", "publish", (1, 1)),
        ("read after write", "publish", (3, 3)),
        ("write after read", "collect", (1, 1)),
    }
    assert len({key_of(race) for race in found}) == 3
    grouped = findings(found)
    assert sorted(len(finding.races) for finding in grouped) == [1, 2]
    (both,) = (finding for finding in grouped if len(finding.races) == 2)
    assert both.direction == "read after write" and found[both.races[0] - 1].distance == (1, 1), "the nearest first"


def test_each_direction_has_a_witness_of_its_own_direction():
    verdict = check(publish, executions=60, repair_seconds=0)
    lines = {verdict.races[e.race - 1].direction: e.schedule for e in verdict.effects if e.schedule}
    assert set(lines) == {"read after write", "write after read"} and len(set(lines.values())) == 2


def scratch(m: Declare) -> None:
    """Memory of a block."""
    m.payload("scratch", m.max_elements, BLOCK_SHARED)


@protocol(memory=scratch, blocks=1, bytes=1024, calls=1, world=1, waves=2)
def reuses(b: Block) -> None:
    """What one wave still reads another overwrites: the text says which comes first."""
    b.phase("fill")
    b.copy(b.input, b.mine.scratch[: b.elements])
    b.barrier()
    b.phase("read")
    b.copy(b.mine.scratch[: b.elements], b.output, vector=8)
    b.phase("fill again")
    b.copy(b.input, b.mine.scratch[: b.elements])


def test_within_a_launch_the_text_says_which_access_comes_first():
    (race,) = races(reuses)
    assert (race.first.phase, race.second.phase, race.direction) == ("read", "fill again", "write after read")


def mailbox(m: Declare) -> None:
    """Packets, and a word that says they were taken."""
    m.payload("mailbox", m.max_elements, UNCACHED, source=m.world)
    m.words("done", m.world)


@protocol(memory=mailbox, blocks=1, bytes=1024, calls=2, world=2)
def empties_half(b: Block) -> None:
    """The reader empties the first half only, so that the second half of call 2 is waited for in vain."""
    for j in b.peers:
        b.leader.wait(b.mine.done[j], ">=", b.call - 1, ACQUIRE, SYSTEM)
    b.barrier()
    for j in b.peers:
        b.copy(b.input, b.on(j).mailbox[b.rank], stamp=1)
    for j in b.peers:
        b.wait_stamps(b.mine.mailbox[j], "!=", 0)
    b.reduce([b.input if j == b.rank else b.mine.mailbox[j] for j in range(b.world)], b.output)
    for j in b.peers:
        b.clear(b.mine.mailbox[j][: b.elements // 2], 0)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).done[b.rank], b.call, RELEASE, SYSTEM)


def test_the_elements_of_a_race_are_those_that_race():
    (race,) = races(empties_half)
    assert race.elements == ((256, 512),), "the packets of the first half are waited for"


def two_words(m: Declare) -> None:
    """A buffer that peers read, and two counters."""
    m.payload("shared", m.max_elements, UNCACHED)
    m.words("near", m.world)
    m.words("far", m.world)


def three_kernels(h: Host) -> None:
    """Publish, synchronise, collect."""
    x, out = h.input(h.config.bytes[0]), h.output(h.config.bytes[0])
    h.launch(x, kernel=publish.kernel, blocks=1)
    h.launch(nbytes=h.config.bytes[0])
    h.launch(output=out, nbytes=h.config.bytes[0], kernel=collect, blocks=1)
    h.sync()
    h.expect(out, x)


@protocol(memory=two_words, blocks=2, bytes=512, calls=1, world=3, scenarios={"three": three_kernels})
def half_a_meeting(b: Block) -> None:
    """Block 0 meets the next rank, block 1 the one after: the last comes too late for a chain."""
    other = (b.rank + 1 + b.block) % b.world
    word = "near" if b.block == 0 else "far"
    if b.block == 0:
        b.leader.store(getattr(b.on(other), word)[b.rank], 1, RELEASE, SYSTEM)
        b.leader.wait(getattr(b.mine, word)[(b.rank - 1) % b.world], ">=", 1, ACQUIRE, SYSTEM)
    else:
        b.leader.store(getattr(b.on(other), word)[b.rank], 1, RELEASE, SYSTEM)


def test_a_witness_keeps_every_line_that_synchronises():
    """With one block the line of block 1 is not there: what goes wrong then may be its absence."""
    verdict = check(half_a_meeting, executions=60, repair_seconds=0)
    lines = [effect.schedule for effect in verdict.effects if effect.schedule]
    assert lines and all("blocks=1" not in line for line in lines)
