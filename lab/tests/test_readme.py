"""The README's own example does what the README says."""

import re
from pathlib import Path

import pytest

import lab
from lab.cli import COMMANDS
from lab.protocol.library import load

README = (Path(lab.__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code, "the README shows a protocol to copy"
    return code.group(1), tmp_path / "mine.py"


def test_the_protocol_to_copy_is_wrong_as_it_says(example):
    text, file = example
    file.write_text(text)
    with pytest.raises(lab.ProtocolDefect, match="missing:") as caught:
        lab.check(f"{file}:push")
    assert caught.value.verdict.verdict == "wrong"
    race = caught.value.verdict.races[0]
    assert (race.first.phase, race.second.phase) == ("reduce", "push") and race.second.call == race.first.call + 1


def test_the_change_it_names_makes_it_ok(example):
    text, file = example
    for old, new in (
        ("source=m.world", "parity=2, source=m.world"),
        ("inbox[b.rank]", "inbox[b.call % 2, b.rank]"),
        ("inbox[j]", "inbox[b.call % 2, j]"),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    for memory in ("sc", "posted", "weak"):
        assert lab.check(load(f"{file}:push"), memory=memory, executions=100).ok


def test_every_command_that_it_names_exists():
    named = set(re.findall(r"`lab (\w+)", README))
    assert named <= set(COMMANDS) | {"check"}, named - set(COMMANDS)
