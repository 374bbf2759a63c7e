"""Editing a program: jumps lead where they led, visits are turns, and only what was meant is changed."""

from __future__ import annotations

import numpy as np
import pytest

from lab.protocol.library import load
from lab.protocol.program import Barrier, Move, Program, Store, Wait
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, SYSTEM, Block, Declare, protocol
from lab.sim.bench.models import two_phase
from lab.sim.change.edit import Additions, changed, line_of, own_lines, visits
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import execute


def memory(declare: Declare) -> None:
    declare.words("turn", 2)


@protocol(memory=memory, blocks=1, bytes=64, world=2, calls=2)
def jumps(b: Block) -> None:
    """Branches over single operations, a timeout, and an early return."""
    seen = b.load(b.mine.turn[0], ACQUIRE, SYSTEM)
    with b.when(seen == 0):
        b.store(b.mine.turn[0], 1, RELAXED, SYSTEM)
    with b.when(seen == 1):
        b.store(b.mine.turn[1], 7, RELAXED, SYSTEM)
        b.ret()
    b.wait(b.mine.turn[1], ">=", 8, ACQUIRE, SYSTEM, 10, lambda: b.store(b.mine.turn[1], 3, RELAXED, SYSTEM))


def with_nothing_added_everywhere(program: Program) -> Program:
    added = Additions()
    for agent in program.agents:
        for position, op in enumerate(agent.ops):
            nothing = Barrier(site=op.site, phase=op.phase)
            added.before[agent.id, position] += [nothing]
            added.after[agent.id, position] += [nothing, nothing]
    return added.into(program)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "own", [jumps, load("seed_one_shot"), load("local_inference_lab_vllm_618")], ids=lambda p: p.name
)
def test_operations_that_do_nothing_change_nothing_wherever_they_are_added(own, seed):
    program = own.program()
    more = with_nothing_added_everywhere(program)
    assert more.n_ops == 4 * program.n_ops
    one, two = (execute(compile_tables(p), policy=m.RANDOM, seed=seed) for p in (program, more))
    assert one.outcome == two.outcome and one.steps == two.steps
    assert np.array_equal(one.state.word, two.state.word) and np.array_equal(one.state.cell, two.state.cell)
    assert one.state.counts[m.C_TIMEOUTS] == two.state.counts[m.C_TIMEOUTS]


def test_the_timeout_of_the_example_is_taken():
    """Or the test above would not look at it."""
    assert execute(compile_tables(jumps.program())).state.counts[m.C_TIMEOUTS] == 2


def test_what_is_added_after_a_skipped_operation_is_skipped_too():
    program = jumps.program()
    stores = [line for line, op in own_lines(program).items() if isinstance(op, Store)]
    skipped = next(line for line in stores if "turn[0]" in line.site.text)
    added = Additions()
    for visit in visits(program, skipped):
        op = visit.agent.ops[visit.last]
        added.after[visit.agent.id, visit.last] += [Store(**{**vars(op), "value": op.value + visit.agent.call})]
    execution = execute(compile_tables(added.into(program)))
    turn = next(region.id for region in program.regions if region.name == "turn")
    first = int(execution.tables.word_base[turn])
    assert execution.state.word[first] == 2, "it runs in call 1, and call 2 jumps over it"


def test_a_visit_is_a_launch_whatever_it_loops_over():
    program = load("seed_one_shot").program(world=3, blocks=2, calls=3, bytes=(2048,))
    push = next(line_of(op) for agent in program.agents for op in agent.ops if isinstance(op, Move))
    found = [visit for visit in visits(program, push) if (visit.agent.rank, visit.agent.block) == (1, 1)]
    assert [(visit.turn, visit.agent.call) for visit in found] == [(1, 1), (2, 2), (3, 3)]
    assert all(visit.last - visit.first == 1 for visit in found), "two peers"


def test_where_one_launch_does_all_calls_a_visit_is_a_run_of_neighbours():
    program = two_phase.program(two_phase.config(world=3, calls=4))
    wait = next(line for line, op in own_lines(program).items() if isinstance(op, Wait))
    turns = [visit.turn for visit in visits(program, wait) if visit.agent.rank == 0]
    assert turns == list(range(1, len(turns) + 1)) and len(turns) % 4 == 0


def test_a_change_of_one_line_leaves_the_others():
    program = load("seed_one_shot").program(world=2, blocks=1, calls=1)
    line = next(line for line, op in own_lines(program).items() if isinstance(op, Wait))
    other = line.change(lambda op: Barrier(site=op.site, phase=op.phase), program)
    differ = {
        line_of(op)
        for agent, twin in zip(program.agents, other.agents, strict=True)
        for op, new in zip(agent.ops, twin.ops, strict=True)
        if type(op) is not type(new)
    }
    assert differ == {line}
    assert changed(program, lambda op: op).fingerprint() == program.fingerprint()
