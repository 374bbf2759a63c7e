"""`lab rounding`: prove the rounding loops, and name the rounding of a black box."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.errors import DEFECT, StoppedError, say
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.errors import LabError

app = typer.Typer(help="Rounding to bf16 and fp16: proof, and what a build really does.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@app.command()
def prove(
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the inputs.")] = 2,
    mutants: Annotated[bool, typer.Option(help="Also run the proof on loops with a planted fault.")] = True,
    json: Json = False,
) -> None:
    """Compare every loop with the specification on all 2^32 fp32 inputs. Exit 1 if one differs or a fault is missed."""
    import time

    from lab.sim.rounding import proof

    start = time.perf_counter()
    modes, nan_rules, stochastic, caught, lost = [], [], [], [], {}
    stopped = False
    with telling() as tell:
        try:
            modes = proof.prove_modes(threads=threads, progress=lambda done: tell(f"all inputs: {done:.0%}"))
            nan_rules = proof.prove_nan_rules(threads=threads)
            lost = {mode.value: proof.lost_nans(mode) for mode in proof.UNGUARDED_MODES}
            tell("stochastic modes")
            for case in proof.stochastic_cases():
                stochastic.append(proof.prove_stochastic(*case))
            if mutants:
                caught = proof.catch_mutants(threads=threads, progress=lambda done: tell(f"planted faults: {done:.0%}"))
        except KeyboardInterrupt:
            stopped = True
    seconds = time.perf_counter() - start
    failed = any(line.mismatches for line in (*modes, *nan_rules, *stochastic))
    blind = any(line.mismatches == 0 for line in caught)
    if json:
        emit_json(
            {
                "modes": modes,
                "nan_rules": nan_rules,
                "nan_inputs_lost_without_guard": lost,
                "stochastic": stochastic,
                "mutants": caught,
                "proved": not (failed or blind or stopped),
                "seconds": round(seconds, 2),
            }
        )
    else:
        typer.echo("deterministic modes, all inputs                 inputs   mismatches")
        for line in modes:
            typer.echo(f"  {line.name:<36} {line.inputs:>13,} {line.mismatches:>12,}{_first(line)}")
        typer.echo("NaN rules, all NaN inputs")
        for line in nan_rules:
            typer.echo(f"  {line.name:<36} {line.inputs:>13,} {line.mismatches:>12,}{_first(line)}")
        for name, count in lost.items():
            typer.echo(f"  without a guard, {name} turns {count:,} NaN inputs into numbers")
        typer.echo("stochastic, all (cut-off, random) pairs          pairs   mismatches   mean bias in steps")
        for line in stochastic:
            typer.echo(f"  {line.name:<36} {line.pairs:>13,} {line.mismatches:>12,}   {line.mean_bias:+.6f}")
        if caught:
            typer.echo("planted faults, which must differ")
        for line in caught:
            typer.echo(f"  {line.name:<36} {line.inputs:>13,} {line.mismatches:>12,}{_first(line)}")
        answer = "NOT PROVED" if failed or blind else "stopped before the end" if stopped else "proved"
        typer.echo(f"{answer}, {seconds:.1f} s on {threads} thread(s)")
    if stopped:
        raise StoppedError("what was finished until then is above")
    if failed or blind:
        raise typer.Exit(DEFECT)


def _first(line) -> str:
    if line.first is None:
        return ""
    word, got, right = line.first
    return f"   first 0x{word:08x}: 0x{got:04x}, 0x{right:04x} is due"


@app.command()
def identify(
    box: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_CALLABLE",
            help="A .npz with `inputs` (float32) and `outputs`, or FILE.py:FUNCTION, or MODULE:FUNCTION; "
            "or a library code such as aiter-1, to see what it does.",
        ),
    ],
    require: Annotated[
        str | None, typer.Option(help="Exit 1 unless it is this mode, e.g. RNE, or this code, e.g. aiter-0.")
    ] = None,
    json: Json = False,
) -> None:
    """Name the rounding mode of a build. Exit 1 if none of the known modes fits, or several do.

    The function takes float32[n] and returns bf16 codes (uint16), bf16 values (float32, or a torch or ml_dtypes
    bfloat16), or float16. For a kernel on another machine: `lab rounding probe` writes the inputs; run them
    there and bring the outputs back in the same file.
    """
    from functools import partial

    from lab.sim.rounding import identify as judge
    from lab.sim.rounding.convert import round_with
    from lab.sim.rounding.modes import conversion

    wanted = conversion(require) if require else None
    if box.partition("-")[0].lower() in ("aiter", "opus", "ck"):
        conversion(box)
        verdict = judge.identify(partial(round_with, box))
    elif box.endswith(".npz") or ":" not in box:
        verdict = judge.identify_file(box)
    else:
        verdict = judge.identify(judge.load_callable(box))
    why_not = None if wanted is None else verdict.why_not(wanted)
    met = verdict.mode is not None and why_not is None
    if json:
        emit_json(
            verdict if require is None else {**_as_dict(verdict), "required": require, "met": met, "why_not": why_not}
        )
    else:
        typer.echo(verdict.description)
        typer.echo(f"  format      {verdict.format}")
        typer.echo(f"  NaN         {verdict.nan}")
        typer.echo(f"  subnormals  {verdict.subnormals}")
        if verdict.codes:
            typer.echo(f"  as in       {', '.join(verdict.codes)}")
        for line in verdict.evidence:
            typer.echo(
                f"  not {line.excludes:<13} {line.input} ({line.value:.9g}) -> {line.output}, "
                f"{line.expected} would be due"
            )
        typer.echo(f"  from {verdict.samples:,} pairs")
        if require and not met:
            say(f"this is not {require}: {why_not}")
    if not met:
        raise typer.Exit(DEFECT)


def _as_dict(verdict) -> dict[str, object]:
    from dataclasses import fields

    return {each.name: getattr(verdict, each.name) for each in fields(verdict)}


@app.command()
def probe(
    out: Annotated[Path, typer.Argument(help="Where to write the .npz.")],
    repeats: Annotated[
        int, typer.Option(min=1, help="Repetitions for stochastic modes; 4096 tell many random bits apart.")
    ] = 60,
) -> None:
    """Write the inputs that tell the modes apart, as `inputs` in a .npz; add your `outputs` to it."""
    import numpy as np

    from lab.sim.rounding.identify import probe_inputs

    x = probe_inputs(repeats)
    try:
        with out.open("wb") as file:
            np.savez(file, inputs=x)
    except OSError as error:
        raise LabError("the file cannot be written", value=str(out), hint=error.strerror) from error
    say(f"wrote {x.size:,} inputs ({x.nbytes:,} bytes) to {out}")
