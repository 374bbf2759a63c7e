"""The language: what one block does in one call, in the order it does it.

    @protocol(memory=my_memory, blocks=my_grid, bytes=64 * KIB)
    def my_all_reduce(b):
        seq = b.share(b.leader.load(b.mine.epoch, ACQUIRE, DEVICE) + 1)
        for j in b.peers:
            b.copy(b.input, b.on(j).staging[seq % 2, b.rank][: b.elements])
        b.barrier()
        for j in b.peers:
            b.leader.store(b.on(j).flags[b.rank], seq, RELEASE, SYSTEM)
        ...

Python runs once for every (rank, block, call) and is the macro language: loops and ifs over rank, block, call and size
are ordinary Python. Only verbs are recorded. Values that exist at run time are registers (`lab.protocol.expr`).

A scenario says what the hosts do: `back_to_back` and `isolated` (`lab.protocol.language.scenario`), or your own.
"""

from lab.protocol.expr import Expr, Reg
from lab.protocol.language.block import Block
from lab.protocol.language.config import (
    ACQ_REL,
    ACQUIRE,
    BLOCK,
    BLOCK_SHARED,
    CACHED,
    DEVICE,
    HOST_MAPPED,
    KIB,
    MIB,
    RELAXED,
    RELEASE,
    SYSTEM,
    UNCACHED,
    WAVE,
    Config,
)
from lab.protocol.language.host import Host
from lab.protocol.language.layout import Buffer, View
from lab.protocol.language.memory import Declare
from lab.protocol.language.protocol import AbortWords, Protocol, protocol
from lab.protocol.program import Cache, Scope, WordRef

__all__ = [
    "ACQUIRE",
    "ACQ_REL",
    "BLOCK",
    "BLOCK_SHARED",
    "CACHED",
    "DEVICE",
    "HOST_MAPPED",
    "KIB",
    "MIB",
    "RELAXED",
    "RELEASE",
    "SYSTEM",
    "UNCACHED",
    "WAVE",
    "AbortWords",
    "Block",
    "Buffer",
    "Cache",
    "Config",
    "Declare",
    "Expr",
    "Host",
    "Protocol",
    "Reg",
    "Scope",
    "View",
    "WordRef",
    "protocol",
]
