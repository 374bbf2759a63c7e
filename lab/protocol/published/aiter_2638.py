"""aiter#2638: ranks register different numbers of captured buffers, then index the peers' handles by their own count.

While a graph is captured, each rank registers the buffers that its calls use and learns the peers' handles, in
order. One rank has registered a buffer more. Afterwards each rank takes its last buffer, at the index that its own
count gives, in every rank's list: the same index means different calls on different ranks.
Missing: agreement. The flags are right and order the accesses to the wrong buffers perfectly.
Fix: agree on the count before anything is indexed by it.
"""

from __future__ import annotations

from lab.protocol.language.scenario import back_to_back
from lab.protocol.published.shared import flag_per_block_and_rank, only, publish_and_pull
from lab.protocol.write import ACQUIRE, DEVICE, HOST_MAPPED, RELEASE, SYSTEM, Block, Declare, Host, protocol


def memory(m: Declare) -> None:
    """Two buffers that may be registered, the index that the kernel takes, and every rank's count."""
    m.payload("registered", m.max_elements, buffer=2)
    m.words("index")
    m.words("count", m.world, HOST_MAPPED)
    flag_per_block_and_rank(m, "start", "end")


def registration(h: Host) -> None:
    """The last rank has registered two buffers, the others one; then the calls run back to back."""
    own = h.let(2 if h.rank == h.world - 1 else 1, "own")
    for j in range(h.world):
        h.store(h.on(j).count[h.rank], own, RELEASE, SYSTEM)
    h.barrier()
    if h.options["agree"]:
        for j in range(h.world):
            count = h.load(h.mine.count[j], ACQUIRE, SYSTEM)
            with h.when(count < own):
                h.assign(own, count)
    h.store(h.mine.index, own - 1, RELEASE, SYSTEM)
    back_to_back(h)


@protocol(
    memory=memory,
    blocks=1,
    scenarios={"registration": registration},
    accepts=only("registration"),
    bytes=512,
    options={"agree": False},
)
def aiter_2638(b: Block) -> None:
    """Pull from registered buffers; unless the ranks `agree`, their indices mean different buffers."""
    index = b.share(b.leader.load(b.mine.index, ACQUIRE, DEVICE))
    i = b.let(index % 2)
    publish_and_pull(b, [b.on(j).registered[i][: b.elements] for j in range(b.world)])
