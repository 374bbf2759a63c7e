"""Naming the rounding of black boxes: every known mode, libraries, faulty boxes, files."""

import sys

import numpy as np
import pytest

from lab.errors import LabError
from lab.sim.rounding import identify as judge
from lab.sim.rounding.convert import NanRule, RoundMode, round_with, to_bf16, to_fp16
from lab.sim.rounding.identify import CANDIDATES, identify, identify_file, identify_pairs, probe_inputs


def test_the_probe_is_small():
    assert probe_inputs().nbytes <= 4096


@pytest.mark.parametrize("mode", CANDIDATES["bf16"], ids=lambda mode: mode.value)
def test_every_bf16_mode(mode):
    verdict = identify(lambda x: to_bf16(x, mode))
    assert verdict.mode == mode.value and verdict.format == "bf16"
    assert verdict.candidates == [mode.value]
    others = {each.value for each in CANDIDATES["bf16"]} - {mode.value}
    assert {line.excludes for line in verdict.evidence} == others  # an input against each of them


@pytest.mark.parametrize("mode", CANDIDATES["fp16"], ids=lambda mode: mode.value)
def test_every_fp16_mode(mode):
    verdict = identify(lambda x: to_fp16(x, mode))
    assert (verdict.mode, verdict.format) == (mode.value, "fp16")


@pytest.mark.parametrize("bits", [1, 3, 6, 16])
@pytest.mark.parametrize("mode", ["SR", "SRC"])
def test_stochastic_modes_and_their_bits(mode, bits):
    verdict = identify(lambda x: to_bf16(x, mode, random_bits=bits, seed=11))
    low, high = verdict.random_bits
    assert low <= bits <= high
    if bits < 6:
        assert (verdict.mode, low, high) == (mode, bits, bits)
    else:
        assert verdict.mode in ("SR", mode)


def test_stochastic_box_with_fresh_bits_at_every_call():
    rng = np.random.default_rng(0)
    verdict = identify(lambda x: to_bf16(x, "SR", random_bits=4, random=rng.integers(0, 16, x.size)))
    assert (verdict.mode, verdict.random_bits) == ("SR", [4, 4])
    assert identify(lambda x: to_fp16(x, "SR", seed=1)).mode == "SR"


@pytest.mark.parametrize(
    ("name", "mode", "nan", "code"),
    [
        ("aiter-0", "RNE", "keep_signalling", "aiter-0"),
        ("aiter-1", "LOW16", "its own", "aiter-1"),
        ("aiter-2", "RTZ", "unguarded", "aiter-2"),
        ("aiter-3", "RNE", "all_ones", "aiter-3"),
        ("ck-1", "RTZ", "keep_signalling", "ck-1"),
    ],
)
def test_library_codes(name, mode, nan, code):
    verdict = identify(lambda x: round_with(name, x))
    assert (verdict.mode, verdict.nan) == (mode, nan) and code in verdict.codes


def test_nearest_even_without_a_nan_guard():
    verdict = identify(lambda x: to_bf16(x, nan=NanRule.UNGUARDED))
    assert (verdict.mode, verdict.nan, verdict.codes) == ("RNE", "unguarded", [])
    assert "NaN can become a number" in verdict.description


def test_other_libraries():
    import ml_dtypes
    import torch

    assert identify(lambda x: torch.from_numpy(x).to(torch.bfloat16)).mode == "RNE"
    assert identify(lambda x: torch.from_numpy(x).to(torch.float16)).format == "fp16"

    def theirs(x):
        with np.errstate(invalid="ignore"):
            return x.astype(ml_dtypes.bfloat16)

    verdict = identify(theirs)
    assert (verdict.mode, verdict.nan) == ("RNE", "sign_canonical")


def test_flushed_subnormals_are_told_apart():
    def flushing(x):
        codes = to_bf16(x)
        codes[np.abs(x) < 2.0**-126] &= 0x8000
        return codes

    verdict = identify(flushing)
    assert (verdict.mode, verdict.subnormals, verdict.codes) == ("RNE", "flushed", [])


def words(x):
    return x.view(np.uint32)


@pytest.mark.parametrize(
    "box",
    [
        lambda x: ((words(x) + np.uint32(0x7FFE) + (words(x) >> 16 & 1)) >> 16).astype(np.uint16),  # bias one short
        lambda x: to_bf16(x) ^ 1,
        lambda x: np.random.default_rng(0).integers(0, 2**16, x.size).astype(np.uint16),
        lambda x: (
            to_bf16(x, "RTZ")  # a fair coin whatever was cut off
            + ((words(x) & 0xFFFF) != 0) * np.random.default_rng(0).integers(0, 2, x.size).astype(np.uint16)
        ),
        lambda x: np.where(np.arange(x.size) % 2, to_bf16(x, "RTZ"), to_bf16(x, "RAZ")),  # alternates
        lambda x: np.zeros(x.size, np.uint16),
    ],
    ids=["bias", "last bit", "noise", "coin", "alternating", "zeros"],
)
def test_none_of_the_known(box):
    verdict = identify(box)
    assert verdict.mode is None and verdict.candidates == []
    assert "none of the known modes; the nearest is" in verdict.description


def test_pairs_that_cannot_tell_modes_apart():
    x = np.array([1.0, 1.5, -3.0, 2**-126], np.float32)
    verdict = identify_pairs(x, to_bf16(x))
    assert verdict.mode is None and len(verdict.candidates) > 5
    assert "do not tell them apart" in verdict.description and verdict.nan == "none seen"
    noisy = np.random.default_rng(0).standard_normal(2000, np.float32)  # no tie among them
    assert identify_pairs(noisy, to_bf16(noisy)).candidates == ["RNE", "RNA"]


# ---- files and callables by name


def save(path, **arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def test_files(tmp_path):
    import ml_dtypes

    x = probe_inputs()
    codes = to_bf16(x, "RTZ")
    for outputs in (
        codes,
        codes.view(np.int16),
        codes.view(ml_dtypes.bfloat16),
        to_bf16(x, "RTZ", out=np.zeros_like(x)),
    ):
        assert identify_file(save(tmp_path / "a.npz", inputs=x, outputs=outputs)).mode == "RTZ"
    assert identify_file(save(tmp_path / "a.npz", x=x, y=to_fp16(x, "RU"))).mode == "RU"


def test_bad_files(tmp_path):
    x = probe_inputs()
    with np.errstate(invalid="ignore"):  # signalling NaN
        double = x.astype(np.float64)
    text = tmp_path / "text.npz"
    text.write_text("not a zip")
    random = tmp_path / "random.npz"
    random.write_bytes(np.random.default_rng(0).bytes(1000))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(save(tmp_path / "a.npz", inputs=x, outputs=to_bf16(x)).read_bytes()[:200])
    cases = [
        (tmp_path / "absent.npz", "no such file"),
        (text, "not a .npz file"),
        (cut, "not a .npz file"),
        (save(tmp_path / "b.npz", inputs=x), "no array `outputs`.*\n.*inputs"),
        (save(tmp_path / "c.npz", inputs=double, outputs=to_bf16(x)), "must be float32"),
        (save(tmp_path / "d.npz", inputs=x, outputs=to_bf16(x)[:-1]), "differ in number"),
        (save(tmp_path / "e.npz", inputs=x, outputs=double), "hold neither bf16 nor fp16"),
        (save(tmp_path / "f.npz", inputs=x, outputs=x), "not a bf16 value"),
        (save(tmp_path / "g.npz", inputs=np.float32([np.nan]), outputs=np.uint16([0x7FC0])), "no finite input"),
        (save(tmp_path / "h.npz", inputs=np.array([{}]), outputs=to_bf16(x)), "not a .npz file of plain arrays"),
        (tmp_path, "this is a folder"),
        (random, "not a .npz file"),
    ]
    for path, message in cases:
        with pytest.raises(LabError, match=message) as refused:
            identify_file(path)
        assert not any(word in str(refused.value) for word in ("pickle", "unsafe", "numpy.load"))


def test_a_file_with_flipped_bits_is_refused_in_our_words_or_read(tmp_path):
    path = save(tmp_path / "a.npz", inputs=probe_inputs(1), outputs=to_bf16(probe_inputs(1)))
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            identify_file(path)
        except LabError as problem:
            assert not any(word in str(problem) for word in ("pickle", "unsafe", "Error", "zlib"))


@pytest.mark.parametrize("mode", ["RNE", "RTZ", "RU"])
def test_either_byte_order_is_read(tmp_path, mode):
    x = probe_inputs()
    codes = to_bf16(x, mode)
    values = (codes.astype(np.uint32) << 16).view(np.float32)
    for outputs in (codes.astype(">u2"), values.astype(">f4"), to_fp16(x, mode).astype(">f2")):
        found = identify_file(save(tmp_path / "a.npz", inputs=x.astype(">f4"), outputs=outputs))
        assert found.mode == mode
        assert identify(lambda asked, outputs=outputs: outputs).mode == mode


def test_callables_by_name(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("def box(x):\n    return (x.view('u4') >> 16).astype('u2')\nnumber = 3\n")
    assert identify(judge.load_callable(f"{script}:box")).mode == "RTZ"
    assert judge.load_callable("lab.sim.rounding:to_bf16") is to_bf16
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    leaving = tmp_path / "leaving.py"
    leaving.write_text("raise SystemExit(0)\n")
    cases = [
        ("nothing", "neither a .npz file nor"),
        (f"{script}:missing", "no function of that name: 'missing'"),
        (f"{script}:number", "no function of that name"),
        (f"{tmp_path}/absent.py:box", "no such file"),
        (f"{broken}:box", "ZeroDivisionError"),
        (f"{leaving}:box", "SystemExit"),
        ("no_such_module:box", "importing no_such_module failed"),
    ]
    for name, message in cases:
        with pytest.raises(LabError, match=message):
            judge.load_callable(name)


def test_boxes_that_fail():
    with pytest.raises(LabError, match=r"failed on the probe inputs.*\n.*KeyError"):
        identify(lambda x: {}["a"])
    with pytest.raises(LabError, match="differ in number"):
        identify(lambda x: to_bf16(x)[:5])
    with pytest.raises(LabError, match=r"failed on the probe inputs.*\n.*SystemExit"):
        identify(lambda x: sys.exit(0))


# ---- the command


def run(*arguments):
    from lab.cli import main

    return main(["rounding", *map(str, arguments)])


def test_command(tmp_path, capsys):
    import json

    assert run("identify", "lab.sim.rounding:to_bf16", "--json") == 0
    assert json.loads(capsys.readouterr().out)["mode"] == RoundMode.TiesToEven.value
    script = tmp_path / "wheel.py"
    script.write_text("def box(x):\n    return (x.view('u4') >> 16).astype('u2')\n")
    assert run("identify", f"{script}:box") == 0
    assert "aiter-2" in capsys.readouterr().out
    assert run("identify", f"{script}:box", "--require", "RNE") == 1  # the start-up check that refuses a wheel
    assert run("identify", f"{script}:box", "--require", "RTZ") == 0
    assert run("identify", f"{script}:box", "--require", "ck-1") == 1  # truncates, but keeps NaN
    assert run("identify", f"{script}:box", "--require", "RNEE") == 2
    flushing = tmp_path / "flushing.py"
    flushing.write_text(
        "import numpy as np\nfrom lab.sim.rounding import to_bf16\n"
        "def box(x):\n    return to_bf16(np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x).astype(np.float32))\n"
    )
    assert run("identify", f"{flushing}:box") == 0
    capsys.readouterr()
    assert run("identify", f"{flushing}:box", "--require", "RNE") == 1
    assert "this is not RNE: subnormals become zero" in capsys.readouterr().err
    assert run("identify", "lab.sim.rounding:to_bf16", "--require", "RNE") == 0
    assert run("identify", tmp_path) == 2
    assert "this is a folder" in capsys.readouterr().err
    assert run("identify", "aiter-1") == 0
    assert "LOW16" in capsys.readouterr().out
    assert run("identify", "aiter-4") == 2
    assert "no branch" in capsys.readouterr().err
    assert run("identify", tmp_path / "absent.npz") == 2
    assert "no such file" in capsys.readouterr().err


def test_probe_command(tmp_path, capsys):
    path = tmp_path / "probe.npz"
    assert run("probe", path) == 0
    with np.load(path) as archive:
        x = archive["inputs"]
    save(path, inputs=x, outputs=to_bf16(x, "RNA"))
    assert run("identify", path) == 0
    assert "RNA" in capsys.readouterr().out
    assert run("probe", tmp_path / "no" / "folder.npz") == 2
