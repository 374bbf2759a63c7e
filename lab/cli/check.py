"""`lab check`: is a protocol right, and if not, which accesses race."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.errors import DEFECT, StoppedError, UsageError, say
from lab.cli.options import (
    MOST_WORKERS,
    Blocks,
    Bytes,
    Calls,
    Dtype,
    Gate,
    Gpus,
    Name,
    Resident,
    Scenario,
    Settings,
    Waves,
    World,
    finite,
    seconds,
)
from lab.cli.output import emit_json
from lab.cli.progress import telling
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.protocol.program import Program
    from lab.protocol.write import Config, Protocol
    from lab.sim.explore.explore import Exploration
    from lab.sim.order.verdict import Verdict


def command(
    protocol: Name,
    world: World = None,
    blocks: Blocks = None,
    calls: Calls = None,
    nbytes: Bytes = None,
    gate: Gate = None,
    dtype: Dtype = None,
    waves: Waves = None,
    resident: Resident = None,
    gpus: Gpus = None,
    scenario: Scenario = None,
    option: Settings = None,
    memory: Annotated[str, typer.Option(help="Memory model of the exploration: sc, posted or weak.")] = "sc",
    schedulers: Annotated[
        str,
        typer.Option(help="What explores: directed (turns races round), random, pct, run_on, exhaustive; with commas."),
    ] = "directed,random,pct",
    executions: Annotated[int | None, typer.Option(help="Executions to explore.  [default: 1000]", min=1)] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds that all of it may take, once compiled.", callback=seconds)
    ] = 30.0,
    states: Annotated[int | None, typer.Option(help="exhaustive: stop after so many states.", min=1)] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="exhaustive: memory that the states may take, such as 512MiB; a quarter of what there is otherwise."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="exhaustive: file to go on from, and to write to every minute and when it ends early."),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Threads that explore; with --engine dask, workers.", min=1, max=MOST_WORKERS)
    ] = 1,
    engine: Annotated[str, typer.Option(help="Where they are: local, or dask.")] = "local",
    dask_address: Annotated[
        str | None, typer.Option(help="dask: a running scheduler, tcp://HOST:PORT; else a cluster on this machine.")
    ] = None,
    early_timeout: Annotated[
        float,
        typer.Option(help="Probability that a bounded wait gives up although others could move.", min=0, max=1),
    ] = 0.0,
    pct_depth: Annotated[
        int | None,
        typer.Option(
            help="pct: orders between steps that a failure may take; 1 is priorities alone.  [default: 3]", min=1
        ),
    ] = None,
    repair_seconds: Annotated[
        float,
        typer.Option(
            help="Time to look for changes of the text that close what was found; 0: do not look.",
            min=0,
            callback=finite,
        ),
    ] = 10.0,
    apply: Annotated[
        int | None, typer.Option(help="Write this repair, by its number, into the file of the protocol.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the schedulers.", min=0, max=2**62)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON; docs/verdict.md has the fields.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page as well: the findings drawn, the repairs, the text marked.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="Print the numbered operations of one block and stop.")
    ] = False,
) -> None:
    """Check a protocol for races and wrong results; exit 0 if none, 1 if a defect was found.

    The race check needs one execution and no luck; the exploration then looks for executions with wrong elements, hangs
    and aborts, and every race is turned into the smallest failing witness that can be found. Then changes of the text
    are tried (an order, a fence, a barrier, a wait, a buffer, ...): each is applied, recorded anew and checked, and
    those that close all of it are printed as patches.
    """
    from lab.cli.request import configured, size
    from lab.sim.check import check
    from lab.sim.explain.report import report
    from lab.sim.explore.deadline import Deadline
    from lab.sim.explore.executor import executor
    from lab.sim.search.search import checkpoint_path

    if listing and html is not None:
        raise UsageError("--listing checks nothing, so there is no page to write", hint="leave out --listing or --html")
    explorers = tuple(schedulers.split(","))
    _refuse_idle(explorers, "exhaustive", states=states, memory_limit=memory_limit, checkpoint=checkpoint)
    _refuse_idle(explorers, "pct", pct_depth=pct_depth)
    _refuse_idle(explorers, "random, pct or run_on", early_timeout=early_timeout or None)
    _refuse_idle(explorers, "directed, random, pct or run_on", executions=executions)

    def asked() -> tuple[Protocol, Config]:
        return configured(
            protocol,
            world=world,
            blocks=blocks,
            calls=calls,
            nbytes=nbytes,
            gate=gate,
            dtype=dtype,
            waves=waves,
            resident=resident,
            gpus=gpus,
            scenario=scenario,
            settings=option or [],
        )

    found, config = Deadline(deadline).keep(asked, "reading the protocol")
    if listing:
        program = Deadline(deadline).keep(lambda: found.program(config), "recording the protocol")
        listed = _listing(program)
        if json:
            emit_json({"protocol": found.name, "config": dict(config.items()), "listing": listed.splitlines()})
        else:
            typer.echo(listed)
        return
    checkpoint_path(checkpoint)  # refused before the work that comes before the search
    if html is not None:
        from lab.pages.verdict import require_writable, write_page

        require_writable(html)
    with executor(engine, workers, dask_address) as crew, telling() as tell:
        verdict = check(
            found,
            config,
            memory=memory,
            schedulers=explorers,
            executions=executions or 1000,
            seed=seed,
            deadline=deadline,
            early_timeout=early_timeout,
            pct_depth=pct_depth or 3,
            limit_states=states,
            memory_limit=None if memory_limit is None else size(memory_limit),
            checkpoint=checkpoint,
            repair_seconds=repair_seconds,
            progress=lambda explored: tell(_explored(explored)),
            phase=tell,
            repair_progress=lambda tried, closing: tell(f"repairs: {tried} changes tried, {closing} close all"),
            executor=crew,
            compiling=cache(lambda: say("compiling the simulator, once per version (about a minute)")),
        )
    if json:
        emit_json(_document(verdict))
    else:
        typer.echo(report(verdict))
    if html is not None:
        write_page(verdict, found, config, html)
        say(f"the page is {html}")
    if apply is not None:
        _apply(verdict, apply)
    if verdict.interrupted:
        raise StoppedError("what was found until then is above")
    raise typer.Exit(0 if verdict.ok else DEFECT)


def _refuse_idle(explorers: tuple[str, ...], users: str, **options: object) -> None:
    """Refuse options that none of the schedulers asked for would look at.

    Raises:
        UsageError: One was given (is not None), and none of `users`, written as a person would, explores.
    """
    if set(re.findall(r"\w+", users)) & set(explorers):
        return
    for name, value in options.items():
        if value is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is for {users}, which --schedulers does not name",
                value=",".join(explorers),
                hint=f"leave it out, or name {users} in --schedulers",
            )


def _apply(verdict: Verdict, number: int) -> None:
    """Write a repair into the user's file; that of a protocol of the lab itself, as a patch into this folder.

    Raises:
        LabError: There is no such repair, or its file cannot be written or is no longer what was judged.
    """
    from lab.sim.change.text.patch import apply, of_the_lab, write_patch

    if number > len(verdict.repairs):
        found = len(verdict.repairs)
        hint = f"there {'is' if found == 1 else 'are'} {found or 'none'}" + (", see above" if found else "")
        raise LabError("there is no repair of that number", value=number, hint=hint)
    repair = verdict.repairs[number - 1]
    if of_the_lab(repair):
        name = write_patch(repair, f"{verdict.protocol}.repair-{number}.patch")
        say(f"repair {number} changes the lab's own text, so it was not applied; the patch is in {name}")
    else:
        say(f"repair {number} was written into {', '.join(apply(repair))}")


def _listing(program: Program) -> str:
    """The operations of the first block (or wave) of the protocol's own kernel; not those that make its input."""
    for agent in program.agents:
        if agent.kind in ("block", "wave"):
            return program.listing(agent)
    raise LabError("the scenario launches no block of the protocol, so there is nothing to list")


def _explored(found: Exploration) -> str:
    by = ", ".join(f"{count:,} {name}" for name, count in found.by_scheduler.items())
    return f"exploration: {by}; {found.failing:,} failing; {found.seconds:.0f} s"


def _document(verdict) -> dict[str, object]:
    from dataclasses import asdict

    document = asdict(verdict)
    for race in document["races"]:
        for side in ("first", "second"):
            race[side]["range"] = race["elements"]
    return document | {"witness_steps": len(verdict.witness)}
