"""Bad input through the command line: one clear message, exit code 2, no traceback, nothing lost."""

import re
import signal
import subprocess
import sys
import time
import zlib

import pytest

from lab.cli import main
from lab.cli.errors import DEFECT, INTERRUPTED, OK, USAGE
from lab.cli.request import size

PROTOCOL = """
from lab.protocol.write import *

def memory(m):
    m.payload("slots", m.max_elements, UNCACHED, source=m.world)
    m.words("flags", m.world)

@protocol(memory=memory, blocks=1, bytes=256, world=2, options={"turns": 1, "share": 0.5, "safe": True})
def mine(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).slots[b.rank][: b.elements])
    for j in b.peers:
        b.leader.store(b.on(j).flags[b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers if b.options["safe"] else []:
        b.leader.wait(b.mine.flags[j], ">=", 1, ACQUIRE, SYSTEM)
    b.reduce([b.input if j == b.rank else b.mine.slots[j][: b.elements] for j in range(b.world)], b.output)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROTOCOL)
    return "mine.py:mine"


def refused(capsys, *words: str) -> str:
    """The one message with which a command line is refused."""
    code = main(list(words))
    out, err = capsys.readouterr()
    assert code == USAGE, f"exit {code}, {out}{err}"
    assert out == "", "a request that cannot be met prints no result"
    assert "Traceback" not in err and "bug in the lab" not in err
    assert err.count("lab: ") == 1 or err.startswith("Usage: "), err
    return err


# ---- which protocol


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("seed_twoshot", "unknown protocol: 'seed_twoshot'\n  did you mean seed_two_shot"),
        ("", "unknown protocol: ''"),
        ("nothing.py:mine", "there is no such protocol file: 'nothing.py'"),
        (".:mine", "there is no such protocol file: '.'"),
        ("mine.py", "say which protocol of the file: 'mine.py'\n  it defines mine"),
        ("mine.py:", "say which protocol of the file"),
        ("mine.py:mime", "unknown protocol in mine.py: 'mime'\n  did you mean mine?"),
        ("mine.py:memory", "unknown protocol in mine.py: 'memory'\n  the only one is mine\n"),
    ],
)
def test_an_unknown_protocol(capsys, mine, name, said):
    assert said in refused(capsys, "check", name)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "raises.py",
            "x = 1\nraise ValueError('no luck')\n",
            "raised ValueError: no luck: 'raises.py'\n  line 2: raise",
        ),
        ("syntax.py", "def f(:\n", "raised SyntaxError: invalid syntax"),
        ("imports.py", "import nothing_such\n", "raised ModuleNotFoundError: No module named 'nothing_such'"),
        ("binary.py", b"\x00\x01\xff", "raised SyntaxError"),
        ("notes.txt", "just words", "raised SyntaxError"),
        ("exits.py", "raise SystemExit(0)\n", "raised SystemExit: 0: 'exits.py'\n  line 1: raise SystemExit(0)"),
        ("empty.py", "", "unknown protocol in empty.py: 'mine'\n  it defines none; decorate a function with @protocol"),
        ("wrong.py", PROTOCOL.replace("world=2", "wurld=2"), "wurld"),
    ],
)
def test_a_file_that_is_no_protocol(capsys, mine, tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    assert said in refused(capsys, "check", f"{name}:mine")


@pytest.mark.parametrize(
    "mistake", ["b.copy(b.input, b.mine.slot[0])", "if b.load(b.mine.flags[0], ACQUIRE, SYSTEM): pass", "1 / 0"]
)
def test_a_mistake_in_the_protocol_is_shown_with_its_line(capsys, mine, tmp_path, mistake):
    (tmp_path / "mine.py").write_text(PROTOCOL.replace("def mine(b):", f"def mine(b):\n    {mistake}"))
    said = refused(capsys, "check", mine)
    assert "mine.py:10: " in said and f"line: {mistake}" in said


# ---- which configuration


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--world", "0"], "world is out of range: 0\n  use 1 to 8"),
        (["--world", "9"], "world is out of range: 9"),
        (["--world", "many"], "Invalid value for '--world'"),
        (["--blocks", "0"], "blocks is out of range: 0"),
        (["--blocks", "5000"], "blocks is out of range: 5000"),
        (["--calls", "0"], "calls is out of range: 0"),
        (["--bytes", "3"], "not a positive number of whole elements: 3"),
        (["--bytes", "0"], "not a positive number of whole elements: 0"),
        (["--bytes", "-2"], "this is not a size: '-2'"),
        (["--bytes", "12x"], "this is not a size: '12x'\n  write bytes (65536) or 64KiB, 1MiB, 8GiB"),
        (["--bytes", "8TiB"], "this size is too large: '8TiB'\n  the largest message is 64GiB"),
        (["--bytes", "8bk"], "this is not a size: '8bk'"),
        (
            ["--schedulers", "exhaustive", "--checkpoint", "none/x"],
            "the folder of the checkpoint does not exist: 'none'\n  make it first",
        ),
        (["--schedulers", "exhaustive", "--checkpoint", "."], "the checkpoint is a folder: '.'"),
        (["--bytes", ""], "this is not a size: ''"),
        (["--bytes", "²"], "this is not a size: '²'"),
        (["--bytes", "64KiB,"], "this is not a size: ''"),
        (["--bytes", "2KiB", "--gate", "1KiB"], "bytes is above the gate: 2048\n  the gate is 1024 bytes"),
        (["--gate", "big"], "this is not a size: 'big'"),
        (["--dtype", "fp8"], "unknown dtype: 'fp8'"),
        (["--scenario", "isolatd"], "did you mean isolated"),
        (["--waves", "3"], "does not divide into that many waves: 3"),
        (["--schedulers", "rndom"], "unknown scheduler: 'rndom'\n  did you mean random"),
        (["--schedulers", ""], "unknown scheduler: ''"),
        (["--memory", "postd"], "unknown memory model: 'postd'\n  did you mean posted"),
        (["--executions", "0"], "Invalid value for '--executions'"),
        (["--deadline", "-1"], "Invalid value for '--deadline'"),
        (["--workers", "0"], "Invalid value for '--workers'"),
        (["--engine", "dusk"], "unknown engine: 'dusk'\n  did you mean dask?"),
        (["--dask-address", "tcp://127.0.0.1:1"], "only the engine dask has an address"),
        (["--early-timeout", "2"], "Invalid value for '--early-timeout'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--seed", "9" * 20], "Invalid value for '--seed'"),
        (["--set", "turns"], "written NAME=VALUE: 'turns'"),
        (["--set", "turns=x"], "this option takes a whole number: 'x'"),
        (["--set", "share=x"], "this option takes a number: 'x'"),
        (["--set", "safe=maybe"], "this option takes yes or no: 'maybe'"),
        (["--set", "turn=1"], "unknown option of mine.py:mine: 'turn'\n  did you mean turns"),
        (["--wrold", "2"], "No such option: --wrold"),
    ],
    ids=" ".join,
)
def test_a_configuration_out_of_range(capsys, mine, options, said):
    assert said in refused(capsys, "check", mine, *options)


def test_the_same_command_line_without_the_mistake_works(capsys, mine):
    options = ["--world", "2", "--bytes", "256", "--set", "safe=yes", "--executions", "10"]
    assert main(["check", mine, *options]) == OK
    assert capsys.readouterr().out.startswith("mine.py:mine: OK")


def test_a_refused_configuration_is_said_in_words(capsys, mine, tmp_path):
    refuses = PROTOCOL.replace("memory=memory,", "memory=memory, accepts=lambda c: 'two ranks only' * (c.world > 2),")
    (tmp_path / "mine.py").write_text(refuses)
    said = refused(capsys, "check", mine, "--world", "3", "--blocks", "8", "--set", "turns=2")
    assert said == (
        "lab: mine.py:mine refuses this configuration: two ranks only\n"
        "  asked for: world 3, 8 blocks, 1 call, 256 bytes, fp16, back_to_back, safe=True, share=0.5, turns=2\n"
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12", 12),
        ("64KiB", 1 << 16),
        ("2k", 2048),
        ("3MiB", 3 << 20),
        ("8GiB", 8 << 30),
        ("1g", 1 << 30),
        ("5GB", 5 * 10**9),
        ("5MB", 5 * 10**6),
        ("5kb", 5000),
        ("7B", 7),
    ],
)
def test_sizes_and_their_units(text, wanted):
    assert size(text) == wanted


PRODUCES = """
from lab.protocol.write import *

def memory(m):
    m.payload("slots", m.max_elements, UNCACHED, source=m.world)

def produced(h):
    source = h.input(256)
    h.produce(source)
    h.launch(source, h.output(256))

def nothing(h):
    pass

@protocol(memory=memory, blocks=1, bytes=256, world=2, scenarios={"produced": produced, "nothing": nothing})
def mine(b):
    b.copy(b.input, b.mine.slots[b.rank][: b.elements])
"""


def test_the_listing_is_of_the_protocols_own_kernel(capsys, tmp_path, monkeypatch):
    """Not of the kernel that makes its input, which comes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PRODUCES)
    assert main(["check", "mine.py:mine", "--scenario", "produced", "--listing"]) == OK
    shown = capsys.readouterr().out
    assert "block 0" in shown and "slots" in shown, shown
    assert "launches no block" in refused(capsys, "check", "mine.py:mine", "--scenario", "nothing", "--listing")


# ---- schedule lines


@pytest.fixture
def line(capsys, mine) -> str:
    """A schedule line of a defect: the protocol that does not wait."""
    assert main(["check", mine, "--set", "safe=no", "--executions", "50"]) == DEFECT
    return re.search(r"lab replay '(.*)'", capsys.readouterr().out).group(1)


def test_a_schedule_line_is_repeated(capsys, line):
    assert main(["replay", line]) == DEFECT
    assert "wrong; " in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "hello", "a?b#c&check=00000000", "seed_two_shot", "?#&check=", "'"])
def test_what_is_no_schedule_line(capsys, mine, text):
    assert "schedule line" in refused(capsys, "replay", text)


def test_a_truncated_line(capsys, line):
    for length in (1, 10, len(line) // 2, len(line) - 1):
        assert "schedule line" in refused(capsys, "replay", line[:length])


def test_a_line_of_another_version_of_the_protocol(capsys, mine, line, tmp_path):
    (tmp_path / "mine.py").write_text(PROTOCOL.replace('"flags", m.world', '"flags", m.world + 1'))
    assert "belongs to another version of mine.py:mine" in refused(capsys, "replay", line)


def test_a_line_of_a_protocol_that_is_gone(capsys, mine, line):
    other = _checked(line.replace("mine.py:mine", "seed_three_shot", 1))
    assert "unknown protocol: 'seed_three_shot'" in refused(capsys, "replay", other)


def _checked(line: str) -> str:
    """`line` with the checksum that it should have, as a clever user would make it."""
    body = line.rpartition("&check=")[0]
    return f"{body}&check={zlib.crc32(body.encode()):08x}"


# ---- Ctrl-C


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_what_was_found(tmp_path):
    """A long exploration is stopped; the verdict so far and a line to repeat it are printed, exit 130."""
    command = [
        sys.executable,
        "-m",
        "lab.cli",
        "check",
        "seed_two_shot",
        "--world",
        "2",
        "--blocks",
        "2",
        "--calls",
        "2",
    ]
    command += ["--executions", "100000000", "--deadline", "600"]
    for seconds in (2, 5, 20):  # a machine under load may still be starting
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
        assert started.returncode == INTERRUPTED, (out, err)
        assert "Traceback" not in err
        if out:
            break
    assert out.startswith("seed_two_shot: WRONG") and "finding 2 of 2" in out
    assert "lab replay 'seed_two_shot?" in out and "stopped early: Ctrl-C" in out
    assert err.count("lab: ") == 1 and "what was found until then is above" in err
