"""What the hosts do: the calls of each rank and where they synchronise."""

from __future__ import annotations

from collections.abc import Callable

from lab.protocol.language.host import Host


def back_to_back(h: Host) -> None:
    """All calls are queued on the stream without host synchronisation; every call has its own input and output."""
    calls = []
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.launch(x, out)
        calls.append((x, out))
    h.sync()
    for x, out in calls:
        h.expect(out, x)


def isolated(h: Host) -> None:
    """A host barrier before and a device sync after every call; outputs are fresh and poisoned."""
    for nbytes in h.sizes():
        x, out = h.input(nbytes), h.output(nbytes)
        h.barrier()
        h.launch(x, out)
        h.sync()
        h.expect(out, x)


SCENARIOS: dict[str, Callable[[Host], None]] = {"back_to_back": back_to_back, "isolated": isolated}
