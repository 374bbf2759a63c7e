"""The phase stamps: there when asked for, and no instruction of them otherwise."""

import numpy as np
import pytest

from lab.kernels.build import KERNELS, build
from lab.kernels.host import EVENTS, HostRanks
from lab.kernels.staging import ALGORITHMS
from lab.kernels.tests.scenario import layout, make

STAMPED = {
    "one_shot": ("begin", "pushed", "exchanged", "end"),
    "two_shot": EVENTS,
    "low_latency": ("begin", "pushed", "end"),
}


def test_a_call_stamps_its_phases_in_order():
    ranks = HostRanks(layout(2), trace=True)
    for algorithm in KERNELS:
        ranks.reset(epoch=41)
        ranks.stamps[:] = 0
        scenario = make(3, 2, 1, algorithms=[algorithm], max_blocks=2)
        _, wrong = scenario.play(ranks, seed=1)
        assert not wrong
        blocks = scenario.calls[0].blocks
        for rank in range(2):
            for block in range(blocks):
                ticks = [int(ranks.stamps[rank, block, EVENTS.index(event)]["ticks"]) for event in STAMPED[algorithm]]
                assert ticks == sorted(ticks) and ticks[0] > 0
                for event in STAMPED[algorithm]:
                    what = int(ranks.stamps[rank, block, EVENTS.index(event)]["what"])
                    expected = (42, block, ALGORITHMS.index(algorithm), EVENTS.index(event))
                    assert (what >> 32, what >> 16 & 0xFFFF, what >> 8 & 0xFF, what & 0xFF) == expected
        assert not np.any(ranks.stamps[:, blocks:]["ticks"])


def test_off_it_costs_no_instruction():
    pytest.importorskip("ziglang", reason="no AMD compiler: pip install ziglang")
    clocks = {}
    for trace in (False, True):
        made = build("gfx942", world=2, kernels=["one_shot"], output=".s", trace=trace)
        clocks[trace] = made.path.read_text().count("s_memrealtime")
    # Three reads of the clock belong to the bounded wait of each of the three element types.
    assert clocks[False] <= 9 < clocks[True]
    assert clocks[True] - clocks[False] == 3 * len(STAMPED["one_shot"])
