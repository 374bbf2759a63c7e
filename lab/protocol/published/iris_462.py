"""iris#462: a lock released at GPU scope and polled by a peer.

Each rank computes a tile into its own symmetric heap and unlocks it; the peers poll the lock and read the tile. The
unlock releases at device scope, which covers the own GPU's agents only.
Missing: release at a scope that includes the peer.
Fix: system scope.
"""

from __future__ import annotations

from lab.protocol.program import Scope
from lab.protocol.published.shared import only
from lab.protocol.write import ACQUIRE, DEVICE, RELEASE, SYSTEM, Block, Declare, protocol


def memory(m: Declare) -> None:
    """The tiles of one rank and their locks, one a block."""
    m.payload("tile", m.max_elements)
    m.words("lock", m.blocks)


def lock_and_read(b: Block, value: int, scope: Scope) -> None:
    """Write the own tile, unlock it with `value`, poll every peer's lock for the same and read its tile."""
    b.phase("tile")
    b.copy(b.input, b.mine.tile[: b.elements])
    b.barrier()
    b.leader.store(b.mine.lock[b.block], value, RELEASE, scope)
    b.phase("read peers")
    for j in b.peers:
        b.leader.wait(b.on(j).lock[b.block], "==", value, ACQUIRE, SYSTEM)
    b.barrier()
    b.reduce([b.on(j).tile[: b.elements] for j in range(b.world)], b.output)


@protocol(
    memory=memory, blocks=1, scenario="isolated", accepts=only("isolated"), bytes=512, options={"system_scope": False}
)
def iris_462(b: Block) -> None:
    """One-shot behind locks; without `system_scope`, an unlock does not reach the peers."""
    lock_and_read(b, b.call, SYSTEM if b.options["system_scope"] else DEVICE)
