# ruff: noqa: E501 - a fault is one line, old text beside new
"""Faults planted in the kernels' own source: the host finds each of them, and says which it cannot see."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.kernels.build import ALL_REDUCE, HIP, KERNELS
from lab.kernels.host import HostRanks
from lab.kernels.tests.scenario import PARTED, Scenario, chain, layout, make, make_parts, mixed

SEEDS = 40
WORLD = 3


@dataclass(frozen=True)
class Fault:
    """`old` in `file` becomes `new`. `weak`: seen only when payload stores may be delayed; `early`: when launches
    may start beside their predecessor's end."""

    name: str
    file: str
    old: str
    new: str
    algorithms: tuple[str, ...]
    weak: bool = False
    early: bool = False


FLAGGED = ("one_shot", "two_shot", "reduce_scatter", "all_gather")
REDUCING = (*ALL_REDUCE, "reduce_scatter")
FAULTS = (
    Fault("no barrier before the flag", "signal.hpp", "block_barrier_draining();", "", FLAGGED),
    Fault("waves not drained before the flag", "signal.hpp", "block_barrier_draining();", "block_barrier();", FLAGGED, True),
    Fault("no barrier after the wait", "signal.hpp", "    block_barrier();\n    if (A != Reads::nothing) acquire_behind", "    if (A != Reads::nothing) acquire_behind", FLAGGED),
    Fault("flag of the call before will do", "signal.hpp", ">= turn.epoch;", ">= turn.epoch - 1;", FLAGGED),
    Fault("all blocks share block 0's flags", "signal.hpp", "row, block_index(),", "row, 0,", FLAGGED),
    Fault("flag before payload", "one_shot.hip", "    // 1. My vectors", "    exchange_release_acquire(call, turn, Algorithm::one_shot, Phase::scatter);\n    // 1.", ("one_shot",)),
    Fault("one parity", "signal.hpp", "u32(epoch & 1)", "0u", FLAGGED),
    Fault("epoch advanced for this grid only", "signal.hpp", "word < max_blocks", "word < call.blocks", ("one_shot",)),
    Fault("gather slots in the scatter region", "staging.hpp", "call.gather_offset +", "call.scatter_offset +", ("two_shot",)),
    Fault("gather flags in the scatter row", "signal.hpp", "phase == Phase::gather || phase == Phase::leave ? 1 : 0", "0", ("two_shot",)),
    Fault("reduce with another mapping than the push", "parts.hpp", "done(call, shape, i, sum", "if (share.stride < share.vectors) done(call, shape, i + share.stride < share.vectors ? i + share.stride : i % share.stride, sum", ("two_shot", "reduce_scatter")),
    Fault("packets not given back", "packets.hpp", "if (n < expected.count) store_bypass(", "if (false) store_bypass(", ("low_latency",)),
    Fault("sentinel in the data not replaced", "packets.hpp", "== sentinel ? other_nan :", "== sentinel ? sentinel :", ("low_latency",)),
    Fault("epoch word written before all have read it", "low_latency.hip", "    block_barrier(); // every", "    // every", ("low_latency",)),
    Fault("only one word of a packet checked", "packets.hpp", "v.word[0] != sentinel && v.word[1] != sentinel && v.word[2] != sentinel && v.word[3] != sentinel", "v.word[0] != sentinel", ("low_latency",), True),
    Fault("sum starts at the own rank", "reduce.hpp", "T::widen(element<T>(terms[s], i))", "T::widen(element<T>(terms[(s + call.rank) % world_size], i))", REDUCING),
    Fault("tail written beyond the end", "elements.hpp", "    else if (first < span.end)\n        store_elements<T>(where, u32(span.end - first), v);", "    else\n        store_elements<T>(where, per_vector<T>, v);", KERNELS),
    Fault("tail loaded from the vector before", "elements.hpp", "u32(first - last));", "0u);", KERNELS),
    Fault("a short tensor read from its start", "elements.hpp", "load_short<T>(elements, first, span.total)", "load_short<T>(elements, 0, span.total)", ("reduce_scatter",)),
    Fault("a ragged message taken for whole", "one_shot.hip", "aligned(call) && call.count % per_vector<T> == 0", "aligned(call)", ("one_shot",)),
    Fault("the next vector's loads taken for this one's", "elements.hpp", "use(at + share.thread, held);\n        held = next;", "use(at + share.thread, next);\n        held = next;", FLAGGED),
    Fault("a part pushed to the wrong peer", "parts.hpp", "parts.of(peer_after(call, k)), i);\n            return v;", "parts.of(peer_after(call, 1)), i);\n            return v;", ("two_shot", "reduce_scatter")),
    Fault("gather slots in another order than the parts", "parts.hpp", "slots_in_peer_order(", "slots_in_rank_order(", ("two_shot", "all_gather")),
    Fault("rounded to nearest, ties away", "rounding.hpp", "(magnitude + (half - 1) + (kept & 1)) >> drop", "(magnitude + half) >> drop", REDUCING),
    Fault("number read before the predecessor has ended", "signal.hpp", "    start_after_predecessor();\n    if (call.lets_at_once) let_successor_start();\n    const u64 epoch = load_of_predecessor(&call.control->epoch[block_index()]) + 1;", "    const u64 epoch = load_of_predecessor(&call.control->epoch[block_index()]) + 1;\n    start_after_predecessor();\n    if (call.lets_at_once) let_successor_start();", KERNELS, early=True),
    Fault("number advanced before all have read it", "signal.hpp", "    return Turn{epoch, u32(epoch & 1)", "    for (u32 w = block_index(); w < max_blocks; w += call.blocks) call.control->epoch[w] = epoch;\n    return Turn{epoch, u32(epoch & 1)", KERNELS),
)  # fmt: skip


def plant(fault: Fault, folder: Path, cache: Path) -> HostRanks:
    shutil.copytree(HIP, folder / "hip")
    path = folder / "hip" / fault.file
    text = path.read_text()
    assert text.count(fault.old) >= 1, f"{fault.file} has no {fault.old!r} any more"
    path.write_text(text.replace(fault.old, fault.new))
    return HostRanks(layout(WORLD), kernels=fault.algorithms, source=folder / "hip", cache=cache)


def scenario_of(seed: int, algorithms: Sequence[str]) -> Scenario:
    """Of any of the kernels that are named."""
    reduces, parts = ([name for name in algorithms if (name in PARTED) == parted] for parted in (False, True))
    calls = 8 if reduces and parts else 12
    every = [make(seed, WORLD, calls, algorithms=reduces)] if reduces else []
    every += [make_parts(seed, WORLD, calls, algorithms=parts)] if parts else []
    return mixed(*every) if len(every) == 2 else every[0]


def found_in(ranks: HostRanks, algorithms, weak: bool, early: bool = False) -> int | None:
    """The first seed that shows something wrong. Ragged messages, several blocks, sizes and grids that change."""
    for seed in range(SEEDS):
        ranks.reset()
        scenario = scenario_of(seed, algorithms)
        if scenario.play(ranks, seed, weak=weak, early=early, step_limit=3_000_000)[1]:
            return seed
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found(fault, tmp_path, cache):
    ranks = plant(fault, tmp_path, cache)
    assert found_in(ranks, fault.algorithms, weak=True, early=fault.early) is not None
    if fault.weak:
        assert found_in(ranks, fault.algorithms, weak=False) is None, "a host in program order cannot see this one"
    if fault.early:
        assert found_in(ranks, fault.algorithms, weak=True) is None, "launches that wait do not come here"


def test_a_launch_that_does_not_wait_for_its_predecessor_is_found(tmp_path, cache):
    waiting = "while (!running->group->launch->oldest) pause();"
    fault = Fault("does not wait", "host_fibers.hpp", waiting, "", KERNELS, early=True)
    ranks = plant(fault, tmp_path, cache)
    runs = (chain(WORLD, seed).play(ranks, seed, early=True, step_limit=3_000_000) for seed in range(SEEDS))
    assert any(wrong for _, wrong in runs)


def test_the_kernels_as_they_are_pass_the_same_runs():
    ranks = HostRanks(layout(WORLD))
    for algorithms in (FLAGGED, KERNELS, *[(name,) for name in KERNELS]):
        for early in (False, True):
            assert found_in(ranks, algorithms, weak=True, early=early) is None


NOT_SEEN_HERE = (
    # The host has no caches: what these do is checked in the machine code (test_isa.py) and on GPUs.
    Fault("no acquire", "signal.hpp", "    acquire_polled_system();", "", FLAGGED),
    # Waves are drained before the barrier, so the fence's own part, the cache write-back, has no counterpart here.
    Fault("flag stored relaxed", "signal.hpp", "store_drained_system(theirs", "store_relaxed_system(theirs", FLAGGED),
)  # fmt: skip


@pytest.mark.parametrize("fault", NOT_SEEN_HERE, ids=lambda fault: fault.name)
def test_what_the_host_cannot_see(fault, tmp_path, cache):
    """Kept so that the claim stays true: when the host learns to see one of these, move it up."""
    assert found_in(plant(fault, tmp_path, cache), fault.algorithms, weak=True) is None
