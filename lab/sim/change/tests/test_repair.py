"""Repairs: each is a change of the text, judged as printed, and right when checked anew; what is none is not one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.protocol.library import load
from lab.protocol.published import ENTRIES, Entry
from lab.protocol.write import ACQUIRE, DEVICE, RELEASE, SYSTEM, UNCACHED, Block, Config, Declare, Protocol, protocol
from lab.sim.change import repair as trying
from lab.sim.change.edit import own_lines
from lab.sim.change.judge import Basis
from lab.sim.change.repairs.candidate import Cost
from lab.sim.change.tests.protocols import (
    BLOCKS,
    CREDITS,
    PUSH,
    SCRATCH,
    STREAMS,
    TILES,
    TWO_KERNELS,
    TWO_MEETINGS,
    UNORDERED,
    WIPE,
    pull,
    written,
)
from lab.sim.change.text.patch import apply
from lab.sim.check import check
from lab.sim.explain.report import report
from lab.sim.order.verdict import Repair, Verdict

SECONDS = 600.0  # far more than any of these takes, with all compilation


def repaired(found: Protocol, config: Config | None = None, **changes) -> Verdict:
    """The verdict on a defect, with its repairs."""
    verdict = check(found, config, executions=200, repair_seconds=SECONDS, minimise=False, **changes)
    assert not verdict.ok and "not all" not in verdict.repairs_tried
    return verdict


def anew(folder: Path, text: str, name: str, repair: Repair, **changes) -> Verdict:
    """The verdict of a separate check of a text to which a repair was applied."""
    reference = written(folder, text, name)
    path = reference.partition(":")[0]
    texts = tuple((path, judged) for _, judged in repair.texts)
    apply(replace(repair, hunks=tuple(replace(hunk, file=path) for hunk in repair.hunks), texts=texts))
    found = load(reference)
    return check(found, found.config(**changes), executions=200, seed=99)


def every_repair_holds(folder: Path, text: str, name: str, config: dict, *others: dict) -> tuple[Repair, ...]:
    """The repairs of a text, each applied to it and checked anew at its configuration and others."""
    found = load(written(folder, text, name))
    repairs = repaired(found, found.config(**config)).repairs
    for repair in repairs:
        for changes in ({}, *others):
            verdict = anew(folder, text, name, repair, **{**config, **changes})
            assert verdict.ok, f"{repair.what} at {changes}\n{repair.diff}\n{report(verdict)}"
    return repairs


# ---- the kinds of text about which repairs were once wrong

MORE = ({"calls": 9}, {"world": 3, "calls": 5})
KINDS = {
    "two meetings a call": (TWO_MEETINGS, "both", {}, ("a value of flag that only grows",)),
    "a call of two kernels": (TWO_KERNELS, "put", {}, ("a value of ready that only grows", "a word `done`")),
    "no order at all": (
        UNORDERED.replace("{compared}", "for x, out in calls: h.expect(out, x)"),
        "gather",
        {},
        ("a meeting of all ranks",),
    ),
    "a stream that does not wait": (STREAMS, "overlap", {}, ("stream 1 waits for stream 0",)),
    "a phase behind its meeting": (WIPE, "late_wipe", {}, ("moved before", "a meeting of all ranks")),
    "tiles put ahead": (TILES, "ahead", {}, ("a word `done`", "moved after")),
    "a credit too early": (
        CREDITS.format(tiles=1),
        "stream",
        {"options": {"slots": 1, "slack": 1}},
        ("for one more",),
    ),
    "more tiles than slots": (CREDITS.format(tiles=3), "stream", {}, ("one more buffer of fifo: slot=3",)),
    "grids of several sizes": (BLOCKS, "grids", {"bytes": (2048, 1024)}, ("of every block of every peer",)),
}


@pytest.mark.parametrize(("text", "name", "config", "wanted"), KINDS.values(), ids=KINDS)
def test_every_repair_of_a_kind_is_right_as_it_is_printed(tmp_path, text, name, config, wanted):
    others = MORE[:1] if "two ranks" in text else MORE
    repairs = every_repair_holds(tmp_path, text, name, config, *others)
    for what in wanted:
        assert any(what in repair.what for repair in repairs), [repair.what for repair in repairs]


PACKETS = """
from lab.protocol.write import UNCACHED, protocol

def memory(m):
    m.payload("slot", m.max_elements, UNCACHED, source=m.world)

@protocol(memory=memory, blocks=1, bytes=512, calls=3, world=2, threads=64)
def packets(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).slot[b.rank][: b.elements], vector=4, stamp=b.call)
    for j in b.peers:
        b.wait_stamps(b.mine.slot[j][: b.elements], "==", b.call, vector=4)
    parts = [b.input if j == b.rank else b.mine.slot[j][: b.elements] for j in range(b.world)]
    b.reduce(parts, b.output, vector=4, stamp=b.call)
"""


def test_where_one_repair_holds_the_others_say_that_they_do_not(tmp_path):
    """The author's text hangs with two blocks and with three ranks too, by the same defect: that excuses no repair."""
    two_blocks = {"blocks": 2, "bytes": (1024,)}
    repairs = every_repair_holds(tmp_path, PACKETS, "packets", {})
    assert "two buffers of slot" in repairs[0].what
    assert any("2 blocks, 1024 bytes" in where for where in repairs[0].judged_at)
    for repair in repairs:
        said_wrong = any("2 blocks, 1024 bytes" in where for where in repair.not_at)
        assert anew(tmp_path, PACKETS, "packets", repair, **two_blocks).ok or said_wrong
    assert any(repair.not_at for repair in repairs) and repairs[-1].not_at
    done = [set(repair.what.split("; and ")) for repair in repairs]
    assert not any(less < parts for less in done for parts in done)


def test_a_block_barrier_between_a_read_and_the_write_behind_it(tmp_path):
    repairs = every_repair_holds(tmp_path, SCRATCH, "reused", {}, {"calls": 3}, {"waves": 4})
    assert {"block barrier", "mapping"} <= {repair.kind for repair in repairs}
    assert not any("moved" in repair.what for repair in repairs), "a read would see what was written behind it"


def test_no_reader_is_cut_off_where_no_output_is_compared(tmp_path):
    """Two buffers by the number of the launch: the first kernel writes one, the second reads the other."""
    text = UNORDERED.replace("{compared}", "h.barrier()")
    repairs = every_repair_holds(tmp_path, text, "gather", {}, *MORE)
    assert repairs and not any(repair.kind == "buffer" and repair.parts == 1 for repair in repairs)


def test_a_write_that_is_only_put_out_of_the_way_is_no_repair(tmp_path):
    found = load(written(tmp_path, WIPE, "late_wipe"))
    assert not any("a region of its own" in repair.what for repair in repaired(found).repairs)


# ---- planted faults: what was taken from a correct protocol is given back

FAULTS = {
    "no wait for done": ({"wait_done": "pass"}, ("a wait before", "1 turn back")),
    "no wait for ready": ({"wait_ready": "pass"}, ("a wait before", "stores")),
    "relaxed store": ({"told": "RELAXED"}, ("release instead of relaxed",)),
    "relaxed wait": (
        {"wait_done": 'for j in b.peers: b.leader.wait(b.mine.done[j], ">=", b.call - 1, RELAXED, SYSTEM)'},
        ("acquire instead of relaxed",),
    ),
    "narrow wait": (
        {"wait_ready": 'for j in b.peers: b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, DEVICE)'},
        ("system scope instead of device",),
    ),
    "relaxed flag": (
        {
            "said": "RELAXED",
            "wait_done": 'for j in b.peers: b.leader.wait(b.mine.done[j], ">=", b.call - 1, RELAXED, SYSTEM)',
        },
        ("release and acquire on done",),
    ),
}


@pytest.mark.parametrize(("changed", "parts"), FAULTS.values(), ids=FAULTS)
def test_what_a_planted_fault_took_is_among_the_repairs(tmp_path, changed, parts):
    repairs = every_repair_holds(tmp_path, pull(**changed), "pull", {}, *MORE)
    assert any(all(part in repair.what for part in parts) for repair in repairs), [r.what for r in repairs]


def test_nothing_is_tried_on_a_protocol_that_holds(tmp_path):
    verdict = check(load(written(tmp_path, pull(), "pull")), executions=20, repair_seconds=SECONDS)
    assert verdict.ok and verdict.repairs == () and verdict.repairs_tried == ""


def test_ranks_that_wait_for_each_other_are_told_to_tell_first(tmp_path):
    ready = "    for j in b.peers:\n        b.leader.store(b.on(j).ready"
    text = pull(wait_ready="pass").replace(ready, f"    {WAIT_FIRST}\n{ready}")
    repairs = every_repair_holds(tmp_path, text, "pull", {}, *MORE)
    assert any("moved before" in repair.what for repair in repairs)


WAIT_FIRST = 'for j in b.peers: b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)'


# ---- the catalogue


ORDER, MAPPING, FENCE, BLOCK_BARRIER, MOVE, WAIT, EVENT, HANDSHAKE, BARRIER, BUFFER, HOST = Cost
# What closes each entry, as a set of kinds. None of the entries is known to the checker.
CLOSED_BY = {
    "tokenspeed#1017": {HANDSHAKE, BARRIER, BUFFER},
    "aiter#3514": {BARRIER, HOST},
    "aiter#4084": {BARRIER, HOST},
    "pytorch#137257": {HANDSHAKE, BARRIER, BUFFER},
    "rdna_ar D2": {HANDSHAKE, BARRIER, BUFFER},
    "vllm-rdna 53b0b10de": set(),
    "vllm#57059": {ORDER, BARRIER, HOST},
    "aiter#2890": {ORDER, FENCE, HANDSHAKE, BARRIER, HOST},
    "aiter#4786": {ORDER, HANDSHAKE, BARRIER},
    "iris#462": {ORDER, HANDSHAKE, BARRIER},
    "rccl#1932": {ORDER, FENCE},
    "rdna_ar D1": {MAPPING, HANDSHAKE, BARRIER},
    "flashinfer#4092": {BLOCK_BARRIER, HANDSHAKE, BARRIER},
    "mori#494": {ORDER},
    "vllm#8558": {ORDER},
    "rtp-llm#1418": {ORDER, BARRIER},
    "iris#465": {ORDER, HANDSHAKE, BARRIER},
    "aiter#2638": set(),
    "ROCm/aiter#6918": set(),
    "local-inference-lab/vllm#618": set(),
}
SLOW = {"vllm#2760": set(), "aiter#3928": {HANDSHAKE, BARRIER}, "rdna_ar false wedge": set()}


def catalogue(closed: dict[str, set[Cost]]):
    entries = [found for found in ENTRIES if found.id in closed]
    return pytest.mark.parametrize("found", entries, ids=lambda found: found.protocol)


@catalogue(CLOSED_BY)
def test_what_closes_each_published_defect(found: Entry):
    closes(found, CLOSED_BY[found.id])


@pytest.mark.slow
@catalogue(SLOW)
def test_what_closes_the_published_defects_with_many_schedules(found: Entry):
    closes(found, SLOW[found.id])


def closes(found: Entry, kinds: set[Cost]) -> None:
    memory = "weak" if "ok" in found.verdicts else "sc"
    verdict = repaired(*found.defective(), memory=memory, early_timeout=found.early_timeout)
    assert {Cost(repair.cost) for repair in verdict.repairs} == kinds
    named = [repair for repair in verdict.repairs if all(part in repair.what for part in found.repair)]
    among = bool(found.repair and named)
    assert among == bool(found.repair), [repair.what for repair in verdict.repairs]
    assert bool(found.repair) != bool(found.why_no_repair)


def test_the_catalogue_is_whole():
    assert {found.id for found in ENTRIES} == {*CLOSED_BY, *SLOW}


# ---- what is no repair


def test_a_change_that_is_not_proved_is_advice(tmp_path, monkeypatch):
    judged = trying.judge_report

    def explored(report, limits):
        found = judged(report, limits)
        return found if found.caught else replace(found, basis=Basis.EXPLORATION)

    monkeypatch.setattr(trying, "judge_report", explored)
    verdict = repaired(load(written(tmp_path, pull(wait_done="pass"), "pull")))
    assert verdict.repairs == () and any("not proved right at" in advice.why for advice in verdict.advice)
    assert "advice, which is no repair:" in report(verdict)


def test_a_text_that_brings_another_race_is_no_repair(tmp_path, monkeypatch):
    """Every changed text is said to race elsewhere."""
    judged = trying.judge_report
    found = load(written(tmp_path, pull(wait_done="pass"), "pull"))
    race = check(found, minimise=False).races[0]

    def elsewhere(report, limits):
        made = judged(report, limits)
        other = replace(race, first=replace(race.second), second=race.second)
        return made if made.caught else replace(made, verdict="race", basis=Basis.DEFECT, races=(other,))

    monkeypatch.setattr(trying, "judge_report", elsewhere)
    assert repaired(found).repairs == ()


@pytest.mark.parametrize(
    ("more", "split", "why"),
    [
        ("", "", "elements of its output that nobody writes"),
        (", accepts=lambda config: None if config.world == 2 else 'two ranks only'", "", "the protocol is refused"),
    ],
    ids=["not made for it", "refused"],
)
def test_where_the_protocol_is_not_made_for_more_ranks_no_change_is_judged(tmp_path, more, split, why):
    """Three ranks leave the last elements of a size that three does not divide to nobody."""
    text = PUSH.replace("{more}", more).replace("{split}", " - b.world * (b.world > 2)")
    verdict = repaired(load(written(tmp_path, text, "push")))
    assert {HANDSHAKE, BUFFER} <= {Cost(repair.cost) for repair in verdict.repairs}
    assert "not judged at" in report(verdict) and why in report(verdict)
    assert not any("world 3" in place for repair in verdict.repairs for place in repair.judged_at)


def test_a_size_that_more_ranks_divide_is_found(tmp_path):
    text = PUSH.replace("{more}", "").replace("{split}", "")
    verdict = repaired(load(written(tmp_path, text, "push")))
    assert all(any("world 3" in place for place in repair.judged_at) for repair in verdict.repairs)
    assert verdict.repairs


def grid_words(m: Declare) -> None:
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("arrive")
    m.words("ready", m.world, block=m.blocks)


@protocol(memory=grid_words, blocks=3, bytes=4096, world=2, calls=1)
def meet_first(b: Block) -> None:
    """Push; all blocks of the launch meet; then those of the same number."""
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank][: b.elements])
    b.barrier()
    b.leader.add(b.mine.arrive, 1, RELEASE, DEVICE)
    b.leader.wait(b.mine.arrive, ">=", b.blocks, ACQUIRE, DEVICE)
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.block, b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[b.block, j], ">=", 1, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j][: b.elements] for j in range(b.world)], b.output)


@pytest.mark.parametrize(("resident", "world", "gpus", "most"), [(1, 2, None, 1), (2, 4, 2, 1), (2, 3, 1, 0)])
def test_blocks_that_find_no_slot_are_told_how_many_fit(resident, world, gpus, most):
    """A barrier over the blocks of a launch needs all of them at once."""
    config = meet_first.config(resident=resident, world=world, gpus=gpus)
    verdict = check(meet_first, config, executions=200, repair_seconds=5.0, minimise=False)
    assert verdict.verdict == "hang" and not verdict.repairs
    text = report(verdict)
    if most:
        assert f"at most {most} block a launch (tried: with --blocks {most} nothing hung)" in text
    else:
        assert "not even one block of each fits" in text


def test_a_protocol_in_no_file_gets_advice_and_no_repair():
    @protocol(memory=grid_words, blocks=1, bytes=512, world=2, calls=2)
    def here(b: Block) -> None:
        for j in b.peers:
            b.copy(b.input, b.on(j).inbox[b.rank][: b.elements])
        b.reduce([b.input if j == b.rank else b.mine.inbox[j][: b.elements] for j in range(b.world)], b.output)

    verdict = repaired(here)
    assert verdict.repairs == () and "its text is in none" in verdict.advice[0].why


# ---- how it ends


def test_time_ends_it_and_is_said(tmp_path):
    found = load(written(tmp_path, pull(wait_done="pass"), "pull"))
    verdict = check(found, repair_seconds=1e-6, minimise=False)
    assert verdict.repairs == () and "no change of the text tried in" in verdict.repairs_tried
    assert "not all: the time was up" in verdict.repairs_tried


def test_ctrl_c_keeps_what_was_found(tmp_path):
    def stop(tried: int, found: int) -> None:
        if found:
            raise KeyboardInterrupt

    found = load(written(tmp_path, pull(wait_done="pass"), "pull"))
    verdict = check(found, repair_seconds=SECONDS, minimise=False, repair_progress=stop)
    assert len(verdict.repairs) == 1 and verdict.interrupted


def test_the_report_names_the_cheapest_first_and_says_where_it_was_judged(tmp_path):
    text = report(repaired(load(written(tmp_path, PUSH.replace("{more}", "").replace("{split}", ""), "push"))))
    assert "closes it; applied and checked anew:" in text
    assert text.index("a word `done`") < text.index("two buffers of inbox")
    assert (
        '+    m.words("done", m.world)' in text and "proved right under sc, posted and weak at world 2, 2 calls" in text
    )
    assert "changes of the text tried in" in text


def test_lines_of_a_protocol_are_its_own(tmp_path):
    found = load(written(tmp_path, pull(), "pull"))
    assert {type(op).__name__ for op in own_lines(found.program()).values()} == {"Store", "Wait"}
