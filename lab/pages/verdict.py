"""The page of `lab check --html`: a verdict with a picture of each defect, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.pages import page
from lab.pages.listing import Mark, listings
from lab.plots.lanes import arrange
from lab.plots.scene import Scene, of_fault, of_hang, of_race, of_run, of_timeouts
from lab.plots.timeline import draw
from lab.protocol.program import Program
from lab.protocol.tables import compile_tables
from lab.protocol.write import Config, Protocol
from lab.sim.explain.hang import before_giving_up
from lab.sim.explain.minimise import smaller
from lab.sim.explain.wrong import Explainer, Fault
from lab.sim.machine import interleaved as m
from lab.sim.machine.execution import Execution, execute
from lab.sim.machine.schedule import Schedule, parse
from lab.sim.order.races import find_races
from lab.sim.order.verdict import Race, Repair, Verdict

PAGE = "check.html"
_WIDEST = 60.0  # units of a picture; a wider one says nothing to a person
_MOST_STEPS = 200_000  # of an execution that is drawn
_MOST_GIST = 4  # lines said at once; the others unfold
_NAMES = {"ok": "OK", "wrong": "WRONG", "race": "RACE", "hang": "HANG", "abort": "ABORT"}


@dataclass(frozen=True)
class Finding:
    """One defect, as the page tells it.

    Attributes:
        name: Its tag, unique in the page.
        title: What happens, in one line.
        gist: What is to be said of it before any execution.
        scene: The execution that shows it; None: none is shown.
        setting: Which execution that is.
        line: The schedule line that repeats it.
        marks: Lines of the text that it is about.
    """

    name: str
    title: str
    gist: tuple[str, ...]
    scene: Scene | None = None
    setting: str = ""
    line: str | None = None
    marks: tuple[Mark, ...] = field(default=())


def write_page(verdict: Verdict, protocol: Protocol, config: Config, path: Path) -> None:
    """Write the page of a verdict on `protocol` at `config`.

    Raises:
        LabError: The file cannot be written.
    """
    text = render(verdict, protocol, config)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise LabError("the page cannot be written", value=str(path), hint=problem.strerror) from problem


def require_writable(path: Path) -> None:
    """Refuse a page that cannot be written, before the work.

    Raises:
        LabError: The folder is not there, or takes no file.
    """
    new = not path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if new:
            path.unlink()
    except OSError as problem:
        raise LabError("the page cannot be written", value=str(path), hint=problem.strerror) from problem


def render(verdict: Verdict, protocol: Protocol, config: Config) -> str:
    """The page as text."""
    program = protocol.program(config)
    found = list(_findings(verdict, protocol, config))
    if verdict.ok:
        found_scene = _fine(protocol, config)
        shown = None if found_scene is None else _picture(found_scene[0], "ok", "one execution", found_scene[1])
    else:
        shown = None
    context = {
        "title": f"{verdict.protocol}: {_NAMES.get(verdict.verdict, verdict.verdict.upper())}",
        "verdict": verdict,
        "word": _NAMES.get(verdict.verdict, verdict.verdict.upper()),
        "lead": _lead(verdict, found),
        "facts": _facts(verdict, program),
        "findings": [_told(finding) for finding in found],
        "fine": shown,
        "repairs": [_repair(repair) for repair in verdict.repairs],
        "notes": _other_notes(verdict),
        "listings": listings(protocol, program, [mark for finding in found for mark in finding.marks]),
        "command": f"lab check {verdict.protocol}",
    }
    return page.render(PAGE, context)


# ---- the words above


def _lead(verdict: Verdict, found: list[Finding]) -> list[str]:
    races = len(verdict.races)
    several = f"{races} pairs of accesses race" if races > 1 else "One pair of accesses races"
    explored = f"{verdict.executions:,} executions were explored"
    failing = f"{verdict.failing:,} of them failed" if verdict.failing else "none of them failed"
    if verdict.ok:
        return [f"No defect was found. {explored}; what that covers is said below."]
    said = []
    if races:
        said.append(f"{several}: nothing in the text orders the two, whatever the schedule.")
    if verdict.verdict == "race":
        said.append(f"{explored}, and no value came out wrong: that is luck, and the order is as missing.")
    else:
        what = {
            "wrong": "Results are wrong",
            "hang": "It hangs: a state is reached in which nothing can move",
            "abort": "A bounded wait gives up, and its call ends without a result",
        }.get(verdict.verdict, verdict.verdict)
        said.append(f"{what}. {explored}, and {failing}.")
    if verdict.repairs:
        said.append("Changes that close it were tried by the checker; they stand below.")
    return said


def _facts(verdict: Verdict, program: Program) -> list[tuple[str, str]]:
    config = verdict.config
    sizes = ", ".join(_bytes(size) for size in dict.fromkeys(config["bytes"]))  # type: ignore[call-overload]
    facts = [
        ("ranks", str(config["world"])),
        ("calls", str(config["calls"])),
        ("blocks", str(config["blocks"] or "the kernel's own grid")),
        ("message", sizes),
        ("dtype", program.dtype),
        ("hosts", str(config["scenario"])),
        ("memory model", verdict.memory),
    ]
    if config.get("resident"):
        facts.append(("blocks at once", str(config["resident"])))
    if int(config.get("waves") or 1) > 1:  # type: ignore[call-overload]
        facts.append(("waves a block", str(config["waves"])))
    return facts


def _bytes(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _other_notes(verdict: Verdict) -> list[str]:
    """Notes that belong to no race: what a race does is told where the race is."""
    return list(verdict.notes)


def _repair(repair: Repair) -> dict[str, Any]:
    """A repair with its diff, each line with the class that it is drawn in."""
    lines = [line for line in repair.diff.splitlines() if not line.startswith(("+++", "---"))]
    return {
        "what": repair.what,
        "lines": [(page.kind_of_line(line), line) for line in lines],
        "judged": "; ".join(repair.judged_at),
    }


# ---- the findings


def _findings(verdict: Verdict, protocol: Protocol, config: Config) -> Iterator[Finding]:
    for number, race in enumerate(verdict.races, 1):
        yield _race(number, race, verdict, protocol, config)
    lines = {outcome.kind: outcome.schedule for outcome in verdict.outcomes}
    if "wrong" in lines:
        schedule, execution = _replayed(lines["wrong"], protocol)
        explainer = Explainer(execution)
        fault = _unexplained(explainer, verdict)
        if fault is not None:
            yield Finding(
                "W",
                "Wrong elements that no race explains",
                tuple(str(wrong) for wrong in verdict.wrong[:4]),
                of_fault(explainer, fault),
                f"An execution in which this happens: {_described(schedule.config)}",
                lines["wrong"],
            )
    if "hang" in lines:
        schedule, execution = _replayed(lines["hang"], protocol)
        explainer = Explainer(execution)
        yield Finding(
            "H",
            "Nothing can move any more",
            verdict.hang,
            of_hang(explainer, ()),
            f"An execution that ends so: {_described(schedule.config)}",
            lines["hang"],
            tuple(_stuck_marks(execution, "H")),
        )
    gave_up = lines.get("abort", verdict.schedule)
    if gave_up is not None and (verdict.abort or verdict.gave_up):
        schedule, execution = _replayed(gave_up, protocol)
        stuck = before_giving_up(execution)
        gist = (*([f"Abort record: {verdict.abort}."] if verdict.abort else []), *verdict.gave_up)
        moment = "The moment at which the first wait gives up, where nothing else can move"
        early = "An execution in which a wait gives up although others could still move"
        yield Finding(
            "A",
            "A bounded wait gives up",
            gist,
            of_timeouts(Explainer(execution)) if stuck is None else of_hang(Explainer(stuck), ()),
            f"{early if stuck is None else moment}: {_described(schedule.config)}",
            gave_up,
            () if stuck is None else tuple(_stuck_marks(stuck, "A")),
        )


def _race(number: int, race: Race, verdict: Verdict, protocol: Protocol, config: Config) -> Finding:
    name = f"R{number}"
    marks = tuple(Mark(access.line, name) for access in (race.first, race.second))
    gist = (_pairs(race), f"Missing: {race.missing}.")
    line = verdict.witness_lines[number - 1] if number <= len(verdict.witness_lines) else None
    for shown, which in ((line, "The smallest execution found"), (verdict.schedule, "An execution")):
        if shown is None:
            continue
        schedule, execution = _replayed(shown, protocol)
        explainer = Explainer(execution)
        fault = _fault_of(explainer, race)
        if fault is not None:
            setting = f"{which} in which this makes a value wrong: {_described(schedule.config)}"
            return Finding(name, title_of(race), gist, of_fault(explainer, fault), setting, shown, marks)
    shown = _harmless(race, protocol, config)
    if shown is None:
        return Finding(name, title_of(race), gist, marks=marks)
    scene, at = shown
    setting = f"No schedule tried made a value wrong by this pair alone. An execution that has it: {_described(at)}"
    return Finding(name, title_of(race), gist, scene, setting, None, marks)


def title_of(race: Race) -> str:
    """What a race is, in one line."""
    first, second = (access.phase or access.agent for access in (race.first, race.second))
    apart = race.second.call - race.first.call
    of_call = {0: "", 1: " of the next call"}.get(apart, f" of another call ({apart:+d})")
    where = race.region
    if race.first.kind == race.second.kind == "write":
        return f"{first} and {second}{of_call} both write {where}, in either order"
    if race.second.kind == "write":
        return f"{second}{of_call} overwrites {where}, which {first} may still be reading"
    return f"{second}{of_call} reads {where}, which {first} may not have written yet"


def _pairs(race: Race) -> str:
    accesses = " and ".join(f"{access.agent} at op {access.op} ({access.line})" for access in (race.first, race.second))
    pairs = f"{race.pairs} pairs of operations" if race.pairs != 1 else "one pair of operations"
    return f"{accesses}; in all {pairs} of this kind."


def _replayed(line: str, protocol: Protocol) -> tuple[Schedule, Execution]:
    schedule, _, program = parse(line, protocol)
    return schedule, execute(compile_tables(program), schedule.memory, m.REPLAY, choices=schedule.steps)


def _fault_of(explainer: Explainer, race: Race) -> Fault | None:
    """The fault of an execution that shows a race; None: none does."""
    wanted = {race.first.line, race.second.line}
    return next((fault for _, _, fault in explainer.faults() if _lines(explainer, fault) == wanted), None)


def _lines(explainer: Explainer, fault: Fault) -> set[str]:
    rows = [int(explainer.execution.log.op[step]) for step in explainer.racing(fault)]
    return {str(explainer.tables.op(row).site) for row in rows}


def _unexplained(explainer: Explainer, verdict: Verdict) -> Fault | None:
    """A fault of the failing execution behind which none of the races stands; None: there is none."""
    raced = [{race.first.line, race.second.line} for race in verdict.races]
    for _, _, fault in explainer.faults():
        if len(explainer.racing(fault)) < 2 or _lines(explainer, fault) not in raced:
            return None if any(_lines(explainer, fault) <= lines for lines in raced) else fault
    return None


def _stuck_marks(execution: Execution, finding: str) -> Iterator[Mark]:
    """The lines at which agents stand that cannot move, in a kernel's own text, marked with a finding's name."""
    tables = execution.tables
    for agent in tables.program.agents:
        row = int(execution.state.pc[agent.id])
        if agent.kind != "host" and int(tables.agent_start[agent.id]) < row < int(tables.agent_end[agent.id]):
            yield Mark(str(tables.op(row).site), finding)


def _harmless(race: Race, protocol: Protocol, config: Config) -> tuple[Scene, Config] | None:
    """An execution that has a race and shows nothing wrong, at the smallest configuration that has the race."""
    wanted = {(race.first.line, race.first.kind), (race.second.line, race.second.kind)}
    for at in [*smaller(config), config]:
        try:
            protocol.accept(at)
            report = find_races(compile_tables(protocol.program(at)))
        except LabError:
            continue  # a configuration that the protocol refuses
        for found in report.races:
            if {(found.first.line, found.first.kind), (found.second.line, found.second.kind)} == wanted:
                scene = of_race(Explainer(report.execution), found)
                return None if scene is None else (scene, at)
    return None


def _fine(protocol: Protocol, config: Config) -> tuple[Scene, Config] | None:
    """One execution of a protocol that is right, at a small configuration that the protocol accepts."""
    little = replace(config, calls=min(config.calls, 2), blocks=min(config.blocks or 2, 2))
    for at in (replace(little, world=min(config.world, 2)), little, config):
        try:
            protocol.accept(at)
            execution = execute(compile_tables(protocol.program(at)))
        except LabError:
            continue
        return of_run(Explainer(execution)), at
    return None


# ---- as the template takes it


def _told(finding: Finding) -> dict[str, Any]:
    scene = finding.scene
    return {
        "name": finding.name,
        "title": _capital(finding.title),
        "gist": [_capital(text) for text in finding.gist[:_MOST_GIST]],
        "more": [_capital(text) for text in finding.gist[_MOST_GIST:]],
        "setting": finding.setting,
        "picture": None if scene is None else _drawn(scene, finding.name, finding.title),
        "carried": scene is not None and bool(scene.chain[1:]),
        "raced": scene is not None and bool(scene.pair),
        "sentences": () if scene is None else scene.sentences,
        "steps": [] if scene is None else page.steps_told(scene.steps, scene.red),
        "line": finding.line,
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _picture(scene: Scene, name: str, title: str, at: Config) -> dict[str, Any]:
    return {"picture": _drawn(scene, name, title), "setting": _described(at)}


def _drawn(scene: Scene, name: str, title: str) -> Any:
    """The picture; None: it would be too wide to say anything."""
    if scene.execution.steps > _MOST_STEPS or arrange(scene).width > _WIDEST:
        return None
    return page.svg(draw(scene, words=False), name.lower(), title)


def _described(config: Config) -> str:
    blocks = "the kernel's own grid" if config.blocks is None else _count(config.blocks, "block")
    sizes = ", ".join(_bytes(size) for size in dict.fromkeys(config.bytes))
    return f"{_count(config.world, 'rank')}, {blocks}, {_count(config.calls, 'call')} of {sizes}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
