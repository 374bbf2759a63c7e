"""The `lab` command as a user meets it: start-up, help, and how each kind of ending looks."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lab import cli
from lab.cli.errors import DEFECT, INTERNAL, INTERRUPTED, USAGE, StoppedError, UsageError, run
from lab.cli.output import emit_json
from lab.errors import LabError, UnknownNameError, nearest

LAB = [sys.executable, "-m", "lab.cli"]


def lab(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([*LAB, *words], capture_output=True, text=True, check=False)


# ---- start-up and help


def test_help_starts_in_half_a_second():
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        assert lab("--help").returncode == 0
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.5, f"lab --help took {min(taken):.2f} s at best"


def test_start_up_loads_nothing_heavy():
    heavy = ("numpy", "numba", "pandas", "matplotlib", "torch")
    code = f"import sys, lab.cli; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert loaded == [], f"a command imports {', '.join(loaded)} at module level; import it in the function"


def commands(app: typer.Typer, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words that reach every command and group."""
    found = [(*before, info.name or info.callback.__name__) for info in app.registered_commands]
    for group in app.registered_groups:
        words = (*before, group.name)
        found += [words, *commands(group.typer_instance, words)]
    return found


@pytest.mark.parametrize("words", [(), *commands(cli.app)], ids=lambda words: " ".join(words) or "lab")
def test_every_command_explains_itself(words):
    shown = CliRunner().invoke(cli.app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    usage, _, rest = shown.output.partition("\n\n")
    assert usage.startswith("Usage:")
    assert rest.strip() and not rest.lstrip().startswith(("Options:", "Arguments:")), "no docstring, so no help"


def test_every_listed_command_is_registered():
    assert [words[0] for words in commands(cli.app) if len(words) == 1] == sorted(
        cli.COMMANDS,
        key=lambda name: (hasattr(sys.modules[f"lab.cli.{name}"], "app"), cli.COMMANDS.index(name)),
    )


def test_version():
    from lab import __version__

    assert lab("--version").stdout == f"lab {__version__}\n"


# ---- endings


def ending(capsys, work, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that does `work`."""
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(work)
    code = run(app, list(words))
    return (code, *capsys.readouterr())


def test_a_plain_return_is_0(capsys):
    assert ending(capsys, lambda: print("fine")) == (0, "fine\n", "")


def test_a_mendable_error_is_one_message_and_2(capsys):
    def work():
        raise LabError("world is out of range", value=99, hint="use 2 to 8 ranks")

    code, out, err = ending(capsys, work)
    assert (code, out) == (USAGE, "")
    assert err == "lab: world is out of range: 99\n  use 2 to 8 ranks\n"


def test_a_usage_error_is_a_lab_error(capsys):
    def work():
        raise UsageError("--exhaustive and --seed exclude each other")

    assert ending(capsys, work) == (USAGE, "", "lab: --exhaustive and --seed exclude each other\n")


def test_a_bad_option_is_2(capsys):
    code, out, err = ending(capsys, lambda: None, "--wrold", "3")
    assert (code, out) == (USAGE, "")
    assert "--wrold" in err and "Traceback" not in err


def test_a_defect_is_1(capsys):
    def work():
        print("race")
        raise typer.Exit(DEFECT)

    assert ending(capsys, work) == (DEFECT, "race\n", "")


def test_ctrl_c_keeps_what_was_printed_and_is_130(capsys):
    def work():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("3 executions, 1 finding")
            raise StoppedError("the finding is above") from None

    said = "lab: stopped with Ctrl-C; the finding is above\n"
    assert ending(capsys, work) == (INTERRUPTED, "3 executions, 1 finding\n", said)


def test_ctrl_c_before_there_is_anything_to_keep(capsys):
    def work():
        raise KeyboardInterrupt

    assert ending(capsys, work) == (INTERRUPTED, "", "lab: stopped\n")


def test_a_bug_of_ours_is_not_mistaken_for_a_defect(capsys):
    def work():
        raise ZeroDivisionError

    code, out, err = ending(capsys, work)
    assert (code, out) == (INTERNAL, "")
    assert "ZeroDivisionError" in err and "bug in the lab" in err


def test_an_unknown_command_is_2():
    done = lab("chekc")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "chekc" in done.stderr and "Traceback" not in done.stderr


# ---- messages


def test_an_unknown_name_comes_with_the_nearest():
    known = ["seed_one_shot", "seed_two_shot", "pull"]
    error = UnknownNameError("protocol", "seed_twoshot", known, hint="`lab list` shows all.")
    assert error.nearest[0] == "seed_two_shot"
    assert str(error).startswith("unknown protocol: 'seed_twoshot'\n  did you mean seed_two_shot")
    assert str(error).endswith("`lab list` shows all.")


def test_nothing_near_means_the_names_of_a_short_table_and_no_guess_from_a_long_one():
    assert str(UnknownNameError("dtype", "zzz", ["fp16", "bf16"])) == "unknown dtype: 'zzz'\n  it is one of fp16, bf16"
    assert str(UnknownNameError("protocol", "zzz", [f"p{n}" for n in range(50)])) == "unknown protocol: 'zzz'"


def test_a_guess_and_a_hint_are_two_sentences():
    said = str(UnknownNameError("dtype", "zzz", ["fp16", "bf16"], hint="see the list"))
    assert said == "unknown dtype: 'zzz'\n  it is one of fp16, bf16; see the list"
    assert str(UnknownNameError("dtype", "zzz", ["pull"])) == "unknown dtype: 'zzz'\n  the only one is pull"
    assert str(UnknownNameError("dtype", "zzz", [])) == "unknown dtype: 'zzz'"
    assert str(UnknownNameError("dtype", "zzz", [], hint="there are none")) == "unknown dtype: 'zzz'\n  there are none"


def test_nearest_ignores_case():
    assert nearest("PULL", ["pull", "two_shot"]) == ["pull"]


# ---- json


def test_json_takes_dataclasses_and_numpy_and_has_no_nan(capsys):
    @dataclass(frozen=True)
    class Row:
        gate_kib: int
        mean: float
        ranks: np.ndarray
        wrong: tuple[np.int64, ...]
        failed: np.bool_

    emit_json({"rows": [Row(64, float("nan"), np.arange(2, dtype=np.uint32), (np.int64(7),), np.True_)]})
    assert json.loads(capsys.readouterr().out) == {
        "rows": [{"gate_kib": 64, "mean": None, "ranks": [0, 1], "wrong": [7], "failed": True}]
    }


def test_json_refuses_what_it_cannot_say():
    with pytest.raises(TypeError, match="object"):
        emit_json(object())
