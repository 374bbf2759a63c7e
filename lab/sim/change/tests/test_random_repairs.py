"""Every repair of a random defective protocol, applied to its text and checked anew by a separate run, is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.protocol.library import load
from lab.sim.change.tests.protocols import written
from lab.sim.change.tests.random_protocols import SHAPES, Draw, sample
from lab.sim.change.text.patch import apply
from lab.sim.check import check
from lab.sim.explain.report import report
from lab.sim.order.verdict import Repair, Verdict

SECONDS = 6.0  # to look for repairs of one protocol
MANY = 2_000


def checked(reference: str, seed: int, **changes) -> Verdict | None:
    """A separate check; None: the protocol refuses the configuration."""
    found = load(reference)
    try:
        config = found.config(**changes)
        return check(found, config, executions=60, seed=seed, minimise=False)
    except LabError:
        return None


def others(reference: str) -> list[dict]:
    """The configuration itself, other sizes, more calls and one rank more."""
    given = load(reference).defaults
    size, calls = max(given.bytes), given.calls
    return [
        {},
        {"bytes": (size * 3 // 2, size // 2, size), "calls": calls + 4},
        {"calls": calls + 6},
        {"world": given.world + 1, "bytes": (size * (given.world + 1),), "calls": calls + 2},
    ]


def wrongly_repaired(folder: Path, seed: int) -> tuple[str, list[str], int]:
    """(verdict, what is wrong with its repairs, how many repairs) of the protocol of a seed."""
    made = sample(seed)
    folder.mkdir(parents=True, exist_ok=True)
    found = load(written(folder, made.text, made.name))
    verdict = check(found, executions=100, seed=seed, minimise=False, repair_seconds=SECONDS)
    wrong = []
    for repair in verdict.repairs:
        reference = written(folder, made.text, made.name)
        apply(moved(repair, reference.partition(":")[0]))
        for changes in others(reference):
            again = checked(reference, seed + 77, **changes)
            if again is not None and not again.ok and made_for(folder, made, changes):
                wrong.append(f"seed {seed}, {made.planted}, {changes}:\n{repair.what}\n{repair.diff}\n{report(again)}")
    return verdict.verdict, wrong, len(verdict.repairs)


def moved(repair: Repair, path: str) -> Repair:
    """The repair of the same text in another file."""
    texts = tuple((path, judged) for _, judged in repair.texts)
    return replace(repair, hunks=tuple(replace(hunk, file=path) for hunk in repair.hunks), texts=texts)


def made_for(folder: Path, made, changes: dict) -> bool:
    """Whether the protocol as it was can be recorded at a configuration."""
    try:
        found = load(written(folder, made.text, made.name))
        found.program(found.config(**changes))
    except LabError:
        return False
    return True


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("seed", range(4))
def test_a_shape_without_fault_is_right(tmp_path, shape, seed):
    """Or what is planted would not be what is repaired."""
    text = "from lab.protocol.write import *\n" + SHAPES[shape](Draw(seed, frozenset()))
    reference = written(tmp_path, text, "own")
    for changes in others(reference):
        verdict = checked(reference, 1, **changes)
        assert verdict is None or verdict.ok, f"{shape} {changes}\n{text}\n{report(verdict)}"


@pytest.mark.parametrize("seed", range(30))
def test_every_repair_of_a_random_protocol_is_right_when_it_is_checked_anew(tmp_path, seed):
    _, wrong, _ = wrongly_repaired(tmp_path, seed)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_every_repair_of_many_random_protocols_is_right(tmp_path, part):
    found = [wrongly_repaired(tmp_path / str(seed), seed) for seed in range(1000 + part, 1000 + MANY, 20)]
    wrong = [each for _, several, _ in found for each in several]
    assert not wrong, "\n\n".join(wrong)
    assert sum(bool(repairs) for _, _, repairs in found) > len(found) // 4
