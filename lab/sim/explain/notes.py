"""What a verdict says of each race beyond the race itself, and what the check cannot have seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.protocol.program import Agent, Expect, Load, Move, Program, Rmw, Store, Wait, WaitStamp
from lab.protocol.write import Config, Protocol
from lab.sim.explain.minimise import Witness
from lab.sim.explain.wrong import WitnessStep, witness
from lab.sim.explore.explore import Outcomes
from lab.sim.order.kinds import Key, key_of
from lab.sim.order.verdict import Effect, Race

_OF_A_KERNEL = ("block", "wave")


@dataclass(frozen=True)
class Looked:
    """How far the effects of races were looked for.

    Attributes:
        memory: The memory model.
        small: For some races, by their place, a small execution in which it makes a value wrong.
        turned: How the executions ended that turn each kind of race round.
        sought: So many of the races were looked at to the end; for the others, the time ran out or Ctrl-C came.
        failed: Kinds of failure that were met.
        relaxed: Races that are a write after a read whose words order the two but for release and acquire.
    """

    memory: str
    small: dict[int, Witness] = field(default_factory=dict)
    turned: dict[Key, Outcomes] = field(default_factory=dict)
    sought: int = 0
    failed: tuple[str, ...] = ()
    relaxed: frozenset[Key] = frozenset()


def effects(protocol: Protocol, races: tuple[Race, ...], looked: Looked) -> Iterator[Effect]:
    """Yield what each race does to values, and to executions that turn it round."""
    for place, race in enumerate(races):
        turned = looked.turned.get(key_of(race), Outcomes())
        found = looked.small.get(place)
        said = [_to_values(looked, found, turned, place < looked.sought)]
        if turned.hangs or turned.aborts:
            said.append(f"of {turned.executions} executions that turn it round, {_ended(turned)}")
        if key_of(race) in looked.relaxed:
            said.append(
                "it is a race as RC11 has it: words do make the write wait for the read, but relaxed ones; on AMD and "
                "NVIDIA hardware a load whose value was used has been performed before what its thread stores next, so "
                "the write cannot overtake it there, but a compiler may move either"
            )
        line = None if found is None else found.line(protocol)
        if line is not None:
            said.append(f"lab replay '{line}'")
        yield Effect(place + 1, turned.executions, turned.wrong, turned.hangs, turned.aborts, line, "\n".join(said))


def _ended(turned: Outcomes) -> str:
    counts = ((turned.wrong, "give wrong values"), (turned.hangs, "hang"), (turned.aborts, "abort"))
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _to_values(looked: Looked, found: Witness | None, turned: Outcomes, sought: bool) -> str:
    if found is not None:
        c = found.config
        return (
            f"wrong values with {c.calls} call{'s' if c.calls > 1 else ''}, world {c.world}, "
            f"{c.blocks} block{'s' if c.blocks != 1 else ''}, {max(c.bytes)} bytes; "
            f"{len(witness(found.explainer, found.fault))} steps that matter"
        )
    if not sought:
        return "what it does to values was not looked for to the end: the time ran out, or Ctrl-C came"
    if looked.failed:
        return "no schedule tried made a value wrong by the order of this pair alone"
    tried = f" ({turned.executions} turned it round)" if turned.executions else ""
    weaker = "" if looked.memory == "weak" else "; --memory weak may show one"
    return f"no schedule tried{tried} made a value wrong because of it: benign so far{weaker}"


def notes(config: Config, program: Program) -> Iterator[str]:
    """Yield what is to be known of a program that was checked: what it does not show, and how its launches count."""
    yield from _launches(config, program)
    yield from _residency(config, program)
    yield from _idle_blocks(program)
    yield from _idle_waves(program)
    yield from _unread(program)
    if not any(isinstance(op, Expect) for agent in program.agents for op in agent.ops):
        yield (
            "the scenario compares no output, so only races, hangs and aborts were looked for; end it with "
            "h.expect(output, input) or h.consume(output)"
        )


# ---- calls and launches


def _launches(config: Config, program: Program) -> Iterator[str]:
    """Where a call is several launches, and where nothing runs twice."""
    most = max((agent.call for agent in program.agents if agent.kind in _OF_A_KERNEL), default=0)
    each = most // config.calls
    if each > 1 and most == each * config.calls:
        yield f"a call is {each} launches here; `call` in names of agents counts launches, as `b.call` does"
    if config.calls == 1 and not _repeats(program):
        launches = f" (its {most} launches run once each)" if most > 1 else ""
        yield (
            f"one call only{launches}: whether the next call reuses a buffer too early was not looked at (--calls 3)"
        )


def _repeats(program: Program) -> bool:
    """Whether some line of a kernel runs in two launches of one rank."""
    launches: dict[tuple[int, object], set[int]] = defaultdict(set)
    for agent in program.agents:
        if agent.kind in _OF_A_KERNEL:
            for op in agent.ops:
                if isinstance(op, (Move, Load, Store, Rmw, Wait, WaitStamp)) and op.phase not in _OF_A_LAUNCH:
                    launches[agent.rank, op.site].add(agent.call)
    return any(len(calls) > 1 for calls in launches.values())


_OF_A_LAUNCH = ("launch", "kernel end", "host")


# ---- what has nothing to do


def _idle_blocks(program: Program) -> Iterator[str]:
    """Blocks that move nothing where others of their launch do: what goes wrong between blocks may not show."""
    busy: dict[tuple[int, int], dict[int, bool]] = defaultdict(dict)
    for agent in program.agents:
        if agent.kind in _OF_A_KERNEL and any(isinstance(op, Move) for op in agent.ops):
            blocks = busy[agent.rank, agent.call]
            blocks[agent.block] = blocks.get(agent.block, False) or _moves(agent)
    idle = [frozenset(block for block, moves in blocks.items() if not moves) for blocks in busy.values()]
    some = [blocks for blocks, all_ in zip(idle, busy.values(), strict=True) if 0 < len(blocks) < len(all_)]
    if not some:
        return
    most = max(some, key=len)
    every = "" if len(some) == len(busy) else f" in {len(some)} of {len(busy)} launches of a rank"
    one = len(most) == 1
    yield (
        f"block{'' if one else 's'} {_listed(sorted(most))} {'moves' if one else 'move'} nothing at this size{every}, "
        "so what goes wrong between blocks may not show (larger --bytes)"
    )


def _idle_waves(program: Program) -> Iterator[str]:
    """Waves without any element to move: that their blocks are split shows nothing of them."""
    moves: dict[int, bool] = {}
    for agent in program.agents:
        if agent.kind == "wave":
            moves[agent.wave] = moves.get(agent.wave, False) or _moves(agent)
    idle = [wave for wave, busy in sorted(moves.items()) if not busy]
    if idle and len(idle) < len(moves):
        which = f"waves {_listed(idle)} move" if len(idle) > 1 else f"wave {idle[0]} moves"
        yield f"{which} nothing at this size, so what goes wrong between waves may not show (larger --bytes)"


def _moves(agent: Agent) -> bool:
    """Whether an agent has any element to move."""
    own = (op for op in agent.ops if isinstance(op, Move))
    return any(any(op.mapping.chunks(op.dst.length)) for op in own)


def _listed(numbers: list[int]) -> str:
    """Numbers in words: those in a row as a range, the last after `and`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    shown = list(map(str, numbers))
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _unread(program: Program) -> Iterator[str]:
    """Inputs that no kernel reads: nothing that happens to them can show."""
    read = {
        span.region.id for agent in program.agents for op in agent.ops if isinstance(op, Move) for span in op.sources
    }
    read |= {op.span.region.id for agent in program.agents for op in agent.ops if isinstance(op, Expect)}
    names = [region.name for region in program.regions if region.source is not None and region.id not in read]
    unread = list(dict.fromkeys(names))
    if unread:
        shown = ", ".join(unread[:4]) + (f" and {len(unread) - 4} more" if len(unread) > 4 else "")
        yield f"no kernel ever reads {shown}: what is launched with an input should read it (b.input)"


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


# ---- witnesses


def story(small: Witness) -> list[str]:
    """The steps that matter of a witness, one line each."""
    return [_told(step) for step in witness(small.explainer, small.fault)]


def _told(step: WitnessStep) -> str:
    after = f" (let go by step {step.because})" if step.because >= 0 else ""
    return f"step {step.step}: {step.access}{after}"
