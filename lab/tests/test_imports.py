"""The import rule: which room may import which. Read from the syntax tree, so unused branches count too.

Tests stand beside what they test and look at it from above: the rooms do not bind them. Only notebooks and experiments
are closed to them too.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lab

PACKAGE = Path(lab.__file__).parent
ROOT = PACKAGE.parent

# Each room may import itself, lab.errors, and these. A room that is not named here stands above and may
# import any of `lab`.
MAY_IMPORT = {
    "lab.errors": (),
    "lab.protocol": (),
    "lab.trace": (),
    "lab.sim": ("lab.protocol", "lab.trace"),
    "lab.kernels": ("lab.protocol", "lab.trace"),
}
BRIDGE = "lab.kernels.lift"  # runs kernel source on the CPU and returns a Program
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


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What breaks the rule in one file, each with its line."""
    is_test = "tests" in module.split(".")
    room = None if is_test else next((room for room in MAY_IMPORT if within(module, room)), None)
    found = []
    for line, target in imports(source, module, is_package):
        if any(within(target, room_of_none) for room_of_none in NEVER):
            found.append(f"{module}:{line} imports {target}: nothing may import notebooks or experiments")
        elif room and within(target, "lab") and module != BRIDGE and target != "lab.__version__":
            allowed = (room, "lab.errors", *MAY_IMPORT[room])
            if not any(within(target, entry) for entry in allowed):
                found.append(f"{module}:{line} imports {target}: {room} may import {', '.join(allowed[1:])}")
    return found


def test_every_file_keeps_the_import_rule():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 5, f"the walk over {PACKAGE} found almost nothing"
    found = []
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found += violations(file.read_text(encoding="utf-8"), module, is_package)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lab.sim.races", "from lab.kernels import build"),
        ("lab.sim.races", "from ..kernels.build import compile"),
        ("lab.sim.tests.test_races", "import experiments.link"),
        ("lab.kernels.build", "def f():\n    import lab.sim.machine"),
        ("lab.protocol.program", "from lab.sim.memory import SC"),
        ("lab.protocol.program", "from lab import kernels"),
        ("lab.sim.machine", "from lab.cli import main"),
        ("lab.sim.machine", "from importlib import import_module\nimport_module('lab.plots')"),
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
            "lab.sim.races",
            "from lab.protocol import program\nfrom . import machine\nfrom ..trace import Trace",
        ),
        ("lab.kernels.lift", "from lab.sim.machine import step\nfrom lab.protocol.program import Program"),
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
