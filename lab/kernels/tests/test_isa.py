# ruff: noqa: E501 - a fault is one line, old text beside new
"""The machine code for AMD: as it is, and with each property planted away."""

import json
import shutil
from pathlib import Path

import pytest

from lab.cli import main
from lab.kernels.build import HIP, KERNELS, build
from lab.kernels.isa import ARCHITECTURES, RULES, check_release, functions, survey

pytest.importorskip("ziglang", reason="no AMD compiler: pip install ziglang")


@pytest.mark.parametrize("world", [2, 8])
def test_every_kernel_passes_on_every_architecture(world):
    rows = survey(world=world)
    assert [(row.kernel, row.architecture) for row in rows] == [(k, a) for k in KERNELS for a in ARCHITECTURES]
    for row in rows:
        assert row.passed, row
        assert row.vgprs > 8 and row.sgprs > 8


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_code_objects_can_be_made_without_rocm(architecture, cache):
    made = build(architecture, world=2, kernels=["one_shot"], output=".hsaco", cache=cache).path.read_bytes()
    assert made[:4] == b"\x7fELF" and int.from_bytes(made[18:20], "little") == 224  # EM_AMDGPU
    assert int.from_bytes(made[16:18], "little") == 3  # ET_DYN: linked
    assert made[8] == 3  # code object version 5
    for dtype in ("fp32", "fp16", "bf16"):
        assert f"one_shot_{dtype}.kd".encode() in made  # the kernel descriptor that the runtime looks up


def releases(architecture: str) -> dict[str, str]:
    folder = Path(__file__).parent
    made = build(architecture, world=2, kernels=["naive_release"], output=".s", source=folder)
    return {name: check_release(code, RULES[architecture]) for name, code, _ in functions(made.path.read_text())}


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx950"])
def test_the_compiler_defect_is_flagged_on_a_naive_release(architecture):
    found = releases(architecture)
    assert found["fenced_release"] == "pass"
    version = int(
        build(architecture, world=2, kernels=["one_shot"], output=".s").compiler.split("version ")[1].split(".")[0]
    )
    if version <= 22:
        assert "can pass the write-back" in found["naive_release"]
    else:
        assert found["naive_release"] == "pass"


PLANTED = (
    ("release", "signal.hpp", "store_release_system(flag_word(", "LAB_ISA_MARK(\"flag store\"); store_relaxed_system(flag_word("),
    ("release", "target_amd.hpp", "    __builtin_amdgcn_s_waitcnt(0);\n    drain_stores();\n", ""),
    ("drain", "signal.hpp", "block_barrier_draining();", "block_barrier();"),
    ("acquire", "target_amd.hpp", "    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");", ""),
    ("acquire", "signal.hpp", "acquire_polled_system(); // by the wave that polled; the barrier passes the order on", ""),
    ("payload", "target_amd.hpp", "system_scope = 17", "system_scope = 1"),
    ("payload", "one_shot.hip", "store_bypass(scatter_slot(call, peer_after(call, k), turn.parity, call.rank), v, mine)", "scatter_slot(call, peer_after(call, k), turn.parity, call.rank)[v] = mine"),
    ("poll", "signal.hpp", "const auto arrived = [&] { return load_polled_system(mine) >= turn.epoch; };", "const u64 once = load_polled_system(mine); const auto arrived = [&] { return once >= turn.epoch; };"),
    ("poll", "low_latency.hip", "if (s != call.rank) terms[s] =", "if (s != call.rank && s != 0) terms[s] ="),
    ("16-byte", "reduce.hpp", "return static_cast<const Vec16*>(call.input)[index];", "return load_elements<T>(call, first);"),
    ("spills", "one_shot.hip", "trace(call, u32(Algorithm::one_shot), turn.epoch, Event::end);", "volatile u32 sink[64]; sink[first % 64] = vectors;"),
)  # fmt: skip


@pytest.mark.parametrize("check,file,old,new", PLANTED, ids=[f"{row[0]}-{row[1]}" for row in PLANTED])
def test_each_check_can_fail(check, file, old, new, tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    kernel = Path(file).stem if file.endswith(".hip") else "one_shot"
    (row,) = survey(kernels=[kernel], architectures=["gfx942"], source=tmp_path / "hip", cache=cache)
    assert row.checks[check] != "pass", row
    others = {name: found for name, found in row.checks.items() if name != check}
    assert all(found == "pass" for found in others.values()) or check in ("release", "spills"), others


def test_command(capsys):
    assert main(["isa", "--json", "--kernel", "one_shot", "--arch", "gfx942"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["passed"] and row["checks"]["release"] == "pass" and row["lds"] == 8
    assert main(["isa", "--arch", "gfx9000"]) == 2
    assert "gfx9000" in capsys.readouterr().err
