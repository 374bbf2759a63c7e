"""`lab check --html`: a page for a verdict of every kind on a protocol of one's own, that needs nothing else."""

import re

import pytest

from lab.cli import main
from lab.pages.listing import listings
from lab.pages.verdict import Mark, render, title_of
from lab.plots.lanes import STUCK, arrange
from lab.plots.scene import of_hang, of_run
from lab.protocol.library import load
from lab.protocol.published import ENTRIES
from lab.protocol.tables import compile_tables
from lab.sim.check import check
from lab.sim.explain.wrong import Explainer
from lab.sim.machine.execution import execute

PROTOCOLS = """
from lab.protocol.write import ACQUIRE, KIB, RELEASE, SYSTEM, UNCACHED, protocol


def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.payload("scratch", m.max_elements, UNCACHED)
    m.words("ready", m.world, UNCACHED)


def push(b, parity):
    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[parity, b.rank], vector=8)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)


def reduce(b, parity, wanted, operands=None, **bound):
    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", wanted, ACQUIRE, SYSTEM, **bound)
    b.barrier()
    parts = [b.input if j == b.rank else b.mine.inbox[parity, j] for j in range(b.world)]
    b.reduce(parts[:operands], b.output, vector=8)


def of(function):
    return protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2)(function)


@of
def right(b):
    push(b, b.call % 2)
    reduce(b, b.call % 2, b.call)


@of
def one_buffer(b):
    push(b, 0)
    reduce(b, 0, b.call)


@of
def forgets_one(b):
    push(b, b.call % 2)
    reduce(b, b.call % 2, b.call, operands=-1)


@of
def waits_for_ever(b):
    push(b, b.call % 2)
    reduce(b, b.call % 2, b.call + 1)


@of
def gives_up(b):
    push(b, b.call % 2)
    reduce(b, b.call % 2, b.call + 1, seconds=1.0, on_timeout=b.ret)


@of
def harmless(b):
    push(b, b.call % 2)
    reduce(b, b.call % 2, b.call)
    b.phase("scratch")
    b.copy(b.mine.scratch, b.on(b.peers[0]).scratch)
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "mine <1>.py"
    file.write_text(PROTOCOLS)
    return file


def rendered(mine, name, **settings):
    protocol = load(f"{mine}:{name}")
    config = protocol.config()
    verdict = check(protocol, config, executions=60, repair_seconds=0.2, **settings)
    return verdict, render(verdict, protocol, config)


@pytest.mark.parametrize(
    ("name", "kind", "pictures", "words"),
    [
        ("right", "ok", 1, ["No defect was found", "One execution of it", "What this verdict rests on"]),
        ("one_buffer", "wrong", 1, ["overwrites inbox", "no flag, barrier or fence orders the two", "lab replay"]),
        ("forgets_one", "wrong", 1, ["Wrong elements that no race explains", "No race shows here"]),
        ("waits_for_ever", "hang", 1, ["Nothing can move any more", "it holds", "stuck: wait ready"]),
        ("gives_up", "abort", 2, ["A bounded wait gives up", "gave up and its agent returned"]),
        ("harmless", "race", 1, ["that is luck", "No schedule tried made a value wrong", "Missing: nothing makes"]),
    ],
)
def test_a_verdict_of_every_kind_has_its_page(mine, name, kind, pictures, words):
    verdict, text = rendered(mine, name)
    assert verdict.verdict == kind
    assert text.count("<svg") == pictures
    for word in words:
        assert word in text, word
    assert "mine &lt;1&gt;.py" in text and "<1>" not in text
    assert not re.search(r"https?://|src=|@import|<link|<script", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) <= {
        pair for name in ids for pair in ((name, ""), ("", name))
    }


@pytest.mark.parametrize("memory", ["posted", "weak"])
def test_other_memory_models_are_drawn_too(mine, memory):
    verdict, text = rendered(mine, "one_buffer", memory=memory)
    assert verdict.verdict == "wrong" and text.count("<svg") == 1 and f"<dd>{memory}</dd>" in text


def test_the_lines_of_the_text_that_race_are_marked(mine):
    verdict, text = rendered(mine, "one_buffer")
    marked = [line for line in text.split("\n") if 'tr class="marked"' in line]
    assert any("b.copy(b.input" in line for line in marked) and any("b.reduce(parts" in line for line in marked)
    assert sum("push(b, 0)" in line for line in marked) == 1, "the call of the helper is marked as well"
    assert not any("b.barrier()" in line for line in marked)
    assert title_of(verdict.races[0]).startswith("push of the next call overwrites inbox")


def test_the_listing_has_memory_and_kernel_and_not_the_lab_s_own_text(mine):
    protocol = load(f"{mine}:right")
    found = listings(protocol, protocol.program(protocol.config()), [Mark("nowhere.py:1", "R1")])
    assert [listing.file for listing in found] == ["mine <1>.py"]
    names = [line.text for function in found[0].functions for line in function if line.text.startswith("def ")]
    assert names == ["def memory(m):", "def push(b, parity):", "def reduce(b, parity, wanted, operands=None, **bound):",
                     "def right(b):"]  # fmt: skip


def test_the_picture_of_a_hang_ends_each_stuck_lane(mine):
    protocol = load(f"{mine}:waits_for_ever")
    execution = execute(compile_tables(protocol.program(protocol.config())))
    scene = of_hang(Explainer(execution), ())
    lanes = arrange(scene)
    ends = [item for item in lanes.items if item.kind == STUCK]
    assert len(ends) == 2 and {item.lane for item in ends} == {0, 1}
    assert all(other.right <= end.left for end in ends for other in lanes.items if other.lane == end.lane != other.kind
               and other is not end)  # fmt: skip
    assert all("it holds 1" in lines for _, lines in lanes.remarks), "each peer has stored its call 1, and 2 is wanted"
    assert [step.access.text.rpartition(", and ")[2] for step in scene.steps] == ["it holds 1", "it holds 1"]


def test_an_execution_that_is_right_has_nothing_red(mine):
    protocol = load(f"{mine}:right")
    lanes = arrange(of_run(Explainer(execute(compile_tables(protocol.program(protocol.config()))))))
    assert not lanes.pair and not lanes.remarks and not lanes.carried and len(lanes.flags) == 6


@pytest.mark.parametrize("name", ["a b", "a+b@c,d=e&f(g)%h'i", "Größe 日本", "100%25", "a?b", "a#b"])
def test_every_printed_line_replays_whatever_the_file_is_called(mine, tmp_path, name):
    file = tmp_path / f"{name}.py"
    file.write_text(PROTOCOLS)
    protocol = load(f"{file}:one_buffer")
    verdict = check(protocol, protocol.config(), executions=20, repair_seconds=0)
    for line in (verdict.schedule, *verdict.witness_lines):
        assert main(["replay", line]) == 1


def test_the_command_writes_the_page_beside_its_answer(mine, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["check", f"{mine}:one_buffer", "--executions", "50", "--repair-seconds", "1", "--html", str(out)]) == 1
    shown = capsys.readouterr()
    assert "WRONG" in shown.out and f"the page is {out}" in shown.err
    assert "What closes it" in out.read_text()
    assert main(["check", f"{mine}:one_buffer", "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "the page cannot be written" in capsys.readouterr().err
    assert main(["check", f"{mine}:one_buffer", "--html", str(out), "--listing"]) == 2
    assert "there is no page to write" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_published_defect_has_a_page_with_its_pictures(entry):
    protocol = load(entry.protocol)
    verdict = check(
        protocol, protocol.config(), executions=60, repair_seconds=0, deadline=20.0, early_timeout=entry.early_timeout
    )
    text = render(verdict, protocol, protocol.config())
    assert text.count("<svg") >= max(len(verdict.races), 1)
    assert "svg text" in text and "None" not in re.sub(r"<pre>.*?</pre>|<table.*?</table>", "", text, flags=re.DOTALL)
