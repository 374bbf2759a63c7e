"""Every executor finds the same, whoever does what; it stops when told to, and survives workers that die."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest

from lab.cli import catalogue
from lab.errors import LabError, UnknownNameError
from lab.protocol.library import load
from lab.protocol.published import entry
from lab.protocol.tables import compile_tables
from lab.sim.change.mutate import judge_all
from lab.sim.check import check
from lab.sim.explore import executor as executors
from lab.sim.explore.executor import Crew, Dask, Done, InProcess, Processes, Threads, executor
from lab.sim.explore.explore import Exploration, explore
from lab.sim.machine import interleaved as m
from lab.sim.machine.engines import Engine

# ---- tasks of these tests; module level, so that processes can import them


@dataclass(frozen=True)
class Squares:
    """Squares with a ballast that must not travel with each item."""

    ballast: bytes = b""

    def start(self) -> Callable[[int], tuple[int, int]]:
        return lambda item: (item * item, len(self.ballast))


@dataclass(frozen=True)
class Deadly:
    """Ends the process of a worker at one item; the first time only if a `flag` file can be made."""

    item: int
    flag: str | None = None

    def start(self) -> Callable[[int], int]:
        def work(item: int) -> int:
            if item == self.item and self._first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            return item

        return work

    def _first_time(self) -> bool:
        if self.flag is None:
            return True
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class Failing:
    """Raises at one item an error that takes other arguments than an Exception remembers."""

    def start(self) -> Callable[[int], int]:
        def work(item: int) -> int:
            if item == 3:
                raise UnknownNameError("item", "3", ["4"])
            time.sleep(0.01)
            return item

        return work


@pytest.fixture(scope="module")
def cluster():
    with Dask(workers=2, processes=False) as found:
        yield found


MAKE = {
    "in process": lambda cluster: InProcess(),
    "threads": lambda cluster: Threads(3),
    "processes": lambda cluster: Processes(2),
    "dask": lambda cluster: cluster,
}


@pytest.fixture(params=MAKE)
def any_executor(request, cluster):
    return MAKE[request.param](cluster)


def test_each_item_is_done_once(any_executor):
    done = list(any_executor.unordered(Squares(b"x" * 1000), range(50)))
    assert sorted((d.item, d.result, d.lost) for d in done) == [(k, (k * k, 1000), None) for k in range(50)]
    assert list(any_executor.unordered(Squares(), [])) == []


def test_an_error_of_an_item_is_raised(any_executor):
    with pytest.raises(UnknownNameError, match="unknown item: '3'"):
        list(any_executor.unordered(Failing(), range(100)))


def test_items_are_drawn_when_they_are_needed_and_not_after_the_end(any_executor):
    drawn = []

    def items():
        for k in range(1000):
            drawn.append(k)
            yield k

    with closing(any_executor.unordered(Squares(), items())) as results:
        for _ in range(5):
            next(results)
    assert len(drawn) <= 5 + 2 * any_executor.workers + 1


def test_a_crew_takes_its_task_along_and_nothing_else():
    import pickle

    crew = Crew(Squares(b"yes"))
    assert crew(3) == (9, 3) and len(crew._idle) == 1
    again = pickle.loads(pickle.dumps(crew))
    assert again.task == crew.task and again._idle == []


# ---- exploration


def seed_two_shot(**changes):
    found = load("seed_two_shot")
    return compile_tables(
        found.program(found.config(**{"world": 2, "blocks": 2, "calls": 2, "bytes": (4096,)} | changes))
    )


def counts(found: Exploration) -> tuple[object, ...]:
    name, seed, choices = found.failure
    return (found.executions, found.wrong, found.hangs, found.aborts, found.ops, name, seed, choices.tolist())


@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_what_is_found_does_not_depend_on_who_explores(memory, cluster):
    tables = seed_two_shot()
    for start in (0, 1000):
        found = [
            explore(tables, memory, ("random", "pct"), 301, start, executor=one)
            for one in (None, Threads(1), Threads(2), Threads(5), cluster)
        ]
        assert found[0].executions == 301 and found[0].by_scheduler == {"random": 151, "pct": 150}
        assert [counts(one) for one in found[1:]] == [counts(found[0])] * 4


@pytest.mark.parametrize("scheduler", ["random", "pct"])
@pytest.mark.parametrize("memory", m.MEMORY_MODELS)
def test_an_execution_depends_on_its_seed_alone(memory, scheduler):
    """Else counts would depend on where ranges of seeds are cut, and the schedule that is shown would be another."""
    engine = Engine(seed_two_shot(), memory)
    for first in (0, 64):
        whole = engine.batch(scheduler, first, 60)
        parts = [engine.batch(scheduler, k, 1) for k in range(first, first + 60)]
        assert np.array_equal(whole[: m.T_FIRST], np.sum(parts, axis=0)[: m.T_FIRST])
        failing = [int(part[m.T_FIRST]) for part in parts if part[m.T_FIRST] >= 0]
        assert failing and whole[m.T_FIRST] == failing[0]
        engine.follow(engine.choices(scheduler, failing[0]), m.REPLAY)
        assert engine.wrong


def test_the_first_failure_is_the_lowest_seed_and_then_the_scheduler_named_first():
    tables = seed_two_shot()
    alone = {name: explore(tables, "sc", (name,), 200).failure for name in ("random", "pct")}
    least = min(seed for _, seed, _ in alone.values())
    for order in (("random", "pct"), ("pct", "random")):
        name, seed, _ = explore(tables, "sc", order, 400, executor=Threads(2)).failure
        assert seed == least and name == next(name for name in order if alone[name][1] == least)


def test_a_verdict_is_the_same_whoever_explores(cluster):
    found = load("seed_two_shot")
    config = found.config(world=2, blocks=2, calls=2, bytes=(4096,))
    verdicts = [
        check(found, config, executions=200, minimise=False, executor=one) for one in (None, Threads(2), cluster)
    ]
    assert verdicts[0].failing and verdicts[0] == verdicts[1] == verdicts[2]


@pytest.mark.parametrize("name", ["threads", "dask"])
def test_a_deadline_stops_all_workers_and_keeps_what_was_found(name, cluster):
    tables = seed_two_shot()
    explore(tables, executions=4)
    started = time.perf_counter()
    found = explore(tables, executions=10**9, deadline=0.5, executor=MAKE[name](cluster))
    assert time.perf_counter() - started < 5
    assert found.stopped == "deadline of 0.5 s" and found.wrong and found.failure is not None


INTERRUPTED = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born with it ignored
from lab.sim.explore.executor import Dask, Threads
from lab.sim.explore.explore import explore
from lab.sim.explore.tests.test_executor import seed_two_shot
made = {"threads": lambda: Threads(2), "dask": lambda: Dask(workers=1, processes=False)}
first = threading.Event()
def progress(found):
    if found.wrong and not first.is_set():
        first.set()
        print("exploring", flush=True)
if __name__ == "__main__":
    with made[sys.argv[1]]() as executor:
        found = explore(seed_two_shot(), executions=10**9, progress=progress, executor=executor)
    print(found.stopped, found.wrong > 0, found.failure is not None, flush=True)
"""


@pytest.mark.parametrize("name", ["threads", "dask"])
def test_ctrl_c_stops_all_workers_and_keeps_what_was_found(name):
    command = [sys.executable, "-c", INTERRUPTED, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "exploring\n"
            running.send_signal(signal.SIGINT)
            started = time.perf_counter()
            said, _ = running.communicate(timeout=30)
        finally:
            running.kill()
    assert said == "Ctrl-C True True\n" and running.returncode == 0
    assert time.perf_counter() - started < 10


# ---- workers that die


def test_an_item_whose_process_dies_once_is_done_again(tmp_path):
    done = list(Processes(2).unordered(Deadly(5, str(tmp_path / "died")), range(12)))
    assert sorted(d.item for d in done) == list(range(12)) and all(d.lost is None for d in done)
    assert (tmp_path / "died").exists()


def test_only_the_item_that_kills_its_process_is_lost():
    done = list(Processes(2).unordered(Deadly(5), range(12)))
    assert sorted(d.item for d in done) == list(range(12))
    assert [(d.item, "died" in d.lost) for d in done if d.lost] == [(5, True)]


class Loses:
    """An executor whose worker dies on the second range of seeds."""

    workers = 1

    def unordered(self, task, items):
        for number, done in enumerate(InProcess().unordered(task, items)):
            yield Done(done.item, None, "it died") if number == 1 else done

    def close(self):
        pass


def test_lost_executions_are_said_and_not_counted():
    found = load("repaired_two_shot")
    config = found.config(world=2, blocks=2, calls=2, bytes=(4096,))
    explored = explore(compile_tables(found.program(config)), executions=400, executor=Loses())
    assert 0 < explored.executions < 400 and len(explored.lost) == 1
    verdict = check(found, config, executions=400, executor=Loses())
    assert 0 < verdict.executions < 400
    assert "lost: pct seeds 0 to" in verdict.proof and "it died" in verdict.proof


# ---- tasks of the lab that are mostly Python


def told(outcome):
    mutant = outcome.mutant
    return (mutant.what, mutant.line, mutant.program.fingerprint(), outcome.state, outcome.verdict, outcome.proof)


def test_mutants_are_judged_alike_in_processes():
    program = load("seed_one_shot").program(world=2, blocks=1, calls=2)
    alone, shared = judge_all(program), judge_all(program, executor=Processes(2))
    assert not shared.interrupted and len(alone.outcomes) == alone.of > 5
    assert [told(o) for o in shared.outcomes] == [told(o) for o in alone.outcomes]


def test_the_catalogue_is_judged_alike_in_processes_and_in_its_own_order():
    chosen = [entry(id) for id in ("vllm#8558", "tokenspeed#1017", "aiter#3514")]
    alone, _ = catalogue.judge_all(chosen, ["sc"], 50, 0, InProcess())
    shared, stopped = catalogue.judge_all(chosen, ["sc"], 50, 0, Processes(2))
    assert not stopped and shared == alone and [row["report"] for row in shared] == [one.id for one in chosen]


class Interrupts:
    """An executor that Ctrl-C stops after two items."""

    workers = 1

    def unordered(self, task, items):
        for number, done in enumerate(InProcess().unordered(task, items)):
            if number == 2:
                raise KeyboardInterrupt
            yield done

    def close(self):
        pass


def test_ctrl_c_keeps_the_rows_and_the_mutants_that_were_judged():
    chosen = [entry(id) for id in ("vllm#8558", "tokenspeed#1017", "aiter#3514")]
    rows, stopped = catalogue.judge_all(chosen, ["sc"], 20, 0, Interrupts())
    assert stopped and [row["report"] for row in rows] == [one.id for one in chosen[:2]]
    judged = judge_all(load("seed_one_shot").program(world=2, blocks=1, calls=2), executor=Interrupts())
    assert judged.interrupted and len(judged.outcomes) == 2 < judged.of


def test_what_cannot_be_judged_is_said():
    class AllLost(Interrupts):
        def unordered(self, task, items):
            yield from (Done(item, None, "it died") for item in items)

    with pytest.raises(LabError, match="not judged"):
        catalogue.judge_all([entry("vllm#8558")], ["sc"], 20, 0, AllLost())
    with pytest.raises(LabError, match="not judged"):
        judge_all(load("seed_one_shot").program(world=2, blocks=1, calls=2), executor=AllLost())


@pytest.mark.slow
def test_a_dask_cluster_of_processes():
    """Equal counts; a worker process that dies once, and one that dies each time."""
    tables = seed_two_shot()
    alone = explore(tables, executions=300)
    with Dask(workers=2) as cluster:
        assert counts(explore(tables, executions=300, executor=cluster)) == counts(alone)
        done = list(cluster.unordered(Deadly(5), range(40)))
        assert sorted(d.item for d in done) == list(range(40))
        assert [d.item for d in done if d.lost] == [5]
        assert counts(explore(tables, executions=300, executor=cluster)) == counts(alone)


# ---- what cannot be met


def test_requests_that_cannot_be_met_are_refused(monkeypatch):
    with pytest.raises(UnknownNameError, match="engine"):
        executor("dusk")
    with pytest.raises(LabError, match="address"):
        executor("local", 2, "tcp://127.0.0.1:1")
    monkeypatch.setattr(executors, "_CONNECT_SECONDS", 1)
    with pytest.raises(LabError, match="cannot be reached"):
        executor("dask", 2, "tcp://127.0.0.1:1")


def test_dask_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(LabError, match="pip install"):
        executor("dask")


def digest_of_this_process() -> str:
    return str(os.getpid())


def test_workers_with_other_sources_or_none_are_refused(monkeypatch, tmp_path):
    (tmp_path / "only_here.py").write_text("def digest():\n    return 'mine'\n")
    with Dask(workers=1) as cluster:
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(executors, "digest", importlib.import_module("only_here").digest)
        with pytest.raises(LabError, match="do not have this lab"):
            cluster._same_code()
    monkeypatch.setattr(executors, "digest", digest_of_this_process)
    with pytest.raises(LabError, match="another version"):
        Dask(workers=1)
