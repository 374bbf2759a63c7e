"""Worker processes end with the process that started them, also when that is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end as soon as the parent has ended. Called once, in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End this process when the other end of the parent's pipe is gone; nothing here is worth keeping without it."""
    wait([sentinel])
    os._exit(1)
