"""The seed: the rdna_ar all-reduce as it is, defects included.

Staging is one uncached allocation a rank, `parity x source rank` slots of the gate's size. Rank s writes slot (p, s) on
every peer, then its flag in the peer's flag page: row 0 after the scatter, row 1 after the allgather. Flags are
sequence numbers.
"""

from __future__ import annotations

from lab.protocol.language.layout import View
from lab.protocol.write import (
    ACQ_REL,
    ACQUIRE,
    DEVICE,
    HOST_MAPPED,
    KIB,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    AbortWords,
    Block,
    Buffer,
    Config,
    Declare,
    Expr,
    Host,
    Scope,
    WordRef,
    protocol,
)

SPIN_CAP = 2_000_000  # polls before a wait gives up
GRID_BARRIER, SCATTER_FLAG, SECOND_GRID_BARRIER, ALLGATHER_FLAG = 1, 2, 3, 4  # phases of the abort record
SELF_TEST_ELEMENTS = (1024, 4096)  # and the gate
SCATTER, ALLGATHER = 0, 1  # rows of the flag page
ONE_SHOT_BYTES = 32 * KIB  # largest message that one-shot takes


def staging_and_flags(m: Declare) -> None:
    """Two parities of one slot a source rank, a flag page of two rows, and the device words of the protocol."""
    m.payload("staging", m.max_elements, UNCACHED, parity=2, source=m.world)
    m.words("flags", 16, UNCACHED, row=2)
    m.words("arrive", 2)
    m.words("seqbuf")
    m.words("timeout")
    m.words("report", 2, HOST_MAPPED)


def grid(nbytes: int) -> int:
    """Blocks of 256 threads for a message of `nbytes`."""
    return 4 if nbytes <= 8 * KIB else 16 if nbytes <= 32 * KIB else 32


def self_test(h: Host) -> None:
    """The boot self-test: three sizes, one warm-up and three timed calls each, compared exactly after every call.

    Inputs are constant. The output of the call before is still held while a call runs, so two blocks alternate. After
    an error a rank keeps calling the host barriers but launches nothing more.
    """
    failed = h.let(0, "failed")
    for elements in (*SELF_TEST_ELEMENTS, h.config.max_bytes // h.config.itemsize):
        nbytes = elements * h.config.itemsize
        x, outputs = h.input(nbytes, constant=True), (h.output(nbytes), h.output(nbytes))
        for repetition in range(4):
            h.barrier()
            with h.when(failed == 0):
                h.launch(x, outputs[repetition % 2])
                h.sync()
                aborted = h.load(h.mine.timeout, ACQUIRE, SYSTEM)
                wrong = h.differs(outputs[repetition % 2], x)
                h.assign(failed, wrong | aborted)


def abort(b: Block, phase: int, peer: int, seq: Expr) -> None:
    """First block to give up claims `timeout` and writes the report; every block that gives up returns."""
    first = b.leader.cas(b.mine.timeout, 0, 1, RELAXED, DEVICE)
    with b.leader.when(first == 0):
        polls = min(SPIN_CAP // 1024, 0xFFFF)
        b.leader.store(b.mine.report[1], seq, RELAXED, SYSTEM)
        b.leader.store(b.mine.report[0], 1 | phase << 8 | peer << 12 | polls << 16, RELEASE, SYSTEM)
    b.ret()


def abort_record(words: AbortWords) -> str | None:
    """Decode the 64-bit report: bits 0-7 set, 8-11 phase, 12-15 peer, 16-31 polls / 1024, 32-63 sequence number."""
    low, seq = words("report", 0), words("report", 1)
    if not low & 0xFF:
        return None
    phase, peer = low >> 8 & 0xF, low >> 12 & 0xF
    what = {
        GRID_BARRIER: "own grid barrier",
        SCATTER_FLAG: f"flag of peer {peer} after the scatter",
        SECOND_GRID_BARRIER: "second grid barrier",
        ALLGATHER_FLAG: f"flag of peer {peer} after the allgather",
    }.get(phase, "unknown phase")
    return f"phase {phase} ({what}), peer {peer}, collective #{seq}, {(low >> 16) * 1024} polls"


def parts(b: Block) -> tuple[list[slice], list[int]]:
    """Elements of each rank's part, and their number: n // world each, the last rank takes the rest."""
    part = b.elements // b.world
    chunk = [slice(j * part, (j + 1) * part if j < b.world - 1 else b.elements) for j in range(b.world)]
    return chunk, [c.stop - c.start for c in chunk]


def wait_or_abort(b: Block, at: WordRef, value: Expr | int, scope: Scope, phase: int, peer: int, seq: Expr) -> None:
    """A wait of thread 0 that aborts after the spin cap."""
    b.leader.wait(at, ">=", value, ACQUIRE, scope, SPIN_CAP, lambda: abort(b, phase, peer, seq))


def announce(
    b: Block, arrive: WordRef, seq: Expr, row: int, clear: list[WordRef], phases: tuple[int, int], publish: bool
) -> None:
    """Own grid barrier, then block 0 sends this rank's flag; every block waits for the flags of all peers."""
    b.leader.fence(ACQ_REL, SYSTEM)
    b.leader.add(arrive, 1, RELAXED, DEVICE)
    if b.block == 0:
        wait_or_abort(b, arrive, b.blocks, DEVICE, phases[0], b.rank, seq)
        for word in clear:
            b.leader.store(word, 0, RELAXED, DEVICE)
        if publish:
            b.leader.store(b.mine.seqbuf, seq, RELEASE, DEVICE)
        for j in (b.rank, *b.peers):
            b.leader.store(b.on(j).flags[row, b.rank], seq, RELEASE, SYSTEM)
    for j in b.peers:
        wait_or_abort(b, b.mine.flags[row, j], seq, SYSTEM, phases[1], j, seq)
    b.barrier()


def copy(b: Block, source: View, dst: View) -> None:
    """The copy routine: 16-byte vectors when pacing is off and both ends are aligned, scalar otherwise."""
    b.copy(source, dst, vector=1 if b.options["pace"] else b.vector_elements(source, dst))


def terms(b: Block, p: Expr, part: slice, own: slice) -> list[View | Buffer]:
    """The addends of elements `part` in rank order: the own term from the input, the others from own staging slots."""
    return [b.input[own] if j == b.rank else b.mine.staging[p, j][part] for j in range(b.world)]


@protocol(
    memory=staging_and_flags, blocks=grid, abort_record=abort_record, options={"pace": 0}, bytes=64 * KIB, world=4
)
def seed_one_shot(b: Block) -> None:
    """rdna_ar one-shot: push the whole input to every peer, flag, reduce locally."""
    n = b.elements
    seq = b.share(b.leader.load(b.mine.seqbuf, ACQUIRE, DEVICE, "seqbuf") + 1)
    p = b.let(seq % 2)

    b.phase("push")
    for j in b.peers:
        b.copy(b.input, b.on(j).staging[p, b.rank][:n])
    b.barrier()

    b.phase("flag")
    arrive = b.mine.arrive[p]
    announce(b, arrive, seq, SCATTER, [arrive], (GRID_BARRIER, SCATTER_FLAG), publish=True)

    b.phase("reduce")
    b.reduce(terms(b, p, slice(n), slice(n)), b.output)


@protocol(
    memory=staging_and_flags, blocks=grid, abort_record=abort_record, options={"pace": 0}, bytes=64 * KIB, world=4
)
def seed_two_shot(b: Block) -> None:
    """rdna_ar two-shot: reduce-scatter by push, then allgather by push into the slots of the other parity."""
    chunk, size = parts(b)
    seq = b.share(b.leader.load(b.mine.seqbuf, ACQUIRE, DEVICE, "seqbuf") + 1)
    p = b.let(seq % 2)
    q = 1 - p
    mine = chunk[b.rank]

    b.phase("scatter")
    for j in b.peers:
        copy(b, b.input[chunk[j]], b.on(j).staging[p, b.rank][: size[j]])
    b.barrier()
    announce(b, b.mine.arrive[p], seq, SCATTER, [], (GRID_BARRIER, SCATTER_FLAG), publish=True)

    b.phase("reduce")
    b.reduce(terms(b, p, slice(size[b.rank]), mine), b.output[mine])
    b.barrier()

    b.phase("allgather")
    for j in b.peers:
        copy(b, b.output[mine], b.on(j).staging[q, b.rank][: size[b.rank]])
    b.barrier()
    both = [b.mine.arrive[p], b.mine.arrive[q]]
    announce(b, b.mine.arrive[q], seq, ALLGATHER, both, (SECOND_GRID_BARRIER, ALLGATHER_FLAG), publish=False)

    b.phase("copy out")
    for j in b.peers:
        copy(b, b.mine.staging[q, j][: size[j]], b.output[chunk[j]])


def self_test_fits(config: Config) -> str | None:
    """The self-test's second size must fit the gate."""
    least = SELF_TEST_ELEMENTS[-1] * config.itemsize
    too_small = config.scenario == "self_test" and config.max_bytes < least
    return f"its self-test needs a gate of at least {least} bytes" if too_small else None


@protocol(
    memory=staging_and_flags,
    blocks=grid,
    abort_record=abort_record,
    options={"pace": 0},
    scenarios={"self_test": self_test},
    accepts=self_test_fits,
    scenario="back_to_back",
    bytes=64 * KIB,
    world=4,
)
def seed_auto(b: Block) -> None:
    """rdna_ar as it is served: one-shot up to 32 KiB, two-shot above.

    The scenario `self_test` is its boot self-test.
    """
    chosen = seed_one_shot if b.bytes <= ONE_SHOT_BYTES else seed_two_shot
    chosen.kernel(b)
