"""Planted faults: each wait, fence, store, order, scope and buffer weakened in turn is found, or has its reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from lab.protocol.library import load
from lab.protocol.program import Barrier, Branch, Fence, Load, Order, Program, Rmw, Scope, Set, Store, Wait
from lab.protocol.tables import compile_tables
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
    protocol,
)
from lab.sim.change.judge import DEFAULT_LIMITS, Basis, Limits, judge_program
from lab.sim.change.mutate import Outcome, judge, mutants, score
from lab.sim.explain.failure import abort_record
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute
from lab.sim.tests.programs import move, with_op, with_ops, without

Fault = tuple[str, ...]  # kind, block 0 or another, operation (and the next one for a swap)


def faults(program: Program, rank: int = 0) -> Iterator[tuple[Fault, Program]]:
    """Every fault in every block of one rank, one operation of one agent at a time."""
    for agent in program.agents:
        if agent.kind == "host" or agent.rank != rank:
            continue
        where = "block 0" if agent.block == 0 else "other"
        own = [k for k, op in enumerate(agent.ops) if op.phase not in ("launch", "kernel end", "timeout")]
        for k in own:
            op = agent.ops[k]
            name = _name(op)
            if isinstance(op, (Wait, Fence, Store, Rmw)):
                yield ("drop", where, name), without(program, agent.id, k)
            if isinstance(op, (Load, Store, Rmw, Wait, Fence)) and op.order is not Order.RELAXED:
                yield ("order", where, name), with_op(program, agent.id, k, order=Order.RELAXED)
                yield ("scope", where, name), with_op(program, agent.id, k, scope=Scope(op.scope - 1))
            if (
                k + 1 in own
                and not isinstance(op, (Branch, Barrier, Set))
                and not isinstance(agent.ops[k + 1], (Branch, Barrier, Set))
            ):
                swapped = list(agent.ops)
                swapped[k], swapped[k + 1] = swapped[k + 1], swapped[k]
                yield ("swap", where, name, _name(agent.ops[k + 1])), with_ops(program, agent.id, tuple(swapped))


def _name(op) -> str:
    """What an operation is, whichever call it belongs to."""
    text = re.sub(r"(input|output) \d+", r"\1", op.describe())
    return f"{op.phase}: {re.sub(r' [(](relaxed|acquire|release|acq_rel), .*', '', text)}"


def survivors(program: Program) -> set[Fault]:
    """Faults that are found in no call. (A flag that one call drops, the next one may make up for.)"""
    seen, found = set(), set()
    for fault, mutant in faults(program):
        seen.add(fault)
        if fault not in found and judge_program(mutant, Limits(executions=40)).caught:
            found.add(fault)
    assert len(found) > len(seen) / 4
    return seen - found


OWN_ROW = "nobody waits for the flag in a rank's own page"
BOUNDARY = "the kernel boundary orders what the launch before stored"
LEADER = "block 0 releases by its flags what it did itself"
CARRIED = "block 0 carries it on: it acquires at device scope and releases at system scope"
ONE_SIDE = "on one rank only it delays; on all ranks it would hang (see below)"
NO_MATTER = "the two do not depend on each other"

ONE_SHOT = {
    ("drop", "block 0", "flag: fence"): LEADER,
    ("order", "block 0", "flag: fence"): LEADER,
    ("scope", "block 0", "flag: fence"): LEADER,
    ("swap", "block 0", "flag: fence", "flag: add 1 to arrive[p] of rank 0"): LEADER,
    ("scope", "other", "flag: fence"): CARRIED,
    ("drop", "block 0", "flag: store flags[row 0, 0] of rank 0 = seq"): OWN_ROW,
    ("order", "block 0", "flag: store flags[row 0, 0] of rank 0 = seq"): OWN_ROW,
    ("scope", "block 0", "flag: store flags[row 0, 0] of rank 0 = seq"): OWN_ROW,
    ("order", "block 0", ": load seqbuf of rank 0"): BOUNDARY,
    ("order", "other", ": load seqbuf of rank 0"): BOUNDARY,
    ("scope", "block 0", ": load seqbuf of rank 0"): BOUNDARY,
    ("scope", "other", ": load seqbuf of rank 0"): BOUNDARY,
    ("order", "block 0", "flag: store seqbuf of rank 0 = seq"): BOUNDARY,
    ("scope", "block 0", "flag: store seqbuf of rank 0 = seq"): BOUNDARY,
    ("swap", "other", "flag: add 1 to arrive[p] of rank 0", "flag: wait flags[row 0, 1] of rank 0 >= seq"): ONE_SIDE,
    (
        "swap",
        "block 0",
        "flag: store flags[row 0, 0] of rank 1 = seq",
        "flag: wait flags[row 0, 1] of rank 0 >= seq",
    ): ONE_SIDE,
    ("swap", "block 0", "flag: store arrive[p] of rank 0 = 0", "flag: store seqbuf of rank 0 = seq"): NO_MATTER,
    (
        "swap",
        "block 0",
        "flag: store flags[row 0, 0] of rank 0 = seq",
        "flag: store flags[row 0, 0] of rank 1 = seq",
    ): OWN_ROW,
    ("swap", "block 0", "flag: store seqbuf of rank 0 = seq", "flag: store flags[row 0, 0] of rank 0 = seq"): OWN_ROW,
}


def test_every_fault_in_the_one_shot_is_found_or_has_a_reason():
    found = load("seed_one_shot")
    program = found.program(found.config(world=2, blocks=2, calls=4, bytes=(2048,)))
    assert survivors(program) == set(ONE_SHOT)


def two_shot_reason(fault: Fault) -> str | None:
    """Why a fault in the repaired two-shot changes nothing; None: there is no reason."""
    kind, where, first, *rest = fault
    second = rest[0] if rest else ""
    own_row = re.compile(r"store flags\[row \d, 0\] of rank 0")
    unread = [text for text in (first, second) if own_row.search(text)]
    if unread and (kind != "swap" or ("store" in first and "store" in second)):
        return OWN_ROW
    if "seqbuf" in first and kind in ("order", "scope"):
        return BOUNDARY
    if ": fence" in first:
        return LEADER if where == "block 0" else CARRIED if kind == "scope" else None
    if kind == "swap" and where == "other" and ": add 1 to arrive" in first and "wait flags" in second:
        return ONE_SIDE
    if kind == "swap" and "store flags" in first and "wait flags" in second:
        return ONE_SIDE
    if kind == "swap" and "store arrive[p] of rank 0 = 0" in second + first and "arrive[(1 - p)]" in first + second:
        return NO_MATTER
    return None


def test_every_fault_in_the_repaired_two_shot_is_found_or_has_a_reason():
    found = load("repaired_two_shot")
    program = found.program(found.config(world=2, blocks=2, calls=4, bytes=(16384,)))
    left = survivors(program)
    assert {fault for fault in left if two_shot_reason(fault) is None} == set()
    assert len(left) < 36


# ---- the same fault on all ranks


def caught(program: Program) -> dict[str, set[str]]:
    """The mutants of `lab mutate`, by state, each as "kind: example"."""
    by_state = defaultdict(set)
    for mutant in mutants(program):
        outcome = judge(mutant)
        by_state[outcome.state].add(f"{mutant.what}: {mutant.example}")
    return by_state


def swapped_everywhere(program: Program, first: str, second: str) -> Program:
    """`program` with two neighbours swapped in every agent that has them."""
    for agent in program.agents:
        for k in range(len(agent.ops) - 1):
            if re.search(first, agent.ops[k].describe()) and re.search(second, agent.ops[k + 1].describe()):
                ops = list(agent.ops)
                ops[k], ops[k + 1] = ops[k + 1], ops[k]
                program = with_ops(program, agent.id, tuple(ops))
                break
    return program


@pytest.mark.parametrize("name", ["seed_one_shot", "repaired_two_shot"])
def test_waiting_before_telling_on_all_ranks_ends_in_the_abort_record(name):
    found = load(name)
    program = found.program(found.config(world=2, blocks=1, calls=1, bytes=(2048,)))
    wrong = swapped_everywhere(program, r"^store flags\[row 0, [01]\] of rank [01]", r"^wait flags\[row 0")
    assert wrong != program
    assert judge_program(wrong).caught
    execution = execute(compile_tables(wrong))
    assert execution.state.counts[m.C_TIMEOUTS] and "phase 2" in abort_record(found, execution)


def test_one_buffer_is_too_few_for_the_one_shot_and_enough_for_the_repaired_two_shot():
    """Double buffering of separate regions is redundant: everybody's second flag says that the slots were read."""
    one, two = load("seed_one_shot"), load("repaired_two_shot")
    states = {}
    for found in (one, two):
        program = found.program(found.config(world=2, blocks=1, calls=4, bytes=(2048,)))
        for mutant in mutants(program):
            if mutant.kind == "buffer":
                states[found.name, mutant.what.split()[3]] = judge(mutant).state
    assert states["seed_one_shot", "staging"] == "caught"
    assert states["repaired_two_shot", "staging"] == states["repaired_two_shot", "gather"] == "slack"


# ---- protocols of our own, each with another kind of flag


def memory(declare: Declare) -> None:
    declare.payload("slot", declare.max_elements, UNCACHED)
    declare.words("ready", declare.world)
    declare.words("done", declare.world)
    declare.words("ticket")
    declare.words("go")


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=3)
def pull(b: Block) -> None:
    """Everybody reads everybody's slot; a rank waits until all have read before it writes again."""
    for j in b.peers:
        b.wait(b.mine.done[j], ">=", b.call - 1, ACQUIRE, SYSTEM)
    b.copy(b.input, b.mine.slot[: b.elements])
    for j in b.peers:
        b.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    for j in b.peers:
        b.store(b.on(j).done[b.rank], b.call, RELEASE, SYSTEM)


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=2)
def toggled(b: Block) -> None:
    """The same with a flag that the reader takes down: waits for ==, two writers of a word."""
    for j in b.peers:
        b.wait(b.mine.ready[j], "==", 0, ACQUIRE, SYSTEM)
    b.copy(b.input, b.mine.slot[: b.elements])
    for j in b.peers:
        b.store(b.mine.ready[j], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.wait(b.on(j).ready[b.rank], "==", 1, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    for j in b.peers:
        b.store(b.on(j).ready[b.rank], 0, RELEASE, SYSTEM)


@protocol(memory=memory, blocks=2, bytes=2048, world=1, calls=2)
def last_arriver(b: Block) -> None:
    """Two blocks fill the slot; whoever comes last copies all of it: control depends on a ticket."""
    b.copy(b.input, b.mine.slot[: b.elements])
    before = b.leader.add(b.mine.ticket, 1, ACQ_REL, DEVICE)
    with b.when(before == 2 * b.call - 1):
        b.store(b.mine.go, b.call, RELEASE, DEVICE)
    b.wait(b.mine.go, ">=", b.call, ACQUIRE, DEVICE)
    # Read with the other block's mapping: all of the first half by block 1, of the second by block 0.
    half = b.elements // 2
    mine = slice(half) if b.block else slice(half, b.elements)
    move(b, b.mine.slot[mine], b.output[mine])


@pytest.mark.parametrize(
    ("own", "slack"),
    [
        (pull, set()),
        (toggled, set()),
        (last_arriver, set()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_fault_in_a_small_protocol_is_found(own, slack):
    program = own.program()
    assert not judge_program(program).caught, "the correct protocol is accused"
    states = caught(program)
    assert states["slack"] | states["survived"] == slack
    assert len(states["caught"]) >= 5


@protocol(memory=memory, blocks=2, bytes=2048, world=1, calls=2)
def spare_ticket(b: Block) -> None:
    """Every block copies what it wrote itself; a ticket, a flag and a fence that nobody needs."""
    b.copy(b.input, b.mine.slot[: b.elements])
    b.leader.fence(ACQ_REL, SYSTEM)
    before = b.leader.add(b.mine.ticket, 1, ACQ_REL, DEVICE)
    with b.when(before == 2 * b.call - 1):
        b.store(b.mine.go, b.call, RELEASE, DEVICE)
    b.wait(b.mine.go, ">=", b.call, ACQUIRE, DEVICE)
    b.copy(b.mine.slot[: b.elements], b.output)


def states_of(program: Program, limits: Limits = DEFAULT_LIMITS) -> dict[tuple[str, str], Outcome]:
    """The outcome of each mutant, by its change and the verb that it changes."""
    return {(o.mutant.what, o.mutant.example.split()[0]): o for o in (judge(mu, limits) for mu in mutants(program))}


def test_where_control_depends_on_a_ticket_slack_is_proved_by_a_search_of_every_schedule():
    program = spare_ticket.program()
    assert judge_program(program).basis is Basis.EVERY_SCHEDULE
    found = states_of(program)
    spare = found["drop the wait", "wait"]
    assert spare.state == "slack" and re.search(r"all \d+ states under sc.*all \d+ states under posted", spare.proof)
    assert found["drop the rmw", "add"].verdict == found["drop the store", "store"].verdict == "hang"


def test_a_search_of_weak_proves_that_an_order_is_spare_and_one_of_sc_and_posted_does_not():
    fence = states_of(spare_ticket.program())["drop the fence", "fence"]
    assert fence.mutant.orders_only and fence.state == "slack" and re.search(r"all \d+ states under weak", fence.proof)
    fence = states_of(spare_ticket.program(), Limits(models=("sc", "posted")))["drop the fence", "fence"]
    assert fence.judgement.basis is Basis.EVERY_SCHEDULE and not fence.judgement.orders
    assert fence.state == "survived"


def test_a_search_that_ends_early_proves_nothing():
    spare = states_of(spare_ticket.program(), Limits(states=20))["drop the wait", "wait"]
    assert spare.state == "survived" and "limit of 20 states" in spare.proof


def packet_memory(declare: Declare) -> None:
    declare.payload("packet", declare.max_elements, UNCACHED, parity=2, source=declare.world)


@protocol(memory=packet_memory, blocks=1, bytes=64, world=2, calls=3)
def packets(b: Block) -> None:
    """One-shot in packets of data and stamp: no flag, no order."""
    p = b.call % 2
    for j in b.peers:
        b.copy(b.input, b.on(j).packet[p, b.rank][: b.elements], stamp=b.call)
    for j in b.peers:
        b.wait_stamps(b.mine.packet[p, j][: b.elements], "==", b.call)
    b.reduce([b.input if j == b.rank else b.mine.packet[p, j][: b.elements] for j in range(b.world)], b.output)


def test_packets_need_their_wait_and_both_of_their_buffers():
    assert judge_program(packets.program()).proved
    found = [(o.mutant.what, o.state) for o in map(judge, mutants(packets.program()))]
    dropped = ["write no stamp", "drop the wait for packets", "one buffer of packet instead of several"]
    assert found == [(what, "caught") for what in dropped]


def test_the_score_leaves_out_what_is_proved_right():
    outcomes = list(states_of(spare_ticket.program(), Limits(models=("sc", "posted"))).values())
    caught, survived = (sum(o.state == state for o in outcomes) for state in ("caught", "survived"))
    assert score(outcomes) == caught / (caught + survived) and 0 < survived < caught + survived < len(outcomes)
    assert score([]) is None


@pytest.mark.parametrize("name", ["seed_one_shot", "repaired_two_shot"])
def test_no_two_mutants_are_the_same_program(name):
    program = load(name).program(world=2, blocks=2, calls=2)
    prints = [mutant.program.fingerprint() for mutant in mutants(program)]
    assert len({program.fingerprint(), *prints}) == len(prints) + 1


def test_relaxed_flags_are_enough_for_values_on_one_link_but_not_for_the_order():
    """What exploration cannot see the race check reports: the values are right in every schedule of both models."""
    program = pull.program()
    for agent in program.agents:
        for k, op in enumerate(agent.ops):
            if isinstance(op, (Store, Wait)) and "ready" in op.describe() and agent.kind != "host":
                program = with_op(program, agent.id, k, order=RELAXED)
    assert judge_program(program).verdict == "race"
