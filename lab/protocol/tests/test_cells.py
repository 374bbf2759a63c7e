"""The cut into cells is right: an interpreter that knows only elements and threads agrees on every element."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lab.protocol.library import load
from lab.protocol.program import Expect, Fill, Mapping, Move, Program
from lab.protocol.tables import compile_tables, leaf
from lab.protocol.write import RELAXED, SYSTEM, UNCACHED, Block, Declare, Host, protocol
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.tests.reference import Interpreter


def fingerprint(leaves: tuple) -> int:
    """The fingerprint that a sum of these leaves has."""
    total = 0
    for kind, a, b, index in leaves:
        source, region = ((a, b), 0) if kind == "input" else (None, a)
        total += int(leaf(source, np.array([index]), False, region)[0])
    return total % 2**64


def shifted(leaves: tuple, by: int) -> tuple:
    return tuple((kind, a, b, index + by) for kind, a, b, index in leaves)


def check(execution: Execution) -> int:
    """Repeat an execution element by element and compare memory and every wrong element; returns the cells compared."""
    tables, log = execution.tables, execution.log
    program = tables.program
    interpreter, elements = Interpreter(program), {}
    wrong = defaultdict(set)
    for step in range(execution.steps):
        row = int(log.op[step])
        op = tables.op(row)
        if not isinstance(op, (Move, Fill, Expect)):
            continue
        known = dict(enumerate(execution.state.registers[tables.ops[row, 10]].tolist()))
        if isinstance(op, Expect):
            share = interpreter._elements(op.span, op.mapping, known)
            for k, index in share.items():
                due = tuple(sorted(("input", *source, k) for source in op.due))
                if interpreter.element(elements, op.span.region.id, index) != due:
                    wrong[row].add((op.span.region.id, index))
        else:
            interpreter.payload(op, elements, known)
    _compare_memory(execution, interpreter, elements)
    assert _wrong_elements(execution) == wrong
    return len(execution.state.cell)


def _compare_memory(execution: Execution, interpreter: Interpreter, elements: dict) -> None:
    tables = execution.tables
    for cell in range(len(tables.cell_start)):
        region, start = int(tables.cell_region[cell]), int(tables.cell_start[cell])
        if tables.program.regions[region].constant:
            continue
        first = interpreter.element(elements, region, start)
        assert int(execution.state.cell[cell]) == fingerprint(first), f"cell {cell} of region {region} at {start}"
        for by in range(1, int(tables.cell_length[cell])):
            here = interpreter.element(elements, region, start + by)
            assert here == shifted(first, by), f"element {start + by} of region {region} is not like its cell"


def _wrong_elements(execution: Execution) -> dict[int, set[tuple[int, int]]]:
    tables, found = execution.tables, defaultdict(set)
    for row, item in execution.log.wrong[: execution.state.counts[m.C_WRONG]].tolist():
        move = tables.moves[execution.log.row[np.flatnonzero(execution.log.op[: execution.steps] == row)[0]]]
        cell = int(tables.items[tables.sources[move[2]] + item])
        for by in range(int(tables.cell_length[cell])):
            found[row].add((int(tables.cell_region[cell]), int(tables.cell_start[cell]) + by))
    return found


# ---- random moves


@st.composite
def moves(draw: st.DrawFn) -> dict:
    """Buffers of odd lengths, and copies and sums between pieces of them, by threads that take vectors or elements."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=3, max_size=5))
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=2, max_size=4, unique=True))
        length = draw(st.integers(0, min(lengths[name] for name in names)))
        pieces = [(name, draw(st.integers(0, lengths[name] - length))) for name in names]
        steps.append((pieces, length, draw(st.sampled_from([1, 2, 3, 4]))))
    return {
        "lengths": lengths,
        "steps": steps,
        "threads": draw(st.sampled_from([4, 5, 6])),
        "blocks": draw(st.integers(1, 3)),
        "waves": draw(st.sampled_from([1, 2])),
        "parity": draw(st.booleans()),
    }


def program_of(case: dict) -> Program:
    def memory(declare: Declare) -> None:
        for name, length in enumerate(case["lengths"]):
            declare.payload(f"b{name}", length, UNCACHED, **({"parity": 2} if case["parity"] else {}))
        declare.words("turn")

    def kernel(b: Block) -> None:
        def piece(name: int, at: int, length: int):
            buffer = getattr(b.mine, f"b{name}")
            slot = buffer[turn] if case["parity"] else buffer.whole
            return slot[at : at + length]

        turn = b.let((b.load(b.mine.turn, RELAXED, SYSTEM) + b.call) % 2)
        for pieces, length, vector in case["steps"]:
            (dst, *sources) = [piece(name, at, length) for name, at in pieces]
            b.reduce(sources, dst, vector)

    def scenario(h: Host) -> None:
        """Everything starts with values of its own, and everything is compared in the end."""
        regions = [getattr(h.mine, f"b{name}") for name in range(len(case["lengths"]))]
        versions = []
        for buffer in regions:
            h.fill(buffer)
            versions.append(h._version)
        for _ in range(2):
            h.launch(None, None, blocks=case["blocks"])
        h.sync()
        for buffer, version in zip(regions, versions, strict=True):
            h._emit(Expect, span=buffer.whole.span, due=h._due(version), constant=False, mapping=Mapping(0, 99, 99))

    threads = case["threads"] * case["waves"]
    made = protocol(memory=memory, blocks=8, threads=threads, scenarios={"own": scenario}, bytes=2, world=1)(kernel)
    return made.program(made.config(waves=case["waves"], blocks=case["blocks"]))


@settings(max_examples=150)
@given(moves(), st.integers(0, 9))
def test_cells_agree_with_elements(case, seed):
    check(execute(compile_tables(program_of(case)), policy=m.RANDOM, seed=seed))


@pytest.mark.slow
@settings(max_examples=5000)
@given(moves(), st.integers(0, 9))
def test_cells_agree_with_elements_thousands(case, seed):
    check(execute(compile_tables(program_of(case)), policy=m.RANDOM, seed=seed))


# ---- the protocols


@pytest.mark.parametrize(
    "changes",
    [
        {"world": 2, "bytes": (2 * 999,), "blocks": 2},
        {"world": 3, "bytes": (2 * 1001, 2 * 514), "blocks": 2, "calls": 2},
        {"world": 8, "bytes": (2,), "blocks": 1},
        {"world": 5, "bytes": (2 * 3, 2 * 2049), "blocks": 1, "calls": 2},
        {"world": 2, "bytes": (4 * 777,), "blocks": 3, "dtype": "fp32"},
        {"world": 2, "bytes": (2 * 1500,), "blocks": 2, "waves": 4},
        {"world": 2, "bytes": (2 * 1500,), "blocks": 2, "options": (("pace", 1),)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["seed_one_shot", "seed_two_shot", "repaired_two_shot"])
def test_cells_agree_with_elements_in_the_protocols(name, changes):
    found = load(name)
    execution = execute(compile_tables(found.program(found.config(**changes))), policy=m.RANDOM, seed=1)
    assert check(execution) > 0


# ---- mappings


@settings(max_examples=300)
@given(st.integers(0, 70), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
def test_the_shares_of_all_agents_are_a_partition(length, vector, threads, blocks, waves):
    """Each element is handled by one agent, in one iteration, by the thread that the kernel's loop gives it."""
    grid = blocks * waves * threads
    assume(vector <= grid)
    taken = np.zeros(length, int)
    whole = length // vector * vector
    for first in range(0, grid, threads):
        last = -1
        for iteration, lo, hi in Mapping(first, threads, grid, vector).chunks(length):
            assert iteration > last and lo < hi
            last = iteration
            taken[lo:hi] += 1
            for element in range(lo, hi):
                thread = (element // vector if element < whole else element - whole) % grid
                assert first <= thread < first + threads
    assert (taken == 1).all()
