"""Repairs: each is found by the mechanism, judged, and does what it says; what is not one is not called one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

import lab
from lab.protocol.library import load
from lab.protocol.program import Op, Order, Program, Scope, Store, Wait
from lab.protocol.published import ENTRIES, Entry, entry
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    DEVICE,
    RELEASE,
    SYSTEM,
    UNCACHED,
    Block,
    Config,
    Declare,
    Protocol,
    protocol,
)
from lab.sim.change import repair as trying
from lab.sim.change.edit import changed, dropped, own_lines
from lab.sim.change.judge import Basis, Judgement
from lab.sim.change.repairs.candidate import Cost
from lab.sim.check import check
from lab.sim.explain.report import report
from lab.sim.order.verdict import Repair, Verdict

SECONDS = 600.0  # far more than any of these takes, with all compilation


def repaired(found: Protocol, config: Config | None = None, **changes) -> Verdict:
    """The verdict on a defect, with its repairs."""
    verdict = check(found, config, executions=200, repair_seconds=SECONDS, **changes)
    assert not verdict.ok and "not all" not in verdict.repairs_tried
    return verdict


def kinds(repairs: tuple[Repair, ...]) -> list[Cost]:
    return [Cost(repair.cost) for repair in repairs]


# ---- the catalogue


ORDER, MAPPING, FENCE, BLOCK_BARRIER, WAIT, HANDSHAKE, BARRIER, BUFFER, BUFFERS = Cost
# What closes each entry alone, as a set of kinds. None of the entries is known to the checker.
CLOSED_BY = {
    "tokenspeed#1017": {HANDSHAKE, BARRIER, BUFFER},  # published: a second epoch, "done"
    "aiter#3514": {BARRIER, BUFFER},  # published: an exit barrier
    "aiter#4084": {BARRIER, BUFFER},  # published: the input is kept until the next call
    "pytorch#137257": {HANDSHAKE, BARRIER, BUFFER},  # published: a closing barrier
    "rdna_ar D2": {HANDSHAKE, BARRIER, BUFFER},  # published: a region of its own
    "vllm-rdna 53b0b10de": {BUFFERS},  # published: an output per call
    "vllm#2760": set(),  # published: a word a peer, release and acquire; here an order for each race
    "vllm#57059": {ORDER, WAIT, BARRIER},  # published: release and acquire at system scope
    "aiter#2890": {ORDER, FENCE, HANDSHAKE, BARRIER},  # published: release and acquire
    "aiter#4786": {ORDER, HANDSHAKE, BARRIER},  # published: a fence and system scope
    "iris#462": {ORDER, HANDSHAKE, BARRIER},  # published: system scope
    "rccl#1932": {ORDER, FENCE},  # published: uncached memory, or a release
    "rdna_ar D1": {MAPPING, HANDSHAKE, BARRIER},  # published: a grid barrier, or one mapping
    "flashinfer#4092": {BLOCK_BARRIER, HANDSHAKE, BARRIER},  # published: a block barrier
    "mori#494": {ORDER},  # published: a value that only grows
    "vllm#8558": {ORDER},  # published: grow-only counters
    "rtp-llm#1418": {ORDER, BARRIER},  # published: comparison modulo 2**32
    "iris#465": {ORDER, HANDSHAKE, BARRIER},  # published: the call number as the value
    "aiter#3928": set(),  # published: the colour in device memory, which changes flags and slots at once
    "aiter#2638": set(),  # published: agreement before the kernels run
    "ROCm/aiter#6918": set(),  # published: another address
    "local-inference-lab/vllm#618": set(),  # published: a vote of the hosts
    "rdna_ar false wedge": {ORDER},  # published: a bound in seconds
}


@pytest.mark.parametrize("found", ENTRIES, ids=lambda found: found.protocol)
def test_what_closes_each_published_defect(found: Entry):
    memory = "weak" if "ok" in found.verdicts else "sc"
    verdict = repaired(*found.defective(), memory=memory, early_timeout=found.early_timeout, minimise=False)
    assert set(kinds(tuple(r for r in verdict.repairs if r.everything))) == CLOSED_BY[found.id]


@pytest.mark.parametrize(
    ("id", "what"),
    [
        ("rdna_ar D2", "a region of its own, beside staging"),
        ("vllm#57059", "acquire instead of relaxed, system scope instead of device"),
        ("iris#462", "system scope instead of device"),
        ("rccl#1932", "uncached memory for packet"),
        ("rdna_ar D1", "a grid barrier after"),
        ("rdna_ar D1", "so that a thread meets what it handled itself"),
        ("flashinfer#4092", "a block barrier after"),
        ("mori#494", "a value of go that only grows"),
        ("rtp-llm#1418", "`>=mod` instead of `>=s`"),
        ("iris#465", "a value of lock that only grows"),
        ("aiter#4084", "two buffers of input that take turns"),
        ("vllm-rdna 53b0b10de", "a buffer of result 1 for every call"),
        ("rdna_ar false wedge", "a bound in seconds instead of polls"),
    ],
)
def test_the_published_fix_is_among_them(id: str, what: str):
    found = entry(id)
    memory = "weak" if "ok" in found.verdicts else "sc"
    verdict = repaired(*found.defective(), memory=memory, early_timeout=found.early_timeout, minimise=False)
    assert any(what in r.what and r.everything for r in verdict.repairs), [r.what for r in verdict.repairs]


# ---- the two defects of the seed


def test_each_defect_of_the_seed_has_its_repairs_and_no_single_one_closes_both():
    found = load("seed_two_shot")
    verdict = repaired(found, found.config(world=2, blocks=2, calls=3, bytes=(4096,)))
    number = {race.first.phase: k for k, race in enumerate(verdict.races, 1)}
    d1 = [r for r in verdict.repairs if r.closes == (number["reduce"],)]
    d2 = [r for r in verdict.repairs if r.closes == (number["copy out"],)]
    assert kinds(d1) == [MAPPING, HANDSHAKE, BARRIER] and "a grid barrier" in d1[-1].what
    assert HANDSHAKE in kinds(d2) and sum("a region of its own" in r.what for r in d2) == 2
    assert not any(r.everything for r in verdict.repairs)
    text = report(verdict)
    assert "race 1 is closed by one change" in text and "race 2 is closed by one change" in text


# ---- what to write works as written


PUSH = """
from lab.protocol.write import ACQUIRE, KIB, RELEASE, SYSTEM, UNCACHED, protocol


def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, {parity}source=m.world)
    m.words("ready", m.world, UNCACHED)
    {words}


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2)
def push(b):
    at = (lambda j: {index})
    b.phase("push")
    for j in b.peers:
        {wait}
    b.barrier()
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[at(b.rank)], vector=8)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[at(j)] for j in range(b.world)], b.output, vector=8)
    b.barrier()
    for j in b.peers:
        {store}
"""
AS_IT_IS = {"parity": "", "words": "pass", "index": "j", "wait": "pass", "store": "pass"}


def written(tmp_path, **parts: str) -> str:
    file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
    file.write_text(PUSH.format(**AS_IT_IS | parts))
    return f"{file}:push"


def test_the_repairs_of_a_push_work_as_they_are_written(tmp_path):
    verdict = repaired(load(written(tmp_path)))
    done, _, parity = verdict.repairs
    assert kinds(verdict.repairs) == [HANDSHAKE, BARRIER, BUFFER] and all(r.everything for r in verdict.repairs)

    words, store, wait = (line.partition(": ")[2] for line in done.write)
    store = store.removeprefix("b.barrier(), then ").removesuffix(" for every peer j")
    wait = wait.removesuffix(", then b.barrier()").removesuffix(" for every peer j")
    mended = lab.check(written(tmp_path, words=words, store=store, wait=wait), world=3, calls=4)
    assert mended.ok

    assert parity.write[0] == "declare inbox with parity=2" and "[b.call % 2, ...]" in parity.write[1]
    mended = lab.check(written(tmp_path, parity="parity=2, ", index="(b.call % 2, j)"), world=3, calls=4)
    assert mended.ok


def test_the_report_names_the_cheapest_first_and_says_where_it_was_judged(tmp_path):
    text = report(repaired(load(written(tmp_path))))
    assert "one change closes it, tried by the checker:" in text
    assert text.index("a word `done`") < text.index("two buffers of inbox")
    assert "judged at world 2, 2 calls" in text and "3 calls" in text and "world 3" in text
    assert "single changes tried in" in text and text.count("lab replay") == 1


# ---- planted faults: what was taken from a correct protocol is given back


def memory(m: Declare) -> None:
    m.payload("slot", m.max_elements, UNCACHED)
    m.words("ready", m.world)
    m.words("done", m.world)


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=3)
def pull(b: Block) -> None:
    """Everybody reads everybody's slot; a rank waits until all have read before it writes again."""
    for j in b.peers:
        b.leader.wait(b.mine.done[j], ">=", b.call - 1, ACQUIRE, SYSTEM)
    b.copy(b.input, b.mine.slot[: b.elements])
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    for j in b.peers:
        b.leader.store(b.on(j).done[b.rank], b.call, RELEASE, SYSTEM)


@dataclass(frozen=True)
class Faulty(Protocol):
    """A protocol with a change planted in every program that it records."""

    fault: Callable[[Op], Op] = lambda op: op

    def program(self, config: Config | None = None, **changes) -> Program:
        return changed(super().program(config, **changes), self.fault)


def faulty(own: Protocol, fault: Callable[[Op], Op]) -> Faulty:
    return Faulty(**{name: getattr(own, name) for name in own.__dataclass_fields__}, fault=fault)


def about(op: Op, word: str) -> bool:
    return getattr(op, "word", None) is not None and op.word.region.name == word


FAULTS = {
    "no wait for done": (Wait, "done", dropped, "a wait before * for what * stores, of the call before"),
    "no wait for ready": (Wait, "ready", dropped, "a wait before * for what * stores"),
    "relaxed store": (Store, "ready", lambda op: replace(op, order=Order.RELAXED), "release instead of relaxed"),
    "relaxed wait": (Wait, "done", lambda op: replace(op, order=Order.RELAXED), "acquire instead of relaxed"),
    "narrow wait": (Wait, "ready", lambda op: replace(op, scope=Scope.DEVICE), "system scope instead of device"),
    "relaxed flag": ((Store, Wait), "done", lambda op: replace(op, order=Order.RELAXED), "release and acquire on done"),
}


@pytest.mark.parametrize(("kind", "word", "change", "what"), FAULTS.values(), ids=FAULTS)
def test_what_a_planted_fault_took_is_among_the_repairs(kind, word, change, what):
    verdict = repaired(faulty(pull, lambda op: change(op) if isinstance(op, kind) and about(op, word) else op))
    parts = what.split(" * ")
    assert any(all(part in r.what for part in parts) and r.everything for r in verdict.repairs), [
        r.what for r in verdict.repairs
    ]


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=2)
def after_you(b: Block) -> None:
    """Pull, where each rank waits for the other before it tells."""
    b.copy(b.input, b.mine.slot[: b.elements])
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    for j in b.peers:
        b.leader.store(b.on(j).done[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.done[j], ">=", b.call, ACQUIRE, SYSTEM)


def test_ranks_that_wait_for_each_other_are_told_to_tell_first():
    verdict = repaired(after_you)
    assert verdict.verdict == "hang" and any("before the wait of" in r.what and r.everything for r in verdict.repairs)


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=2)
def wait_too_late(b: Block) -> None:
    """Pull that waits for its peers after it has read their slots."""
    for j in b.peers:
        b.leader.wait(b.mine.done[j], ">=", b.call - 1, ACQUIRE, SYSTEM)
    b.copy(b.input, b.mine.slot[: b.elements])
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    for j in b.peers:
        b.leader.store(b.on(j).done[b.rank], b.call, RELEASE, SYSTEM)


def test_a_wait_that_comes_too_late_is_wanted_earlier():
    found = [r for r in repaired(wait_too_late).repairs if Cost(r.cost) is WAIT and r.everything]
    assert any(r.what.startswith("the wait of ") for r in found), [r.what for r in found]


# ---- what is no repair


def test_a_change_that_only_moves_the_race_is_no_repair(tmp_path):
    """Three buffers of four calls: with the calls at hand nothing is reused, with one more it is."""
    verdict = repaired(load("vllm_rdna_53b0b10de"), minimise=False)
    assert not any("take turns" in r.what for r in verdict.repairs), "two buffers hold two results, and no third"


def test_what_cannot_be_judged_is_not_called_a_repair(monkeypatch):
    monkeypatch.setattr(trying, "judge_report", lambda report, limits: Judgement("ok", Basis.EXPLORATION, ""))
    verdict = check(pull_without_done(), repair_seconds=SECONDS, minimise=False)
    assert verdict.repairs == () and "were not proved" in verdict.repairs_tried
    assert "no single change that was tried closes race 1" in report(verdict)


def test_a_change_that_brings_another_race_is_no_repair(monkeypatch):
    races = check(pull_without_done(), minimise=False).races
    other = replace(races[0], first=replace(races[0].first, line="elsewhere.py:1"))
    judgement = Judgement("race", Basis.DEFECT, "", (other,))
    monkeypatch.setattr(trying, "judge_report", lambda report, limits: judgement)
    assert check(pull_without_done(), repair_seconds=SECONDS, minimise=False).repairs == ()


def pull_without_done() -> Protocol:
    return faulty(pull, lambda op: dropped(op) if isinstance(op, Wait) and about(op, "done") else op)


@pytest.mark.parametrize(("basis", "said"), [(Basis.EXPLORATION, True), (Basis.EVERY_SCHEDULE, False)])
def test_what_a_larger_program_rests_on_is_said(basis, said, monkeypatch):
    """One hang that the larger configurations judge on another basis than the small one."""
    judged = trying.judge_report

    def judge(report, limits):
        judgement = judged(report, limits)
        large = dict(report.execution.tables.program.config)["calls"] > 3
        return replace(judgement, basis=basis) if large and not judgement.caught else judgement

    monkeypatch.setattr(trying, "judge_report", judge)
    found = load("rccl_1932")
    verdict = repaired(found, found.config(world=3, calls=4, bytes=(4096,), blocks=2), memory="weak", minimise=False)
    assert verdict.repairs
    assert [r.tried_at[-1].endswith("(explored, not proved)") for r in verdict.repairs] == [said] * len(verdict.repairs)
    assert all("(explored, not proved)" not in r.tried_at[0] for r in verdict.repairs)


SPLIT = """
from lab.protocol.write import ACQUIRE, KIB, RELEASE, SYSTEM, UNCACHED, protocol


def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world, UNCACHED)


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2{refuses})
def split(b):
    n = b.elements // b.world * b.world
    for j in b.peers:
        b.copy(b.input[:n], b.on(j).inbox[b.rank][:n])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input[:n] if j == b.rank else b.mine.inbox[j][:n] for j in range(b.world)], b.output[:n])
"""


@pytest.mark.parametrize(
    ("refuses", "why"),
    [
        ("", "the protocol has other defects there (wrong values that no race explains)"),
        (", accepts=lambda config: None if config.world == 2 else 'two ranks only'", "the protocol is refused there ("),
    ],
    ids=["other defects", "refused"],
)
def test_a_larger_configuration_that_is_broken_anyway_rejects_no_change(tmp_path, refuses, why):
    """Three ranks leave the last elements of a size that three does not divide to nobody."""
    place = tmp_path / "split.py"
    place.write_text(SPLIT.replace("{refuses}", refuses))
    verdict = repaired(load(f"{place}:split"), minimise=False)
    assert {HANDSHAKE, BUFFER} <= set(kinds(verdict.repairs)) and all(r.everything for r in verdict.repairs)
    assert f"not confirmed at world 3: {why}" in report(verdict)
    assert not any("world 3" in place for r in verdict.repairs for place in r.tried_at)


def test_where_a_larger_configuration_has_no_other_defect_it_confirms():
    verdict = repaired(pull_without_done(), minimise=False)
    assert "not confirmed" not in report(verdict)
    assert all(any("world 3" in place for place in r.tried_at) for r in verdict.repairs)


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
    b.leader.add(b.mine.arrive, 1, ACQ_REL, DEVICE)
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
    verdict = repaired(meet_first, meet_first.config(resident=resident, world=world, gpus=gpus), minimise=False)
    assert verdict.verdict == "hang" and not verdict.repairs
    text = report(verdict)
    if most:
        assert f"at most {most} block a launch (tried: with --blocks {most} nothing hung)" in text
    else:
        assert "not even one block of each fits" in text


def test_time_ends_it_and_is_said():
    verdict = check(pull_without_done(), repair_seconds=1e-6, minimise=False)
    assert verdict.repairs == () and "no single change tried in" in verdict.repairs_tried
    assert "not all: the time was up" in verdict.repairs_tried and "no single change that" not in report(verdict)


def test_ctrl_c_keeps_what_was_found():
    def stop(tried: int, found: int) -> None:
        if found:
            raise KeyboardInterrupt

    verdict = check(pull_without_done(), repair_seconds=SECONDS, minimise=False, repair_progress=stop)
    assert len(verdict.repairs) == 1 and verdict.interrupted


def test_nothing_is_tried_on_a_protocol_that_holds():
    verdict = check(pull, executions=20, repair_seconds=SECONDS)
    assert verdict.ok and verdict.repairs == () and verdict.repairs_tried == ""


def test_lines_of_a_protocol_are_its_own():
    assert {type(op).__name__ for op in own_lines(pull.program()).values()} == {"Store", "Wait"}
