"""Calls of one communicator run one after the other, on whatever streams they are queued."""

from collections import OrderedDict
from collections.abc import Callable

CAPTURES = 64  # captures at a time that are told apart


class Order:
    """Puts each call behind the one queued before it: eager calls behind eager ones, and those of a capture in a row.

    A call in a capture runs when the graph is replayed, so it neither waits for an eager call nor is waited for by one:
    an eager call waits for the last *eager* one, however many captures lie between. Branches of one capture are put
    in the order in which the host queued them, by events that become edges of the graph. In which order replays and
    eager calls run is what the caller's streams say.
    """

    def __init__(self, capture_of: Callable[[int], int], order: Callable[[int, int], None]):
        """Take how to ask and how to order.

        Args:
            capture_of: the number of the capture that a stream takes part in, 0 for none.
            order: let a stream (second) wait for what is queued on another (first) so far.
        """
        self._capture_of, self._order = capture_of, order
        self._eager: int | None = None
        self._captured: OrderedDict[int, int] = OrderedDict()  # capture -> stream of its last call

    def queue_on(self, stream: int) -> None:
        """A call is about to be queued on `stream`."""
        capture = self._capture_of(stream)
        before = self._captured.pop(capture, None) if capture else self._eager
        if before is not None and before != stream:
            self._order(before, stream)
        if not capture:
            self._eager = stream
            return
        self._captured[capture] = stream
        if len(self._captured) > CAPTURES:
            self._captured.popitem(last=False)
