import itertools
import shutil

import pytest

from lab.errors import LabError
from lab.kernels.build import HIP, build
from lab.kernels.staging import FLAG_BYTES, Layout


def test_the_cache_is_keyed_by_content(tmp_path):
    shutil.copytree(HIP, tmp_path / "hip")
    options = {"world": 2, "kernels": ["one_shot"], "source": tmp_path / "hip", "cache": tmp_path / "cache"}
    first = build("host", **options)
    again = build("host", **options)
    assert (first.cached, again.cached) == (False, True) and first.path == again.path
    assert "g++" in first.compiler or "clang" in first.compiler
    assert build("host", **{**options, "world": 3}).path != first.path
    with (tmp_path / "hip" / "reduce.hpp").open("a") as file:
        file.write("\n// changed\n")
    changed = build("host", **options)
    assert not changed.cached and changed.path != first.path
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".so"] * 3


@pytest.mark.parametrize(
    "wrong,says",
    [
        ({"target": "rtx"}, "unknown target"),
        ({"world": 9}, "2 to 8 ranks"),
        ({"kernels": ["one_shoot"]}, "did you mean one_shot"),
        ({"rounding": "RNEE"}, "did you mean RNE"),
        ({"output": ".cubin"}, "output for host"),
    ],
)
def test_mistakes_are_named(wrong, says):
    with pytest.raises(LabError, match=says):
        build(**{"target": "host", "world": 2, **wrong})


def test_a_source_that_does_not_compile_says_where(tmp_path):
    (tmp_path / "broken.hip").write_text("int f( {\n")
    (tmp_path / "host_run.hpp").write_text("")
    with pytest.raises(LabError, match=r"broken\.hip"):
        build("host", world=2, kernels=["broken"], source=tmp_path, cache=tmp_path / "cache")


def test_a_missing_compiler_says_what_to_install(monkeypatch):
    from lab.kernels import build as module

    module._compiler.cache_clear()
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    for target, hint in (("host", r"g\+\+"), ("sm_90", "nvcc"), ("gfx942", "pip install ziglang")):
        with pytest.raises(LabError, match=hint):
            build(target, world=2)
    module._compiler.cache_clear()


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("sizes", [(16, 16, 16), (1000, 500, 17), (1 << 20, 1 << 16, 1 << 15), (4096, 1 << 20, 48)])
def test_regions_are_apart_and_large_enough(world, sizes):
    layout = Layout(world, *sizes)
    slots = []
    for region, needed in (
        ("scatter", max(layout.one_shot_bytes, layout.part_bytes)),
        ("gather", layout.part_bytes),
        ("packets", layout.packet_bytes),
    ):
        offset, stride = getattr(layout, f"{region}_offset"), getattr(layout, f"{region}_stride")
        assert offset % 16 == 0 and stride % 16 == 0 and stride >= needed
        slots += [(offset + i * stride, offset + (i + 1) * stride) for i in range(2 * world)]
    slots.append((0, FLAG_BYTES))
    slots.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(slots))
    assert slots[-1][1] == layout.total_bytes
    assert layout.part_bytes * world >= layout.max_bytes


def test_a_world_out_of_range():
    with pytest.raises(LabError, match="2 to 8"):
        Layout(1, 64, 64, 64)
