"""How long a piece of work may still take."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds left, not below 0."""
        if self.seconds is None:
            return float("inf")
        return max(0.0, self.seconds - (time.perf_counter() - self._started))

    def part(self, share: float) -> float | None:
        """A share of the seconds left; None: no limit."""
        return None if self.seconds is None else share * self.left

    @property
    def passed(self) -> bool:
        """Whether none are left."""
        return self.left <= 0.0
