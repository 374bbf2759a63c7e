"""The two halves of each notebook agree, and the .ipynb half is committed without outputs."""

from pathlib import Path

import jupytext
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def complaints(source: Path) -> list[str]:
    """What is wrong with the pair whose .py half is `source`."""
    twin = source.with_suffix(".ipynb")
    if not twin.exists():
        return [f"{source.name} has no {twin.name}"]
    written, shown = jupytext.read(source), nbformat.read(twin, as_version=4)
    found = []
    if [(c.cell_type, c.source) for c in written.cells] != [(c.cell_type, c.source) for c in shown.cells]:
        found.append(f"{source.name} and {twin.name} hold different cells")
    if any(cell.get("outputs") for cell in shown.cells):
        found.append(f"{twin.name} carries outputs")
    return found


@pytest.mark.skipif(not NOTEBOOKS.exists(), reason="not a source tree: the notebooks are not installed")
def test_every_notebook_is_a_clean_pair():
    found = [line for source in sorted(NOTEBOOKS.glob("*.py")) for line in complaints(source)]
    lonely = {path.stem for path in NOTEBOOKS.glob("*.ipynb")} - {path.stem for path in NOTEBOOKS.glob("*.py")}
    found += [f"{stem}.ipynb has no {stem}.py, which is the source" for stem in sorted(lonely)]
    assert not found, "run `make notebooks`:\n  " + "\n  ".join(found)


@pytest.fixture
def pair(tmp_path):
    source = tmp_path / "a.py"
    source.write_text("# %% [markdown]\n# Words\n\n# %%\n1 + 1\n")
    jupytext.write(jupytext.read(source), tmp_path / "a.ipynb")
    return source


def test_a_clean_pair_is_not_accused(pair):
    assert complaints(pair) == []


def test_a_changed_source_is_seen(pair):
    pair.write_text(pair.read_text().replace("1 + 1", "1 + 2"))
    assert complaints(pair) == ["a.py and a.ipynb hold different cells"]


def test_outputs_are_seen(pair):
    twin = pair.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="2")]
    nbformat.write(notebook, twin)
    assert complaints(pair) == ["a.ipynb carries outputs"]


def test_a_missing_half_is_seen(pair):
    pair.with_suffix(".ipynb").unlink()
    assert complaints(pair) == ["a.py has no a.ipynb"]
