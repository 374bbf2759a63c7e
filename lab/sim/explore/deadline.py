"""How long a piece of work may still take, and how work that looks at no clock is kept to that."""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from lab.errors import LabError
from lab.protocol.errors import ProtocolError, site_of_frame

Result = TypeVar("Result")
_LEAST = 5.0  # seconds that work which cannot be cut into parts gets at least
_LOOK = 0.2  # seconds between two looks whether it is done


class DeadlineError(LabError):
    """Work that cannot be cut into parts was not finished in time."""


class InterruptedText(KeyboardInterrupt):
    """Ctrl-C came while a protocol's text was running; its text says where."""


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

    def keep(self, work: Callable[[], Result], what: str) -> Result:
        """Do work that looks at no clock, in a thread of its own that is given up when the time is over.

        It gets a few seconds even where none are left. Ctrl-C is answered at once, too.

        Args:
            work: What is done. Where it is given up, the next line of Python in it raises; compiled code ends first.
            what: What it is called in an error ("the race check").

        Raises:
            DeadlineError: It was not finished in time.
            ProtocolError: It was not finished in time, and the text of a protocol was running; with its line.
            InterruptedText: Ctrl-C came while the text of a protocol was running.
        """
        thread = _Thread(work)
        end = time.perf_counter() + max(self.left, _LEAST)
        try:
            while not thread.done:
                wait = min(_LOOK, end - time.perf_counter())
                if wait <= 0:
                    raise self._missed(thread, what)
                thread.wait(wait)
        except BaseException as problem:
            site = site_of_frame(thread.frame)
            thread.give_up()
            if type(problem) is KeyboardInterrupt and site is not None:
                raise InterruptedText(f"{site.file}:{site.line}: {site.text}") from None
            raise
        return thread.result()

    def _missed(self, thread: _Thread, what: str) -> LabError:
        after = f"{self.seconds:g} s, the deadline"
        site = site_of_frame(thread.frame)
        if site is not None:
            hint = "does every loop of it end? if so, raise the deadline, or ask for fewer calls, blocks or ranks"
            return ProtocolError(f"this text was still running after {after}", site=site, hint=hint)
        return DeadlineError(
            f"{what} was not finished after {after}",
            hint="nothing is known of the protocol; raise the deadline, or ask for fewer bytes, calls, blocks or ranks",
        )


class _GivenUpError(BaseException):
    """Raised in a thread whose result nobody waits for any more."""


class _Thread:
    """Work in a daemon thread, which ends with the process."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._ending: tuple[Any, BaseException | None] | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._ended.put((work(), None))
        except BaseException as problem:
            self._ended.put((None, problem))

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ending is not None

    @property
    def frame(self) -> FrameType | None:
        """Where it is now; None: it has ended."""
        return sys._current_frames().get(self._thread.ident or 0)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so long."""
        try:
            self._ending = self._ended.get(timeout=seconds)
        except queue.Empty:
            return

    def result(self) -> Any:
        """What it returned, or raise what it raised."""
        assert self._ending is not None
        value, problem = self._ending
        if problem is not None:
            raise problem
        return value

    def give_up(self) -> None:
        """Raise an exception in it, at its next line of Python."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_GivenUpError)
        )
