"""Reference programs of the engines: a two-phase all-reduce, and a family with a rank that lags behind.

All calls run inside one launch, so that a rank is one thread of control and nothing but the protocol itself is
measured.

* `two_phase`: scatter, flag, wait, reduce, gather, flag, wait, copy out. Option `gather="own"` gives the gather slots
  of its own; `"shared"` puts it into the scatter slots of the other parity, as the seed does, which is wrong. Option
  `order="relaxed"` sends flags without a release: right where the stores of a link arrive in order, and only there.
* `lagging`: rank 2 gives its inputs in advance and then only receives; rank 0 reuses a slot after `depth` calls and
  never hears from rank 2 again. Wrong from `depth + 1` calls on, but only in schedules that hold rank 2 back for so
  long.
"""

from __future__ import annotations

from lab.protocol.tables import Tables, compile_tables
from lab.protocol.write import ACQUIRE, RELAXED, RELEASE, SYSTEM, UNCACHED, Block, Declare, Host, protocol

SCATTER, GATHER = 0, 1  # rows of the flag page


def _one_launch(h: Host) -> None:
    """One launch that performs all calls; then every output is compared."""
    pairs = [(h.input(nbytes), h.output(nbytes)) for nbytes in h.sizes()]
    h.launch(*pairs[0], args={"calls": pairs})
    h.sync()
    for x, out in pairs:
        h.expect(out, x)


def _slots(m: Declare) -> None:
    for name in ("scatter", "gather"):
        if name == "scatter" or m.options["gather"] == "own":
            m.payload(name, m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flags", m.world, UNCACHED, row=2)


@protocol(
    memory=_slots,
    blocks=1,
    scenarios={"one_launch": _one_launch},
    options={"gather": "own", "order": "release"},
    bytes=64,
    world=3,
    calls=4,
)
def two_phase(b: Block) -> None:
    """All-reduce in two phases by push: every rank reduces one part and sends it to all."""
    order = RELEASE if b.options["order"] == "release" else RELAXED
    part = b.elements // b.world
    chunk = [slice(j * part, (j + 1) * part) for j in range(b.world - 1)] + [slice((b.world - 1) * part, b.elements)]
    mine = chunk[b.rank]
    for call, (x, out) in enumerate(b.args["calls"], 1):
        p = call % 2
        slot = {j: _gather_slot(b, j, b.rank, p, mine) for j in b.peers}
        b.phase("scatter")
        for j in b.peers:
            b.copy(x[chunk[j]], b.on(j).scatter[p, b.rank][: chunk[j].stop - chunk[j].start])
        _exchange(b, SCATTER, call, order)
        b.phase("reduce")
        own = [b.mine.scatter[p, j][: mine.stop - mine.start] if j != b.rank else x[mine] for j in range(b.world)]
        b.reduce(own, out[mine])
        b.phase("gather")
        for j in b.peers:
            b.copy(out[mine], slot[j])
        _exchange(b, GATHER, call, order)
        b.phase("copy out")
        for j in b.peers:
            b.copy(_gather_slot(b, b.rank, j, p, chunk[j]), out[chunk[j]])


def _gather_slot(b: Block, on: int, source: int, parity: int, part: slice):
    """Where rank `source` leaves its reduced part for rank `on`."""
    length = part.stop - part.start
    if b.options["gather"] == "own":
        return b.on(on).gather[parity, source][:length]
    return b.on(on).scatter[1 - parity, source][:length]


def _exchange(b: Block, row: int, call: int, order) -> None:
    for j in b.peers:
        b.store(b.on(j).flags[row, b.rank], call, order, SYSTEM)
    for j in b.peers:
        b.wait(b.mine.flags[row, j], ">=", call, ACQUIRE, SYSTEM)


def _lagging_slots(m: Declare) -> None:
    m.payload("advance", m.max_elements, UNCACHED, call=m.options["calls_at_most"])
    m.payload("given", m.max_elements, UNCACHED, parity=2)
    m.payload("result", m.max_elements, UNCACHED, turn=m.options["depth"])
    m.words("flags", m.world, UNCACHED)


@protocol(
    memory=_lagging_slots,
    blocks=1,
    scenarios={"one_launch": _one_launch},
    options={"depth": 4, "calls_at_most": 64},
    bytes=64,
    world=3,
    calls=5,
    accepts=lambda config: None if config.world == 3 else "it has three ranks",
)
def lagging(b: Block) -> None:
    """Rank 0 reduces and sends the result round; nothing tells it how far rank 2 has read."""
    calls, depth = b.args["calls"], b.options["depth"]
    n = b.elements
    if b.rank == 2:
        for call, (x, _) in enumerate(calls):
            b.copy(x, b.on(0).advance[call][:n])
        b.store(b.on(0).flags[2], 1, RELEASE, SYSTEM)
    if b.rank == 0:
        b.wait(b.mine.flags[2], ">=", 1, ACQUIRE, SYSTEM)
    for call, (x, out) in enumerate(calls):
        turn = call % depth
        if b.rank == 0:
            b.wait(b.mine.flags[1], ">=", call + 1, ACQUIRE, SYSTEM)
            b.reduce([x, b.mine.given[call % 2][:n], b.mine.advance[call][:n]], out)
            for j in (1, 2):
                b.copy(out, b.on(j).result[turn][:n])
            for j in (1, 2):
                b.store(b.on(j).flags[0], call + 1, RELEASE, SYSTEM)
            continue
        if b.rank == 1:
            b.copy(x, b.on(0).given[call % 2][:n])
            b.store(b.on(0).flags[1], call + 1, RELEASE, SYSTEM)
        b.wait(b.mine.flags[0], ">=", call + 1, ACQUIRE, SYSTEM)
        b.copy(b.mine.result[turn][:n], out)


MODELS = {"two_phase": two_phase, "lagging": lagging}


def tables_of(name: str, world: int, calls: int, **options: object) -> Tables:
    """The tables of a reference program.

    Args:
        name: A name of MODELS.
        world: Ranks.
        calls: Calls.
        **options: The protocol's own options.
    """
    made = MODELS[name]
    config = made.config(world=world, calls=calls, bytes=(16 * world,), options=tuple(options.items()))
    return compile_tables(made.program(config))
