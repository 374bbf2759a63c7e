"""Where everything in the picture of an execution stands: lanes, bars, flags, calls. Data only; `timeline` draws it.

The horizontal axis is order, not duration. A step stands as far left as the steps that it depends on allow: those
before it in its own lane, the write that let its wait go, and every earlier access to the same memory. Two things that
stand above each other could have happened at the same time; of two accesses to the same elements, the left one came
first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from lab.plots.scene import Scene
from lab.protocol import tables as t
from lab.protocol.program import Agent, Expect
from lab.sim.order.races import accesses

WORK, SYNC, STUCK = "work", "sync", "stuck"
_WIDTH = {WORK: 1.0, SYNC: 0.26, STUCK: 0.4}
_GAP = {WORK: 0.08, SYNC: 0.04, STUCK: 0.12}
_QUIET = ("launch", "kernel end", "host")  # kernel boundaries: the picture shows them as the bracket of a call
_MOST_LANES = 10


@dataclass
class Item:
    """One mark in a lane: a bar (payload moves), a dot (a flag written or waited for), or the end of what is stuck.

    Attributes:
        lane: Its lane.
        kind: WORK, SYNC or STUCK.
        phase, call: Of the operation.
        steps: The steps of the execution that it stands for.
        number: Its number among the steps that matter, 0: none.
        waits: Whether a dot is a wait, and not a write.
        left, right: Its place.
    """

    lane: int
    kind: str
    phase: str
    call: int
    steps: list[int]
    number: int = 0
    waits: bool = False
    left: float = 0.0
    right: float = 0.0

    @property
    def middle(self) -> float:
        """Its centre."""
        return (self.left + self.right) / 2


@dataclass(frozen=True)
class Lane:
    """One row: what one block (or wave, or host) of one rank does, call after call."""

    rank: int
    label: str


@dataclass(frozen=True)
class Arrow:
    """From one item to another: a flag that let a wait go, or a value that was carried on."""

    start: Item
    end: Item
    kind: str
    matters: bool


@dataclass
class Lanes:
    """The picture as data.

    Attributes:
        lanes: From top to bottom; those of one rank stand together.
        items: Bars and dots.
        flags: Writes and the waits that they let go.
        carried: The way of the wrong value, from the racing read on.
        pair: The marks of two steps that nothing orders, the earlier first; empty: none.
        remarks: (mark, lines) said in red at a mark.
        phases: Phase names in the order in which the text of the protocol has them.
        calls: (lane, call, left, right) brackets, where lanes hold more than one call.
        hidden: How many blocks are left out.
        cut: Lanes that go on after the right edge.
        width: The right edge.
    """

    lanes: list[Lane]
    items: list[Item]
    flags: list[Arrow]
    carried: list[Arrow]
    pair: tuple[Item, ...]
    remarks: list[tuple[Item, tuple[str, ...]]]
    phases: list[str]
    calls: list[tuple[int, int, float, float]] = field(default_factory=list)
    hidden: int = 0
    cut: frozenset[int] = frozenset()
    width: float = 1.0


def arrange(scene: Scene) -> Lanes:
    """Arrange an execution up to the last step that counts; to its end where agents are stuck or no step counts."""
    return _Arrangement(scene).build()


class _Arrangement:
    def __init__(self, scene: Scene) -> None:
        self.scene, self.explainer = scene, scene.explainer
        self.execution, self.tables = scene.explainer.execution, scene.explainer.tables
        self.program = self.tables.program
        ops = self.execution.log.op[: self.execution.steps]
        self.agents = np.where(ops >= 0, self.tables.ops[np.maximum(ops, 0), t.AGENT], -1)
        self.kinds = np.where(ops >= 0, self.tables.ops[np.maximum(ops, 0), t.KIND], -1)
        self.numbers = {step.step: place for place, step in enumerate(scene.steps, 1)}
        shown = [step for step in self.numbers if self._in_lane(step)]
        self.last = self.execution.steps - 1 if scene.stuck else max(shown, default=self.execution.steps - 1)
        self.since = self._since()

    def build(self) -> Lanes:
        """Choose lanes and items, then place them."""
        lane_of, lanes, hidden = self._lanes()
        items = self._items(lane_of)
        by_step = {step: item for item in items for step in item.steps}
        self._place(by_step)
        ends = self._stuck_ends(items, lane_of)
        flags = [
            Arrow(by_step[write], by_step[wait], "flag", wait in self.numbers and write in self.numbers)
            for wait, write in self._handovers(lane_of)
        ]
        chain = [by_step[step] for step in self.scene.chain if step in by_step]
        carried = [Arrow(a, b, "carried", True) for a, b in pairwise(chain)]
        pair = tuple(by_step[step] for step in self.scene.pair if step in by_step)
        remarks = [(by_step[step], lines) for step, lines in self.scene.remarks if step in by_step]
        return Lanes(
            lanes=lanes,
            items=items + [end for end, _ in ends],
            flags=flags,
            carried=carried,
            pair=pair if len(pair) == 2 else (),
            remarks=remarks + ends,
            phases=self._phases(),
            calls=self._calls(items),
            hidden=hidden,
            cut=self._goes_on(lane_of),
            width=max((item.right for item in [*items, *(end for end, _ in ends)]), default=1.0),
        )

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _agent(self, step: int) -> Agent:
        return self.program.agents[int(self.agents[step])]

    def _in_lane(self, step: int) -> bool:
        return not isinstance(self.tables.op(int(self.execution.log.op[step])), Expect)

    def _lanes(self) -> tuple[dict[int, int], list[Lane], int]:
        """(chain -> lane, lanes, how many are left out): blocks that matter first, then others while there is room."""
        matter = {self._agent(step).chain for step in self.numbers if self._in_lane(step)}
        matter |= {each.agent.chain for each in self.scene.stuck}
        first: dict[int, Agent] = {}
        for agent in self.program.agents:
            if agent.kind != "host" or agent.chain in matter:
                first.setdefault(agent.chain, agent)
        order = sorted(first, key=lambda c: (first[c].rank, first[c].kind != "host", first[c].block, first[c].wave, c))
        room = max(_MOST_LANES - len(matter), 0)
        others = [chain for chain in order if chain not in matter]
        kept = [chain for chain in order if chain in matter or chain in others[:room]]
        lanes = [Lane(first[chain].rank, self._label(first[chain], first)) for chain in kept]
        return {chain: lane for lane, chain in enumerate(kept)}, lanes, len(order) - len(kept)

    def _label(self, agent: Agent, first: dict[int, Agent]) -> str:
        label = _plain_label(agent)
        twins = [c for c, a in first.items() if a.rank == agent.rank and _plain_label(a) == label]
        return label if len(twins) == 1 else f"{label}, stream {twins.index(agent.chain)}"

    # -- items ---------------------------------------------------------------------------------------------------------

    def _handovers(self, lane_of: dict[int, int]) -> list[tuple[int, int]]:
        """(wait, write that let it go) between different lanes, kernel boundaries left out."""
        found = []
        for wait in np.flatnonzero(self.kinds[: self.last + 1] == t.WAIT).tolist():
            write = int(self.explainer.clocks.joined[wait])
            if write < 0 or not {self._agent(wait).chain, self._agent(write).chain} <= lane_of.keys():
                continue
            if min(self._agent(wait).call, self._agent(write).call) < self.since:
                continue
            if self._agent(wait).chain != self._agent(write).chain and self._phase(wait) not in _QUIET:
                found.append((wait, write))
        return found

    def _phase(self, step: int) -> str:
        return self.tables.op(int(self.execution.log.op[step])).phase

    def _items(self, lane_of: dict[int, int]) -> list[Item]:
        sync = {step for pair in self._handovers(lane_of) for step in pair}
        sync |= {step for step in self.numbers if self.kinds[step] not in (t.MOVE, t.FILL, t.EXPECT)}
        items: list[Item] = []
        open_bar: dict[int, Item] = {}
        for step in range(self.last + 1):
            if self.agents[step] < 0 or self._agent(step).chain not in lane_of:
                continue
            agent = self._agent(step)
            if agent.kind != "host" and agent.call < self.since:
                continue
            lane = lane_of[agent.chain]
            if self.kinds[step] in (t.MOVE, t.FILL):
                bar, number = open_bar.get(lane), self.numbers.get(step, 0)
                if bar and (bar.phase, bar.call) == (self._phase(step), agent.call) and not (bar.number or number):
                    bar.steps.append(step)
                    continue
                open_bar[lane] = Item(lane, WORK, self._phase(step), agent.call, [step], number)
                items.append(open_bar[lane])
            elif step in sync:
                open_bar.pop(lane, None)
                waits = bool(self.kinds[step] == t.WAIT)
                items.append(Item(lane, SYNC, self._phase(step), agent.call, [step], self.numbers.get(step, 0), waits))
        return items

    def _since(self) -> int:
        """The first call that is shown: where agents are stuck, the one before theirs."""
        return max((each.agent.call for each in self.scene.stuck), default=0) - 1

    def _stuck_ends(self, items: list[Item], lane_of: dict[int, int]) -> list[tuple[Item, tuple[str, ...]]]:
        """A mark behind the last one of each lane whose agent is stuck, with what it waits for."""
        ends = []
        for each in self.scene.stuck:
            lane = lane_of[each.agent.chain]
            left = max((item.right for item in items if item.lane == lane), default=0.0) + _GAP[STUCK]
            end = Item(lane, STUCK, "", each.agent.call, [], left=left, right=left + _WIDTH[STUCK])
            ends.append((end, each.lines))
        return ends

    def _phases(self) -> list[str]:
        names = [op.phase for agent in self.program.agents if agent.kind != "host" for op in agent.ops]
        return [name for name in dict.fromkeys(names) if name and name not in (*_QUIET, "timeout")]

    # -- places --------------------------------------------------------------------------------------------------------

    def _place(self, by_step: dict[int, Item]) -> None:
        """Longest path over all steps; steps that are not shown have no width."""
        before = self._dependencies()
        ends = np.zeros(self.last + 1)
        for step in range(self.last + 1):
            start = max((ends[earlier] for earlier in before[step]), default=0.0)
            item = by_step.get(step)
            if item is None:
                ends[step] = start
            elif step == item.steps[0]:
                item.left = start + _GAP[item.kind]
                item.right = item.left + _WIDTH[item.kind]
                ends[step] = item.right + _GAP[item.kind]
            else:
                shift = max(0.0, start - item.right)
                item.right += shift
                ends[step] = item.right + _GAP[item.kind]
        for step, item in by_step.items():
            ends[step] = max(ends[step], item.right)

    def _dependencies(self) -> list[set[int]]:
        before: list[set[int]] = [set() for _ in range(self.last + 1)]
        latest: dict[tuple[str, int], int] = {}
        for step in range(self.last + 1):
            if self.agents[step] < 0:
                stored = int(self.execution.log.row[step]) if self.execution.log.op[step] == -1 else -1
                if 0 <= stored < step:
                    before[step].add(stored)
                continue
            keys = [("chain", self._agent(step).chain)]
            if self.kinds[step] in (t.LOAD, t.STORE, t.RMW, t.WAIT):
                keys.append(("word", int(self.execution.log.row[step])))
            for key in keys:
                if key in latest:
                    before[step].add(latest[key])
                latest[key] = step
        self._memory_order(before)
        return before

    def _memory_order(self, before: list[set[int]]) -> None:
        """Keep the order of accesses to each cell: a write after all before it, a read after the last write."""
        cells, steps, writes = accesses(self.tables, self.execution)
        lands = self._landings()
        happened = np.array([lands.get(int(s), int(s)) if w else int(s) for s, w in zip(steps, writes, strict=True)])
        last_write: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for index in np.lexsort((cells, happened)).tolist():
            cell, step = int(cells[index]), int(happened[index])
            if step > self.last:
                break
            earlier = [last_write[cell]] if cell in last_write else []
            if writes[index]:
                earlier += readers.pop(cell, [])
                last_write[cell] = step
            else:
                readers.setdefault(cell, []).append(step)
            before[step].update(other for other in earlier if other < step)

    def _landings(self) -> dict[int, int]:
        """Store step -> the step in which it reached memory, for memory models where these differ."""
        log = self.execution.log
        delivered = np.flatnonzero(log.op[: self.execution.steps] == -1)
        return {int(log.row[step]): int(step) for step in delivered}

    def _calls(self, items: list[Item]) -> list[tuple[int, int, float, float]]:
        if len({item.call for item in items}) < 2:
            return []
        spans: dict[tuple[int, int], tuple[float, float]] = {}
        for item in items:
            lo, hi = spans.get((item.lane, item.call), (item.left, item.right))
            spans[item.lane, item.call] = (min(lo, item.left), max(hi, item.right))
        return [(lane, call, lo, hi) for (lane, call), (lo, hi) in spans.items() if call]

    def _goes_on(self, lane_of: dict[int, int]) -> frozenset[int]:
        later = self.agents[self.last + 1 :]
        moves = (self.kinds[self.last + 1 :] == t.MOVE) & (later >= 0)
        chains = {self.program.agents[int(agent)].chain for agent in later[moves]}
        return frozenset(lane_of[chain] for chain in chains & lane_of.keys())


def _plain_label(agent: Agent) -> str:
    if agent.kind == "host":
        return "host"
    wave = f" wave {agent.wave}" if agent.kind == "wave" else ""
    return f"block {agent.block}{wave}"
