"""`lab rounding`: prove the rounding loops, and name the rounding of a black box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import DEFECT, StoppedError, say
from lab.cli.options import MOST_WORKERS
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.cli.table import print_table
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.sim.rounding.proof import Proof, StochasticProof

app = typer.Typer(help="Rounding to bf16 and fp16: proof, and what a build really does.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@app.command()
def prove(
    threads: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="Threads that share the inputs.")] = 2,
    mutants: Annotated[bool, typer.Option(help="Also run the proof on loops with a planted fault.")] = True,
    json: Json = False,
) -> None:
    """Compare every loop with the specification on all 2^32 fp32 inputs. Exit 1 if one differs or a fault is missed."""
    import time

    from lab.sim.rounding import proof

    start = time.perf_counter()
    found = _Proved()
    stopped = False
    try:
        with telling() as tell:
            found.prove(proof, threads, mutants, tell)
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - start
    if json:
        emit_json(found.document() | {"proved": found.proved and not stopped, "seconds": round(seconds, 2)})
    else:
        found.show()
        if not stopped:
            typer.echo(f"{'proved' if found.proved else 'NOT PROVED'}, {seconds:.1f} s on {threads} thread(s)")
    if stopped:
        raise StoppedError(
            f"{found.finished} of {found.parts(mutants)} parts are finished; of the rest nothing is proved"
        )
    if not found.proved:
        raise typer.Exit(DEFECT)


@dataclass
class _Proved:
    """What `prove` has found so far, part by part; None: not yet, or not asked for."""

    modes: list[Proof] | None = None
    nan_rules: list[Proof] | None = None
    lost: dict[str, int] | None = None
    stochastic: list[StochasticProof] | None = None
    mutants: list[Proof] | None = None

    def prove(self, proof: ModuleType, threads: int, mutants: bool, tell: Callable[[str], None]) -> None:
        """Prove one part after the other."""

        def share_of(what: str) -> Callable[[float], None]:
            return lambda share: tell(f"{what}: {share:.0%}")

        self.modes = proof.prove_modes(threads=threads, progress=share_of("deterministic modes, all inputs"))
        tell("NaN rules")
        self.nan_rules = proof.prove_nan_rules(threads=threads)
        self.lost = {mode.value: proof.lost_nans(mode) for mode in proof.UNGUARDED_MODES}
        tell("stochastic modes")
        self.stochastic = [proof.prove_stochastic(*case) for case in proof.stochastic_cases()]
        if mutants:
            self.mutants = proof.catch_mutants(threads=threads, progress=share_of("planted faults"))

    @staticmethod
    def parts(mutants: bool) -> int:
        """How many parts there are."""
        return 5 if mutants else 4

    @property
    def finished(self) -> int:
        """How many parts are finished."""
        return sum(getattr(self, part.name) is not None for part in fields(self))

    @property
    def proved(self) -> bool:
        """Whether no loop differs and every planted fault was seen."""
        right = (*(self.modes or ()), *(self.nan_rules or ()), *(self.stochastic or ()))
        return not any(line.mismatches for line in right) and all(line.mismatches for line in self.mutants or ())

    def document(self) -> dict[str, object]:
        """For JSON; what is not there yet is null."""
        return {
            "modes": self.modes,
            "nan_rules": self.nan_rules,
            "nan_inputs_lost_without_guard": self.lost,
            "stochastic": self.stochastic,
            "mutants": self.mutants or [],
        }

    def show(self) -> None:
        """Print the parts that are finished."""
        self._compared("deterministic modes, all inputs", "inputs", self.modes)
        self._compared("NaN rules, all NaN inputs", "inputs", self.nan_rules)
        for name, count in (self.lost or {}).items():
            typer.echo(f"  without a guard, {name} turns {count:,} NaN inputs into numbers")
        if self.stochastic is not None:
            heads = ("stochastic, all (cut-off, random) pairs", "pairs", "mismatches", "mean bias in steps")
            rows = [
                (each.name, f"{each.pairs:,}", f"{each.mismatches:,}", f"{each.mean_bias:+.6f}")
                for each in self.stochastic
            ]
            print_table(heads, rows, right=(1, 2, 3))
        self._compared("planted faults, which must differ", "inputs", self.mutants)

    @staticmethod
    def _compared(title: str, counted: str, lines: list[Proof] | None) -> None:
        if lines:
            rows = [(line.name, f"{line.inputs:,}", f"{line.mismatches:,}", _first(line)) for line in lines]
            print_table((title, counted, "mismatches", ""), rows, right=(1, 2))


def _first(line) -> str:
    if line.first is None:
        return ""
    word, got, right = line.first
    return f"first 0x{word:08x}: 0x{got:04x}, 0x{right:04x} is due"


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
