"""`lab trace` writes the trace of one's own protocol; `lab compare` puts two side by side, each on one clock."""

import json

import numpy as np
import pytest

from lab.cli import main
from lab.tests.meetings import clocked, leave_early, met, steady
from lab.trace import Trace

PUSH = """
from lab.protocol.write import ACQUIRE, KIB, RELEASE, SYSTEM, UNCACHED, protocol


def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world, UNCACHED)


def push(b, wanted):
    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank], vector=8)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    b.phase("reduce")
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", wanted, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j] for j in range(b.world)], b.output, vector=8)


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2)
def good(b):
    push(b, b.call)


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2)
def too_many(b):
    push(b, b.call + 1)
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PUSH)
    return file


@pytest.mark.parametrize("ending", [".npz", ".json", ".parquet"])
def test_the_trace_of_a_protocol_of_ones_own(mine, tmp_path, capsys, ending):
    out, picture = tmp_path / f"t{ending}", tmp_path / "t.png"
    words = ["--world", "3", "--out", str(out), "--picture", str(picture), "--json"]
    assert main(["trace", f"{mine}:good", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    trace = Trace.load(out)
    assert (trace.source, trace.ranks, trace.phases) == ("simulated", [0, 1, 2], ("push", "reduce"))
    assert sorted(set(trace.spans["call"])) == [1, 2, 3] and len(trace.spans) == document["spans"] == 18
    assert [row["phase"] for row in document["phases"]] == ["push", "reduce", "whole call"]
    assert all(0 < row["least_us"] <= row["median_us"] <= row["most_us"] for row in document["phases"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_trace_and_another_machine_another(mine, tmp_path):
    def spans(*words):
        assert main(["trace", f"{mine}:good", "--out", str(tmp_path / "t.npz"), *words]) == 0
        return Trace.load(tmp_path / "t.npz").spans

    assert np.array_equal(spans("--seed", "3"), spans("--seed", "3"))
    assert not np.array_equal(spans("--seed", "3"), spans("--seed", "4"))
    assert not np.array_equal(spans(), spans("--preset", "h200"))


def test_a_run_that_hangs_is_a_defect_and_its_trace_is_written(mine, tmp_path, capsys):
    assert main(["trace", f"{mine}:too_many", "--out", str(tmp_path / "t.npz")]) == 1
    assert "never ended" in capsys.readouterr().err
    assert Trace.load(tmp_path / "t.npz").phases[0] == "push"


def test_what_cannot_be_written_or_simulated_is_refused(mine, tmp_path, capsys):
    for words, message in (
        (["--out", str(tmp_path / "t.csv")], "not written in this form"),
        (["--out", str(tmp_path / "none" / "t.npz")], "cannot be written"),
        (["--out", str(tmp_path / "t.npz"), "--picture", str(tmp_path / "t.txt")], "not written in this form"),
        (["--out", str(tmp_path / "t.npz"), "--preset", "h2000"], "unknown timing preset"),
    ):
        assert main(["trace", f"{mine}:good", *words]) == 2
        assert message in capsys.readouterr().err


def test_recorded_clocks_are_brought_together_and_what_is_known_of_them_is_said(tmp_path, capsys):
    first, second = tmp_path / "a.npz", tmp_path / "b.json"
    met(2, 30, 1, gap=1e6).save(first)
    clocked(met(2, 30, 2, gap=1e6, slow=3.0), {1: steady(7e6, 20.0)}).save(second)
    assert main(["compare", str(first), str(second), "--meeting", "meet", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["first_difference"] == "push"
    assert document["clocks"][1]["ppm"]["1"] == pytest.approx(20, abs=document["clocks"][1]["ppm_uncertainty"]["1"])
    by_phase = {row["phase"]: row for row in document["phases"]}
    assert by_phase["push"]["ratio"] == pytest.approx(3, rel=0.1) and by_phase["skew of ranks"]["second_us"] < 3
    assert (
        main(["compare", str(first), str(second), "--meeting", "meet=meet", "--picture", str(tmp_path / "c.png")]) == 0
    )
    said = capsys.readouterr().out
    assert "known to" in said and "ppm" in said and (tmp_path / "c.png").exists()


def test_without_meetings_no_skew_is_claimed(tmp_path, capsys):
    path = tmp_path / "a.npz"
    met(2, 30, 1).shifted({1: 5e6}).save(path)
    assert main(["compare", str(path), str(path)]) == 0
    said = capsys.readouterr().out
    assert "nothing is known of meetings" in said and "skew of ranks" not in said


def test_a_block_that_left_early_is_told_with_its_file(tmp_path, capsys):
    path = tmp_path / "a.npz"
    leave_early(met(2, 30, 1), rank=1, call=3, nanoseconds=5000).save(path)
    assert main(["compare", str(path), str(path), "--meeting", "meet"]) == 2
    assert f"{path}: no clocks fit this trace: a block left a meeting before" in capsys.readouterr().err
    for bad in ("", "=meet", "meet="):
        assert main(["compare", str(path), str(path), "--meeting", bad]) == 2
