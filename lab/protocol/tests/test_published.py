"""The catalogue: every defect is found by the mechanism alone, and no fix is accused."""

import inspect
import json
import re
from pathlib import Path

import pytest

import lab.sim
from lab import cli
from lab.errors import UnknownNameError
from lab.protocol.library import load
from lab.protocol.published import ENTRIES, MODULES, Entry, entry
from lab.sim import check as check_module
from lab.sim.check import check
from lab.sim.explore.explore import INTERRUPTED
from lab.sim.machine.interleaved import MEMORY_MODELS

# Larger than the smallest: more ranks, calls, blocks and waves; odd and mixed sizes. A rank's part spans two blocks.
LARGER = {
    "four ranks": ("sc", dict(world=4, bytes=(8192,), blocks=2)),
    "four calls": ("posted", dict(world=3, calls=4, bytes=(4096,), blocks=2)),
    "eight ranks": ("posted", dict(world=8, bytes=(8192,), blocks=2)),
    "waves": ("sc", dict(world=3, calls=3, bytes=(3068,), blocks=2, waves=2)),
    "mixed sizes": ("posted", dict(world=3, calls=3, bytes=(4096, 2052, 3072), blocks=3)),
    "fp32": ("sc", dict(calls=2, dtype="fp32", bytes=(8196,), blocks=2)),
}

each = pytest.mark.parametrize("found", ENTRIES, ids=lambda found: found.protocol)
under_each_memory = pytest.mark.parametrize("memory", MEMORY_MODELS)


def judged(found: Entry, which: str, memory: str, seed: int = 0, executions: int = 200, **changes):
    protocol, config = getattr(found, which)(**changes)
    return check(
        protocol,
        config,
        memory=memory,
        seed=seed,
        executions=executions,
        early_timeout=found.early_timeout,
        minimise=False,
    )


@each
@under_each_memory
@pytest.mark.parametrize("seed", [0, 1000, 2000])
def test_the_defect_is_found(found, memory, seed):
    assert judged(found, "defective", memory, seed).verdict in found.expected(memory)


@each
@under_each_memory
@pytest.mark.parametrize("seed", [0, 1000, 2000])
def test_the_fix_is_clean(found, memory, seed):
    verdict = judged(found, "fixed", memory, seed)
    assert (verdict.verdict, verdict.failing) == ("ok", 0), [str(race) for race in verdict.races]


@each
@pytest.mark.parametrize(("memory", "changes"), LARGER.values(), ids=LARGER)
def test_larger_configurations(found, memory, changes):
    assert judged(found, "defective", memory, executions=40, **changes).verdict in found.expected(memory)
    verdict = judged(found, "fixed", memory, executions=40, **changes)
    assert (verdict.verdict, verdict.failing) == ("ok", 0), [str(race) for race in verdict.races]


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("rdna_ar D1", {"one_mapping": True}),
        ("rccl#1932", {"release": True}),
        ("rtp-llm#1418", {"compare": ">=", "epochs_before": 7}),  # far from its wrap, the wrong comparison is right
        ("local-inference-lab/vllm#618", {"throws": -1}),  # nobody throws: no vote is needed
        ("local-inference-lab/vllm#618", {"throws": -1, "vote": True}),
        ("local-inference-lab/vllm#618", {"throws": 0, "vote": True}),
    ],
)
@under_each_memory
def test_other_repairs_are_clean(id, options, memory):
    verdict = judged(entry(id), "defective", memory, options=tuple(options.items()))
    assert (verdict.verdict, verdict.failing) == ("ok", 0)


@pytest.mark.parametrize(
    ("id", "options", "verdict"),
    [
        ("aiter#4084", {"keep_input": True, "relaxed_start": True}, "race"),
        ("vllm#57059", {"release_acquire": True}, "race"),
        ("vllm#57059", {"system_scope": True}, "race"),
        ("aiter#4786", {"fence": True}, "race"),
        ("aiter#4786", {"system_scope": True}, "race"),
        ("vllm#8558", {"counters": "one set"}, "hang"),
        ("rtp-llm#1418", {"compare": ">=", "epochs_before": 2**32 - 2}, "wrong"),
    ],
)
def test_half_a_repair_is_not_enough(id, options, verdict):
    assert judged(entry(id), "defective", "sc", options=tuple(options.items())).verdict == verdict


def test_a_wrapped_epoch_also_hangs():
    """In the same executions other ranks pass early, with wrong values; the verdict says both."""
    made, config = entry("rtp-llm#1418").defective()
    verdicts = [check(made, config, schedulers=("random",), executions=1, seed=k, minimise=False) for k in range(40)]
    assert any(verdict.hang for verdict in verdicts)


@pytest.mark.parametrize("start", [2**31 - 2, 2**31 - 1, 2**32 - 3, 2**32 - 2, 2**32 - 1])
def test_the_comparison_modulo_two_to_the_32_is_right_everywhere(start):
    options = (("compare", ">=mod"), ("epochs_before", start))
    assert judged(entry("rtp-llm#1418"), "defective", "sc", calls=4, options=options).ok


@under_each_memory
def test_a_lost_flag_is_told_from_a_late_peer(memory):
    options = (("wall_clock", True), ("lost_by", 1))
    protocol, config = entry("rdna_ar false wedge").defective(options=options)
    verdict = check(protocol, config, memory=memory, executions=50, minimise=False)
    assert verdict.verdict == "abort"
    assert verdict.abort == "rank 0: peer 1 has sent a flag that is lost"


@each
def test_the_text_is_short_and_says_what_it_is(found):
    protocol = found.load()
    module = inspect.getmodule(protocol.kernel)
    assert protocol.name == found.protocol
    assert found.id.split()[0] in module.__doc__
    assert "Missing:" in module.__doc__ and "Fix:" in module.__doc__
    assert len(inspect.getsource(protocol.kernel).splitlines()) <= 40


@each
def test_the_fix_differs_from_the_defect_in_options_only(found):
    _, config = found.defective()
    _, fixed = found.fixed()
    assert {name for name, value in config.items() if value != getattr(fixed, name)} == {"options"}


def test_the_simulator_knows_nothing_of_the_catalogue():
    names = [found.protocol for found in ENTRIES] + ["protocol.published"]
    files = [path for path in Path(lab.sim.__file__).parent.rglob("*.py") if "tests" not in path.parts]
    assert len(files) > 50
    for path in files:
        text = path.read_text()
        assert not re.search("|".join(names), text), f"{path.name} names an entry of the catalogue"


def test_entries_by_id_and_by_protocol():
    assert entry("vllm#8558") is entry("vllm_8558")
    with pytest.raises(UnknownNameError) as refused:
        entry("vllm#8559")
    assert "vllm#8558" in str(refused.value)
    assert len({found.id for found in ENTRIES}) == len(MODULES) == len(ENTRIES)


def test_the_command_judges_what_it_is_asked_for(capsys):
    assert cli.main(["catalogue", "iris#465", "rccl#1932", "--json", "--executions", "50"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["report"] for row in rows] == ["iris#465", "rccl#1932"]
    assert set(rows[0]["defect_verdicts"].values()) == {"wrong"}
    assert set(rows[0]["fix_verdicts"].values()) == {"ok"}


def test_the_command_groups_by_class(capsys):
    assert cli.main(["catalogue", "iris#465", "aiter#3514", "--executions", "50"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 as expected" in shown
    assert "reuse before consumption" in shown and "counters, flags, graphs, votes" in shown


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_inside_an_entry_is_no_verdict_on_it(capsys, monkeypatch, finished):
    """The check of an entry keeps what it found and answers; that answer is not counted."""
    whole = check_module.explore
    reached = []

    def explore(*arguments, **options):
        found = whole(*arguments, **options)
        reached.append(found)
        if len(reached) > 2 * finished:  # the defect and the fix, under one model
            found.stopped = INTERRUPTED
        return found

    monkeypatch.setattr(check_module, "explore", explore)
    assert cli.main(["catalogue", "iris#465", "aiter#3514", "--memory", "sc", "--executions", "50"]) == 130
    shown = capsys.readouterr()
    assert ("1 of 1 as expected" in shown.out) if finished else shown.out == ""
    assert f"{finished} of 2 reports were judged" in shown.err and len(reached) == 2 * finished + 1


def test_the_command_refuses_unknown_names(capsys):
    assert cli.main(["catalogue", "vllm#1"]) == 2
    assert cli.main(["catalogue", "--memory", "strong"]) == 2


@each
def test_the_library_knows_its_name(found):
    assert load(found.protocol) is found.load()
