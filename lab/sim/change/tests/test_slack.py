"""Slack: found with its proof, the smallest depth of each ring of buffers, and what can go together."""

from __future__ import annotations

import pytest

from lab.protocol.library import load
from lab.protocol.write import ACQ_REL, ACQUIRE, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.change.judge import Basis, judge_program
from lab.sim.change.slack import slack_of


def memory(m: Declare) -> None:
    m.payload("slot", m.max_elements, UNCACHED, turn=m.options["depth"], source=m.world)
    m.words("ready", m.world)
    m.words("again", m.world)


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=4, options={"depth": 4})
def told_twice(b: Block) -> None:
    """Two flags say the same, with a fence that adds nothing; either flag is enough, and one is needed."""
    turn = b.call % b.options["depth"]
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[turn, b.rank][: b.elements])
    b.leader.fence(ACQ_REL, SYSTEM)
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
        b.leader.store(b.on(j).again[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
        b.leader.wait(b.mine.again[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.mine.slot[turn, j][: b.elements] for j in range(b.world)], b.output)


def test_of_two_flags_that_say_the_same_one_can_go():
    program = told_twice.program()
    found = slack_of(program)
    waits = [o.mutant.example.split()[1] for o in found.items if o.mutant.what == "drop the wait"]
    assert [word.split("[")[0] for word in waits] == ["ready", "again"], "each is spare alone"
    together = found.together
    assert together.judgement.proved
    assert sum("drop the wait" in what for what in together.changes) == 1
    assert any("drop the wait" in what for what in together.left_out)
    assert any("drop the fence" in what for what in together.changes)


def test_what_goes_together_is_one_program_that_holds_and_nothing_can_be_added():
    """The changes are repeated by hand, from the words of the report."""
    program = told_twice.program()
    found = slack_of(program)
    by_name = {f"{o.mutant.what} ({o.mutant.line})": o.mutant.change for o in found.items}
    for what in found.together.changes:
        if what in by_name:
            program = by_name[what](program)
    assert judge_program(program).proved
    for what in found.together.left_out:
        assert judge_program(by_name[what](program)).caught


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_smallest_depth_that_holds(depth):
    found = slack_of(told_twice.program(told_twice.config(options=(("depth", depth),))))
    (slots,) = found.depths
    assert (slots.dimension.region, slots.dimension.depth, slots.enough) == ("slot", depth, 2)
    assert [(tried, judgement.verdict) for tried, judgement in slots.tried] == [(1, "race"), (2, "ok")]


def test_every_item_says_what_its_proof_rests_on():
    found = load("repaired_two_shot")
    slack = slack_of(found.program(found.config(world=2, blocks=2, calls=3, bytes=(2048,))))
    assert slack.items and all(o.judgement.basis is Basis.ONE_EXECUTION for o in slack.items)
    assert all("one execution stands for every schedule" in o.proof for o in slack.items)
    assert {depth.dimension.region: depth.enough for depth in slack.depths} == {"staging": 1, "gather": 1}
    assert slack.together.judgement.proved and not slack.unproved
    # With so few elements block 0 copies all: the fence or the release of its flags is spare, not both.
    assert sum("drop the fence" in what for what in slack.together.changes) == 2
    assert [what.split(" (")[0] for what in slack.together.left_out] == 2 * ["release -> relaxed"]


def test_ctrl_c_keeps_what_was_found():
    looked_at = []

    def stop(what: str) -> None:
        looked_at.append(what)
        if len([o for o in looked_at if "wait" in o]) == 2:
            raise KeyboardInterrupt

    found = slack_of(told_twice.program(), progress=stop)
    assert found.interrupted and found.items and found.together is None
    assert found.looked_at == len(looked_at) - 1 < found.of
