"""Options that all commands on a protocol share: which protocol, and at which configuration (`request.configured`)."""

from __future__ import annotations

import math
from typing import Annotated

import typer

MOST_WORKERS = 256  # more threads or processes than any one machine runs to advantage


def finite(value: float | None) -> float | None:
    """Refuse nan and infinity, which a range of typer lets through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


def seconds(value: float | None) -> float | None:
    """Refuse what is no span of time."""
    if finite(value) is not None and value < 0:
        raise typer.BadParameter(f"{value:g} is less than no time.")
    return value


Name = Annotated[str, typer.Argument(help="A name from `lab list`, or my_protocol.py:name.", metavar="NAME_OR_FILE")]
World = Annotated[int | None, typer.Option(help="Ranks, 1 to 8; the protocol's own number otherwise.")]
Blocks = Annotated[int | None, typer.Option(help="Most blocks of a launch; the protocol's own grid otherwise.")]
Calls = Annotated[int | None, typer.Option(help="Calls of each rank; the protocol's own number otherwise.")]
Bytes = Annotated[
    str | None,
    typer.Option("--bytes", help="Message size: 65536, 64KiB; several with commas are cycled over the calls."),
]
Gate = Annotated[str | None, typer.Option(help="Largest message the staging is laid out for.")]
Dtype = Annotated[str | None, typer.Option(help="fp16, bf16 or fp32.")]
Waves = Annotated[int | None, typer.Option(help="Waves a block; 1 makes a block one agent.")]
Resident = Annotated[
    int | None, typer.Option(help="Blocks that a GPU runs at once; the others wait for a slot. Unlimited otherwise.")
]
Gpus = Annotated[
    int | None, typer.Option(help="With --resident: GPUs that the ranks share; each rank has its own otherwise.")
]
Scenario = Annotated[str | None, typer.Option(help="What the hosts do: back_to_back, isolated, or the protocol's own.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="An option of the protocol, NAME=VALUE.")]
