"""Turns, bounded waits and the flag exchange of the lab's kernels: `lab/kernels/hip/signal.hpp` in the language.

A wait here gives up only when nothing else can move: its bound is wall clock, longer than any delay. So a wait is met
or its peer is *lost*; that it was *late* is a matter of time and not said. What the first threads of a wave do for a
peer each, thread 0 does for all.

A launch that overlaps the one ahead takes its number before that has ended. Its scenario says whether its start sees
what `publish_to_successor` published (`overlapped`, on which the kernels rely) or is no order of memory
(`overlapped_as_documented`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.language.record import Verbs
from lab.protocol.library.staging import LOST
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, WAVE, Block, Expr, Reg

SECONDS = 10.0  # timeout and grace of a communicator


@dataclass(frozen=True)
class Turn:
    """This block's view of the call it takes part in; `dead`: an earlier call of this rank lost a peer."""

    epoch: Reg
    parity: Reg
    dead: Expr


def write_epoch(b: Block, epoch: Reg) -> None:
    """All words, whatever the grid of this call is; once all threads of the block have read its own."""
    for word in range(b.block, b.mine.epoch.elements, b.blocks):
        if word // b.blocks % b.threads in b.own_threads:
            b.store(b.mine.epoch[word], epoch, RELAXED, WAVE)


def publish_to_successor(b: Block) -> None:
    """No thread goes on before all have stored; then each releases what all have: any may let the successor start."""
    b.barrier()
    b.fence(RELEASE, DEVICE)


def start_after_predecessor(b: Block) -> None:
    """Wait for the launch ahead; then the one behind may start, so that no third one runs."""
    b.wait_previous()
    b.let_successor_start()


def begin_call(b: Block) -> Turn:
    """Every thread reads the epoch word of its block.

    A plain access, ordered by kernel boundaries. Of a launch that starts early it looks past the caches, and the number
    is written and published before all else.
    """
    epoch = b.let(b.load(b.mine.epoch[b.block], RELAXED, SYSTEM if b.early else WAVE, "last") + 1, "epoch")
    if b.early:
        b.barrier()
        write_epoch(b, epoch)
        publish_to_successor(b)
    start_after_predecessor(b)
    aborted_at = b.load(b.mine.aborted_at, RELAXED, SYSTEM, "aborted_at")
    return Turn(epoch, b.let(epoch % 2, "parity"), (aborted_at != 0) & (aborted_at < epoch))


def advance_epoch(b: Block, turn: Turn) -> None:
    """After a block barrier behind begin_call; where that has not done it."""
    if not b.early:
        write_epoch(b, turn.epoch)


def write_record(b: Block, thread: Verbs, turn: Turn, algorithm: int, phase: int, peer: Expr | int) -> None:
    """The first thread of this rank to lose a peer says so."""
    first = thread.cas(b.mine.aborted_at, 0, turn.epoch, RELAXED, DEVICE)
    with thread.when(first == 0):
        fields: list[Expr | int] = [algorithm, phase, peer, turn.epoch, b.block]
        for place, value in enumerate(fields, 1):
            thread.store(b.mine.record[place], value, RELAXED, SYSTEM)
        thread.store(b.mine.record[0], LOST, RELEASE, SYSTEM)


def exchange_release_acquire(b: Block, turn: Turn, algorithm: int, row: int) -> Expr:
    """Block b of this rank meets block b of every peer; not zero, in all threads, when a peer is lost."""
    lost, peer = b.leader.let(0, "lost"), b.leader.let(b.rank, "peer")

    def lose() -> None:
        write_record(b, b.leader, turn, algorithm, row, peer)
        b.leader.assign(lost, 1)

    b.barrier()  # drains; here a barrier makes the releases below cover every wave, as a drained one does there
    for j in b.peers:
        b.leader.store(b.on(j).flags[row, b.block, b.rank], turn.epoch, RELEASE, SYSTEM)
    with b.leader.rescue(lose) as late:
        for j in b.peers:
            b.leader.assign(peer, j)
            flag = b.mine.flags[row, b.block, j]
            b.leader.wait(flag, ">=", turn.epoch, RELAXED, SYSTEM, seconds=SECONDS, on_timeout=late)
    b.leader.fence(ACQUIRE, SYSTEM)
    return b.share(lost)
