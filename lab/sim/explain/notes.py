"""What a verdict says of each race beyond the race itself, and what the check cannot have seen."""

from __future__ import annotations

from collections.abc import Iterator

from lab.protocol.program import Expect, Move, Program
from lab.protocol.write import Config, Protocol
from lab.sim.explain.minimise import Witness
from lab.sim.explain.wrong import WitnessStep, witness
from lab.sim.order.verdict import Race


def notes(
    protocol: Protocol,
    config: Config,
    program: Program,
    memory: str,
    races: tuple[Race, ...],
    small: dict[int, Witness],
    failed: bool,
    sought: int,
) -> Iterator[str]:
    """Yield what each race does to values, and what this check cannot have seen.

    Args:
        protocol: What was checked.
        config: At which configuration.
        program: The program.
        memory: The memory model.
        races: The races found.
        small: For some races, by their place, a small execution in which it makes a value wrong.
        failed: Whether some execution had a wrong value.
        sought: So many of the races were looked at to the end; for the others, the time ran out or Ctrl-C came.
    """
    for place, race in enumerate(races):
        phases = f" ({race.first.phase} / {race.second.phase})" if race.first.phase or race.second.phase else ""
        yield f"race {place + 1}{phases}: {_effect(protocol, memory, small.get(place), failed, place < sought)}"
    if config.calls == 1 and len(_launches(program)) <= program.world:
        yield "one call only: whether the next call reuses a buffer too early was not looked at (--calls 3)"
    yield from _residency(config, program)
    yield from _idle_waves(program)
    if not any(isinstance(op, Expect) for agent in program.agents for op in agent.ops):
        yield (
            "the scenario compares no output, so only races, hangs and aborts were looked for; end it with "
            "h.expect(output, input) or h.consume(output)"
        )


def _idle_waves(program: Program) -> Iterator[str]:
    """Waves without any element to move: that their blocks are split shows nothing of them."""
    moves: dict[int, bool] = {}
    for agent in program.agents:
        if agent.kind == "wave":
            own = (op for op in agent.ops if isinstance(op, Move))
            busy = moves.get(agent.wave, False) or any(any(op.mapping.chunks(op.dst.length)) for op in own)
            moves[agent.wave] = busy
    idle = [str(wave) for wave, busy in sorted(moves.items()) if not busy]
    if idle and len(idle) < len(moves):
        which = f"waves {', '.join(idle[:-1])} and {idle[-1]} move" if len(idle) > 1 else f"wave {idle[0]} moves"
        yield f"{which} nothing at this size, so what goes wrong between waves may not show (larger --bytes)"


def _residency(config: Config, program: Program) -> Iterator[str]:
    """Where slots are few, whether that matters."""
    if config.resident is None:
        return
    few = [str(slots.gpu) for slots in program.residency]
    if few:
        which = f"GPU{'s' if len(few) > 1 else ''} {', '.join(few)}"
        yield f"{which} may have more blocks to run at once than the {config.resident} that find a slot"
    else:
        yield f"no GPU ever has more than {config.resident} blocks to run at once, so that slots do not matter here"


def _effect(protocol: Protocol, memory: str, found: Witness | None, failed: bool, sought: bool) -> str:
    if found is None and not sought:
        return "what it does to values was not looked for to the end: the time ran out, or Ctrl-C came"
    if found is None and failed:
        return "no schedule tried made a value wrong by the order of this pair alone"
    if found is None:
        weaker = "" if memory == "weak" else "; --memory weak may show one"
        return f"no schedule tried made a value wrong because of it (benign so far{weaker})"
    c = found.config
    return (
        f"wrong values with {c.calls} call{'s' if c.calls > 1 else ''}, world {c.world}, "
        f"{c.blocks} block{'s' if c.blocks != 1 else ''}, {max(c.bytes)} bytes; "
        f"{len(witness(found.explainer, found.fault))} steps that matter\n  lab replay '{found.line(protocol)}'"
    )


def _launches(program: Program) -> set[tuple[int, int]]:
    return {(agent.rank, agent.call) for agent in program.agents if agent.kind in ("block", "wave")}


def story(small: Witness) -> list[str]:
    """The steps that matter of a witness, one line each."""
    return [_told(step) for step in witness(small.explainer, small.fault)]


def _told(step: WitnessStep) -> str:
    after = f" (let go by step {step.because})" if step.because >= 0 else ""
    return f"step {step.step}: {step.access}{after}"
