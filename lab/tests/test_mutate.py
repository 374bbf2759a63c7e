"""`lab mutate`, `lab slack`: mutants are caught or proved slack, and a broken protocol is not praised."""

import json
import re
from collections import Counter

import pytest
from typer.testing import CliRunner

from lab import cli
from lab.cli import slack as cli_slack
from lab.protocol.library import load
from lab.sim.change import judge as sim_judge
from lab.sim.change import mutate as sim_mutate
from lab.sim.change.mutate import judge, mutants
from lab.sim.change.slack import Slack

SMALL = ("--world", "2", "--blocks", "2", "--calls", "3")  # a configuration at which every command is quick


def test_every_mutant_of_the_repaired_two_shot_is_caught_or_proved_slack():
    program = load("repaired_two_shot").program(world=2, blocks=2, calls=3)
    outcomes = [judge(mutant) for mutant in mutants(program)]
    assert Counter(o.state for o in outcomes)["survived"] == 0
    slack = {(o.mutant.kind, o.mutant.phase, o.mutant.what) for o in outcomes if o.state == "slack"}
    assert ("buffer", "", "one buffer of gather instead of several") in slack
    assert not any(kind == "drop" and "wait" in change for kind, _, change in slack), "no wait is spare"


def test_the_one_shot_needs_both_of_its_buffers():
    program = load("seed_one_shot").program(world=2, blocks=2, calls=3)
    buffers = {m.what: judge(m) for m in mutants(program) if m.kind == "buffer"}
    assert buffers["one buffer of staging instead of several"].caught


def test_the_command_lists_rows_and_counts(capsys):
    assert cli.main(["mutate", "seed_one_shot", *SMALL, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"caught", "slack"}
    assert all("one execution stands for every schedule" in row["covered"] for row in rows if row["state"] == "slack")
    assert cli.main(["mutate", "seed_one_shot", *SMALL]) == 0
    shown = capsys.readouterr().out
    caught = sum(row["state"] == "caught" for row in rows)
    assert f"of {len(rows)} mutants; mutation score 100% ({caught} of {caught})" in shown


def test_slack_as_text_and_as_json(capsys):
    assert cli.main(["slack", "seed_one_shot", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert (
        "staging: all 2 buffers are needed" in shown and "proof: one execution" in shown and "can go at once" in shown
    )
    assert cli.main(["slack", "repaired_two_shot", *SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(depth["region"], depth["enough"]) for depth in document["depths"]] == [("staging", 1), ("gather", 1)]
    assert document["slack"] and document["together"]["changes"] and not document["open"]


def stopped_at(judged, monkeypatch, module):
    """Let Ctrl-C come with the judgement after so many of `module`."""
    left = iter(range(judged))
    original = module.judge_program

    def judge_program(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, "judge_program", judge_program)


@pytest.mark.parametrize("judged", [0, 2])
def test_slack_that_was_stopped_says_nothing_of_the_rest(capsys, monkeypatch, judged):
    stopped_at(judged, monkeypatch, sim_mutate)
    assert cli.main(["slack", "seed_one_shot", *SMALL]) == 130
    shown = capsys.readouterr()
    assert "no slack" not in shown.out
    assert re.fullmatch(
        rf"lab: stopped with Ctrl-C; {judged} of \d+ looked at; nothing can be said of the rest\n", shown.err
    )
    stopped_at(judged, monkeypatch, sim_mutate)
    assert cli.main(["slack", "seed_one_shot", *SMALL, "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"] and document["looked_at"] <= judged < document["of"]


def test_slack_that_was_stopped_before_it_began_is_one_json_document(capsys, monkeypatch):
    stopped_at(0, monkeypatch, sim_judge)
    assert cli.main(["slack", "seed_one_shot", *SMALL, "--json"]) == 130
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["interrupted"] and not document["slack"] and not document["looked_at"]
    assert "nothing was looked at" in shown.err


def test_the_document_of_nothing_has_the_keys_of_any_other():
    assert cli_slack._NOTHING_YET.keys() == cli_slack._document(Slack()).keys()


@pytest.mark.parametrize("judged", [0, 3])
def test_mutants_that_were_not_judged_are_not_praised(capsys, monkeypatch, judged):
    stopped_at(judged, monkeypatch, sim_mutate)
    assert cli.main(["mutate", "seed_one_shot", *SMALL]) == 130
    shown = capsys.readouterr()
    assert "proved right" not in shown.out and "mutation score" not in shown.out
    assert shown.err.startswith(f"lab: stopped with Ctrl-C; {judged} of ")
    assert shown.err.endswith(" mutants judged; nothing can be said of the rest\n")


def test_a_protocol_that_is_wrong_as_it_stands_is_refused(capsys):
    assert cli.main(["mutate", "seed_two_shot", *SMALL]) == 2
    assert "its mutants say nothing" in capsys.readouterr().err
    assert cli.main(["slack", "seed_two_shot", *SMALL]) == 2
    assert "nothing can be called spare" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mutate", "slack"])
def test_few_slots_are_judged_as_check_judges_them(command, capsys):
    """A GPU that cannot hold both blocks of a grid barrier gives up: where check says so, nothing is called spare."""
    few = ["repaired_two_shot", "--world", "2", "--blocks", "2", "--calls", "2", "--resident", "1"]
    assert cli.main(["check", *few, "--repair-seconds", "0"]) == 1
    assert "ABORT" in capsys.readouterr().out
    assert cli.main([command, *few]) == 2
    assert "as it stands" in capsys.readouterr().err
    assert cli.main([command, "repaired_two_shot", *SMALL, "--gpus", "1"]) == 2
    assert "compete for its slots" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "mutate", "slack"])
def test_commands_on_a_protocol_take_the_same_options(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
    wanted = ("world", "blocks", "calls", "bytes", "gate", "dtype", "waves", "resident", "gpus", "scenario", "set")
    assert [name for name in wanted if f"--{name} " not in shown] == []
