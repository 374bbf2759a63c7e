"""The README's kernel, added by following its steps to the letter in a copy of the device code."""

import re
import shutil
from pathlib import Path

import pytest

from lab.kernels import isa, staging
from lab.kernels.build import HIP

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.S)


def test_adding_the_example_kernel(tmp_path, cache, monkeypatch):
    shutil.copytree(HIP, tmp_path / "hip")
    (source,) = [block for block in blocks("cpp") if "LAB_EXPORT" in block]
    (tmp_path / "hip" / "root.hip").write_text(source)
    signal = tmp_path / "hip" / "signal.hpp"
    edited = re.sub(r"(enum class Algorithm : u32 \{.*?),?\s*\}", r"\1, root }", signal.read_text(), flags=re.S)
    assert edited != signal.read_text()
    signal.write_text(edited)
    monkeypatch.setattr(staging, "ALGORITHMS", (*staging.ALGORITHMS, "root"))
    capacity = staging.Layout.capacity
    monkeypatch.setattr(
        staging.Layout, "capacity", lambda self, name: self.part_bytes if name == "root" else capacity(self, name)
    )
    (steps,) = [block for block in blocks("python") if "HostRanks(" in block]
    steps = steps.replace('kernels=["root"]', 'kernels=["root"], source=source, cache=cache')
    exec(steps, {"source": tmp_path / "hip", "cache": cache})
    pytest.importorskip("ziglang", reason="no AMD compiler: pip install ziglang")
    for row in isa.survey(kernels=["root"], source=tmp_path / "hip", cache=cache):
        # Step 5 says why "drains" is another matter for the example.
        assert all(found == "pass" for name, found in row.checks.items() if name != "drains"), row
