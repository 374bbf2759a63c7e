"""`lab drift`: what a rounding mode does to a residual stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lab.cli.errors import StoppedError, UsageError, say
from lab.cli.options import finite
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.cli.table import print_table

_METRICS = ("drift", "gain", "norm")
_HEADS = ("percent", *_METRICS, *(f"{name} law" for name in _METRICS))


def command(
    world: Annotated[int | None, typer.Option(help="Ranks whose contributions are added.  [default: 4]")] = None,
    hidden: Annotated[int | None, typer.Option(help="Elements of a row.  [default: 5120; 512 with feedback]")] = None,
    tokens: Annotated[int | None, typer.Option(help="Rows.  [default: 16]")] = None,
    steps: Annotated[int | None, typer.Option(help="Additions to the residual.  [default: 128]")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds, 0, 1, ...; two or more give an interval.  [default: 4]")
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the first residual over that of an update.  [default: 1.6]", callback=finite
        ),
    ] = None,
    bias: Annotated[
        float | None, typer.Option(help="Mean of a contribution in standard deviations.  [default: 0]", callback=finite)
    ] = None,
    rho: Annotated[
        float | None,
        typer.Option(help="Correlation of an element's successive contributions.  [default: 0]", callback=finite),
    ] = None,
    identical: Annotated[bool, typer.Option(help="Every rank contributes the same numbers.")] = False,
    feedback: Annotated[
        str | None,
        typer.Option(help="none, linear, tanh or relu: contributions come from the RMSNorm of the residual."),
    ] = None,
    teacher_forced: Annotated[
        bool, typer.Option(help="With feedback: the fp64 stream adds the kernel's contributions.")
    ] = False,
    modes: Annotated[
        str | None, typer.Option(help="Comma-separated modes of the fused kernel, or all.  [default: RTZ,RNE]")
    ] = None,
    roundings: Annotated[
        int, typer.Option(min=1, max=2, help="1: residual + fp32 sum, rounded once. 2: the sum is rounded too.")
    ] = 2,
    accumulate: Annotated[str, typer.Option(help="fp32; sequential, tree or ring round after each addition.")] = "fp32",
    order: Annotated[str, typer.Option(help="Order of the fp32 sum: rank or reverse.")] = "rank",
    sum_mode: Annotated[
        str | None, typer.Option(help="Mode of the sum's rounding, if not that of the addition.")
    ] = None,
    random_bits: Annotated[int | None, typer.Option(help="Random bits of SR and SRC.  [default: 16]")] = None,
    preset: Annotated[
        str | None, typer.Option(help="seed: the published table. aiter-5151: one rank, 72 calls.")
    ] = None,
    updates: Annotated[
        Path | None,
        typer.Option(help="Your own updates instead: .npz or .safetensors with `updates` [steps, world, ...]."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw drift and gain over steps into this .png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Drift, gain and norm of a bf16 residual stream against fp64, in percent, with the closed form beside them.

    Without options: the set-up that reproduces the published table, 17.5 / -15.5 for a truncating kernel.
    drift = |r - ref| / |ref|; gain = <r, ref> / <ref, ref> - 1; norm = |r| / |ref| - 1.
    """
    from dataclasses import asdict, replace

    from lab.errors import UnknownNameError
    from lab.sim.rounding import drift
    from lab.sim.rounding.modes import RoundMode

    given = {
        name: value
        for name, value in {
            "world": world, "hidden": hidden, "tokens": tokens, "steps": steps, "ratio": ratio, "bias": bias,
            "rho": rho, "identical": identical or None, "feedback": feedback,
            "teacher_forced": teacher_forced or None, "seeds": seeds,
        }.items()
        if value is not None
    }  # fmt: skip
    if updates is not None and (given or preset):
        extra = [*given, *(["preset"] if preset else [])]
        raise UsageError("--updates brings its own stream", hint=f"leave out: {', '.join(extra)}")
    if preset is not None and preset not in drift.PRESETS:
        raise UnknownNameError("preset", preset, drift.PRESETS)
    seeds = given.pop("seeds", 4)
    if seeds < 1:
        raise UsageError("at least one seed is needed", value=seeds)
    how: dict[str, object] = {"roundings": roundings, "accumulate": accumulate, "order": order}
    if sum_mode:
        how["sum"] = RoundMode.parse(sum_mode)
    if modes == "all":
        if random_bits is not None:
            raise UsageError("--modes all has its own numbers of random bits", hint="name the modes: --modes SR")
        paths = drift.all_paths(**how)
    else:
        chosen = [RoundMode.parse(name) for name in (modes or "RTZ,RNE").split(",") if name.strip()]
        if not any(mode.is_stochastic for mode in chosen) and random_bits is not None:
            raise UsageError("--random-bits is for SR and SRC", hint="say --modes SR")
        paths = tuple(
            drift.fused(mode, **how, **({"random_bits": random_bits or 16} if mode.is_stochastic else {}))
            for mode in chosen
        )
        paths = (*paths, drift.RCCL_ADD)

    finished = 1
    if updates is not None:
        from lab.sim.rounding.tensors import load_updates

        tensor, residual = load_updates(updates)
        measured = drift.measure_tensors(tensor, residual, paths)
        setup: dict[str, object] = {"updates": str(updates), "shape": list(tensor.shape)}
        described = f"{updates}: updates {tuple(tensor.shape)}"
    else:
        stream = replace(drift.PRESETS[preset or "seed"], **given)
        with telling() as tell:
            measured = drift.measure(
                stream,
                paths,
                seeds=range(seeds),
                every_step=plot is not None,
                progress=lambda done: tell(f"{done} of {seeds} seeds"),
            )
        finished = len(measured[0].drift)
        setup = {**asdict(stream), "hidden": stream.row, "seeds": finished}
        described = (
            f"world {stream.world}, hidden {stream.row}, {stream.tokens} tokens, {stream.steps} steps, "
            f"r0/update {stream.ratio:g}, {finished} seed(s), bf16 inputs, fp64 reference"
        )
    rows = [each.row() for each in measured]
    asked = finished if updates is not None else seeds
    if plot is not None:
        from lab.plots.drift import plot_drift

        plot_drift(measured, plot)
        say(f"wrote {plot}")
    if json:
        emit_json({"setup": setup | {"roundings": roundings, "accumulate": accumulate, "order": order}, "rows": rows})
    else:
        typer.echo(described)
        print_table(_HEADS, [_cells(row) for row in rows], right=range(1, len(_HEADS)), gap=1)
        typer.echo("law: the closed form")
    if finished < asked:
        raise StoppedError(f"{finished} of {asked} seeds were finished; the figures are of those")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    measured = (_with_interval(row[name], row[f"{name}_interval"]) for name in _METRICS)
    laws = (row[f"{name}_law"] for name in _METRICS)
    return (row["path"], *measured, *("-" if law is None else f"{law:.2f}" for law in laws))


def _with_interval(value: float, interval: list[float] | None) -> str:
    if interval is None:
        return f"{value:.3f}"
    return f"{value:.3f} ± {(interval[1] - interval[0]) / 2:.3f}"
