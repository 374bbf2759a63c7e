"""Candidates for what the hosts do: an event between streams, a wait for the device, a meeting of the hosts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.scene import Place, Scene, argument
from lab.sim.change.text.source import Source

_ON_STREAMS = frozenset({"launch", "replay", "produce", "consume"})


@dataclass(frozen=True)
class _Queued:
    """A statement of the scenario that puts something on a stream."""

    place: Place
    stream: str


def _queued(scene: Scene) -> list[_Queued]:
    """What the scenario that was run puts on streams, with the streams as they are written."""
    scenario = scene.protocol.scenarios[scene.config.scenario]
    code = getattr(scenario, "__code__", None)
    source = None if code is None else scene.texts.source(code.co_filename)
    function = None if source is None else source.function_at(code.co_firstlineno)
    if source is None or function is None:
        return []
    nodes: list[tuple[Source, ast.AST]] = [(source, function)]
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    called = {name.id for name in calls if isinstance(name, ast.Name)}
    nodes += [(s, f) for s in scene.texts.sources.values() for f in s.functions if f.name in called]
    found = {}
    for where, node in nodes:
        for call in where.calls(node, _ON_STREAMS):
            statement = next(a for a in where.above(call) if isinstance(a, ast.stmt))
            actor = scene.actor(where, statement, host=True)
            if actor is None or ast.unparse(call.func.value) != actor or not where.stands_alone(statement):  # type: ignore[attr-defined]
                continue
            at = argument(call, 1, "stream") if call.func.attr in ("produce",) else argument(call, 99, "stream")  # type: ignore[attr-defined]
            stream = "0" if at is None else where.segment(at)
            place = Place(where, statement, True, actor, scene.label(where, statement.lineno))
            found[where.path, statement.lineno] = _Queued(place, stream)
    return list(found.values())


def events(scene: Scene) -> Iterator[Candidate]:
    """Before each thing that is put on a stream, an event of another stream."""
    queued = _queued(scene)
    streams = [stream for stream in dict.fromkeys(q.stream for q in queued) if stream.isdigit()]
    for one in queued:
        for other in streams:
            if other != one.stream:
                what = f"stream {one.stream} waits for stream {other} {one.place.where}"
                text = one.place.write([f"{one.place.actor}.wait_stream({one.stream}, {other})"])
                yield Candidate(Cost.EVENT, f"event {one.stream} {other}", what, (text,))


def host_waits(scene: Scene) -> Iterator[Candidate]:
    """After each thing that is put on a stream, the host waits for it; and then for the other hosts."""
    for meet in (False, True) if scene.program.world > 1 else (False,):
        for one in _queued(scene):
            stream = "" if one.stream == "0" else one.stream
            after = Place(one.place.source, one.place.statement, False, one.place.actor, one.place.label)
            lines = [f"{after.actor}.sync({stream})"] + ([f"{after.actor}.barrier()"] if meet else [])
            what = f"the host waits for the device {after.where}{', then for all hosts' if meet else ''}"
            yield Candidate(Cost.HOST, "host meets" if meet else "host waits", what, (after.write(lines),))
