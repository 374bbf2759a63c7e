"""The gate table: its rows, its references, and what it says where model and hardware differ."""

import json
from itertools import islice

import pytest

from lab.errors import LabError
from lab.plots.gates import gate_figure
from lab.sim.timing.gate_reference import REFERENCES, reference
from lab.sim.timing.gates import GATES, MODES, UNITS, gate_rows, gate_table
from lab.sim.timing.presets import PRESETS


@pytest.fixture(scope="module")
def rows():
    seen = []
    table = gate_table(("pcie_v620", "h200"), (32, 64, 4096), MODES, runs=4, progress=seen.append)
    assert seen == table
    return {(row.preset, row.gate_kib, row.mode): row for row in table}


def test_one_row_a_preset_gate_and_mode(rows):
    assert len(rows) == 2 * 3 * 3
    for row in rows.values():
        assert row.unit == UNITS[row.mode] and row.trials and not row.inexact
        assert (row.mean is None) == (row.wrong_share == 0)
        assert row.reference is reference(row.preset, row.gate_kib, row.mode)
        json.dumps(row.as_dict())


def test_the_shape_comes_out(rows):
    for mode in MODES:
        for name in ("pcie_v620", "h200"):
            assert rows[name, 32, mode].fail_share == 0  # one-shot
            assert rows[name, 64, mode].fail_share > 0.3
        assert rows["pcie_v620", 4096, mode].fail_share == 0
        assert 0 < rows["h200", 4096, mode].wrong_share < rows["h200", 64, mode].wrong_share / 5
    failing = rows["pcie_v620", 64, "self_test"]
    assert 25 < failing.mean_lowest <= failing.mean < 30


def test_where_hardware_differs_the_row_says_so(rows):
    row = rows["h200", 64, "isolated"]
    assert "hardware 25 %" in row.note
    assert rows["pcie_v620", 32, "isolated"].note == ""


def test_finished_rows_are_kept_when_the_table_is_stopped():
    first = list(islice(gate_rows("h200", (16, 20480), ("isolated",), runs=1), 1))
    assert [row.gate_kib for row in first] == [16]


def test_the_same_seed_gives_the_same_rows(rows):
    again = gate_table("h200", (64,), ("isolated",), runs=4)
    assert again == [rows["h200", 64, "isolated"]]
    assert gate_table("h200", (64,), ("isolated",), runs=4, seed=2) != again


def test_references_belong_to_presets_modes_and_gates():
    assert len({(r.preset, r.gate_kib, r.mode) for r in REFERENCES}) == len(REFERENCES)
    for row in REFERENCES:
        assert row.preset in PRESETS and row.mode in MODES and row.gate_kib in GATES and row.source and row.text
        assert "NVIDIA" in row.source or row.preset == "pcie_v620"


def test_bad_input_has_one_message():
    with pytest.raises(LabError, match="unknown mode of the gate table: 'isolatd'"):
        gate_table(modes=("isolatd",))
    with pytest.raises(LabError, match="runs is below 1"):
        gate_table(runs=0)
    with pytest.raises(LabError, match="unknown timing preset"):
        gate_table("h100")
    with pytest.raises(LabError, match="below 1 KiB"):
        gate_table(gates=(0,))


def test_the_picture_shows_model_and_hardware(rows, tmp_path):
    figure = gate_figure(list(rows.values()))
    assert len(figure.axes) == 4
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels >= {"isolated calls, simulated", "isolated calls, hardware", "boot self-test, hardware"}
    figure.savefig(tmp_path / "gates.png")
