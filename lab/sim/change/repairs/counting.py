"""The number of a turn, as text: what is stored to a word and waited for, so that every turn has a value of its own.

A place that every launch passes once can take the number of the launch, or of the call where a call is several
launches. Any other (in a loop, in a helper that is called twice, in a kernel that is not launched each time) needs a
counter in device memory. It is one word a rank, or, where blocks are told apart, one a block; of those each launch
advances all, so that a block which took no part in the last call goes on with the right number.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.sim.change.repairs.scene import Place, Scene


@dataclass(frozen=True)
class Counting:
    """How turns are counted at one place.

    Attributes:
        turn: The number of this turn, from 1.
        setup: Lines that come before it is used.
        declared: What the memory declares for it.
        names: Names of the language that it uses.
        signed: Whether a number of turns back may be below 0.
    """

    turn: str
    setup: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    signed: bool = False

    def back(self, turns: int) -> str:
        """The number of a turn before this one; below 1 there was none."""
        if turns == 0:
            return self.turn
        return f"{self.turn} - {turns}" if turns == 1 or self.signed else f"max({self.turn} - {turns}, 0)"

    def comparison(self, turns: int) -> str:
        """How a word is compared with that number."""
        return ">=s" if self.signed and turns > 1 else ">="


def by_launch(place: Place) -> Counting:
    """The number of the launch."""
    return Counting(f"{place.actor}.call")


def by_call(scene: Scene, place: Place) -> Counting:
    """The number of the call, where each is several launches."""
    return Counting(f"({place.actor}.call - 1) // {scene.launches} + 1")


def by_word(scene: Scene, place: Place, name: str) -> Counting:
    """A counter in device memory, called `name` as a region and as a variable."""
    b = place.actor
    region = scene.fresh(name)
    variable = place.loop_name(name, f"{name}_number", f"{name}_of_block")
    if not scene.wide:
        setup = (f"{variable} = {b}.leader.add({b}.mine.{region}, 1, RELAXED, DEVICE) + 1",)
        return Counting(variable, setup, (f'{{m}}.words("{region}")',), frozenset({"RELAXED", "DEVICE"}), True)
    k = place.loop_name("k", "word", "each_word")
    setup = (
        f"{variable} = {b}.leader.load({b}.mine.{region}[{b}.block], RELAXED, DEVICE) + 1",
        f"for {k} in range({b}.block, {b}.mine.{region}.elements, {b}.blocks):",
        f"    {b}.leader.store({b}.mine.{region}[{k}], {variable}, RELAXED, DEVICE)",
    )
    declared = (f'{{m}}.words("{region}", {{m}}.blocks)',)
    return Counting(variable, setup, declared, frozenset({"RELAXED", "DEVICE"}), True)


def ways(scene: Scene, place: Place, name: str = "turn") -> list[Counting]:
    """The ways to count turns at a place, the cheapest first."""
    plain = [by_launch(place)] if scene.launches == 1 else [by_call(scene, place), by_launch(place)]
    return [*plain, by_word(scene, place, name)]
