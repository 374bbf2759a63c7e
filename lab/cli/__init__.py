"""The `lab` command.

To add a command: write `lab/cli/<name>.py` with a function `command` (or, for a group of subcommands, a
`typer.Typer` named `app`) and add its name to COMMANDS. The docstring is its help. Import numba, numpy,
pandas and the lab's own modules inside the function: a test holds `lab --help` under 0.5 s.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from importlib import import_module
from typing import Annotated

import typer

from lab.cli.errors import INTERRUPTED, run

# Shown by `lab --help` in this order.
COMMANDS: tuple[str, ...] = (
    "repro",
    "check",
    "replay",
    "list",
    "mutate",
    "slack",
    "catalogue",
    "trace",
    "compare",
    "bench",
    "isa",
    "drift",
    "rounding",
)

app = typer.Typer(
    name="lab",
    help="The research kernel lab for custom all-reduce: find, show and replay protocol defects on the CPU.",
    epilog=(
        "Exit codes: 0 fine, 1 a defect was found, 2 the request cannot be met, 70 a bug in the lab itself, "
        "130 stopped with Ctrl-C, 141 nobody reads the output any more."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from lab import __version__

        typer.echo(f"lab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


for _name in COMMANDS:
    _module = import_module(f"lab.cli.{_name}")
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_name)
    else:
        app.command(_name)(_module.command)


def _end(code: int) -> None:
    """End a process of which only the interpreter's own end is left, so that Ctrl-C has nothing more to stop.

    After a Ctrl-C it ends at once: Python would wait for compiled code in threads that were given up, and may still
    end itself with the signal, although the interrupt was answered.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if code == INTERRUPTED:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def main(argv: list[str] | None = None) -> int:
    """Run `lab` with `argv` (the process's own arguments when None) and return the exit code.

    Tests call this and not typer's CliRunner, which would see a LabError instead of its message and code.
    """
    code = run(app, argv)
    if argv is None:
        _end(code)
    return code
