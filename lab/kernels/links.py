"""Which GPUs may form a communicator: by how they are joined."""

from collections.abc import Mapping, Sequence

DIRECT = ("nvlink", "xgmi", "same")


def objection(links: Sequence[Mapping[int, str]], any_links: bool) -> str | None:
    """Why the kernels do not fit these GPUs, or None.

    Pushes over PCIe of more than two GPUs cross the host's bridges several times over, where a ring does not; and PCIe
    lets stores to different peers arrive in any order.

    Args:
        links: per rank, what joins its GPU to that of every other rank, in `Gpu.link`'s words.
        any_links: take PCIe, and what cannot be looked at, also for more than two ranks.
    """
    for rank, mine in enumerate(links):
        for peer, link in mine.items():
            if link == "none":
                return f"the GPU of rank {rank} cannot reach the memory of that of rank {peer}"
            if link in DIRECT or any_links or len(links) <= 2:
                continue
            if link == "hidden":
                return (
                    f"rank {rank} cannot see the GPU of rank {peer}, so what joins them is not known; "
                    "make all GPUs visible to every process, or pass any_links=True"
                )
            return f"{link} joins ranks {rank} and {peer}, and there are more than two; any_links=True takes them"
    return None
