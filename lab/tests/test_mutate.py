"""`lab mutate`: every mutant is caught or proved slack, and a broken protocol is not praised."""

import json
from collections import Counter

from lab import cli
from lab.protocol.library import load
from lab.sim.mutate import judge, mutants


def test_every_mutant_of_the_repaired_two_shot_is_caught_or_proved_slack():
    program = load("repaired_two_shot").program(world=2, blocks=2, calls=3)
    outcomes = [judge(mutant) for mutant in mutants(program)]
    assert Counter(o.state for o in outcomes)["survived"] == 0
    slack = {(o.mutant.kind, o.mutant.phase, o.mutant.change) for o in outcomes if o.state == "slack"}
    assert ("buffer", "", "one buffer of gather instead of several") in slack
    assert not any(kind == "drop" and "wait" in change for kind, _, change in slack), "no wait is spare"


def test_the_one_shot_needs_both_of_its_buffers():
    program = load("seed_one_shot").program(world=2, blocks=2, calls=3)
    buffers = {m.change: judge(m) for m in mutants(program) if m.kind == "buffer"}
    assert buffers["one buffer of staging instead of several"].caught


def test_the_command_lists_rows_and_counts(capsys):
    assert cli.main(["mutate", "seed_one_shot", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"caught", "slack"}
    assert cli.main(["mutate", "seed_one_shot", "--slack"]) == 0
    assert f"{len(rows)} mutants" in capsys.readouterr().out


def test_a_protocol_that_is_wrong_as_it_stands_is_refused(capsys):
    assert cli.main(["mutate", "seed_two_shot"]) == 2
    assert "its mutants say nothing" in capsys.readouterr().err
