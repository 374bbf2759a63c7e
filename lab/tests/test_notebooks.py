"""The two halves of each notebook agree, and the .ipynb half is committed without outputs."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
import pytest

pytest.importorskip("jupyter_server", reason="JupyterLab's own saving comes with the extra `notebooks`")

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
    if shown.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append(f"{twin.name} names no kernel, so that JupyterLab asks for one at each opening")
    return found + saved_in_jupyter(source)


def saved_in_jupyter(source: Path) -> list[str]:
    """What a save in JupyterLab would change in the .py half, though nobody typed anything."""
    before = source.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        for path in (source, source.with_suffix(".ipynb"), source.with_name("jupytext.toml")):
            if path.exists():
                shutil.copy2(path, folder)
        manager = jupytext.TextFileContentsManager(root_dir=folder)
        model = manager.get(f"{source.stem}.ipynb")
        model["content"]["metadata"]["kernelspec"] = {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        }
        model["content"]["metadata"]["language_info"] = {"name": "python", "version": "3.99", "file_extension": ".py"}
        manager.save(model, f"{source.stem}.ipynb")
        after = Path(folder, source.name).read_text(encoding="utf-8")
    return [] if after == before else [f"saving {source.stem}.ipynb in JupyterLab changes {source.name}"]


@pytest.mark.skipif(not NOTEBOOKS.exists(), reason="not a source tree: the notebooks are not installed")
def test_every_notebook_is_a_clean_pair():
    found = [line for source in sorted(NOTEBOOKS.glob("*.py")) for line in complaints(source)]
    lonely = {path.stem for path in NOTEBOOKS.glob("*.ipynb")} - {path.stem for path in NOTEBOOKS.glob("*.py")}
    found += [f"{stem}.ipynb has no {stem}.py, which is the source" for stem in sorted(lonely)]
    assert not found, "run `make notebooks`:\n  " + "\n  ".join(found)


KERNEL = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

"""


@pytest.fixture
def pair(tmp_path):
    source = tmp_path / "a.py"
    shutil.copy(NOTEBOOKS / "jupytext.toml", tmp_path)
    source.write_text(f"{KERNEL}# %% [markdown]\n# Words\n\n# %%\n1 + 1\n")
    notebook = jupytext.read(source)
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "kernelspec,-all"}
    nbformat.write(notebook, tmp_path / "a.ipynb")
    return source


def test_a_clean_pair_is_not_accused(pair):
    assert complaints(pair) == []


def test_a_changed_source_is_seen(pair):
    pair.write_text(pair.read_text().replace("1 + 1", "1 + 2"))
    assert "a.py and a.ipynb hold different cells" in complaints(pair)


def test_outputs_are_seen(pair):
    twin = pair.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="2")]
    nbformat.write(notebook, twin)
    assert complaints(pair) == ["a.ipynb carries outputs"]


def test_a_notebook_without_a_kernel_is_seen(pair):
    twin = pair.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    del notebook.metadata["kernelspec"]
    nbformat.write(notebook, twin)
    assert any("asks for one at each opening" in line for line in complaints(pair))


def test_a_half_that_a_save_would_change_is_seen(pair):
    pair.write_text(pair.read_text().removeprefix(KERNEL))
    assert complaints(pair) == ["saving a.ipynb in JupyterLab changes a.py"]


def test_a_missing_half_is_seen(pair):
    pair.with_suffix(".ipynb").unlink()
    assert complaints(pair) == ["a.py has no a.ipynb"]
