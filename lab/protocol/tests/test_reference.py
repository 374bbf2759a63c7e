"""`docs/verbs.md` is what the code makes of itself, names every verb and field, and what it says of indices holds."""

import inspect
import re
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

import lab
from lab.protocol.errors import ProtocolError
from lab.protocol.program import Move
from lab.protocol.reference import RECORDING, page
from lab.protocol.write import UNCACHED, Block, Buffer, Config, Declare, Host, View, protocol

DOCS = Path(lab.__file__).parents[1] / "docs" / "verbs.md"


@pytest.mark.skipif(not DOCS.exists(), reason="not a source tree: the docs are not installed")
def test_the_page_is_that_of_the_code_as_it_is():
    assert DOCS.read_text(encoding="utf-8") == page(), "run: python -m lab.protocol.reference > docs/verbs.md"


@pytest.mark.parametrize("owner", [Block, Host, Declare, Buffer, View])
def test_every_public_verb_is_named(owner):
    text = page()
    for name, member in inspect.getmembers(owner):
        callable_or_property = inspect.isfunction(member) or isinstance(member, property)
        if not name.startswith("_") and callable_or_property and name not in RECORDING.get(owner, ()):
            assert re.search(rf"\*\*`[a-z.]+\.{name}[`(]", text), f"{owner.__name__}.{name}"
            assert inspect.getdoc(member), f"{owner.__name__}.{name} says nothing"


def test_every_field_of_a_configuration_is_named():
    section = page().partition("## A configuration")[2].partition("\n## ")[0]
    for each in fields(Config):
        assert f"* `{each.name}`: " in section, each.name


def test_a_verb_that_is_forgotten_is_seen(monkeypatch):
    monkeypatch.setattr(Block, "new_verb", lambda self, what: None, raising=False)
    with pytest.raises(AssertionError, match="new_verb"):
        test_the_page_is_that_of_the_code_as_it_is()
        test_every_public_verb_is_named(Block)


def spans_of(index):
    """Where a copy into a region of parity=2, source=4 and 8 elements goes."""

    def memory(m):
        m.payload("staging", 8, UNCACHED, parity=2, source=4)
        m.words("flags", 16, row=2)

    @protocol(memory=memory, bytes=16, world=2)
    def text(b):
        view = index(b.mine)
        b.copy(b.input[: view.elements], view)

    program = text.program(text.config())
    move = next(op for agent in program.agents for op in agent.ops if isinstance(op, Move) and agent.kind == "block")
    return move.dst.start.value, move.dst.length, move.dst.label


def test_the_order_of_keywords_is_the_order_of_the_index_and_slots_lie_row_major():
    assert spans_of(lambda mine: mine.staging[1, 2]) == ((1 * 4 + 2) * 8, 8, "staging[parity 1, source 2]")
    with pytest.raises(ProtocolError, match="parity of staging is out of range"):
        spans_of(lambda mine: mine.staging[2, 1])
    with pytest.raises(ProtocolError, match=r"takes the indices \(parity, source\)"):
        spans_of(lambda mine: mine.staging[1])


def test_a_slice_counts_from_the_start_of_what_is_sliced():
    assert spans_of(lambda mine: mine.staging[1, 2][2:6])[:2] == (50, 4)
    assert spans_of(lambda mine: mine.staging[1, 2][2:6][1:])[:2] == (51, 3)
    assert spans_of(lambda mine: mine.staging[3:7])[:2] == (3, 4)
    for bad in (slice(0, 9), slice(-1, 4), slice(0, 4, 2)):
        with pytest.raises(ProtocolError):
            spans_of(lambda mine, bad=bad: mine.staging[0, 0][bad])


def test_the_package_says_that_it_is_typed():
    assert (files("lab") / "py.typed").is_file()
