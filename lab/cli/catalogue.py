"""`lab catalogue`: the published defects and their fixes, as the checker judges them now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.errors import DEFECT, StoppedError
from lab.cli.options import MOST_WORKERS, seconds
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.cli.table import print_table
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.protocol.published import Entry
    from lab.sim.explore.executor import Executor


def command(
    reports: Annotated[
        list[str] | None,
        typer.Argument(help="Reports to judge, e.g. vllm#8558; all by default.", metavar="REPORT"),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory models, with commas; all by default.")] = None,
    executions: Annotated[int, typer.Option(help="Executions to explore for each verdict.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the schedulers.", min=0)] = 0,
    repairs: Annotated[
        float,
        typer.Option(
            help="Seconds to look for repairs of each defect, and for the published fix among them.", callback=seconds
        ),
    ] = 0.0,
    workers: Annotated[int, typer.Option(help="Processes that judge.", min=1, max=MOST_WORKERS)] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check every published defect and its fix; exit 1 if a defect is missed or a fix accused.

    Nothing is looked up: each verdict is what `lab check` finds at the smallest configuration of the report. Defects
    that need a memory model which the lab does not have yet are marked.
    """
    from lab.errors import UnknownNameError
    from lab.protocol.published import ENTRIES, entry
    from lab.sim.explore.executor import by_process
    from lab.sim.machine.interleaved import MEMORY_MODELS

    models = memory.split(",") if memory else list(MEMORY_MODELS)
    for name in models:
        if name not in MEMORY_MODELS:
            raise UnknownNameError("memory model", name, MEMORY_MODELS)
    chosen = [entry(id) for id in reports] if reports else list(ENTRIES)
    with telling() as tell:
        rows, stopped = judge_all(
            chosen,
            models,
            executions,
            seed,
            by_process(workers),
            repairs,
            lambda judged, name: tell(f"{judged} of {len(chosen)} reports judged; {name}"),
        )
    if json:
        emit_json(rows)
    elif rows:
        _print(rows, models)
    if stopped:
        raise StoppedError(f"{len(rows)} of {len(chosen)} reports were judged; nothing can be said of the rest")
    raise typer.Exit(0 if all(row["as_expected"] for row in rows) else DEFECT)


@dataclass(frozen=True)
class _Judging:
    """What the judgements of all entries share; see `lab.sim.explore.executor.Task`."""

    models: tuple[str, ...]
    executions: int
    seed: int
    repairs: float

    def start(self) -> Callable[[Entry], dict[str, Any]]:
        return lambda found: judge(found, list(self.models), self.executions, self.seed, self.repairs)


def judge_all(
    chosen: list[Entry],
    models: list[str],
    executions: int,
    seed: int,
    executor: Executor,
    repairs: float = 0.0,
    progress: Callable[[int, str], None] = lambda judged, name: None,
) -> tuple[list[dict[str, Any]], bool]:
    """Judge entries: their rows in the order of `chosen`, and whether Ctrl-C ended it before all were judged.

    Raises:
        LabError: An entry could not be judged because its workers died.
    """
    rows: dict[str, dict[str, Any]] = {}
    stopped = False
    try:
        with closing(executor.unordered(_Judging(tuple(models), executions, seed, repairs), chosen)) as results:
            for done in results:
                if done.result is None:
                    raise LabError("a report was not judged", value=done.item.id, hint=done.lost)
                rows[done.item.id] = done.result
                progress(len(rows), done.item.id)
    except KeyboardInterrupt:
        stopped = True
    return [rows[found.id] for found in chosen if found.id in rows], stopped


def judge(found: Entry, models: list[str], executions: int, seed: int, repairs: float = 0.0) -> dict[str, Any]:
    """Check one entry's defect and fix under each model, and look for its repairs: one row of the table.

    Raises:
        KeyboardInterrupt: Ctrl-C; nothing can be said of an entry that was not finished.
    """
    verdicts: dict[str, dict[str, str]] = {"defect": {}, "fix": {}}
    for name, (protocol, config) in (("defect", found.defective()), ("fix", found.fixed())):
        for model in models:
            verdicts[name][model] = _verdict(found, protocol, config, model, executions, seed)
    right = all(verdicts["defect"][model] in found.expected(model) for model in models)
    return {
        "report": found.id,
        "protocol": found.protocol,
        "class": found.group,
        "missing": found.missing,
        "fix": found.fix,
        **{f"{name}_verdicts": kinds for name, kinds in verdicts.items()},
        "as_expected": right and all(kind == "ok" for kind in verdicts["fix"].values()),
        "waits_for": "weak" if found.verdicts != found.weak and "weak" not in models else None,
        "early_timeout": found.early_timeout,
        "repairs": _repairs(found, seed, repairs) if repairs else None,
        "fix_among_repairs": bool(found.repair),
        "why_no_repair": found.why_no_repair or None,
    }


def _repairs(found: Entry, seed: int, seconds: float) -> dict[str, Any]:
    """What closes an entry's defect, and whether the published fix is among it."""
    from lab.sim.check import check

    protocol, config = found.defective()
    verdict = check(
        protocol,
        config,
        memory="weak" if "ok" in found.verdicts else "sc",
        seed=seed,
        early_timeout=found.early_timeout,
        minimise=False,
        repair_seconds=seconds,
    )
    if verdict.interrupted:
        raise KeyboardInterrupt
    named = bool(found.repair) and any(all(part in r.what for part in found.repair) for r in verdict.repairs)
    return {"found": [repair.what for repair in verdict.repairs], "fix_found": named}


def _verdict(found: Entry, protocol: Any, config: Any, model: str, executions: int, seed: int) -> str:
    from lab.sim.check import check

    verdict = check(
        protocol,
        config,
        memory=model,
        executions=executions,
        seed=seed,
        early_timeout=found.early_timeout,
        minimise=False,
    )
    if verdict.interrupted:  # `check` keeps what it had found, which is no judgement of the entry
        raise KeyboardInterrupt
    return verdict.verdict


def _print(rows: list[dict[str, Any]], models: list[str]) -> None:
    """The rows by class, one table each, then what the marks mean."""
    for group, members in groupby(rows, lambda row: row["class"]):
        typer.echo(group)
        cells = [
            (
                row["report"],
                _short(row["defect_verdicts"]) + _mark(row),
                _short(row["fix_verdicts"]),
                f"{row['missing']} -> {row['fix']}" + ("" if row["as_expected"] else "   NOT AS EXPECTED"),
                _said_of_repairs(row),
            )
            for row in members
        ]
        print_table(("report", "defect", "fix", "missing -> fix", "the published fix"), cells)
        typer.echo()
    right = sum(row["as_expected"] for row in rows)
    typer.echo(f"{right} of {len(rows)} as expected, under {', '.join(models)}.")
    if any(row["waits_for"] for row in rows):
        typer.echo(
            "* Under these models only the missing order can be seen, or nothing: wrong values or a hang need `weak`."
        )
    for row in rows:
        if row["early_timeout"]:
            typer.echo(
                f"+ {row['report']}: bounded waits give up early with probability {row['early_timeout']:g} a step."
            )


def _said_of_repairs(row: dict[str, Any]) -> str:
    """Whether the published fix is among the repairs of `lab check`; looked for if that was asked, else as tested."""
    looked = row["repairs"]
    if looked is None:
        return "a repair of lab check" if row["fix_among_repairs"] else f"no repair: {row['why_no_repair']}"
    count = len(looked["found"])
    if looked["fix_found"]:
        return f"found, among {count} repair{'s' if count != 1 else ''}"
    return f"not among {count} repairs: {row['why_no_repair'] or 'it was not found in this time'}"


def _mark(row: dict[str, Any]) -> str:
    return "*" if row["waits_for"] else "+" if row["early_timeout"] else ""


def _short(kinds: dict[str, str]) -> str:
    """`wrong` where all models agree, else `race (sc), wrong (posted)`."""
    if len(set(kinds.values())) == 1:
        return next(iter(kinds.values()))
    return ", ".join(f"{kind} ({model})" for model, kind in kinds.items())
