"""Every line of docs/memory_models.md, run over all schedules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from lab.sim.machine.interleaved import MEMORY_MODELS
from lab.sim.tests.programs import Outcome, litmus, outcomes, races_of, shows

DOCUMENT = Path(__file__).parents[4] / "docs" / "memory_models.md"


@dataclass(frozen=True)
class Row:
    """One line of a table, by column name; tests share the name of their line."""

    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def __str__(self) -> str:
        return self.cells["test"]


def tables() -> list[list[Row]]:
    """The tables of the document that hold programs."""
    found: list[list[Row]] = []
    header: list[str] = []
    for line in DOCUMENT.read_text().splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip().strip("`") for cell in line.replace("\\|", "\0").strip().strip("|").split("|")]
        cells = [cell.replace("\0", "|") for cell in cells]
        if not header:
            header = cells
            found.append([])
        elif not set(line) <= set("|-"):
            assert len(cells) == len(header), f"a cell too many or too few: {line}"
            found[-1].append(Row(dict(zip(header, cells, strict=True))))
    return [rows for rows in found if rows and "program" in rows[0].cells]


OUTCOMES = [row for rows in tables() for row in rows if "asks" in row.cells]
RACES = [row for rows in tables() for row in rows if "race check" in row.cells]


@cache
def all_outcomes(program: str, where: str, memory: str) -> list[Outcome]:
    return outcomes(litmus(program, where), memory)


def test_the_document_has_the_classic_tests():
    names = " ".join(map(str, OUTCOMES))
    for classic in ("MP", "SB", "LB", "IRIW", "2+2W", "WRC", "ISA2", "CoRR", "CoWW", "CoWR"):
        assert classic in names
    assert len(OUTCOMES) > 50 and len(RACES) > 40
    assert len({str(row) for row in OUTCOMES}) == len(OUTCOMES), "two lines of one name"


@pytest.mark.parametrize("memory", MEMORY_MODELS)
@pytest.mark.parametrize("row", OUTCOMES, ids=str)
def test_outcome(row, memory):
    seen = shows(all_outcomes(row["program"], row["where"], memory), row["asks"])
    assert ("allowed" if seen else "forbidden") == row[memory], row["why"]


@pytest.mark.parametrize("row", OUTCOMES, ids=str)
def test_models_are_ordered(row):
    """posted allows what sc allows; what RC11 forbids is forbidden in both; every claim has its reason."""
    assert row["why"] and row["RC11"] in ("allowed", "forbidden", "-")
    assert not (row["sc"] == "allowed" and row["posted"] == "forbidden")
    assert not (row["RC11"] == "forbidden" and row["posted"] == "allowed")
    assert ("@" in row["program"]) <= (row["RC11"] == "-"), "RC11 has no scopes"


@pytest.mark.parametrize("row", OUTCOMES, ids=str)
def test_posted_shows_everything_that_sc_shows(row):
    wide = all_outcomes(row["program"], row["where"], "posted")
    assert all(outcome in wide for outcome in all_outcomes(row["program"], row["where"], "sc"))


@pytest.mark.parametrize("row", RACES, ids=str)
def test_race_check(row):
    regions = {name for name in row["where"].split() if name[0].isupper()}
    found = [region for _, _, region in races_of(litmus(row["program"], row["where"]).program)]
    assert bool(found) == (row["race check"] == "race"), f"{row['why']}; found {found}"
    assert all(region[0] in {name[0] for name in regions} for region in found)
