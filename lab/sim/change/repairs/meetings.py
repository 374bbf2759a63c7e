"""Candidates that add order between agents: block barriers, meetings of blocks or ranks, "done" words, waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lab.sim.change.repairs.candidate import Candidate, Cost
from lab.sim.change.repairs.counting import Counting, by_launch, by_word, ways
from lab.sim.change.repairs.scene import Place, Scene
from lab.sim.change.text.source import Splice


def block_barriers(scene: Scene) -> Iterator[Candidate]:
    """`__syncthreads()` after the first access or before the second."""
    for place in _between(scene):
        what = f"a block barrier {place.where}"
        yield Candidate(Cost.BLOCK_BARRIER, "block barrier", what, (place.write([f"{place.actor}.barrier()"]),))


def _between(scene: Scene) -> list[Place]:
    """Places after the first access, then before the second."""
    first, second = scene.sides
    return list(dict.fromkeys((*scene.places(first, False), *scene.places(second, True))))


@dataclass(frozen=True)
class _Words:
    """A region of words that some tell and others wait for, and how its words are named.

    Attributes:
        name: The region.
        wide: Whether it has a word a block.
        spread: Whether each launch writes the words of all blocks, whatever its grid.
        ranks: Whether it has a word a rank: ranks tell each other; else the blocks of one rank do.
    """

    name: str
    wide: bool
    spread: bool
    ranks: bool

    @property
    def declared(self) -> str:
        """In the memory function."""
        if not self.ranks:
            return f'{{m}}.words("{self.name}", {{m}}.blocks)'
        return f'{{m}}.words("{self.name}", {{m}}.world{", block={m}.blocks" if self.wide else ""})'

    def count(self, b: str) -> str:
        """How many blocks have words."""
        return f"{b}.mine.{self.name}.elements" + (f" // {b}.world" if self.ranks else "")

    def index(self, block: str, rank: str) -> str:
        """Of one word."""
        if not self.ranks:
            return block
        return f"{block}, {rank}" if self.wide else rank

    def tell(self, place: Place, value: str, everybody: bool) -> list[str]:
        """Thread 0 stores `value` for every peer (`everybody`: itself too), or for the blocks of this rank."""
        b, scope = place.actor, "SYSTEM" if self.ranks else "DEVICE"
        j, k = place.loop_name("j", "peer", "each_rank"), place.loop_name("k", "word", "each_word")
        loops = [f"for {j} in {f'range({b}.world)' if everybody else f'{b}.peers'}:"] if self.ranks else []
        block = f"{b}.block"
        if self.spread:
            loops.append(f"for {k} in range({b}.block, {self.count(b)}, {b}.blocks):")
            block = k
        on = f"{b}.on({j})" if self.ranks else f"{b}.mine"
        word = f"{on}.{self.name}[{self.index(block, f'{b}.rank')}]"
        return _nested(loops, f"{b}.leader.store({word}, {value}, RELEASE, {scope})")

    def hear(self, place: Place, comparison: str, value: str, every_block: bool, everybody: bool) -> list[str]:
        """Thread 0 waits for the same block of every peer, or for every block; `everybody`: of this rank too."""
        b, scope = place.actor, "SYSTEM" if self.ranks else "DEVICE"
        j, k = place.loop_name("j", "peer", "each_rank"), place.loop_name("k", "word", "each_word")
        loops = [f"for {j} in {f'range({b}.world)' if everybody else f'{b}.peers'}:"] if self.ranks else []
        if every_block:
            loops.append(f"for {k} in range({self.count(b) if self.spread else f'{b}.blocks'}):")
        word = f"{b}.mine.{self.name}[{self.index(k if every_block else f'{b}.block', j)}]"
        return _nested(loops, f'{b}.leader.wait({word}, "{comparison}", {value}, ACQUIRE, {scope})')


def _nested(loops: list[str], body: str) -> list[str]:
    return [*("    " * depth + loop for depth, loop in enumerate(loops)), "    " * len(loops) + body]


# ---- meetings


@dataclass(frozen=True)
class _Meeting:
    """Who meets: the same block of all ranks, all blocks of one rank, or all blocks of all ranks."""

    what: str
    ranks: bool
    every_block: bool


_SAME_BLOCK = _Meeting("a meeting of the same block of all ranks", True, False)
_RANKS = _Meeting("a meeting of all ranks", True, False)
_GRID = _Meeting("a grid barrier", False, True)
_WORLD = _Meeting("a meeting of all blocks of all ranks", True, True)


def meetings(scene: Scene) -> Iterator[Candidate]:
    """Meetings after the first access, then before the second, of those who may be concerned."""
    if scene.apart:
        kinds = [_SAME_BLOCK, _WORLD] if scene.wide else [_RANKS]
    else:
        kinds = [_GRID] if scene.wide else []
    for kind in kinds:
        for place in _between(scene):
            for counting in ways(scene, place):
                splices = _meeting(scene, kind, place, counting)
                if splices:
                    yield Candidate(Cost.BARRIER, f"{kind.what}", f"{kind.what} {place.where}", splices)


def _meeting(scene: Scene, kind: _Meeting, place: Place, counting: Counting) -> tuple[Splice, ...] | None:
    name = scene.fresh("met" if kind.ranks else "arrived")
    words = _Words(name, scene.wide, kind.every_block or (scene.wide and scene.varies), kind.ranks)
    b = place.actor
    lines = [
        f"{b}.barrier()",
        *counting.setup,
        *words.tell(place, counting.turn, kind.every_block),
        *words.hear(place, ">=", counting.turn, kind.every_block, kind.every_block),
        f"{b}.barrier()",
    ]
    declared = scene.declare(words.declared, *counting.declared)
    if declared is None:
        return None
    scope = "SYSTEM" if kind.ranks else "DEVICE"
    names = {"ACQUIRE", "RELEASE", scope, *counting.names}
    return (declared, place.write(lines), *place.source.importing(names))


# ---- "done"


def handshakes(scene: Scene) -> Iterator[Candidate]:
    """The first side says that it is done, the second waits for that: the missing order itself."""
    first, second = scene.sides
    if scene.distance < 0 or not (first.own and second.own) or not (scene.apart or scene.wide):
        return
    every = (True,) if not scene.apart else (False, True) if scene.wide else (False,)
    places = list(product(scene.places(first, False)[:3], scene.places(second, True)[:3]))
    for all_blocks in every:
        for after, before in places:
            for stored, waited, back in _countings(scene, after, before):
                splices = _handshake(scene, after, before, stored, waited, back, all_blocks)
                if splices:
                    yield Candidate(Cost.HANDSHAKE, "done", _done(scene, after, before, all_blocks), splices)


def _done(scene: Scene, after: Place, before: Place, every_block: bool) -> str:
    if not scene.apart:
        who = "every block of this rank"
    elif not scene.wide:
        who = "every peer"
    else:
        who = "every block of every peer" if every_block else "the same block of every peer"
    return f"a word `done`, stored {after.where} and waited for {before.where}, of {who}"


def _countings(scene: Scene, after: Place, before: Place) -> Iterator[tuple[Counting, Counting, int]]:
    """How turns are counted at both places, and how many turns back the second waits for."""
    yield by_launch(after), by_launch(before), scene.distance
    stored, waited = by_word(scene, after, "finished"), by_word(scene, before, "started")
    for back in (0, 1, 2) if scene.distance == 0 else (1, 2):
        yield stored, waited, back


def _handshake(
    scene: Scene, after: Place, before: Place, stored: Counting, waited: Counting, back: int, every_block: bool
) -> tuple[Splice, ...] | None:
    words = _Words(scene.fresh("done"), scene.wide, scene.wide and scene.varies, scene.apart)
    tell = [f"{after.actor}.barrier()", *stored.setup, *words.tell(after, stored.turn, False)]
    wait = [
        *waited.setup,
        *words.hear(before, waited.comparison(back), waited.back(back), every_block, False),
        f"{before.actor}.barrier()",
    ]
    declared = scene.declare(words.declared, *stored.declared, *waited.declared)
    if declared is None:
        return None
    names = {"ACQUIRE", "RELEASE", "SYSTEM" if scene.apart else "DEVICE", *stored.names, *waited.names}
    imported = [s for source in {after.source, before.source} for s in source.importing(names)]
    if (after.source, after.statement, after.before) == (before.source, before.statement, before.before):
        return None
    return (declared, after.write(tell), before.write(wait), *imported)
