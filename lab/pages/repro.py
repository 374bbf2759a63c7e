"""The page of `lab repro`: one HTML file that needs nothing else, and the same pictures as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.gate_tables import H200_ONE_GPU, gate_tables
from lab.pages import page
from lab.plots.lanes import arrange
from lab.plots.scene import of_story
from lab.plots.style import write_figure
from lab.plots.timeline import timeline
from lab.protocol.library import load
from lab.repro import (
    GATE_CAPTION,
    GATE_WORDS,
    LEAD,
    LIMITS,
    REPAIRED,
    SEED,
    TITLE,
    WHY,
    Finding,
    Report,
    described,
    repair_diff,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "repro.html"


def write_page(report: Report, folder: Path, seed: int) -> Path:
    """Write the page and its pictures into `folder`; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(report)
    written = folder / PAGE
    written.write_text(render(report, pictures, seed), encoding="utf-8")
    for name, figure in pictures.items():
        write_figure(figure, folder / f"{name}.png")
    for finding in report.findings:
        write_figure(_finding_picture(finding, words=True), folder / f"{finding.words.name}.png")
    return written


def render(report: Report, pictures: dict[str, Figure], seed: int) -> str:
    """The page as text."""
    return page.render(PAGE, _context(report, pictures, seed))


def _pictures(report: Report) -> dict[str, Figure]:
    """Figures that the page shares with a PNG of the same name."""
    if not report.rows:
        return {}
    from lab.plots.gates import gate_figure

    return {"gates": gate_figure([row for row in report.rows if row.preset != H200_ONE_GPU])}


def _context(report: Report, pictures: dict[str, Figure], seed: int) -> dict[str, Any]:
    from lab.sim.timing.presets import PRESETS

    parameters, sources = _parameters()
    return {
        "title": TITLE,
        "lead": LEAD,
        "interrupted": report.interrupted,
        "tables": gate_tables(report.rows),
        "gate_words": GATE_WORDS,
        "why": WHY,
        "gate_plot": page.svg(pictures["gates"], "gates", "failure rate over gate size")
        if "gates" in pictures
        else None,
        "gate_caption": GATE_CAPTION,
        "findings": [_finding(finding) for finding in report.findings],
        "full": described(report.full) if report.full else "",
        "repaired": report.repaired,
        "diff": [(page.kind_of_line(line), line) for line in repair_diff(load(SEED), load(REPAIRED))],
        "limits": LIMITS,
        "presets": list(PRESETS.values()),
        "parameters": parameters,
        "sources": sources,
        "seed": seed,
    }


def _finding_picture(finding: Finding, words: bool) -> Figure:
    title = f"{finding.words.name}: {finding.words.title[0].lower()}{finding.words.title[1:]}" if words else ""
    witness = finding.witness
    return timeline(witness.explainer, witness.fault, title=title, words=words, told=finding.story)


def _finding(finding: Finding) -> dict[str, Any]:
    words, told, witness = finding.words, finding.story, finding.witness
    return {
        "name": words.name,
        "title": words.title,
        "gist": words.gist,
        "hidden": words.hidden,
        "repair": words.repair,
        "picture": page.svg(_finding_picture(finding, words=False), words.name.lower(), words.title),
        "carried": bool(arrange(of_story(witness.explainer, witness.fault, told)).carried),
        "setting": described(witness.config),
        "sentences": list(zip((told.read, told.write, 0, 0), told.sentences(), strict=False)),
        "steps": page.steps_told(told.steps, (told.read, told.write)),
        "line": finding.line,
        "sizes": [(described(config), race.pairs) for config, race in finding.races],
    }


def _parameters() -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The presets side by side, and the sources of what is not assumed, each with its mark."""
    from lab.sim.timing.presets import PRESETS

    marks: dict[str, str] = {}
    rows = []
    for entries in zip(*(preset.table() for preset in PRESETS.values()), strict=True):
        values = []
        for entry in entries:
            known = entry.source != "assumed"
            mark = marks.setdefault(entry.source, chr(ord("a") + len(marks))) if known else ""
            values.append((entry.value, mark))
        rows.append({"name": entries[0].name, "cells": values, "unit": entries[0].unit, "meaning": entries[0].meaning})
    return rows, [(mark, source) for source, mark in marks.items()]
