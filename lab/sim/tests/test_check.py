"""The seed's two defects are found, told apart and shown small; correct protocols are never accused."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from lab.protocol.library import load
from lab.protocol.tables import compile_tables
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, protocol
from lab.sim.check import check, witnesses
from lab.sim.explain.notes import story
from lab.sim.explain.report import report
from lab.sim.explore.explore import explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine
from lab.sim.machine.execution import execute
from lab.sim.order.races import find_races
from lab.sim.search.search import search

# ---- D1 and D2


def kinds(races) -> dict[tuple[str, str], object]:
    return {(race.first.phase, race.second.phase): race for race in races}


D1, D2 = ("reduce", "allgather"), ("copy out", "scatter")


@pytest.mark.parametrize("memory", ["sc", "posted"])
def test_both_defects_of_the_two_shot_are_two_findings(memory):
    found = load("seed_two_shot")
    verdict = check(found, found.config(world=2, blocks=2, calls=2), memory=memory, executions=200)
    assert verdict.verdict == "wrong"
    races = kinds(verdict.races)
    assert set(races) == {D1, D2} and len(verdict.races) == 2

    first = races[D1]  # another block reduces what this block pushes: same rank, same call
    assert (first.first.kind, first.second.kind) == ("write", "read")
    assert first.first.rank == first.second.rank and first.first.block != first.second.block
    assert first.first.call == first.second.call and first.region.startswith("output")
    assert "b.reduce(" in first.first.text or "reduce" in first.first.text

    second = races[D2]  # the next call's scatter overwrites what the slower rank still copies out
    assert (second.first.kind, second.second.kind) == ("read", "write")
    assert second.second.rank != second.first.rank and second.second.call == second.first.call + 1
    assert second.region.startswith("staging[")
    assert all(lo < hi for race in races.values() for lo, hi in race.elements)
    assert all("releases" in race.missing and "acquires" in race.missing for race in races.values())
    assert all(effect.schedule and effect.schedule in effect.said for effect in verdict.effects)
    assert verdict.witness_lines == tuple(effect.schedule for effect in verdict.effects)


def test_d1_alone_needs_one_call_and_d2_alone_one_block():
    found = load("seed_two_shot")

    def at(**changes):
        return set(kinds(find_races(compile_tables(found.program(found.config(**changes)))).races))

    assert at(world=2, blocks=2, calls=1) == {D1}
    assert at(world=2, blocks=1, calls=2) == {D2}
    assert at(world=2, blocks=1, calls=1) == set()
    assert at(world=2, blocks=2, calls=2, scenario="isolated") == {D1}, "a host barrier between calls hides D2"
    assert at(world=4, blocks=None, calls=2) == {D1, D2}


@pytest.mark.parametrize("memory", ["sc", "posted"])
def test_each_defect_is_shown_in_a_witness_that_a_person_can_follow(memory):
    found = load("seed_two_shot")
    config = found.config(world=4, blocks=4, calls=3, bytes=(16384,))
    small = {(race.first.phase, race.second.phase): (race, pair) for race, pair in witnesses(found, config, memory)}
    for key, calls, blocks in ((D1, 1, 2), (D2, 2, 1)):
        _, pair = small[key]
        assert pair is not None, f"no witness for {key}"
        assert (pair.config.calls, pair.config.blocks, pair.config.world) == (calls, blocks, 2)
        assert len(story(pair)) < 25
        assert execute(pair.execution.tables, memory, m.REPLAY, choices=pair.choices).state.counts[m.C_WRONG]


def test_the_values_name_where_they_come_from():
    found = load("seed_two_shot")
    verdict = check(found, found.config(world=2, blocks=2, calls=1), executions=200, minimise=False)
    assert any("the initial contents" in wrong.holds and "reduce from rank" in wrong.due for wrong in verdict.wrong)
    verdict = check(found, found.config(world=2, blocks=1, calls=2), executions=400, minimise=False)
    assert any("call 2 scatter" in wrong.holds and "call 1 allgather" in wrong.due for wrong in verdict.wrong)


# ---- never accused


CORRECT = [
    {"world": 1},
    {"world": 2, "calls": 4},
    {"world": 3, "calls": 3, "bytes": (2 * 1001,)},
    {"world": 4, "calls": 3, "bytes": (2048, 2 * 333, 16384)},
    {"world": 5, "calls": 2, "bytes": (2 * 7,)},
    {"world": 6, "calls": 2, "blocks": 1},
    {"world": 7, "calls": 2, "blocks": 2, "bytes": (2,)},
    {"world": 8, "calls": 2, "blocks": 2, "bytes": (16384,)},
    {"world": 2, "calls": 3, "dtype": "fp32", "bytes": (4 * 999,)},
    {"world": 2, "calls": 2, "waves": 2, "blocks": 2},
    {"world": 3, "calls": 2, "waves": 4, "blocks": 1},
    {"world": 2, "calls": 3, "options": (("pace", 1),)},
    {"world": 2, "calls": 3, "scenario": "isolated"},
    {"world": 2, "calls": 1, "scenario": "self_test", "blocks": 2, "gate": 16384},
    {"world": 2, "calls": 3, "bytes": (4096,), "gate": 65536},
]


@pytest.mark.parametrize("changes", CORRECT, ids=str)
@pytest.mark.parametrize("name", ["seed_one_shot", "repaired_two_shot"])
def test_a_correct_protocol_is_not_accused(name, changes):
    found = load(name)
    if changes.get("scenario", "back_to_back") not in found.scenarios:
        pytest.skip("the one-shot has no self-test of its own")
    config = found.config(**{"bytes": (2048,), "blocks": 4} | changes)
    tables = compile_tables(found.program(config))
    assert find_races(tables).races == ()
    for seed in range(2):
        assert find_races(tables, execute(tables, policy=m.RANDOM, seed=seed)).races == ()
    for memory in ("sc", "posted"):
        assert explore(tables, memory, executions=60).failing == 0


def test_a_verdict_of_ok_says_what_it_covers():
    found = load("repaired_two_shot")
    verdict = check(found, found.config(world=2, blocks=2, calls=2, bytes=(4096,)), executions=50)
    assert verdict.ok and verdict.schedule is None and verdict.races == () and verdict.witness == ()
    assert "not covered" in verdict.proof or "stands for every schedule" in verdict.proof


# ---- the real geometry


MEASURED = """
import json, re, sys, time
from lab.protocol.library import load
from lab.sim.check import check
found = load(sys.argv[1])
config = found.config(world=4, calls=2, bytes=(int(sys.argv[2]),))
started = time.perf_counter()
verdict = check(found, config, executions=int(sys.argv[3]), minimise=False)
# Not getrusage: that counts the process that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps([verdict.verdict, len(verdict.races), peak, time.perf_counter() - started]))
"""


def measured(name: str, nbytes: int, executions: int) -> tuple[str, int, float, float]:
    """(verdict, races, peak memory in MiB, seconds) of a check in a process of its own."""
    command = [sys.executable, "-c", MEASURED, name, str(nbytes), str(executions)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    verdict, races, peak, seconds = json.loads(done.stdout)
    return verdict, races, peak / 1024, seconds


@pytest.mark.parametrize(("name", "expected"), [("seed_two_shot", ("wrong", 2)), ("repaired_two_shot", ("ok", 0))])
def test_the_real_geometry_at_64_kib(name, expected):
    verdict, races, peak, _ = measured(name, 65536, 20)
    assert (verdict, races) == expected
    assert peak < 1024, f"{peak:.0f} MiB resident"


@pytest.mark.parametrize(("name", "expected"), [("seed_two_shot", ("wrong", 2)), ("repaired_two_shot", ("ok", 0))])
def test_the_real_geometry_at_20_mib(name, expected):
    verdict, races, peak, seconds = measured(name, 20 << 20, 4)
    assert (verdict, races) == expected
    assert peak < 1024, f"{peak:.0f} MiB resident"
    assert seconds < 120


@pytest.mark.parametrize(
    ("options", "most"),
    [(["--repair-seconds", "0"], 2), (["--repair-seconds", "4"], 8)],
    ids=["verdict", "repairs too"],
)
def test_a_second_run_of_the_command_is_quick(options, most):
    """Processor time, so that a busy machine does not count; the first run may still compile."""
    command = [
        sys.executable,
        "-m",
        "lab.cli",
        "check",
        "seed_two_shot",
        "--world",
        "2",
        "--blocks",
        "2",
        "--calls",
        "2",
        *options,
    ]
    spent = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, capture_output=True, check=False).returncode == 1
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < most, f"{min(spent):.2f} s of processor time"


# ---- waits that give up


def retried(m: Declare) -> None:
    m.payload("inbox", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flag", m.world)
    m.words("late")


@protocol(memory=retried, world=2, blocks=1, bytes=512, calls=3, options={"then": "wait again"})
def gives_up_and(b: Block) -> None:
    """A bounded wait that counts how often it was late, and then waits again, reads at once, or returns."""
    p, then = b.call % 2, b.options["then"]
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[p, b.rank])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        flag = b.mine.flag[j]

        def late() -> None:
            b.leader.add(b.mine.late, 1, RELAXED, DEVICE)

        if then == "return":
            b.leader.wait(flag, ">=", b.call, ACQUIRE, SYSTEM, 100, late)
            continue
        with b.leader.rescue(late) as gave_up:
            b.leader.wait(flag, ">=", b.call, ACQUIRE, SYSTEM, 100, gave_up)
        if then == "wait again":
            b.leader.wait(flag, ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[p, j] for j in range(b.world)], b.output)


@pytest.mark.parametrize("memory", ["sc", "posted", "weak"])
@pytest.mark.parametrize(("then", "verdict"), [("wait again", "ok"), ("read", "wrong"), ("return", "abort")])
def test_a_wait_that_gives_up_aborts_only_where_the_agent_returns(then, verdict, memory):
    """What a wait that goes on spoils are values; giving up is no fault by itself."""
    config = gives_up_and.config(options=(("then", then),))
    found = check(
        gives_up_and, config, memory=memory, early_timeout=0.05, executions=200, minimise=False, repair_seconds=0
    )
    assert found.verdict == verdict and bool(found.failing) == (verdict != "ok")
    tables = compile_tables(gives_up_and.program(config))
    searched = search(tables, memory, early_timeouts=True, limit_states=100_000, deadline=20)
    assert searched.abort == (verdict == "abort") and (verdict != "ok" or not searched.failed)
    engine = Engine(tables, memory)
    totals = engine.batch("random", 0, 50, int(0.05 * 2**32))
    assert bool(totals[m.T_ABORTS]) == (verdict == "abort")


def test_no_executions_are_counted_where_none_were_explored():
    found = check(load("seed_two_shot"), executions=20, repair_seconds=0, minimise=False)
    assert f"wrong results in {found.failing} of {found.executions} executions; shown: the first" in report(found)
    (outcome,) = found.outcomes
    none = report(replace(found, failing=0, executions=0, outcomes=(replace(outcome, executions=0, share=None),)))
    assert "wrong results; shown: " in none and "0 of 0" not in none
    other = report(replace(found, failing=0, executions=7, outcomes=(replace(outcome, executions=0, share=0.0),)))
    assert "wrong results, in none of the 7 explored executions but in " in other
