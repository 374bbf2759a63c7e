"""What add_rmsnorm can take: rows, threads, and the room that they need in a workspace."""

from lab.errors import LabError
from lab.kernels.norm_reference import LEAVES, Points
from lab.kernels.staging import VECTOR, Layout

HELD = 4  # vectors of a row that a thread holds: lab::held_vectors
FEWEST_THREADS, MOST_THREADS = 32, 512


def vectors_of(hidden: int, itemsize: int) -> int:
    """16-byte vectors of a row; the last one may be cut off."""
    return -(-hidden * itemsize // VECTOR)


def threads_for(hidden: int, itemsize: int, held: int = 2) -> int:
    """Threads of a block for rows of `hidden` elements: a power of two, so that each holds about `held` vectors."""
    vectors = vectors_of(hidden, itemsize)
    threads = FEWEST_THREADS
    while threads < MOST_THREADS and threads * min(held, HELD) < vectors:
        threads *= 2
    return threads


def staged_bytes(algorithm: str, world: int, tokens: int, hidden: int, itemsize: int, points: Points) -> int:
    """Bytes of one slot that a call fills: all rows as packets, or those of one rank's part.

    Where the norm reads what is not stored, the owner of a part sends the normalised rows beside the residual's.
    """
    row = vectors_of(hidden, itemsize) * VECTOR
    if algorithm == "add_rmsnorm":
        return tokens * row
    return -(-tokens // world) * row * (1 if points.norm_of_stored else 2)


def most_tokens(layout: Layout, algorithm: str, hidden: int, itemsize: int, points: Points) -> int:
    """How many rows a call of `algorithm` can have."""
    row = vectors_of(hidden, itemsize) * VECTOR
    if algorithm == "add_rmsnorm":
        return layout.packet_bytes // row
    return layout.part_bytes // (row * (1 if points.norm_of_stored else 2)) * layout.world


def check_rows(
    layout: Layout, algorithm: str, threads: int, tokens: int, hidden: int, itemsize: int, points: Points
) -> None:
    """Refuse what the kernel cannot do.

    Raises:
        LabError: rows too long, threads that the tree of a row does not take, or more rows than the workspace holds.
    """
    vectors = vectors_of(hidden, itemsize)
    if not 1 <= vectors <= LEAVES:
        raise LabError("hidden is out of range", value=hidden, hint=f"1 to {LEAVES * VECTOR // itemsize} elements")
    if threads & (threads - 1) or not FEWEST_THREADS <= threads <= MOST_THREADS or threads * HELD < vectors:
        raise LabError(
            "threads of add_rmsnorm", value=threads,
            hint=f"a power of two from {FEWEST_THREADS} to {MOST_THREADS}, at least {-(-vectors // HELD)}",
        )  # fmt: skip
    most = most_tokens(layout, algorithm, hidden, itemsize, points)
    if not 1 <= tokens <= most:
        raise LabError(f"{algorithm} cannot carry so many tokens", value=tokens, hint=f"1 to {most}")
