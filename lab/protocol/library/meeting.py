"""The meetings of the pull kernels: `lab/kernels/hip/meeting.hpp` in the language.

A kernel that reads its peers' tensors where they lie meets the peers before, since other kernels wrote them, and after,
since other kernels will write them again. The names say the order and the scope.
"""

from __future__ import annotations

from lab.protocol.library.signal import Turn, meet
from lab.protocol.library.staging import ENTER, LEAVE
from lab.protocol.write import RELAXED, RELEASE, Block, Expr


def enter_release_acquire_system(b: Block, turn: Turn, algorithm: int) -> Expr:
    """What the kernels ahead on a rank's stream stored is visible to the blocks of this index on all ranks after."""
    return meet(b, turn, algorithm, ENTER, publish=RELEASE, reads=True)


def enter_relaxed_system(b: Block, turn: Turn, algorithm: int) -> Expr:
    """What enter_release_acquire_system must not be: everybody has come, and nothing of what they did is visible."""
    return meet(b, turn, algorithm, ENTER, publish=RELAXED, reads=False)


def leave_drained_system(b: Block, turn: Turn, algorithm: int) -> Expr:
    """No load of this block from a peer's tensor is under way when that peer goes on; nothing is read behind it."""
    return meet(b, turn, algorithm, LEAVE, publish=RELEASE, reads=False)
