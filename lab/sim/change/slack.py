"""Slack: which waits, fences, orders, scopes and buffers a protocol holds without, one by one and together.

Every item comes with its proof (see `lab.sim.change.judge`). Items that are spare one by one may be needed together:
of two waits for the same thing each is spare, and one of them is not. So a set that can go as a whole is looked for,
in the order of what it costs at run time, and judged as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lab.protocol.program import Program
from lab.sim.change.judge import DEFAULT_LIMITS, Judgement, Limits, judge_program
from lab.sim.change.mutate import Change, Mutant, Outcome, judge, mutants
from lab.sim.change.slots import SlotDimension, at_depth, slot_dimensions

_COSTLIEST_FIRST = (
    *("wait", "wait for packets", "block barrier", "rmw", "fence", "packet", "store"),
    *("buffer", "stamp", "scope", "order"),
)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Depth:
    """How many buffers a region needs.

    Attributes:
        dimension: Where the protocol goes round in it.
        tried: (depth, judgement) from one buffer up to the first depth that is proved right, or to the protocol's own.
    """

    dimension: SlotDimension
    tried: tuple[tuple[int, Judgement], ...]

    @property
    def enough(self) -> int:
        """The smallest depth that is proved right; the protocol's own if no smaller one is."""
        depth, judgement = self.tried[-1]
        return depth if judgement.proved else self.dimension.depth

    @property
    def proof(self) -> Judgement:
        """Of the smallest depth."""
        return self.tried[-1][1]


@dataclass(frozen=True)
class Together:
    """A set of changes that holds as a whole and to which no other item of slack can be added.

    Attributes:
        changes: What goes, in words, each with its line.
        judgement: Of the program without all of it.
        left_out: Items that are spare alone and needed once the others are gone.
    """

    changes: tuple[str, ...]
    judgement: Judgement
    left_out: tuple[str, ...]


@dataclass
class Slack:
    """What was found, as far as it got.

    Attributes:
        items: Spare operations, orders and scopes, each with its proof.
        unproved: Mutants that nothing was found against and nothing proved of.
        depths: Of each region with a slot dimension.
        together: None: there is nothing to put together, or Ctrl-C came before.
        looked_at: Operations, orders, scopes and rings of buffers that were looked at to the end.
        of: How many there are; None: Ctrl-C came before they were counted.
        interrupted: Ctrl-C ended it.
    """

    items: list[Outcome] = field(default_factory=list)
    unproved: list[Outcome] = field(default_factory=list)
    depths: list[Depth] = field(default_factory=list)
    together: Together | None = None
    looked_at: int = 0
    of: int | None = None
    interrupted: bool = False


def slack_of(program: Program, limits: Limits = DEFAULT_LIMITS, progress: Progress = lambda what: None) -> Slack:
    """Find the slack of a program that holds as it stands.

    Args:
        program: The protocol at one configuration.
        limits: Of each judgement.
        progress: Called with what is looked at next.

    Returns:
        What was found; Ctrl-C keeps what was found until then.
    """
    found = Slack()
    try:
        weakened = [mutant for mutant in mutants(program) if mutant.kind != "buffer"]  # the depths say more
        dimensions = list(slot_dimensions(program))
        found.of = len(weakened) + len(dimensions)
        for mutant in weakened:
            progress(f"{mutant.what}, {mutant.line}")
            outcome = judge(mutant, limits)
            if outcome.state == "slack":
                found.items.append(outcome)
            elif outcome.state == "survived":
                found.unproved.append(outcome)
            found.looked_at += 1
        for dimension in dimensions:
            progress(f"buffers of {dimension.region}")
            found.depths.append(_depth(program, dimension, limits))
            found.looked_at += 1
        found.together = _together(program, found, limits, progress)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _depth(program: Program, dimension: SlotDimension, limits: Limits) -> Depth:
    tried: list[tuple[int, Judgement]] = []
    for depth in range(1, dimension.depth + 1):
        tried.append((depth, judge_program(at_depth(dimension.region, depth, program), limits)))
        if tried[-1][1].proved:
            break
    return Depth(dimension, tuple(tried))


def _together(program: Program, found: Slack, limits: Limits, progress: Progress) -> Together | None:
    """Add one item after the other, the costliest first, as long as the whole is proved right."""
    waiting = [(_rank(o.mutant), f"{o.mutant.what} ({o.mutant.line})", o.mutant.change) for o in found.items]
    for depth in found.depths:
        region, own, enough = depth.dimension.region, depth.dimension.depth, depth.enough
        if enough < own:
            what = f"{enough} instead of {own} buffers of {region}"
            waiting.append((_COSTLIEST_FIRST.index("buffer"), what, partial(at_depth, region, enough)))
    items = [(what, change) for _, what, change in sorted(waiting, key=lambda item: item[0])]
    taken: list[str] = []
    judgement = None
    while items:
        left: list[tuple[str, Change]] = []
        before = len(taken)
        for what, change in items:
            changed = change(program)
            if changed == program:
                continue  # gone with the operation that it is about
            progress(f"together: {what}")
            tried = judge_program(changed, limits)
            if tried.proved:
                program, judgement = changed, tried
                taken.append(what)
            else:
                left.append((what, change))
        items = left
        if len(taken) == before:
            break
    return None if judgement is None else Together(tuple(taken), judgement, tuple(what for what, _ in items))


def _rank(mutant: Mutant) -> int:
    """The place of a mutant's kind in the order of cost."""
    kind = mutant.what.removeprefix("drop the ") if mutant.kind == "drop" else mutant.kind
    return _COSTLIEST_FIRST.index(kind)
