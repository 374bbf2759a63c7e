"""`lab check` names the single changes that close a defect, as text and as JSON; so does the message of `lab.check`."""

import json

import pytest

import lab
from lab import cli


def test_the_report_and_its_json(capsys):
    assert cli.main(["check", "iris_462", "--executions", "50"]) == 1
    shown = capsys.readouterr().out
    assert "one change closes it, tried by the checker:" in shown
    assert "system scope instead of device at iris_462.py:40" in shown and "judged at world 2" in shown
    assert cli.main(["check", "iris_462", "--executions", "50", "--json"]) == 1
    repairs = json.loads(capsys.readouterr().out)["repairs"]
    assert repairs[0]["everything"] and repairs[0]["closes"] == [1] and "system scope" in repairs[0]["what"]
    assert repairs[0]["kind"] == "order"
    assert [repair["cost"] for repair in repairs] == sorted(repair["cost"] for repair in repairs)


def test_they_can_be_switched_off(capsys):
    assert cli.main(["check", "iris_462", "--executions", "50", "--repair-seconds", "0", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["repairs"] == [] and document["repairs_tried"] == ""


def test_a_failing_test_says_what_closes_the_defect():
    with pytest.raises(lab.ProtocolDefect, match="a word `done`, stored after"):
        lab.check("tokenspeed_1017", executions=50)
