"""How many blocks a communicator may have on a GPU at a time, so that none waits for one that cannot start.

A launch waits for the same launch of its peers. It ends if all blocks of every such launch can be placed, on every
rank, whatever waits there already. What waits for a peer on a GPU is: at most one launch of each communicator, and
kernels of other libraries.

* One launch of each: calls of a communicator follow each other. A successor that is placed early is placed behind all
  blocks of its predecessor, and (unless `alone`) only once that one waits for no peer any more, so what it finds
  occupied empties by itself. The same holds for a kernel of another library that starts early behind ours.
* Every communicator of a process claims blocks of a GPU when it is set up, and keeps to them until it is closed. The
  claims on a GPU never add up to more than its multiprocessors less `spare`. Each multiprocessor holds at least one
  block, so there is always one with room for a block that is within its claim; and at least `spare` multiprocessors
  hold none of ours, whatever the order of streams on whatever rank, so another library's kernels that need no more than
  those can be placed, too.
* `alone` promises that nothing else on the GPU waits for a peer. Then the blocks may fill it, and a successor may be
  placed at once: it comes behind all blocks of the only launch that waits.

So no set of early launches, of any number of communicators, takes room that a peer needs; docs/residency.md has the
proof, which asks for less, and the commands that play it. Not covered: kernels of other
libraries that wait for peers on more than `spare` multiprocessors, or whose blocks do not fit on an empty one, and
processes outside the group that share its GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lab.errors import LabError
from lab.kernels.registry import Claim

# Multiprocessors left to other libraries' kernels. NCCL launches at most 32 blocks by default, RCCL has at most 112
# channels on the GPUs with the most of them; a block of either may need one for itself.
SPARE = {"nvidia": 32, "amd": 112}
SPARE_OF_SHARED = 4  # where ranks share a GPU, those libraries do not run
SHARE = 2 / 3


@dataclass(frozen=True)
class Gpu:
    """What of a GPU counts here.

    Attributes:
        vendor: "nvidia" or "amd".
        multiprocessors: of the GPU.
        blocks_each: blocks of 512 threads that one multiprocessor holds at a time.
        sharing: ranks on it.
    """

    vendor: str
    multiprocessors: int
    blocks_each: int
    sharing: int


@dataclass(frozen=True)
class Wish:
    """What a communicator was asked to use.

    Attributes:
        blocks: so many, or None for a share of what is left.
        share: that share, above 0, at most 1.
        spare: multiprocessors to leave to other libraries; None: SPARE, but at most half of them.
        alone: the GPU is this communicator's.
    """

    blocks: int | None = None
    share: float = SHARE
    spare: int | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise LabError("share is out of range", value=self.share, hint="a part of what is left, above 0, at most 1")
        if self.spare is not None and self.spare < 0:
            raise LabError("spare is out of range", value=self.spare, hint="multiprocessors, 0 or more")


def offer(gpu: Gpu, wish: Wish, claims: Sequence[Claim]) -> int:
    """Blocks of 512 threads that this rank can promise, given what other communicators of the process have.

    Raises:
        LabError: nothing is left, or somebody is or wants to be alone.
    """
    if wish.alone and gpu.sharing > 1:
        raise LabError("no rank is alone on a GPU that several share", value=gpu.sharing, hint="leave `alone` out")
    if claims and (wish.alone or any(claim.alone for claim in claims)):
        raise LabError(
            "a communicator that is alone on its GPU was or is to be joined by another one",
            value=f"{len(claims)} there", hint="close it, or set all of them up without `alone`",
        )  # fmt: skip
    if wish.alone:
        return gpu.multiprocessors * gpu.blocks_each
    room = _room(gpu, wish.spare)
    left = room - sum(claim.blocks for claim in claims)
    wanted = wish.blocks if wish.blocks is not None else max(int(left * wish.share), 1)
    if left < wanted:
        raise LabError(
            f"other communicators have {room - left} of the {room} blocks that this GPU has room for",
            value=wanted, hint="close one, or give each of them a smaller `share` or fewer `blocks`",
        )  # fmt: skip
    return wanted


def _room(gpu: Gpu, spare: int | None) -> int:
    """Blocks that all communicators of this process may have on the GPU."""
    if spare is None:
        spare = SPARE_OF_SHARED if gpu.sharing > 1 else min(SPARE[gpu.vendor], gpu.multiprocessors // 2)
    return max((gpu.multiprocessors - spare) // gpu.sharing, 0)
