"""Turns, bounded waits and the flag exchange of the lab's kernels: `lab/kernels/hip/signal.hpp` in the language.

A wait here gives up only when nothing else can move: its bound is wall clock, longer than any delay. So a wait is met
or its peer is *lost*; that it was *late* is a matter of time and not said. What the first threads of a wave do for a
peer each, thread 0 does for all.

A launch may be placed while the one ahead still runs. It touches nothing before that has ended, so its start need be no
order of memory, and any mix of launches that are placed early and of those that are not will do. That a lost call fills
what it has not written with NaN is its own output's affair, and not said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.language.record import Verbs
from lab.protocol.library.staging import LOST, ROW, mine, owned
from lab.protocol.program import Order
from lab.protocol.write import ACQUIRE, DEVICE, RELAXED, RELEASE, SYSTEM, WAVE, Block, Expr, Reg

SECONDS = 10.0  # timeout and grace of a communicator


@dataclass(frozen=True)
class Turn:
    """This block's view of the call it takes part in; `dead`: an earlier call of this rank lost a peer."""

    epoch: Reg
    parity: Reg
    dead: Expr


def begin_call(b: Block) -> Turn:
    """Wait for the launch ahead; then every thread reads the epoch word of its block.

    A plain access, ordered by kernel boundaries; of a launch that was placed early it looks past the caches.
    """
    b.wait_previous()
    if lets_at_once(b):
        b.let_successor_start()
    scope = SYSTEM if b.early else WAVE
    epoch = b.let(b.load(mine(b).epoch[b.block], RELAXED, scope, "last") + 1, "epoch")
    aborted_at = b.load(mine(b).aborted_at, RELAXED, SYSTEM, "aborted_at")
    return Turn(epoch, b.let(epoch % 2, "parity"), (aborted_at != 0) & (aborted_at < epoch))


def lets_at_once(b: Block) -> bool:
    """Whether the successor may be placed as soon as this launch has begun, or when it waits for no peer any more."""
    return bool(b.args.get("lets_at_once", True))


def let_successor_when_met(b: Block) -> None:
    """Behind the last wait for a peer and a block barrier."""
    if not lets_at_once(b):
        b.let_successor_start()


def advance_epoch(b: Block, turn: Turn) -> None:
    """After a block barrier behind begin_call: all words, whatever the grid of this call is."""
    words = mine(b).epoch
    for word in range(b.block, words.elements, b.blocks):
        if word // b.blocks % b.threads in b.own_threads:
            b.store(words[word], turn.epoch, RELAXED, WAVE)


def write_record(b: Block, thread: Verbs, turn: Turn, algorithm: int, phase: int, peer: Expr | int) -> None:
    """The first thread of this rank to lose a peer says so."""
    first = thread.cas(mine(b).aborted_at, 0, turn.epoch, RELAXED, DEVICE)
    with thread.when(first == 0):
        fields: list[Expr | int] = [algorithm, phase, peer, turn.epoch, b.block]
        for place, value in enumerate(fields, 1):
            thread.store(mine(b).record[place], value, RELAXED, SYSTEM)
        thread.store(mine(b).record[0], LOST, RELEASE, SYSTEM)


def meet(b: Block, turn: Turn, algorithm: int, phase: int, publish: Order, reads: bool) -> Expr:
    """Block b of this rank meets block b of every peer; not zero, in all threads, when a peer is lost.

    `publish`: the order of the flag. `reads`: the block reads afterwards what its peers have published.
    """
    row = ROW[phase]
    lost, peer = b.leader.let(0, "lost"), b.leader.let(b.rank, "peer")

    def lose() -> None:
        write_record(b, b.leader, turn, algorithm, phase, peer)
        b.leader.assign(lost, 1)

    b.barrier()  # drains; here a barrier makes the releases below cover every wave, as a drained one does there
    for j in b.peers:
        b.leader.store(owned(b, j).flags[row, b.block, b.rank], turn.epoch, publish, SYSTEM)
    with b.leader.rescue(lose) as late:
        for j in b.peers:
            b.leader.assign(peer, j)
            flag = mine(b).flags[row, b.block, j]
            b.leader.wait(flag, ">=", turn.epoch, RELAXED, SYSTEM, seconds=SECONDS, on_timeout=late)
    if reads:
        b.leader.fence(ACQUIRE, SYSTEM)
    return b.share(lost)


def exchange_release_acquire(b: Block, turn: Turn, algorithm: int, phase: int) -> Expr:
    """What the block pushed before is visible to its peers after, and the other way round."""
    return meet(b, turn, algorithm, phase, publish=RELEASE, reads=True)
