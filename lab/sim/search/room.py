"""How much memory there is for a search: the least of what the machine, the shell and the container allow."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_SHARE = 4  # a search that is given no limit stops at this part of what there is
_CGROUPS = Path("/sys/fs/cgroup")


def share_of_memory() -> int:
    """Bytes that the states of a search may take where no limit is given."""
    return min(_limits()) // _SHARE


def _limits() -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return  # no Linux
    yield from _of_control_groups(own, _CGROUPS)


def _of_control_groups(own: str, root: Path) -> Iterator[int]:
    """The limits of a process's control groups and of those around them.

    Args:
        own: Its /proc/self/cgroup: `0::/a/b` (version 2), `7:memory:/a/b` (version 1).
        root: Where the groups are mounted.
    """
    for line in own.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            try:
                text = (folder / name).read_text(encoding="utf-8").strip()
            except OSError:
                continue  # the root has none, and a container may not show what is around it
            if text.isdigit():
                yield int(text)
