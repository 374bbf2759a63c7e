"""How a command ends: any failure becomes one message and an exit code and, with --json, a document."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.exceptions import TyperException

from lab.cli.output import WordsAside, close_stdout, emit_json, stdout_of_a_command
from lab.errors import LabError

OK = 0
DEFECT = 1  # the command did its work and what it looked at is defective: `raise typer.Exit(DEFECT)`
USAGE = 2  # the request cannot be met as it stands
INTERNAL = 70  # a bug of ours; never 1, which a script would read as "defect found"
INTERRUPTED = 130
CLOSED = 141  # nobody reads stdout any more; what a tool that SIGPIPE ends gives in a shell

# What the operating system refuses for reasons that lie with the machine or the request, not with the lab.
_REFUSALS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    }
)

_OURS = "this is a bug in the lab, not in your input; please report the command line and the lines above"


class UsageError(LabError):
    """A mistake in the command line that typer cannot see, such as options that exclude each other."""


class StoppedError(Exception):
    """Ctrl-C ended a command that has printed what it had; its text says what that is worth.

    Exit code 130, as when Ctrl-C strikes a command that had nothing yet.
    """


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes:
        code: The exit code.
        message: What a person is told; None: the command has said it all.
        hint: What to do about it.
        ours: Whether it is a bug of the lab, whose traceback is wanted.
    """

    code: int
    message: str | None = None
    hint: str | None = None
    ours: bool = False


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> int:
    """Run a command line and turn the way it ends into an exit code.

    A command that has results to keep catches KeyboardInterrupt, prints or saves them, and raises StoppedError.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with stdout_of_a_command(document="--json" in words) as stdout:
        try:
            command = typer.main.get_command(app)
            with command.make_context("lab", words) as context:
                command.invoke(context)
            stdout.flush()
            return OK
        except BaseException as problem:
            return _told(problem, stdout)


def ending_of(problem: BaseException) -> Ending:
    """What an exception that a command let through means to whoever called it."""
    if isinstance(problem, typer.Exit):
        return Ending(problem.exit_code)
    if isinstance(problem, StoppedError):
        return Ending(INTERRUPTED, f"stopped with Ctrl-C; {problem}")
    if isinstance(problem, KeyboardInterrupt):
        place = str(problem) or _place_in_a_text(problem)
        running = f"; the text of a protocol was still running, at {place}" if place else ""
        return Ending(INTERRUPTED, f"stopped{running}")
    if isinstance(problem, TyperException):
        return Ending(USAGE, problem.format_message(), "--help lists what there is")
    if isinstance(problem, LabError):
        return Ending(USAGE, problem.summary, problem.hint)
    if isinstance(problem, SystemExit):
        place = _place_in_a_text(problem) or "unknown"
        return Ending(USAGE, f"the text that was run ended Python with SystemExit({problem.code!r})", f"at {place}")
    if isinstance(problem, BrokenPipeError):
        return Ending(CLOSED)
    if isinstance(problem, MemoryError):
        return Ending(USAGE, f"there is not enough memory for this{_in_brackets(problem)}", _smaller(problem))
    if isinstance(problem, OSError) and problem.errno in _REFUSALS:
        about = f" for {problem.filename}" if problem.filename else ""
        return Ending(USAGE, f"the system refuses{about}: {problem.strerror}")
    if _came_from_the_cache(problem):
        return Ending(USAGE, "the cache of compiled code is damaged", f"delete {_cache()} and run the command again")
    return Ending(INTERNAL, _OURS, ours=True)


def _told(problem: BaseException, stdout: object) -> int:
    """Say how a command ended; the exit code."""
    ending = ending_of(problem)
    if ending.ours:
        traceback.print_exception(problem)
    if ending.code == CLOSED:
        close_stdout()
        return CLOSED
    if isinstance(problem, TyperException) and hasattr(problem, "show"):
        problem.show()  # with the usage line, which the message alone lacks
    elif ending.message is not None:
        say(ending.message + (f"\n  {ending.hint}" if ending.hint else ""))
    return _finished(ending, stdout)


def _finished(ending: Ending, stdout: object) -> int:
    """Write the document of a failure where one is due, and let stdout go; the exit code."""
    code = ending.code
    try:
        if isinstance(stdout, WordsAside) and not stdout.taken and ending.message is not None:
            emit_json({"error": {"code": code, "message": ending.message, "hint": ending.hint}})
        stdout.flush()  # type: ignore[attr-defined]
    except OSError as problem:
        close_stdout()
        if isinstance(problem, BrokenPipeError):
            return CLOSED
        if code in (OK, DEFECT):
            code = USAGE
            say(f"the result cannot be written: {problem.strerror}")
    return code


def _in_brackets(problem: BaseException) -> str:
    return f" ({problem})" if str(problem) else ""


def _smaller(problem: BaseException) -> str:
    place = _place_in_a_text(problem)
    where = f"; the text of the protocol was running, at {place}" if place else ""
    return f"ask for fewer bytes, calls, blocks or ranks{where}"


def _place_in_a_text(problem: BaseException) -> str | None:
    """The innermost line of a protocol's text that a problem passed through; None: it met none."""
    from lab.protocol.errors import is_text

    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if is_text(frame.filename)]
    return f"{lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}" if lines else None


def _came_from_the_cache(problem: BaseException) -> bool:
    """Whether Numba met it while it read code that was compiled before."""
    frames = traceback.extract_tb(problem.__traceback__)
    return any(Path(frame.filename).parts[-3:] == ("numba", "core", "caching.py") for frame in frames)


def _cache() -> str:
    import numba

    return str(numba.config.CACHE_DIR)


def say(message: str) -> None:
    """Tell the person at the terminal something; stdout is left to results."""
    print(f"lab: {message}", file=sys.stderr, flush=True)
