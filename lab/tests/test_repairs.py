"""`lab check` prints changes of the text that close a defect, as text and as JSON, and writes them into the file."""

import json

import pytest

import lab
from lab import cli


def test_the_report_and_its_json(capsys):
    assert cli.main(["check", "iris_462", "--executions", "50"]) == 1
    shown = capsys.readouterr().out
    assert "closes it; applied and checked anew:" in shown
    assert (
        "system scope instead of device at iris_462.py:27" in shown
        and "proved right under sc, posted and weak at world 2" in shown
    )
    assert cli.main(["check", "iris_462", "--executions", "50", "--json"]) == 1
    repairs = json.loads(capsys.readouterr().out)["repairs"]
    assert repairs[0]["parts"] == 1 and repairs[0]["closes"] == [1] and "system scope" in repairs[0]["what"]
    assert repairs[0]["kind"] == "order" and repairs[0]["hunks"][0]["line"] == 27
    assert [repair["cost"] for repair in repairs] == sorted(repair["cost"] for repair in repairs)


PUSH = """from lab.protocol.write import ACQUIRE, KIB, RELEASE, SYSTEM, UNCACHED, protocol


def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world, UNCACHED)  # a comment with \u00fcml\u00e4uts


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2)
def push(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j] for j in range(b.world)], b.output)"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_repair_is_written_into_the_file(tmp_path, capsys, newline, number):
    file = tmp_path / "mine.py"
    file.write_bytes(PUSH.replace("\n", newline).encode())
    assert cli.main(["check", f"{file}:push", "--apply", str(number)]) == 1
    told = capsys.readouterr()
    assert f"repair {number} was written into {file}" in told.err
    text = file.read_bytes().decode()
    assert text.count("\r\n") == (text.count("\n") if newline == "\r\n" else 0)
    for more in ([], ["--world", "3", "--calls", "7"]):
        assert cli.main(["check", f"{file}:push", *more, "--executions", "50"]) == 0
    capsys.readouterr()


def test_a_repair_that_is_not_there_is_refused(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(PUSH)
    assert cli.main(["check", f"{file}:push", "--apply", "99"]) == 2
    told = capsys.readouterr()
    assert "there is no repair of that number: 99" in told.err and "there are 3" in told.err
    assert file.read_text() == PUSH


def test_the_labs_own_text_is_left_alone_and_its_patch_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "iris_462", "--executions", "50", "--apply", "1"]) == 1
    assert "the patch is in iris_462.repair-1.patch" in capsys.readouterr().err
    patch = (tmp_path / "iris_462.repair-1.patch").read_text()
    assert patch.startswith("--- lab/protocol/published/iris_462.py") and "+" in patch
    assert lab.check("one_shot", world=2, calls=1, executions=20).ok


def test_they_can_be_switched_off(capsys):
    assert cli.main(["check", "iris_462", "--executions", "50", "--repair-seconds", "0", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["repairs"] == [] and document["repairs_tried"] == ""


def test_a_failing_test_says_what_closes_the_defect():
    with pytest.raises(lab.ProtocolDefect, match="a word `done`, stored after"):
        lab.check("tokenspeed_1017", executions=50)
