"""How a command ends: exit codes, and one message for each error that the user can mend."""

import sys
import traceback

import typer

from lab.errors import LabError

OK = 0
DEFECT = 1  # the command did its work and what it looked at is defective: `raise typer.Exit(DEFECT)`
USAGE = 2  # the request cannot be met as it stands
INTERNAL = 70  # a bug of ours; never 1, which a script would read as "defect found"
INTERRUPTED = 130


class UsageError(LabError):
    """A mistake in the command line that typer cannot see, such as options that exclude each other."""


class StoppedError(Exception):
    """Ctrl-C ended a command that has printed what it had; its text says what that is worth.

    Exit code 130, as when Ctrl-C strikes a command that had nothing yet.
    """


def run(app: typer.Typer, argv: list[str] | None = None) -> int:
    """Run a command line and turn the way it ends into an exit code.

    A command that has results to keep catches KeyboardInterrupt, prints or saves them, and raises StoppedError.
    """
    try:
        app(args=argv, prog_name="lab")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else OK if end.code is None else USAGE
        if code == INTERRUPTED:
            say("stopped")
        return code
    except StoppedError as end:
        say(f"stopped with Ctrl-C; {end}")
        return INTERRUPTED
    except LabError as error:
        say(str(error))
        return USAGE
    except Exception:
        traceback.print_exc()
        say("this is a bug in the lab, not in your input; please report the command line and the lines above")
        return INTERNAL
    return OK


def say(message: str) -> None:
    """Tell the person at the terminal something; stdout is left to results."""
    print(f"lab: {message}", file=sys.stderr, flush=True)
