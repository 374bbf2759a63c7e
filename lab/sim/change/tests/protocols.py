"""Small defective protocols as text, each of a kind that repairs were once wrong about, and how they are written."""

from __future__ import annotations

from pathlib import Path

IMPORTS = """from lab.protocol.write import (
    ACQUIRE, BLOCK_SHARED, CACHED, DEVICE, KIB, RELAXED, RELEASE, SYSTEM, UNCACHED, Cache, protocol
)
"""

PULL = """
def memory(m):
    m.payload("slot", m.max_elements, UNCACHED)
    m.words("ready", m.world)
    m.words("done", m.world)


@protocol(memory=memory, blocks=1, bytes=256, world=2, calls=3)
def pull(b):
    {wait_done}
    b.copy(b.input, b.mine.slot[: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, {told}, SYSTEM)
    {wait_ready}
    b.barrier()
    b.reduce([b.input if j == b.rank else b.on(j).slot[: b.elements] for j in range(b.world)], b.output)
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).done[b.rank], b.call, {said}, SYSTEM)
"""
WHOLE = {
    "wait_done": 'for j in b.peers: b.leader.wait(b.mine.done[j], ">=", b.call - 1, ACQUIRE, SYSTEM)',
    "wait_ready": 'for j in b.peers: b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)',
    "told": "RELEASE",
    "said": "RELEASE",
}


def pull(**changed: str) -> str:
    """Everybody reads everybody's slot; a rank waits until all have read before it writes again."""
    return IMPORTS + PULL.format(**{**WHOLE, **changed})


PUSH = (
    IMPORTS
    + """
def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world)


@protocol(memory=memory, blocks=1, bytes=1 * KIB, calls=3, world=2{more})
def push(b):
    n = b.elements // b.world * b.world{split}
    for j in b.peers:
        b.copy(b.input[:n], b.on(j).inbox[b.rank][:n])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input[:n] if j == b.rank else b.mine.inbox[j][:n] for j in range(b.world)], b.output[:n])
"""
)

TWO_MEETINGS = (
    IMPORTS
    + """
def memory(m):
    m.payload("box", m.max_elements, UNCACHED, source=m.world)
    m.words("flag", m.world)


def meet(b):
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).flag[b.rank], 1, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.flag[j], "==", 1, ACQUIRE, SYSTEM)
    b.barrier()


@protocol(memory=memory, blocks=1, bytes=512, calls=2, world=2)
def both(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).box[b.rank][: b.elements])
    meet(b)
    b.reduce([b.input if j == b.rank else b.mine.box[j][: b.elements] for j in range(b.world)], b.output)
    meet(b)
"""
)

TWO_KERNELS = (
    IMPORTS
    + """
def memory(m):
    m.payload("inbox", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world)


def host(h):
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x)
        h.launch(x, out, kernel=take)
        h.sync()
        h.barrier()
        calls.append((x, out))
    for x, out in calls:
        h.expect(out, x)


def take(b):
    for j in b.peers:
        b.leader.wait(b.mine.ready[j], "==", 1, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.inbox[j][: b.elements] for j in range(b.world)], b.output)


@protocol(memory=memory, blocks=1, bytes=512, calls=2, world=2, scenarios={"host": host})
def put(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).inbox[b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.rank], 1, RELEASE, SYSTEM)
"""
)

UNORDERED = (
    IMPORTS
    + """
def memory(m):
    m.payload("stage", m.max_elements, UNCACHED)


def host(h):
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x, kernel=publish)
        h.launch(x, out)
        calls.append((x, out))
    h.sync()
    {compared}


def publish(b):
    b.copy(b.input, b.mine.stage[: b.elements])


@protocol(memory=memory, blocks=1, bytes=512, calls=1, world=2, scenarios={"host": host})
def gather(b):
    b.reduce([b.on(j).stage[: b.elements] for j in range(b.world)], b.output)
"""
)

STREAMS = (
    IMPORTS
    + """
def memory(m):
    m.payload("table", m.max_elements)
    m.payload("shared", m.max_elements, UNCACHED, parity=2)
    m.words("start", m.world, UNCACHED)


def run(h):
    for nbytes in h.sizes():
        out = h.output(nbytes)
        h.produce(h.mine.table, stream=1)
        h.wait_stream(0, 1)
        h.launch(h.mine.table, out, nbytes=nbytes)
        h.consume(out)
    h.sync()
    h.sync(1)


@protocol(memory=memory, blocks=1, bytes=512, calls=2, world=2, scenarios={"run": run},
          accepts=lambda c: None if c.scenario == "run" else "its own scenario")
def overlap(b):
    p = b.call % 2
    b.copy(b.input, b.mine.shared[p])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).start[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.start[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.on(j).shared[p] for j in range(b.world)], b.output)
"""
)

WIPE = (
    IMPORTS
    + """
def memory(m):
    m.payload("box", m.max_elements, UNCACHED, source=m.world)
    m.payload("blank", m.max_elements)
    m.words("start", m.world)
    m.words("full", m.world)


def meet(b, words):
    b.barrier()
    for j in b.peers:
        b.leader.store(getattr(b.on(j), words)[b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(getattr(b.mine, words)[j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()


@protocol(memory=memory, blocks=1, bytes=512, calls=2, world=2)
def late_wipe(b):
    meet(b, "start")
    b.phase("wipe")
    for j in range(b.world):
        b.copy(b.mine.blank[: b.elements], b.mine.box[j][: b.elements])
    b.phase("fill")
    for j in range(b.world):
        b.copy(b.input, b.on(j).box[b.rank][: b.elements])
    meet(b, "full")
    b.reduce([b.mine.box[j][: b.elements] for j in range(b.world)], b.output)
"""
)

SCRATCH = (
    IMPORTS
    + """
def memory(m):
    m.payload("scratch", m.max_elements, BLOCK_SHARED)


@protocol(memory=memory, blocks=1, bytes=1024, calls=1, world=1, waves=2)
def reused(b):
    b.copy(b.input, b.mine.scratch[: b.elements])
    b.barrier()
    b.copy(b.mine.scratch[: b.elements], b.output, vector=8)
    b.copy(b.input, b.mine.scratch[: b.elements])
"""
)

TILES = (
    IMPORTS
    + """
TILES = 4


def memory(m):
    m.payload("slot", m.max_elements // TILES, UNCACHED, pp=2, source=m.world)
    m.words("arrived", m.world)


@protocol(memory=memory, blocks=1, bytes=1024, calls=1, world=2)
def ahead(b):
    n = b.elements // TILES
    base = (b.call - 1) * TILES

    def put(t):
        b.phase(f"put {t}")
        for j in b.peers:
            b.copy(b.input[t * n : (t + 1) * n], b.on(j).slot[t % 2, b.rank][:n])
        b.barrier()
        for j in b.peers:
            b.leader.store(b.on(j).arrived[b.rank], base + t + 1, RELEASE, SYSTEM)

    put(0)
    for t in range(TILES):
        if t + 1 < TILES:
            put(t + 1)
        b.phase(f"reduce {t}")
        for j in b.peers:
            b.leader.wait(b.mine.arrived[j], ">=", base + t + 1, ACQUIRE, SYSTEM)
        b.barrier()
        part = slice(t * n, (t + 1) * n)
        b.reduce([b.input[part] if j == b.rank else b.mine.slot[t % 2, j][:n] for j in range(b.world)], b.output[part])
"""
)

CREDITS = (
    IMPORTS
    + """
def memory(m):
    m.payload("fifo", m.max_elements, UNCACHED, slot=m.options["slots"])
    m.words("head")
    m.words("credit")


@protocol(memory=memory, blocks=1, bytes=512, calls=3, world=2, options={{"slots": 2, "slack": 0}},
          accepts=lambda c: None if c.world == 2 else "two ranks")
def stream(b):
    slots, peer = b.options["slots"], (b.rank + 1) % b.world
    for t in range({tiles}):
        turn = (b.call - 1) * {tiles} + t
        if turn >= slots:
            b.leader.wait(b.mine.credit, ">=", turn - slots + 1 - b.options["slack"], ACQUIRE, SYSTEM)
            b.barrier()
        b.copy(b.input, b.on(peer).fifo[turn % slots][: b.elements])
        b.barrier()
        b.leader.store(b.on(peer).head, turn + 1, RELEASE, SYSTEM)
    for t in range({tiles}):
        turn = (b.call - 1) * {tiles} + t
        b.leader.wait(b.mine.head, ">=", turn + 1, ACQUIRE, SYSTEM)
        b.barrier()
        b.reduce([b.input, b.mine.fifo[turn % slots][: b.elements]], b.output)
        b.barrier()
        b.leader.store(b.on((b.rank - 1) % b.world).credit, turn + 1, RELEASE, SYSTEM)
"""
)

BLOCKS = (
    IMPORTS
    + """
def memory(m):
    m.payload("box", m.max_elements, UNCACHED, source=m.world)
    m.words("ready", m.world, block=m.blocks)


@protocol(memory=memory, blocks=lambda nbytes: 1 if nbytes <= 1024 else 2, bytes=2 * KIB, calls=3, world=2)
def grids(b):
    for j in b.peers:
        b.copy(b.input, b.on(j).box[b.rank][: b.elements])
    b.barrier()
    for j in b.peers:
        b.leader.store(b.on(j).ready[b.block, b.rank], b.call, RELEASE, SYSTEM)
    for j in b.peers:
        b.leader.wait(b.mine.ready[b.block, j], ">=", b.call, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.input if j == b.rank else b.mine.box[j][: b.elements] for j in range(b.world)], b.output)
"""
)


def written(folder: Path, text: str, name: str) -> str:
    """The reference of a protocol in a file of its own."""
    file = folder / f"mine{len(list(folder.iterdir()))}.py"
    file.write_text(text)
    return f"{file}:{name}"
