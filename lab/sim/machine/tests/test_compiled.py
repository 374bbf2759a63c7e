"""Compiled code belongs to one version of the sources."""

import ast
import os
import time
from pathlib import Path

import numba
import pytest

from lab.sim.machine import compiled


@pytest.fixture(autouse=True)
def _keep_the_setting():
    before = numba.config.CACHE_DIR
    yield
    numba.config.CACHE_DIR = before


@pytest.fixture
def package(tmp_path):
    """A package of the lab's shape: `loop` is compiled and takes from `words` and `tables`; `report` is plain."""
    sources = {
        "sim/loop.py": """
from numba import njit
from lab.protocol import tables as t
from lab.sim.machine.words import (
    ADD,
    SUB,
)
""",
        "sim/machine/words.py": "ADD = SUB = 0\n",
        "sim/report.py": "from lab.sim.loop import run\n",
        "protocol/tables.py": "def kind():\n    from lab.protocol.expr import KIND\n",
        "protocol/expr.py": "KIND = 0\n",
        "protocol/write.py": "from lab.protocol.expr import KIND\n",
    }
    for name, text in sources.items():
        path = tmp_path / "lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "lab"


def test_compiled_code_sees_what_it_imports_and_what_that_imports(package):
    seen = [str(path.relative_to(package)) for path in compiled.compiled_sources(package)]
    assert seen == ["protocol/expr.py", "protocol/tables.py", "sim/loop.py", "sim/machine/words.py"]


def test_the_regular_expression_misses_no_import_of_the_real_sources():
    package = Path(compiled.__file__).parents[2]
    for path in compiled.compiled_sources(package):
        text = path.read_text(encoding="utf-8")
        by_tree = set()
        for node in ast.walk(ast.parse(text)):
            assert not (isinstance(node, ast.Import) and any(alias.name.startswith("lab") for alias in node.names)), (
                path
            )
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                files = (package.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names)
                by_tree |= {file for file in files if file.is_file() and file.is_relative_to(package)}
        assert set(compiled._imported(package, text)) >= by_tree, path


def test_the_folder_changes_with_what_compiled_code_sees_and_with_nothing_else(package, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "__file__", str(package / "sim" / "machine" / "compiled.py"))
    first = compiled.keep_compiled_code(tmp_path / "cache")
    assert numba.config.CACHE_DIR == str(first) and first.parent == tmp_path / "cache"
    assert compiled.keep_compiled_code(tmp_path / "cache") == first
    version = compiled.digest()
    (package / "sim" / "report.py").write_text("from lab.sim.loop import run as go\n")
    assert compiled.keep_compiled_code(tmp_path / "cache") == first and compiled.digest() != version
    (package / "protocol" / "expr.py").write_text("KIND = 1\n")
    assert compiled.keep_compiled_code(tmp_path / "cache") != first


def test_folders_unused_for_a_month_are_forgotten_and_others_kept(tmp_path):
    old, young, foreign = tmp_path / ("a" * 16), tmp_path / ("b" * 16), tmp_path / "something else"
    for folder in (old, young, foreign):
        folder.mkdir()
    for folder in (old, foreign):
        os.utime(folder, (time.time() - 40 * 24 * 3600,) * 2)
    compiled.keep_compiled_code(tmp_path)
    assert not old.exists() and young.exists() and foreign.exists()


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not compiled.keep_compiled_code(blocked).is_relative_to(blocked)
