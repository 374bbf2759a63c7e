"""Editing a program: only what was meant is changed."""

from __future__ import annotations

from lab.protocol.library import load
from lab.protocol.program import Barrier, Wait
from lab.sim.change.edit import changed, line_of, own_lines


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
