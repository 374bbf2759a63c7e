"""The numbers of an execution: against elements that are summed one by one, and against other people's roundings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lab.protocol.library import load
from lab.protocol.program import Expect
from lab.protocol.tables import compile_tables
from lab.sim.explain.failure import wrong_means
from lab.sim.explain.values import outputs, rank_times_version
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.tests.reference import Interpreter


def by_elements(execution: Execution) -> list[tuple[int, int, float, float]]:
    """(rank, version, mean, share wrong) of each comparison; leaves are small whole numbers, so every sum is exact."""
    tables, log = execution.tables, execution.log
    interpreter, elements, pending, found = Interpreter(tables.program), {}, {}, []
    for step in range(execution.steps):
        row = int(log.op[step])
        if row == -1:
            elements.update(pending.pop(int(log.row[step]), {}))
        if row < 0 or type(tables.op(row)).__name__ not in ("Move", "Fill", "Expect"):
            continue
        op, agent = tables.op(row), tables.program.agents[int(tables.ops[row, 10])]
        known = dict(enumerate(execution.state.registers[agent.id].tolist()))
        if isinstance(op, Expect):
            share = interpreter._elements(op.span, op.mapping, known).values()
            numbers = [
                sum(rank_times_version(leaf[1], leaf[2]) for leaf in leaves if leaf[0] == "input")
                for leaves in (interpreter.element(elements, op.span.region.id, index) for index in share)
            ]
            due = sum(rank_times_version(*source) for source in op.due)
            found.append(
                (agent.rank, op.due[0][1], float(np.mean(numbers)), float(np.mean([n != due for n in numbers])))
            )
        elif execution.memory == "posted" and op.dst.region.rank != agent.rank:
            scratch = dict(elements)
            interpreter.payload(op, scratch, known)
            target = interpreter._elements(op.dst, op.mapping, known).values()
            pending[step] = {(op.dst.region.id, k): scratch[op.dst.region.id, k] for k in target}
        else:
            interpreter.payload(op, elements, known)
    return found


@pytest.mark.parametrize("memory", ["sc", "posted"])
@pytest.mark.parametrize(
    "changes",
    [
        {"world": 2, "blocks": 2, "calls": 2, "bytes": (8192,)},
        {"world": 3, "blocks": 2, "calls": 2, "bytes": (4096, 2 * 777)},
        {"world": 2, "blocks": 2, "calls": 1, "bytes": (8192,), "dtype": "fp32"},
        {"world": 4, "blocks": 1, "calls": 2, "bytes": (2048,), "dtype": "bf16"},
    ],
    ids=str,
)
def test_means_and_shares_are_those_of_the_elements(changes, memory):
    found = load("seed_two_shot")
    tables = compile_tables(found.program(found.config(**changes)))
    wrong = 0
    for seed in range(10):
        execution = execute(tables, memory, m.RANDOM, seed)
        expected = by_elements(execution)
        got = outputs(execution)
        assert [(o.rank, o.call) for o in got] == [(rank, call) for rank, call, _, _ in expected]
        assert [o.mean for o in got] == pytest.approx([mean for _, _, mean, _ in expected], abs=1e-6)
        assert [o.wrong_share for o in got] == pytest.approx([share for *_, share in expected])
        wrong += sum(share > 0 for *_, share in expected)
    assert wrong or changes["blocks"] == 1, "nothing was wrong in any of these, so nothing was compared"


def test_a_correct_execution_gives_what_is_due():
    found = load("repaired_two_shot")
    execution = execute(compile_tables(found.program(found.config(world=4, blocks=2, calls=3, bytes=(4096,)))))
    for output in outputs(execution):
        assert output.mean == output.due == 10 * output.call and output.wrong_share == 0
    assert wrong_means(execution) == []


@pytest.mark.parametrize(("dtype", "kind"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16), ("fp32", np.float32)])
def test_sums_are_rounded_once_where_they_are_stored(dtype, kind):
    """Inputs whose sum lies between two values of the type: rounded, summed in fp32 in rank order, rounded."""
    numbers = [1.0 + 2**-7, 3.0 + 2**-6, 1000.5 + 1 / 3]
    found = load("repaired_two_shot")
    config = found.config(world=3, blocks=1, calls=1, bytes=(3 * 64,) if dtype == "fp32" else (3 * 32,), dtype=dtype)
    got = outputs(execute(compile_tables(found.program(config))), lambda rank, version: numbers[rank])
    total = np.float32(0)
    for number in numbers:
        total = np.float32(total + np.float32(np.float32(number).astype(kind)))
    assert {output.mean for output in got} == {float(np.float32(total.astype(kind)))}


def test_rounding_to_bf16_is_ml_dtypes():
    from lab.sim.explain.values import _bf16

    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(_bf16(values), expected)
