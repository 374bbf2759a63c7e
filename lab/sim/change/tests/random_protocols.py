"""Random defective protocols as text: a sound shape with one ingredient taken away or weakened, sometimes two.

A shape is a list of lines; an ingredient is a place in it that has several wordings, of which the first is sound.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

HEAD = (
    "from lab.protocol.write import ACQ_REL, ACQUIRE, CACHED, DEVICE, KIB, RELAXED, RELEASE, SYSTEM, UNCACHED, protocol"
)


@dataclass(frozen=True)
class Sample:
    """One protocol: its text, its name in it, and what was planted."""

    text: str
    name: str
    planted: str


class Draw:
    """Chooses wordings; `faults` of the ingredients get one that is not sound."""

    def __init__(self, seed: int, faulty: frozenset[int]) -> None:
        self.random = random.Random(seed)
        self._faulty, self.asked, self.planted = faulty, 0, []

    def one(self, name: str, sound: str, *faults: str) -> str:
        """A wording of an ingredient."""
        number, self.asked = self.asked, self.asked + 1
        fault = self.random.choice(faults)
        if number not in self._faulty:
            return sound
        self.planted.append(f"{name}: {fault.strip() or 'nothing'}")
        return fault

    def any(self, *ways: str) -> str:
        """One of several sound ways."""
        return self.random.choice(ways)


def sample(seed: int) -> Sample:
    """The protocol of a seed."""
    rng = random.Random(seed)
    shape = SHAPES[rng.choice(sorted(SHAPES))]
    count = Draw(seed, frozenset())
    shape(count)
    faults = frozenset(rng.sample(range(count.asked), 1 if rng.random() < 0.8 else 2))
    draw = Draw(seed, faults)
    text = shape(draw)
    return Sample(f"{HEAD}\n\n\n{text}", "own", "; ".join(draw.planted))


def _config(d: Draw, blocks: bool = True, **more: str) -> str:
    grid = d.any("1", "1", "2") if blocks else "1"
    size = "512" if grid == "1" else "1 * KIB"
    given = {"blocks": grid, "bytes": size, "calls": d.any("1", "2", "3"), "world": d.any("2", "2", "3"), **more}
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _wide(config: str) -> bool:
    return "blocks=2" in config


def _say(d: Draw, words: str, wide: bool, value: str = "b.call", name: str = "signal") -> list[str]:
    at = "b.block, b.rank" if wide else "b.rank"
    order = d.one(f"order of the {name}", "RELEASE", "RELAXED")
    scope = d.one(f"scope of the {name}", "SYSTEM", "DEVICE")
    return ["for j in b.peers:", f"    b.leader.store(b.on(j).{words}[{at}], {value}, {order}, {scope})"]


def _hear(d: Draw, words: str, wide: bool, value: str = "b.call", name: str = "wait") -> list[str]:
    at = "b.block, j" if wide else "j"
    order = d.one(f"order of the {name}", "ACQUIRE", "RELAXED")
    cond = d.one(f"condition of the {name}", ">=", "!=")
    line = f'    b.leader.wait(b.mine.{words}[{at}], "{cond}", {value}, {order}, SYSTEM)'
    return d.one(name, "\n".join(("for j in b.peers:", line)), "").splitlines()


def _words(name: str, wide: bool) -> str:
    return f'm.words("{name}", m.world, block=m.blocks)' if wide else f'm.words("{name}", m.world)'


def _function(head: str, lines: list[str]) -> str:
    body = [f"    {line}" for entry in lines for line in entry.splitlines() if line.strip()]
    return "\n".join((head, *(body or ["    pass"])))


def _whole(config: str, memory: list[str], kernel: list[str], before: str = "", more: str = "") -> str:
    parts = [_function("def memory(m):", memory), before]
    parts.append(_function(f"@protocol(memory=memory, {config}{more})\ndef own(b):", kernel))
    return "\n\n\n".join(part for part in parts if part) + "\n"


def push(d: Draw) -> str:
    """Push into inboxes, signal, wait, reduce; the inbox is kept by "done" words or by parity."""
    config = _config(d)
    wide, vector = _wide(config), d.any("", ", vector=8")
    how = d.any("done", "parity")
    p = d.one("index of the parity", "b.call % 2, ", "0, ") if how == "parity" else ""
    memory = [
        f'm.payload("inbox", m.max_elements, UNCACHED, {"parity=2, " if p else ""}source=m.world)',
        _words("ready", wide),
        _words("done", wide),
    ]
    kernel = ['b.phase("push")']
    if how == "done":
        kernel += _hear(d, "done", wide, "b.call - 1", "wait for done")
        kernel += ["b.barrier()"]
    kernel += ["for j in b.peers:", f"    b.copy(b.input, b.on(j).inbox[{p}b.rank][: b.elements]{vector})"]
    kernel += ["b.barrier()", *_say(d, "ready", wide), 'b.phase("reduce")', *_hear(d, "ready", wide), "b.barrier()"]
    terms = f"b.input if j == b.rank else b.mine.inbox[{p}j][: b.elements]"
    kernel += [f"b.reduce([{terms} for j in range(b.world)], b.output{vector})"]
    if how == "done":
        kernel += ["b.barrier()", *_say(d, "done", wide, name="done")]
    return _whole(config, memory, kernel)


def pull(d: Draw) -> str:
    """Publish in an own slot, meet, read the peers' slots, meet again; the meetings are a helper or two."""
    config = _config(d)
    wide = _wide(config)
    memory = ['m.payload("slot", m.max_elements, UNCACHED)', _words("start", wide), _words("end", wide)]
    if d.any("helper", "inline") == "helper":
        at, other = ("b.block, b.rank", "b.block, j") if wide else ("b.rank", "j")
        order = d.one("order of the meeting", "RELEASE", "RELAXED")
        acquire = d.one("order of the meeting's wait", "ACQUIRE", "RELAXED")
        value = d.one("value of the meeting", "b.call", "1")
        lines = [
            "b.barrier()",
            "for j in b.peers:",
            f"    b.leader.store(getattr(b.on(j), words)[{at}], {value}, {order}, SYSTEM)",
            "for j in b.peers:",
            f'    b.leader.wait(getattr(b.mine, words)[{other}], ">=", {value}, {acquire}, SYSTEM)',
            "b.barrier()",
        ]
        before = _function("def meet(b, words):", lines)
        first, last = ['meet(b, "start")'], [d.one("closing meeting", 'meet(b, "end")', "")]
    else:
        before = ""
        first = ["b.barrier()", *_say(d, "start", wide), *_hear(d, "start", wide), "b.barrier()"]
        last = ["b.barrier()", *_say(d, "end", wide), *_hear(d, "end", wide, name="closing wait"), "b.barrier()"]
    kernel = ["b.copy(b.input, b.mine.slot[: b.elements])", *first]
    kernel += ["b.reduce([b.on(j).slot[: b.elements] for j in range(b.world)], b.output)", *last]
    return _whole(config, memory, kernel, before)


def two_phases(d: Draw) -> str:
    """Scatter, reduce the own part, gather; slots of two turns, one signal a phase."""
    config = _config(d)
    wide = _wide(config)
    p = d.one("index of the turn", "b.call % 2", "0")
    own = d.one("slots of the gather", "gather", "scatter")
    vector = d.any("", ", vector=8")
    other = d.one("mapping of the gather", vector, ", vector=8" if not vector else "")
    memory = [
        'm.payload("scatter", m.max_elements, UNCACHED, turn=2, source=m.world)',
        'm.payload("gather", m.max_elements, UNCACHED, turn=2, source=m.world)',
        _words("scattered", wide),
        _words("gathered", wide),
    ]
    kernel = [
        "n = b.elements // b.world",
        "part = [slice(j * n, (j + 1) * n if j < b.world - 1 else b.elements) for j in range(b.world)]",
        "size = [p.stop - p.start for p in part]",
        "mine = part[b.rank]",
        "for j in b.peers:",
        f"    b.copy(b.input[part[j]], b.on(j).scatter[{p}, b.rank][: size[j]]{vector})",
        "b.barrier()",
        *_say(d, "scattered", wide),
        *_hear(d, "scattered", wide),
        "b.barrier()",
        f"terms = [b.input[mine] if j == b.rank else b.mine.scatter[{p}, j][: size[b.rank]] for j in range(b.world)]",
        f"b.reduce(terms, b.output[mine]{vector})",
        "for j in b.peers:",
        f"    b.copy(b.output[mine], b.on(j).{own}[{p}, b.rank][: size[b.rank]]{other})",
        "b.barrier()",
        *_say(d, "gathered", wide),
        *_hear(d, "gathered", wide),
        "b.barrier()",
        "for j in b.peers:",
        f"    b.copy(b.mine.{own}[{p}, j][: size[j]], b.output[part[j]]{vector})",
    ]
    return _whole(config, memory, kernel)


def tickets(d: Draw) -> str:
    """Every block of every rank adds to a counter and waits until all have."""
    config = _config(d)
    step = d.one("order of the addition", "ACQ_REL", "RELAXED")
    heard = d.one("order of the wait", "ACQUIRE", "RELAXED")
    arrived = d.one("number that is waited for", "b.call * b.world * b.blocks", "b.call", "1")
    again = d.one("second meeting", "yes", "no")
    memory = ['m.payload("slot", m.max_elements, UNCACHED)', 'm.words("count")', 'm.words("left")']

    def meet(words: str) -> list[str]:
        return [
            "b.barrier()",
            "for j in range(b.world):",
            f"    b.leader.add(b.on(j).{words}, 1, {step}, SYSTEM)",
            f'b.leader.wait(b.mine.{words}, ">=", {arrived}, {heard}, SYSTEM)',
            "b.barrier()",
        ]

    kernel = ["b.copy(b.input, b.mine.slot[: b.elements])", *meet("count")]
    kernel += ["b.reduce([b.on(j).slot[: b.elements] for j in range(b.world)], b.output)"]
    kernel += meet("left") if again == "yes" else []
    return _whole(config, memory, kernel)


def credits(d: Draw) -> str:
    """A ring of tiles through a fifo of few slots; the receiver gives a credit back for each."""
    tiles = d.any("1", "2")
    slack = d.one("credit", "+ 1", "+ 0")
    depth = d.one("slots", "2", "1")
    early = d.one("credit is given back", "after", "before")
    back = [
        "    b.barrier()",
        "    b.leader.store(b.on(before).credit, turn + 1, RELEASE, SYSTEM)",
    ]
    take = ["    b.copy(b.mine.fifo[turn % SLOTS][:n], b.output[t * n : (t + 1) * n])"]
    memory = [
        f'm.payload("fifo", m.max_elements, UNCACHED, slot={d.any("SLOTS", depth)})',
        'm.words("head")',
        'm.words("credit")',
    ]
    kernel = [
        "n = b.elements // TILES",
        "after, before = (b.rank + 1) % b.world, (b.rank - 1) % b.world",
        "for t in range(TILES):",
        "    turn = (b.call - 1) * TILES + t",
        "    if turn >= SLOTS:",
        f'        b.leader.wait(b.mine.credit, ">=", turn - SLOTS {slack}, ACQUIRE, SYSTEM)',
        "        b.barrier()",
        "    b.copy(b.input[t * n : (t + 1) * n], b.on(after).fifo[turn % SLOTS][:n])",
        "    b.barrier()",
        f"    b.leader.store(b.on(after).head, turn + 1, {d.one('order of the head', 'RELEASE', 'RELAXED')}, SYSTEM)",
        f'    b.leader.wait(b.mine.head, ">=", turn + 1, {d.one("order of the wait", "ACQUIRE", "RELAXED")}, SYSTEM)',
        "    b.barrier()",
        *((*take, *back) if early == "after" else (*back, *take)),
    ]
    host = [
        "calls = []",
        "for nbytes in h.sizes():",
        "    x, out = h.input(nbytes), h.output(nbytes)",
        "    h.launch(x, out)",
        "    calls.append((x, out))",
        "h.sync()",
        "for x, out in calls:",
        "    h.expect(out, x, of=[(h.rank - 1) % h.world])",
    ]
    before = f"TILES, SLOTS = {tiles}, {depth}\n\n\n" + _function("def ring(h):", host)
    return _whole(_config(d, blocks=False), memory, kernel, before, ', scenarios={"ring": ring}')


def two_kernels(d: Draw) -> str:
    """One kernel publishes, another reads the peers' slots; flags or the hosts order them."""
    config = _config(d, blocks=False)
    flags = d.any("launch", "constant", "hosts")
    value = {"launch": "b.call", "constant": "1", "hosts": ""}[flags]
    met = d.one("meeting of the hosts at the end", "h.sync()\n    h.barrier()", "", "h.sync()", "h.barrier()")
    between = d.one("between the kernels", "h.sync()\n    h.barrier()", "", "h.sync()") if flags == "hosts" else ""
    memory = ['m.payload("slot", m.max_elements, UNCACHED)', 'm.words("ready", m.world)']
    put = ["b.copy(b.input, b.mine.slot[: b.elements])"]
    take = []
    if flags != "hosts":
        put += ["b.barrier()", *_say(d, "ready", False, value)]
        take += [*_hear(d, "ready", False, "b.call - 1" if flags == "launch" else "1"), "b.barrier()"]
    take += ["b.reduce([b.on(j).slot[: b.elements] for j in range(b.world)], b.output)"]
    host = [
        "calls = []",
        "for nbytes in h.sizes():",
        "    x, out = h.input(nbytes), h.output(nbytes)",
        "    h.launch(x, kernel=put)",
        *(f"    {line}" for line in between.replace("    ", "").splitlines()),
        "    h.launch(x, out)",
        *(f"    {line}" for line in met.replace("    ", "").splitlines()),
        "    calls.append((x, out))",
        "h.sync()",
        "for x, out in calls:",
        "    h.expect(out, x)",
    ]
    before = _function("def host(h):", host) + "\n\n\n" + _function("def put(b):", put)
    return _whole(config, memory, take, before, ', scenarios={"host": host}')


def streams(d: Draw) -> str:
    """A producer on a second stream; events order it with the kernel that reads, both ways."""
    config = _config(d, blocks=False)
    before_it = d.one("event before the producer", "h.wait_stream(1, 0)", "")
    after_it = d.one("event before the kernel", "h.wait_stream(0, 1)", "")
    host = [
        "for nbytes in h.sizes():",
        "    out = h.output(nbytes)",
        f"    {before_it}",
        "    h.produce(h.mine.table, stream=1)",
        f"    {after_it}",
        "    h.launch(h.mine.table, out, nbytes=nbytes)",
        "    h.consume(out)",
        "h.sync()",
        "h.sync(1)",
    ]
    p = d.one("index of the parity", "b.call % 2", "0")
    memory = [
        'm.payload("table", m.max_elements)',
        'm.payload("shared", m.max_elements, UNCACHED, parity=2)',
        'm.words("start", m.world)',
    ]
    kernel = [
        f"b.copy(b.input[: b.elements], b.mine.shared[{p}][: b.elements])",
        "b.barrier()",
        *_say(d, "start", False),
        *_hear(d, "start", False),
        "b.barrier()",
        f"b.reduce([b.on(j).shared[{p}][: b.elements] for j in range(b.world)], b.output)",
    ]
    refusal = ', accepts=lambda c: None if c.scenario == "run" else "its own scenario"'
    return _whole(config, memory, kernel, _function("def run(h):", host), f', scenarios={{"run": run}}{refusal}')


SHAPES: dict[str, Callable[[Draw], str]] = {
    shape.__name__: shape for shape in (push, pull, two_phases, tickets, credits, two_kernels, streams)
}
