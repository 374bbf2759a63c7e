# ruff: noqa: E501 - a fault is one line, old text beside new
"""The machine code for AMD: as it is, and with each property planted away."""

import json
import shutil
from pathlib import Path

import pytest

from lab.cli import main
from lab.errors import LabError
from lab.kernels.build import EVERY_KERNEL, HIP, build
from lab.kernels.isa import ARCHITECTURES, survey
from lab.kernels.isa_code import basic_blocks, functions
from lab.kernels.isa_order import check_release
from lab.kernels.isa_rules import RULES
from lab.kernels.isa_speed import poll_spills

pytest.importorskip("ziglang", reason="no AMD compiler: pip install ziglang")


@pytest.mark.parametrize("world", [2, 8])
def test_every_kernel_passes_on_every_architecture(world):
    rows = survey(world=world)
    assert [(row.kernel, row.architecture) for row in rows] == [(k, a) for k in EVERY_KERNEL for a in ARCHITECTURES]
    for row in rows:
        assert row.passed, row
        assert row.vgprs > 8 and row.sgprs > 8
        alone = row.kernel in ("one_shot", "all_gather")  # they push one vector to all
        assert row.loads_in_flight >= (1 if alone else world - 1)


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
    ("release", "signal.hpp", "store_drained_system(theirs", "LAB_ISA_MARK(\"flag store\"); store_relaxed_system(theirs"),
    ("release", "target_amd.hpp", "    __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"\");\n", ""),
    ("release", "signal.hpp", "        store_drained_system(theirs", "        flag_word(call, 0, row, 0, 0)[1] = k;\n        store_drained_system(theirs"),
    ("drain", "signal.hpp", "block_barrier_draining();", "block_barrier();"),
    ("acquire", "target_amd.hpp", "    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");", ""),
    ("acquire", "signal.hpp", "acquire_polled_system(); // by the wave that polled; the barrier passes the order on", ""),
    ("payload", "target_amd.hpp", "system_scope = 1 | 16", "system_scope = 1"),
    ("payload", "one_shot.hip", "store_bypass(scatter_slot(call, k, turn.parity, call.rank), v, mine)", "scatter_slot(call, k, turn.parity, call.rank)[v] = mine"),
    ("poll", "signal.hpp", "const auto arrived = [&] { return load_polled_system(mine) >= turn.epoch; };", "const u64 once = load_polled_system(mine); const auto arrived = [&] { return once >= turn.epoch; };"),
    ("poll", "packets.hpp", "for (u32 j = 0; j < world_size - 1; ++j)\n                all[n].others[j] =", "for (u32 j = 1; j < world_size - 1; ++j)\n                all[n].others[j] ="),
    ("16-byte", "elements.hpp", "    if (Shape::always) {\n        static_cast<Vec16*>", "    store_elements<T>(static_cast<typename T::Bits*>(tensor) + span.first + u64(i) * per_vector<T>, 4, v);\n    return;\n    if (Shape::always) {\n        static_cast<Vec16*>"),
    ("16-byte", "elements.hpp", "    if (first <= last) return load_unaligned(elements + first);", "    if (first <= last) {\n        Vec16 v = {};\n#pragma unroll 1\n        for (u32 e = per_vector<T>; e-- > 0;) v.word[0] = v.word[0] * 3 + elements[first + e];\n        return v;\n    }"),
    ("spills", "one_shot.hip", "trace(call, u32(Algorithm::one_shot), turn.epoch, Event::end);", "volatile u32 sink[64]; sink[share.thread % 64] = share.vectors;"),
    ("flight", "one_shot.hip", "all.others[j] = load_bypass(slots.base, slots.of[j], v);", "{\n                all.others[j] = load_bypass(slots.base, slots.of[j], v);\n                drain_stores();\n            }"),
    ("flight", "one_shot.hip", "slots.of[j], v);", "slots.of[j] + (share.thread & 1), v);"),
    ("scalar", "low_latency.hip", "    const Turn turn = begin_call(call);", "    Turn turn = begin_call(call);\n    for (u32 k = 0; k < world_size; ++k) turn.epoch += load_of_predecessor(&call.control->epoch[turn.epoch & 511]);\n    turn.parity = turn.epoch & 1;"),
    ("drains", "one_shot.hip", "        const auto push = [&](u32 v, const Vec16& mine) {", "        const auto push = [&](u32 v, const Vec16& mine) {\n            drain_stores();"),
    ("acquire", "pull.hip", "    // 2. Sum in rank order", "    leave_drained_system(call, turn, Algorithm::pull);\n    // 2. Sum in rank order"),
    ("payload", "pull.hip", "pull_by<T, R, PastCaches>", "pull_by<T, R, ThroughCaches>"),
    ("flight", "pull.hip", "all.others[j] = Access::load(inputs.of[j], v);", "{\n                all.others[j] = Access::load(inputs.of[j], v);\n                drain_stores();\n            }"),
    ("rounding", "rounding.hpp", "#elif LAB_HAVE_PACKED_BF16", "#elif 0"),
)  # fmt: skip


@pytest.mark.parametrize("check,file,old,new", PLANTED, ids=[f"{row[0]}-{row[1]}" for row in PLANTED])
def test_each_check_can_fail(check, file, old, new, tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    kernel = Path(file).stem if file.endswith(".hip") else {"packets.hpp": "low_latency"}.get(file, "one_shot")
    architecture = "gfx950" if check == "rounding" else "gfx942"
    (row,) = survey(kernels=[kernel], architectures=[architecture], source=tmp_path / "hip", cache=cache)
    assert row.checks[check] != "pass", row


def test_waves_that_do_not_acquire_behind_the_barrier_are_seen_where_a_block_has_two_caches(tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / "signal.hpp"
    path.write_text(path.read_text().replace("    if (A != Reads::nothing) acquire_behind_barrier();", ""))
    rows = survey(kernels=["one_shot"], architectures=["gfx1030", "gfx942"], source=tmp_path / "hip", cache=cache)
    assert "behind the block barrier" in rows[0].checks["acquire"] and rows[1].checks["acquire"] == "pass"


def test_a_drained_flag_without_a_scoped_payload_is_refused(tmp_path, cache):
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / "target_amd.hpp"
    text = path.read_text()
    assert "#if LAB_SCOPED_BYPASS\n    LAB_ISA_MARK" in text
    path.write_text(text.replace("#if LAB_SCOPED_BYPASS\n    LAB_ISA_MARK", "#if 1\n    LAB_ISA_MARK"))
    (row,) = survey(kernels=["one_shot"], architectures=["gfx90a"], source=tmp_path / "hip", cache=cache)
    assert "no system scope" in row.checks["release"]


LOOP = [".LBB0_1:", "s_sleep 1", "global_load_dwordx2 v[0:1], v2, s[0:1] sc0 sc1", "s_waitcnt vmcnt(0)"]


def test_a_spill_between_two_polls_is_counted_and_one_beside_them_is_not():
    beside = [*LOOP, "s_cbranch_vccnz .LBB0_1", "v_readlane_b32 s4, v9, 1", "s_endpgm"]
    between = [*LOOP, "v_readlane_b32 s4, v9, 1", "s_cbranch_vccnz .LBB0_1", "s_endpgm"]
    seldom = [
        *LOOP,
        "s_cbranch_scc0 .LBB0_2",
        "v_writelane_b32 v9, s4, 1",
        ".LBB0_2:",
        "s_cbranch_vccnz .LBB0_1",
        "s_endpgm",
    ]
    assert [poll_spills(basic_blocks(code)) for code in (beside, between, seldom)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("target", "wanted"), [("gfx1250", "not made for gfx1250"), ("gfx1251", "not made for gfx1251")]
)
def test_what_nobody_has_looked_at_is_refused_by_name(target, wanted):
    with pytest.raises(LabError, match=wanted):
        build(target, world=2)


def test_command(capsys):
    assert main(["isa", "--json", "--kernel", "one_shot", "--arch", "gfx942"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["passed"] and row["checks"]["release"] == "pass" and row["lds"] == 8
    assert main(["isa", "--arch", "gfx9000"]) == 2
    assert "gfx9000" in capsys.readouterr().err
