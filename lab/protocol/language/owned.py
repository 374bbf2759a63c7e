"""What a rank owns, reached by name from the text of a protocol."""

from __future__ import annotations

from lab.errors import nearest
from lab.protocol.errors import ProtocolError, user_site
from lab.protocol.language.layout import Buffer


class Owned:
    """The regions of one rank, as attributes."""

    def __init__(self, rank: int, regions: dict[str, Buffer]) -> None:
        self._rank, self._regions = rank, regions

    def __getattr__(self, name: str) -> Buffer:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._regions:
            guess = nearest(name, self._regions)
            hint = f"did you mean {' or '.join(guess)}?" if guess else f"it has {', '.join(self._regions) or 'none'}"
            raise ProtocolError(f"rank {self._rank} has no region", value=name, site=user_site(), hint=hint)
        return self._regions[name]
