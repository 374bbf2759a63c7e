"""The fibers themselves: the portable stack switch, a kernel that never ends, a thread that skips a barrier."""

import shutil

from lab.kernels.build import HIP
from lab.kernels.host import HostRanks
from lab.kernels.tests.scenario import layout, make


def play(folder, cache, **options) -> tuple:
    ranks = HostRanks(layout(3), kernels=["two_shot"], source=folder, cache=cache)
    run, wrong = make(4, 3, 6, algorithms=["two_shot"]).play(ranks, seed=9, **options)
    return run, wrong, ranks


def copy_with(tmp_path, file: str, old: str, new: str):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return tmp_path / "hip"


def test_the_portable_switch_takes_the_same_steps(tmp_path, cache):
    """The schedule is the seed's, not the stack switch's."""
    portable, wrong, _ = play(copy_with(tmp_path, "host_fibers.hpp", "defined(__x86_64__)", "0"), cache)
    assert not wrong
    assert portable.steps == play(HIP, cache)[0].steps


def test_a_kernel_that_never_ends_runs_out_of_steps_and_the_next_run_is_fine(tmp_path, cache):
    run, _, ranks = play(HIP, cache, step_limit=500)
    assert run.outcome == "out of steps" and 500 < run.steps < 5000
    ranks.reset()
    assert not make(4, 3, 6, algorithms=["two_shot"]).play(ranks, seed=9)[1]


def test_a_thread_that_returns_before_a_barrier_is_told(tmp_path, cache):
    leaving = "if (thread_index() == 3) return false;\n    block_barrier_draining();"
    folder = copy_with(tmp_path, "signal.hpp", "block_barrier_draining();", leaving)
    run, _, _ = play(folder, cache)
    assert run.outcome == "diverged at a barrier"
