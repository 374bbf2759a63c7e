"""Compiled code belongs to one version of the sources."""

import os
import time

import numba
import pytest

from lab.sim import compiled


@pytest.fixture(autouse=True)
def _keep_the_setting():
    before = numba.config.CACHE_DIR
    yield
    numba.config.CACHE_DIR = before


def test_the_folder_changes_with_any_source_that_compiled_code_sees(tmp_path, monkeypatch):
    first = compiled.keep_compiled_code(tmp_path)
    assert numba.config.CACHE_DIR == str(first) and first.parent == tmp_path
    assert compiled.keep_compiled_code(tmp_path) == first
    sources = tmp_path / "lab" / "sim"
    sources.mkdir(parents=True)
    (sources / "words.py").write_text("ADD = 0\n")
    protocol = tmp_path / "lab" / "protocol"
    protocol.mkdir()
    for name in ("expr", "program", "tables"):
        (protocol / f"{name}.py").write_text("KIND = 0\n")
    monkeypatch.setattr(compiled, "__file__", str(sources / "compiled.py"))
    seen = {compiled.digest()}
    (protocol / "tables.py").write_text("KIND = 1\n")
    seen.add(compiled.digest())
    (sources / "words.py").write_text("ADD = 1\n")
    seen.add(compiled.digest())
    assert len(seen) == 3


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
