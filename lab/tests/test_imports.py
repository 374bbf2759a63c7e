"""The import rule: which room may import which. Read from the syntax tree, so unused branches count too.

Tests stand beside what they test and look at it from above: the rooms do not bind them. Only notebooks and experiments
are closed to them too.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import lab

PACKAGE = Path(lab.__file__).parent
ROOT = PACKAGE.parent

# Each room may import itself, lab.errors, lab.cache, and these. A room that is not named here stands above and may
# import any of `lab` but what comes after it in ABOVE.
MAY_IMPORT = {
    "lab.errors": (),
    "lab.cache": (),
    "lab.protocol": (),
    "lab.trace": (),
    "lab.alignment": ("lab.trace",),
    "lab.sim": ("lab.protocol", "lab.trace"),
    "lab.lift": ("lab.protocol", "lab.trace"),
    "lab.kernels": ("lab.protocol", "lab.trace"),
}
# The rooms of the simulator: each may import those before it, besides itself and the protocol's.
FLOORS = ("machine", "order", "explore", "search", "explain", "change", "bench", "warmup", "check")
# Rooms beside the floors: of the simulator they may import only this.
BESIDE = {"timing": ("lab.sim.machine.words",), "rounding": ()}
# What stands above the rooms, from the bottom up.
ABOVE = ("lab.gate_tables", "lab.compare", "lab.plots", "lab.repro", "lab.pages", "lab.assertion", "lab.cli")
# The language stands on the Program, and what is written in it on `write`.
LANGUAGE = tuple(f"lab.protocol.{name}" for name in ("errors", "expr", "program", "operands", "cells", "tables"))
NEVER = ("notebooks", "experiments")  # nobody builds on these


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def imports(source: str, module: str, is_package: bool = False) -> list[tuple[int, str]]:
    """(line, absolute module name) of every import in the source, `from lab import name` resolved."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") + ["__init__"] * is_package
                base = ".".join(parts[: -node.level] + ([node.module] if node.module else []))
            for alias in node.names:
                public = lab._PUBLIC.get(alias.name) if base == "lab" else None
                found.append((node.lineno, public or f"{base}.{alias.name}"))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                found.append((node.lineno, str(node.args[0].value)))
    return found


def room_of(module: str, rooms: Iterable[str]) -> str | None:
    """The room of a module; None: in none of them."""
    return next((room for room in rooms if within(module, room)), None)


def refusal(module: str, target: str) -> str | None:
    """Why `module` may not import `target`; None: it may."""
    if room_of(target, NEVER):
        return "nothing may import notebooks or experiments"
    if not within(target, "lab") or "tests" in module.split(".") or target == "lab.__version__":
        return None
    room = room_of(module, MAY_IMPORT)
    if room:
        allowed = (room, "lab.errors", "lab.cache", *MAY_IMPORT[room])
        if room_of(target, allowed) is None:
            return f"{room} may import {', '.join(allowed[1:])}"
    if (
        within(module, "lab.protocol.language")
        and room_of(target, ("lab.errors", "lab.protocol.language", *LANGUAGE)) is None
    ):
        return "the language imports nothing that is written in it"
    if within(module, "lab.sim") and within(target, "lab.sim"):
        return _refused_floor(module, target)
    if room is None and room_of(module, ABOVE) and room_of(target, ABOVE):
        mine, theirs = (ABOVE.index(room_of(name, ABOVE)) for name in (module, target))
        if theirs > mine:
            return f"{ABOVE[theirs]} stands above {ABOVE[mine]}"
    return None


def _refused_floor(module: str, target: str) -> str | None:
    mine, theirs = (name.split(".")[2] if name.count(".") > 1 else "" for name in (module, target))
    if mine == theirs or not mine:
        return None
    if mine in BESIDE:
        return None if room_of(target, BESIDE[mine]) else f"{mine} may import of the simulator: {BESIDE[mine]}"
    if theirs in BESIDE or theirs not in FLOORS or mine not in FLOORS:
        return f"{theirs} stands beside {mine}"
    return f"{theirs} stands above {mine}" if FLOORS.index(theirs) > FLOORS.index(mine) else None


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What breaks the rule in one file, each with its line."""
    found = [(line, target, refusal(module, target)) for line, target in imports(source, module, is_package)]
    return [f"{module}:{line} imports {target}: {why}" for line, target, why in found if why]


def modules() -> dict[str, tuple[Path, bool]]:
    """Every module of the lab: its file, and whether it is a package."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if is_package else parts)] = (file, is_package)
    return found


def circle(edges: dict[str, set[str]]) -> list[str]:
    """A circle of a graph of imports, the first module again at its end; empty: there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def edges_between(sources: dict[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """For each module, given as (source, is a package), the modules among them that it imports, types included."""
    found = {}
    for module, (source, is_package) in sources.items():
        targets = (target for _, target in imports(source, module, is_package))
        named = {target if target in sources else target.rpartition(".")[0] for target in targets}
        found[module] = {target for target in named if target in sources and target != module}
    return found


def test_every_file_keeps_the_import_rule():
    files = modules()
    assert len(files) > 100, f"the walk over {PACKAGE} found almost nothing"
    found = []
    for module, (file, is_package) in files.items():
        found += violations(file.read_text(encoding="utf-8"), module, is_package)
    assert not found, "\n".join(found)


def test_no_files_import_each_other_in_a_circle():
    sources = {
        module: (file.read_text(encoding="utf-8"), is_package)
        for module, (file, is_package) in modules().items()
        if "tests" not in module.split(".")
    }
    assert circle(edges_between(sources)) == []


def test_a_circle_is_seen():
    sources = {
        "lab.sim.a": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lab.sim.c import x", False),
        "lab.sim.b": ("def f():\n    from lab.sim import a", False),
        "lab.sim.c": ("from lab.sim.b import f", False),
        "lab.sim.d": ("from lab.sim.a import y", False),
    }
    assert set(circle(edges_between(sources))) == {"lab.sim.a", "lab.sim.b", "lab.sim.c"}


@pytest.mark.parametrize("room", ["lab.sim", "lab.protocol", "lab.kernels", "lab.plots", "lab.cli"])
def test_no_file_of_a_room_has_the_name_of_another(room):
    names = [name.rpartition(".")[2] for name in modules() if name.startswith(room + ".") and "tests" not in name]
    leaves = Counter(names)
    twins = {name for name, count in leaves.items() if count > 1}
    # A room may hold a file of its own name, which is its way in: lab/sim/search/search.py.
    ways_in = {name for name in twins if f"{room}.{name}.{name}" in modules()}
    assert twins - ways_in == set()


def test_the_floors_are_the_rooms_of_the_simulator():
    names = {name.split(".")[2] for name in modules() if name.startswith("lab.sim.")} - {"tests"}
    assert names == set(FLOORS) | set(BESIDE)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lab.sim.order.races", "from lab.kernels import build"),
        ("lab.sim.order.races", "from ..kernels.build import compile"),
        ("lab.sim.tests.test_races", "import experiments.link"),
        ("lab.kernels.build", "def f():\n    import lab.sim.machine.interleaved"),
        ("lab.protocol.program", "from lab.sim.memory import SC"),
        ("lab.protocol.program", "from lab import kernels"),
        ("lab.protocol.language.build", "from lab.protocol.library import load"),
        ("lab.sim.machine.words", "from lab.cli import main"),
        ("lab.sim.machine.words", "from importlib import import_module\nimport_module('lab.plots')"),
        ("lab.sim.machine.words", "from lab.sim.order import races"),
        ("lab.sim.explain.hang", "from lab.sim.change.repair import find_repairs"),
        ("lab.sim.search.rows", "from lab.sim.timing import presets"),
        ("lab.sim.timing.loop", "from lab.sim.order.races import find_races"),
        ("lab.sim.rounding.loops", "from lab.sim.machine import words"),
        ("lab.plots.story", "from lab.repro import reproduce"),
        ("lab.repro", "from lab.pages.repro import write_page"),
        ("lab.trace", "from .sim import machine"),
        ("lab.errors", "from lab.protocol import program"),
        ("lab.compare", "from experiments.link import run"),
        ("lab.cli.repro", "import notebooks"),
    ],
)
def test_a_forbidden_import_is_seen(module, source):
    assert violations(source, module), f"{module} with {source!r} passed"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "lab.sim.order.races",
            "from lab.protocol import program\nfrom . import verdict\nfrom ...trace import Trace",
        ),
        ("lab.sim.change.judge", "from lab.sim.explain.minimise import smaller\nfrom lab.sim.order import races"),
        ("lab.sim.timing.timing", "from lab.sim.machine.words import STACK"),
        ("lab.pages.repro", "from lab.repro import Report\nfrom lab.plots.lanes import arrange"),
        ("lab.protocol.program", "from lab.errors import LabError\nfrom lab import LabError\nimport numpy"),
        ("lab.compare", "from lab.sim import races\nfrom lab.kernels import build"),
        ("lab.simulated", "from lab.kernels import build"),
        ("lab.protocol.tests.test_published", "from lab.sim.check import check"),
    ],
)
def test_an_allowed_import_is_not_accused(module, source):
    assert violations(source, module) == []


def test_a_package_resolves_its_own_relative_imports():
    assert imports("from .program import Program", "lab.protocol", is_package=True) == [
        (1, "lab.protocol.program.Program")
    ]


def test_import_lab_loads_nothing_heavy():
    heavy = ("numpy", "numba", "pandas", "matplotlib", "torch", "cython", "typer")
    code = f"import sys, lab; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_resolves():
    for name in lab.__all__:
        assert getattr(lab, name) is not None
    assert set(lab.__all__) <= set(dir(lab))


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'chekc'"):
        lab.chekc  # noqa: B018
