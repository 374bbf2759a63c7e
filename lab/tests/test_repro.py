"""`lab repro`: the report, the page, the pictures, and how it ends."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from lab import cli
from lab import gate_tables as gate_module
from lab import repro as repro_module
from lab.gate_tables import Rows, gate_tables, in_order, percent, share, tasks
from lab.pages.repro import render, write_page
from lab.plots.lanes import SYNC, WORK, arrange
from lab.plots.scene import of_story
from lab.plots.story import TOO_EARLY, TOO_LATE, story
from lab.plots.style import INKS, inline_svg
from lab.plots.timeline import timeline
from lab.protocol.library import load
from lab.protocol.write import ACQUIRE, CACHED, RELEASE, SYSTEM, UNCACHED, protocol
from lab.repro import REPAIRED, SEED, Report, findings, repair_diff, repaired_verdict, reproduce
from lab.sim.check import witnesses

TASKS = [(64, "self_test", ("pcie_v620",)), (64, "isolated", ("pcie_v620", "h200")), (16, "self_test", ("pcie_v620",))]
FIELDS = {"gate_kib", "mode", "fail_share", "mean", "wrong_share", "aborts", "preset"}


@pytest.fixture(scope="module")
def report():
    found = Report()
    found.full, found.findings = findings()
    found.repaired = repaired_verdict(found.full)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_module, "tasks", lambda: TASKS)
        with Rows(seed=0, runs=2) as rows:
            found.rows = in_order(list(rows))
    return found


@pytest.fixture
def few_tasks(monkeypatch):
    monkeypatch.setattr(gate_module, "tasks", lambda: TASKS)


# ---- the findings


def test_both_defects_are_found_and_named_apart(report):
    assert [finding.words.name for finding in report.findings] == ["D1", "D2"]
    inside, across = (finding.story for finding in report.findings)
    assert (inside.fault, across.fault) == (TOO_EARLY, TOO_LATE)
    assert not inside.across_calls and across.across_calls
    assert (inside.write_access.phase, inside.read_access.phase) == ("reduce", "allgather")
    assert (across.read_access.phase, across.write_access.phase) == ("copy out", "scatter")


def test_both_are_there_at_the_small_and_at_the_large_gate(report):
    for finding in report.findings:
        assert [max(config.bytes) for config, _ in finding.races] == list(repro_module.GATES)


def test_the_witnesses_are_small(report):
    inside, across = (finding.witness.config for finding in report.findings)
    assert (inside.calls, inside.blocks) == (1, 2)
    assert (across.calls, across.blocks) == (2, 1)
    assert all(len(finding.story.steps) < 25 for finding in report.findings)


def test_the_sentences_say_how_far_one_side_knows_the_other(report):
    inside, across = (finding.story for finding in report.findings)
    assert inside.known.phase == "scatter"  # a block knows that the others scattered, not that they reduced
    assert across.known.phase == "allgather"  # a rank knows that the peer sent, not that it copied out
    assert all("ends up wrong" in finding.sentences()[-1] for finding in report.findings)


def test_the_repair_is_shown_whole(report):
    diff = repair_diff(load(SEED), load(REPAIRED))
    added = "\n".join(line for line in diff if line.startswith("+"))
    assert 'm.payload("gather"' in added, "the region that the repair needs is declared"
    assert "gather[p, b.rank]" in added and "gather[p, j]" in added, "both the writer and the reader change"
    assert report.repaired.ok


def test_the_line_repeats_the_witness(report, capsys):
    for finding in report.findings:
        assert cli.main(["replay", finding.line]) == 1
    assert "wrong" in capsys.readouterr().out


# ---- the page


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "new" / "folder"
    return write_page(report, folder, seed=3)


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert not re.search(r"https?://|src=|@import|<link|<script", text)
    assert not re.search(r'href="(?!#)', text)
    assert not re.search(r"url\((?!#)", text)


def test_the_page_tells_both_findings_and_the_repair(page, report):
    text = page.read_text()
    for finding in report.findings:
        assert f'id="{finding.words.name}"' in text
        assert finding.words.title in text
        assert finding.line.replace("&", "&amp;") in text
    assert text.count("<svg") == 3
    assert "simulated" in text and "assumed" in text
    assert report.repaired.proof.split(";")[0] in text


def test_ids_of_the_page_are_unique_and_found(page):
    text = page.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) <= {
        pair for name in ids for pair in ((name, ""), ("", name))
    }


def test_the_pictures_are_there(page):
    for name in ("D1", "D2", "gates"):
        assert (page.parent / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_a_page_of_an_unfinished_report_renders():
    assert "stopped before its end" in render(Report(interrupted=True), {}, seed=0)


def test_inline_svg_follows_the_page(report):
    finding = report.findings[0]
    figure = timeline(finding.witness.explainer, finding.witness.fault)
    text = inline_svg(figure, "x", 'say "hello"')
    assert "xmlns" not in text and "<?xml" not in text and "<metadata" not in text
    assert "var(--red)" in text and all(ink.light not in text for ink in INKS)
    assert "&quot;hello&quot;" in text
    assert text == inline_svg(timeline(finding.witness.explainer, finding.witness.fault), "x", 'say "hello"')


# ---- the picture


def test_order_in_the_picture_is_order_in_the_execution(report):
    for finding in report.findings:
        lanes = arrange(of_story(finding.witness.explainer, finding.witness.fault, finding.story))
        assert all(arrow.start.right <= arrow.end.left for arrow in lanes.flags)
        first, second = lanes.pair
        assert first.right <= second.left
        early = finding.story.fault == TOO_EARLY
        assert (first.phase == finding.story.read_access.phase) == early
        assert {item.kind for item in lanes.items} == {WORK, SYNC}
        for lane in range(len(lanes.lanes)):
            marks = [item for item in lanes.items if item.lane == lane]
            assert all(a.right <= b.left for a, b in pairwise(marks)), "marks overlap"


def words_memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.payload("scratch", m.max_elements, CACHED)
    m.words("ready", m.world, UNCACHED)


def alone(config):
    return "one rank has no peers" if config.world < 2 else None


@protocol(memory=words_memory, accepts=alone, blocks=1, bytes=1024, calls=2, world=3)
def careless(b):
    """Every rank pushes its input, and waits for the flag of one peer only."""
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank])
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    b.leader.wait(b.mine.ready[b.peers[0]], ">=", b.call, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.mine.inbox[j] for j in range(b.world)], b.output)


@pytest.mark.parametrize("memory", ["sc", "posted"])
def test_a_protocol_that_the_lab_has_never_seen_is_drawn(memory, tmp_path):
    drawn = 0
    for _, witness in witnesses(careless, careless.config(), memory):
        if witness is None:
            continue
        told = story(witness.explainer, witness.fault)
        figure = timeline(witness.explainer, witness.fault, title="careless", told=told)
        figure.savefig(tmp_path / "careless.png")
        assert told.sentences()
        drawn += 1
    assert drawn


# ---- the gate table


def test_rows_do_not_depend_on_the_number_of_processes(few_tasks):
    with Rows(seed=4, runs=2) as one, Rows(seed=4, runs=2, processes=2) as two:
        assert in_order(list(one)) == in_order(list(two))


def test_every_gate_is_run_for_the_pcie_box_and_what_was_measured_for_the_h200():
    found = tasks()
    assert {gate for gate, mode, presets in found if "pcie_v620" in presets} >= {
        32,
        64,
        128,
        256,
        512,
        1024,
        4096,
        20480,
    }
    assert {mode for _, mode, presets in found if "h200" in presets} == {"isolated", "back_to_back"}


def test_tables_hold_a_cell_for_every_column(report):
    found = gate_tables(report.rows)
    assert len(found) == 3
    for table in found:
        assert all(len(row) == len(table.header) == len(table.short) for row in table.rows)
        assert sum(columns for _, columns in table.groups) == len(table.header)
    assert gate_tables([]) == []


def test_shares_are_written_for_people():
    assert [percent(x) for x in (0, 0.004, 0.25, 0.996, 1)] == ["0 %", "0.4 %", "25 %", "99.6 %", "100 %"]
    assert [share(x) for x in (0, 0.00031, 0.078)] == ["", "0.031 %", "7.8 %"]


# ---- the command


@pytest.fixture
def quick(monkeypatch, report):
    """`lab repro` with the findings already made and few rows."""
    monkeypatch.setattr(gate_module, "tasks", lambda: TASKS)
    monkeypatch.setattr(repro_module, "findings", lambda seed, progress: (report.full, report.findings))
    monkeypatch.setattr(repro_module, "repaired_verdict", lambda full, seed: report.repaired)


def test_json_is_rows_and_nothing_else(quick, tmp_path, capsys):
    code = cli.main(["repro", "--json", "--runs", "2", "--out", str(tmp_path)])
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 4 and all(row.keys() >= FIELDS for row in rows)
    assert {row["mode"] for row in rows} == {"self_test", "isolated"}
    assert next(row for row in rows if row["gate_kib"] == 64 and row["mode"] == "self_test")["fail_share"] > 0
    assert code == 1, "without a row at 20 MiB it is not reproduced"
    assert (tmp_path / "repro.html").exists()


def test_the_report_names_both_defects(quick, tmp_path, capsys):
    cli.main(["repro", "--runs", "2", "--out", str(tmp_path)])
    shown = capsys.readouterr()
    for word in ("D1", "D2", "64 KiB", "fails 3 of 3 boots", "repaired_two_shot", "lab replay 'seed_two_shot?"):
        assert word in shown.out
    assert "repro.html" in shown.err and "\x1b" not in shown.out
    said = " ".join(shown.out.split())
    places = [said.index(words) for words in (
        "Closed by: give the reduce the mapping of the allgather",
        "Closed by: give the allgather a region of its own",
        "is ok at the same size",
        "Why 64 KiB fails and 20 MiB passes",
        "30.0 is due",
        "lowest: the lowest mean of any wrong output",
        "The boot self-test at the gate",
        "One execution that shows it",
    )]  # fmt: skip
    assert places == sorted(places), "the answer comes first, then the tables with their words, then the executions"


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(repro_module, "reproduce", lambda *a, **k: pytest.fail("the work began"))
    taken = tmp_path / "file"
    taken.write_text("")
    for folder in (taken, taken / "below"):
        assert cli.main(["repro", "--out", str(folder)]) == 2
        assert "output folder cannot be written" in capsys.readouterr().err


def test_ctrl_c_keeps_and_prints_what_was_finished(quick, tmp_path, capsys, monkeypatch):
    from lab.cli import repro as command

    seen = []

    def stop(row):
        seen.append(row)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_row", stop)
    assert cli.main(["repro", "--json", "--runs", "2", "--out", str(tmp_path)]) == 130
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert seen and rows and "stopped with Ctrl-C" in shown.err
    assert not (tmp_path / "repro.html").exists()


def test_ctrl_c_in_a_single_process_keeps_rows(few_tasks, monkeypatch, report):
    monkeypatch.setattr(repro_module, "findings", lambda seed, progress: (report.full, report.findings))
    monkeypatch.setattr(repro_module, "repaired_verdict", lambda full, seed: report.repaired)
    count = iter(range(10))

    def stop(row):
        if next(count) == 1:
            raise KeyboardInterrupt

    found = reproduce(runs=2, each_row=stop)
    assert found.interrupted and len(found.rows) == 2 and not found.reproduced


def test_ctrl_c_before_the_first_row_keeps_the_findings(quick, monkeypatch):
    def stop(full, seed):
        raise KeyboardInterrupt

    monkeypatch.setattr(repro_module, "repaired_verdict", stop)
    found = reproduce(runs=2)
    assert found.interrupted and len(found.findings) == 2 and found.rows == []


@pytest.mark.slow
def test_the_whole_job_reproduces_within_the_memory_it_may_take(tmp_path):
    import psutil

    job = subprocess.Popen(
        [sys.executable, "-m", "lab.cli", "repro", "--out", str(tmp_path)], stdout=subprocess.DEVNULL
    )
    peak, process = 0, psutil.Process(job.pid)
    while job.poll() is None:
        try:
            family = [process, *process.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        except psutil.NoSuchProcess:
            pass
        try:
            job.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    assert job.returncode == 0
    assert peak < 1 << 30, f"{peak / 2**20:.0f} MiB resident, all processes together"


def test_no_colour_of_the_palette_is_used_twice():
    assert len({ink.light for ink in INKS}) == len({ink.name for ink in INKS}) == len(INKS)
