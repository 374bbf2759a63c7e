"""The text of a protocol: found whole, changed without touching it, traced back line by line, written or refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.protocol.library import load
from lab.protocol.published import ENTRIES
from lab.sim.change.tests.protocols import PUSH, pull, written
from lab.sim.change.text.patch import Patch, apply, digest
from lab.sim.change.text.source import Source, Splice
from lab.sim.change.text.texts import Texts
from lab.sim.order.verdict import Repair


def texts_of(folder: Path, text: str, name: str = "pull") -> Texts:
    found = Texts.of(load(written(folder, text, name)))
    assert found is not None
    return found


def line_with(source: Source, what: str) -> int:
    return next(k for k, line in enumerate(source.text.splitlines(), 1) if what in line)


def repair_of(texts: Texts) -> Repair:
    patch = Patch.of(texts)
    return Repair("order", 0, 1, (1,), "", patch.hunks, patch.diff(), patch.digests, (), (), "")


def with_line(texts: Texts, at: str, new: str) -> Texts:
    source = texts.main
    statement = source.statement(line_with(source, at))
    assert statement is not None
    made = texts.edited([source.insert(statement, False, [new])])
    assert made is not None
    return made


def test_a_changed_text_is_another_protocol_and_the_first_one_stays(tmp_path):
    texts = texts_of(tmp_path, pull())
    before = Path(texts.main.path).read_text()
    made = with_line(texts, "b.copy(b.input", "b.fence(RELEASE, SYSTEM)")
    kinds = [type(op).__name__ for agent in made.protocol.program().agents for op in agent.ops]
    assert "Fence" in kinds and made.protocol.name == texts.reference
    known = [type(op).__name__ for agent in load(texts.reference).program().agents for op in agent.ops]
    assert "Fence" not in known and Path(texts.main.path).read_text() == before
    assert made.main.module not in sys.modules


def test_a_changed_text_leaves_modules_that_python_knows_alone():
    found = next(entry for entry in ENTRIES if entry.protocol == "aiter_3514").load()
    texts = Texts.of(found)
    assert texts is not None and texts.own
    shared = next(source for source in texts.sources.values() if source.path.endswith("published/shared.py"))
    module = sys.modules[shared.module]
    statement = shared.statement(line_with(shared, "b.leader.store(getattr(b.on(j), flags)"))
    assert statement is not None
    made = texts.edited([shared.insert(statement, True, ["b.leader.fence(RELEASE, SYSTEM)"])])
    assert made is not None
    kinds = [type(op).__name__ for agent in made.protocol.program().agents for op in agent.ops]
    assert kinds.count("Fence") > 0 and sys.modules[shared.module] is module
    assert "Fence" not in [type(op).__name__ for agent in found.program().agents for op in agent.ops]


def test_a_helper_beside_the_protocol_belongs_to_its_text(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "meeting_of_mine.py").write_text("def meet(b):\n    b.barrier()\n")
    text = "from meeting_of_mine import meet\n" + pull().replace(
        "    b.barrier()\n    b.reduce", "    meet(b)\n    b.reduce"
    )
    texts = texts_of(tmp_path, text)
    assert next(Path(path).name for path in texts.sources) == "meeting_of_mine.py"
    helper = next(iter(texts.sources.values()))
    made = texts.edited([Splice(helper.path, 0, 0, "from lab.protocol.write import RELEASE, SYSTEM\n\n\n")])
    assert made is not None and made.protocol.program().n_ops == load(texts.reference).program().n_ops
    monkeypatch.delitem(sys.modules, "meeting_of_mine")


@pytest.mark.parametrize("place", ["def memory", "b.copy(b.input", "b.reduce(["])
def test_each_line_is_traced_back_through_several_changes(tmp_path, place):
    texts = texts_of(tmp_path, pull())
    made = with_line(with_line(texts, "b.copy(b.input", "b.barrier()"), place, "x = 1")
    old, new = texts.main, made.main
    for number, line in enumerate(new.text.splitlines(), 1):
        origin = made.origin(new.code_name, number)
        if origin is None:
            assert line.strip() in ("b.barrier()", "x = 1")
        else:
            assert old.text.splitlines()[origin[1] - 1] == line


def test_a_line_that_was_moved_is_traced_back_to_where_it_was(tmp_path):
    texts = texts_of(tmp_path, pull())
    source = texts.main
    copy = source.statement(line_with(source, "b.copy(b.input"))
    assert copy is not None
    start, end = source.lines_of(copy)
    text = source.text[start:end]
    made = texts.edited(
        [Splice(source.path, start, end, ""), Splice(source.path, len(source.text), len(source.text), text, start)]
    )
    assert made is not None
    line = line_with(made.main, "b.copy(b.input")
    assert line != copy.lineno and made.origin(made.main.code_name, line) == (source.path, copy.lineno)


def test_changes_that_overlap_or_are_no_python_are_none(tmp_path):
    texts = texts_of(tmp_path, pull())
    path = texts.main.path
    assert texts.edited([Splice(path, 0, 9, "x"), Splice(path, 5, 12, "y")]) is None
    assert texts.edited([Splice(path, 0, 0, "def (")]) is None
    assert texts.edited([]) is None


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_is_applied_is_what_was_judged(tmp_path, newline, ending):
    text = (PUSH.replace("{more}", "").replace("{split}", "").rstrip() + "  # größe" + ending).replace("\n", newline)
    file = tmp_path / "mine.py"
    file.write_bytes(text.encode())
    texts = Texts.of(load(f"{file}:push"))
    assert texts is not None and texts.main.text == text
    source = texts.main
    last = source.statement(line_with(source, "b.reduce(["))
    assert last is not None
    made = texts.edited([source.insert(last, False, ["b.barrier()"]), *source.importing({"WAVE"})])
    assert made is not None
    assert apply(repair_of(made)) == [str(file)]
    assert file.read_bytes().decode() == made.main.text
    assert "b.barrier()" in Patch.of(made).diff() and made.protocol.program().n_ops > 0


def test_a_file_that_has_changed_is_left_alone(tmp_path):
    texts = texts_of(tmp_path, pull())
    repair = repair_of(with_line(texts, "b.copy(b.input", "b.barrier()"))
    file = Path(texts.main.path)
    file.write_text(file.read_text() + "\n# more\n")
    before = file.read_text()
    with pytest.raises(LabError, match="has changed since it was checked"):
        apply(repair)
    assert file.read_text() == before
    file.unlink()
    with pytest.raises(LabError, match="cannot be read"):
        apply(repair)


def test_a_digest_of_another_text_is_another_one(tmp_path):
    texts = texts_of(tmp_path, pull())
    repair = repair_of(with_line(texts, "b.copy(b.input", "b.barrier()"))
    assert repair.texts == ((texts.main.path, digest(texts.main.text)),)
    with pytest.raises(LabError):
        apply(replace(repair, texts=((texts.main.path, digest("other")),)))


def test_names_that_are_missing_are_imported_in_order(tmp_path):
    source = Source("x.py", "x", "from lab.protocol.write import ACQUIRE, SYSTEM, protocol\n\nRELEASE = 1\n")
    (splice,) = source.importing({"RELEASE", "DEVICE", "Cache", "SYSTEM"})
    assert splice.new == "from lab.protocol.write import ACQUIRE, DEVICE, SYSTEM, Cache, protocol"
    assert source.importing({"RELEASE"}) == []


def test_a_loop_name_that_is_used_is_not_taken():
    text = "def f(b, k):\n    for j in b.peers:\n        b.copy(j)\n        b.barrier()\n    b.ret()\n"
    source = Source("x.py", "x", text)
    inside, behind = source.statement(4), source.statement(5)
    assert inside is not None and behind is not None
    assert source.free_name(inside, ("j", "peer")) == "peer"
    assert source.free_name(behind, ("j", "peer")) == "j"
    assert source.free_name(behind, ("k", "word")) == "word"
