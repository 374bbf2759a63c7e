"""Slot dimensions are found where slots take turns and nowhere else; another depth is the same protocol."""

from __future__ import annotations

import pytest

from lab.protocol.library import load
from lab.protocol.write import ACQUIRE, DEVICE, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.change.judge import judge_program
from lab.sim.change.slots import SlotDimension, Turn, slot_dimension, slot_dimensions, with_depth


def rotating(m: Declare) -> None:
    depth = m.options["depth"]
    dims = {"turn": depth} if depth else {}
    m.payload("inbox", m.max_elements, UNCACHED, **dims, source=m.world)
    m.words("ready", m.world)
    m.words("calls")


@protocol(memory=rotating, blocks=1, bytes=256, world=2, calls=4, options={"depth": 3, "counted": "host"})
def push(b: Block) -> None:
    """Push, flag, reduce, with no word that says when an inbox was read: it needs two of them."""
    depth = b.options["depth"]
    call = b.call
    if b.options["counted"] == "device":
        call = b.share(b.leader.load(b.mine.calls, ACQUIRE, DEVICE) + 1)
        b.leader.store(b.mine.calls, call, RELEASE, DEVICE)
    at = (lambda j: (call % depth, j)) if depth else (lambda j: (j,))
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[at(b.rank)][: b.elements])
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", call, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.mine.inbox[at(j)][: b.elements] for j in range(b.world)], b.output)


def program(**options):
    return push.program(push.config(options=tuple(options.items())))


def test_the_dimension_that_takes_turns_is_found():
    assert slot_dimension(program(), "inbox") == SlotDimension("inbox", 0, 3, Turn.USE)
    assert slot_dimension(program(counted="device"), "inbox").depth == 3
    assert slot_dimension(program(depth=0), "inbox") is None, "a slot a source does not take turns"
    assert slot_dimension(program(), "no such region") is None


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_seed_goes_round_in_the_parity_and_not_in_the_source(world):
    for name, regions in (("seed_one_shot", ["staging"]), ("repaired_two_shot", ["staging", "gather"])):
        found = load(name)
        dimensions = slot_dimensions(found.program(found.config(world=world, blocks=2, calls=4, bytes=(2048,))))
        assert [(d.region, d.axis, d.depth) for d in dimensions] == [(region, 0, 2) for region in regions]


def test_the_same_depth_is_the_same_program():
    own = program()
    assert with_depth(own, slot_dimension(own, "inbox"), 3).fingerprint() == own.fingerprint()


@pytest.mark.parametrize("counted", ["host", "device"])
@pytest.mark.parametrize("depth", [1, 2, 4, 5])
def test_another_depth_is_the_protocol_written_with_it(counted, depth):
    own, other = program(counted=counted), program(counted=counted, depth=depth)
    changed = with_depth(own, slot_dimension(own, "inbox"), depth)
    assert [(r.name, r.length, r.shape) for r in changed.regions] == [
        (r.name, r.length, r.shape) for r in other.regions
    ]
    assert judge_program(changed).verdict == judge_program(other).verdict == ("ok" if depth > 1 else "race")


@pytest.mark.parametrize("turn", Turn)
def test_a_region_without_a_slot_dimension_gets_one(turn):
    own = program(depth=0)
    assert judge_program(own).verdict == "race"
    changed = with_depth(own, SlotDimension("inbox", -1, 1, turn), 2)
    assert judge_program(changed).proved
    assert {r.shape for r in changed.regions if r.name == "inbox"} == {(("parity", 2), ("source", 2))}


def test_an_address_that_reaches_across_slots_is_left_alone():
    def memory(m: Declare) -> None:
        m.payload("pair", m.max_elements // 2, half=2)

    @protocol(memory=memory, blocks=1, bytes=256, world=1, calls=2)
    def across(b: Block) -> None:
        whole = b.mine.pair[0 : b.elements]
        b.copy(b.input, whole)
        b.copy(whole, b.output)

    assert slot_dimension(across.program(), "pair") is None
    assert with_depth(across.program(), SlotDimension("pair", 0, 2, Turn.USE), 1) is None
