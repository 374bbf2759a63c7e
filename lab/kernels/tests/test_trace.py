"""The phase stamps: a trace when asked for, and no instruction of them otherwise."""

import numpy as np
import pytest

from lab.compare import align, compare
from lab.errors import LabError
from lab.kernels.build import FUSED, KERNELS, PULL, build
from lab.kernels.host import HostRanks
from lab.kernels.norm_reference import Points
from lab.kernels.stamps import EVENTS, MEETINGS, PHASES, STAMP, trace_of
from lab.kernels.tests.scenario import PARTED, layout, make, make_parts
from lab.kernels.tests.test_add_rmsnorm import fused
from lab.kernels.tests.test_pull import WRITER, model


@pytest.fixture(scope="module")
def ranks():
    return HostRanks(layout(2), trace=True)


def played(ranks, algorithm, calls=3, max_blocks=2):
    ranks.reset(epoch=41)
    made = make_parts if algorithm in PARTED else make
    scenario = made(3, 2, calls, algorithms=[algorithm], max_blocks=max_blocks)
    _, wrong = scenario.play(ranks, seed=1)
    assert not wrong
    return scenario, ranks.trace()


@pytest.mark.parametrize("algorithm", KERNELS)
def test_every_block_of_every_call_has_the_phases_of_its_kernel(ranks, algorithm):
    scenario, trace = played(ranks, algorithm)
    assert trace.phases == tuple(phase for _, phase in PHASES[algorithm])
    assert (trace.source, trace.machine) == ("recorded", "CPU host")
    for rank in range(2):
        for nth, call in enumerate(scenario.calls):
            here = trace.spans[(trace.spans["rank"] == rank) & (trace.spans["call"] == 42 + nth)]
            assert sorted(set(here["block"])) == list(range(call.blocks))
            for block in range(call.blocks):
                own = here[here["block"] == block]
                assert own["phase"].tolist() == list(range(len(trace.phases)))
                assert np.array_equal(own["begin"][1:], own["end"][:-1]) and own["begin"][0] >= 0


@pytest.mark.parametrize("algorithm", KERNELS)
def test_the_meetings_hold_and_bound_the_clocks(ranks, algorithm):
    _, trace = played(ranks, algorithm, calls=20, max_blocks=1)  # a block of low_latency without a vector meets nobody
    found = align(trace.shifted({1: 1e6}), MEETINGS[algorithm])
    assert abs(found.offsets[1] + 1e6) <= found.uncertainty[1]
    assert compare(trace, found.trace).table.loc[PHASES[algorithm][0][1], "ratio"] == pytest.approx(1)


@pytest.mark.parametrize("algorithm", [*PULL, *FUSED])
def test_so_have_the_kernels_that_need_more_than_an_input(algorithm):
    ranks = HostRanks(layout(2), kernels=[algorithm, WRITER], trace=True)
    if algorithm in PULL:
        calls = [made for made in model(1, 2, 2, [algorithm]).launches if made.algorithm == algorithm]
    else:
        shapes = {"tokens": 8, "hidden": 64, "points": Points(), "threads": 32}
        calls = [fused(np.random.default_rng(0), 2, algorithm, **shapes).call for _ in range(3)]
    assert ranks.run(calls, seed=1).outcome == "finished"
    trace = ranks.trace()
    assert trace.phases == tuple(phase for _, phase in PHASES[algorithm])
    assert align(trace.shifted({1: 1e6}), MEETINGS[algorithm]).offsets[1] == pytest.approx(-1e6, abs=1e5)


def test_stamps_that_do_not_belong_together_are_refused(ranks):
    played(ranks, "two_shot")
    for damage, message in (
        (("what", 0, np.uint64(1) << np.uint64(40)), "belong together"),
        (("ticks", 2, np.uint64(0)), "has no stamp 'exchanged'"),
    ):
        stamps = ranks.stamps.copy()
        field, event, change = damage
        stamps[1, 1, 0][field][event] = change if field == "ticks" else stamps[1, 1, 0][field][event] ^ change
        with pytest.raises(LabError, match=message):
            trace_of(stamps, 1e9, machine="CPU host")
    with pytest.raises(LabError, match="another shape"):
        trace_of(np.zeros((2, 3, len(EVENTS)), STAMP), 1e9, machine="CPU host")


def test_clocks_that_count_since_1970_lose_no_nanosecond(ranks):
    _, trace = played(ranks, "two_shot")
    late = ranks.stamps.copy()
    late["ticks"][late["ticks"] != 0] += np.uint64(1_796_000_000 * 10**9)
    assert np.array_equal(trace_of(late, 1e9, machine="CPU host").spans, trace.spans)
    assert trace.spans["begin"].min() == 0


def test_kernels_without_stamps_say_so():
    with pytest.raises(LabError, match="leave no stamps"):
        HostRanks(layout(2)).trace()


def test_off_it_costs_no_instruction():
    pytest.importorskip("ziglang", reason="no AMD compiler: pip install ziglang")
    clocks = {}
    for trace in (False, True):
        made = build("gfx942", world=2, kernels=["one_shot"], output=".s", trace=trace)
        clocks[trace] = made.path.read_text().count("s_memrealtime")
    # Three reads of the clock belong to the bounded wait of each of the three element types.
    assert clocks[False] <= 9 < clocks[True]
    assert clocks[True] - clocks[False] == 3 * (1 + len(PHASES["one_shot"]))
