"""environment.yml (conda) and pyproject.toml (pip) name the same packages with the same bounds."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONDA_ONLY = {"pip", "make", "cxx-compiler"}  # pip users have them from the system
CONDA_NAMES = {"pytorch": "torch"}  # where the same package has another name

pytestmark = pytest.mark.skipif(
    not (ROOT / "environment.yml").exists(), reason="not a source tree: environment.yml is not installed"
)


def split(requirement: str) -> tuple[str, str]:
    """('numpy', '>=2.4.6') from 'numpy >= 2.4.6', names as PEP 503 writes them."""
    name, bound = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(.*)", requirement.strip()).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), bound.replace(" ", "")


def add(wanted: dict[str, str], requirement: str, where: str) -> str | None:
    """Add one requirement; the complaint when the same package is there with another bound."""
    name, bound = split(requirement)
    name = CONDA_NAMES.get(name, name)
    if wanted.setdefault(name, bound) != bound:
        return f"{where}: {name} is asked for twice, {wanted[name]!r} and {bound!r}"
    return None


def from_pyproject(text: str) -> tuple[dict[str, str], list[str]]:
    project = tomllib.loads(text)["project"]
    wanted, complaints = {"python": project["requires-python"]}, []
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (entry for group in groups for entry in group):
        if requirement.startswith(f"{project['name']}["):
            continue  # an extra that is the sum of others
        complaints.append(add(wanted, requirement, "pyproject.toml"))
    return wanted, [complaint for complaint in complaints if complaint]


def from_environment(text: str) -> tuple[dict[str, str], list[str]]:
    wanted, complaints = {}, []
    for entry in yaml.safe_load(text)["dependencies"]:
        for requirement in entry["pip"] if isinstance(entry, dict) else [entry]:
            if not requirement.startswith("-"):
                complaints.append(add(wanted, requirement, "environment.yml"))
    for name in CONDA_ONLY:
        wanted.pop(name, None)
    return wanted, [complaint for complaint in complaints if complaint]


def differences(pyproject_text: str, environment_text: str) -> list[str]:
    pip, complaints = from_pyproject(pyproject_text)
    conda, more = from_environment(environment_text)
    for name in sorted(pip.keys() | conda.keys()):
        if name not in conda:
            more.append(f"environment.yml lacks {name}{pip[name]}, which pyproject.toml has")
        elif name not in pip:
            more.append(f"pyproject.toml lacks {name}{conda[name]}, which environment.yml has")
        elif pip[name] != conda[name]:
            more.append(f"{name}: pyproject.toml says {pip[name]!r}, environment.yml {conda[name]!r}")
    return complaints + more


def test_the_two_files_agree():
    found = differences((ROOT / "pyproject.toml").read_text(), (ROOT / "environment.yml").read_text())
    assert not found, "pyproject.toml and environment.yml disagree:\n  " + "\n  ".join(found)


PYPROJECT = """
[project]
name = "p"
requires-python = ">=3.11"
dependencies = ["numpy>=2.4"]
[project.optional-dependencies]
torch = ["torch>=2.13", "ml_dtypes>=0.6"]
dev = ["p[torch]"]
"""
ENVIRONMENT = """
dependencies: [python>=3.11, pip, numpy>=2.4, pytorch>=2.13, {pip: [ml-dtypes>=0.6, -e .]}]
"""


def test_agreement_is_seen():
    assert differences(PYPROJECT, ENVIRONMENT) == []


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (ENVIRONMENT.replace("numpy>=2.4", "numpy>=2.3"), "numpy: pyproject.toml says '>=2.4'"),
        (ENVIRONMENT.replace("pytorch>=2.13, ", ""), "environment.yml lacks torch>=2.13"),
        (ENVIRONMENT.replace("pip,", "pip, scipy>=1.17,"), "pyproject.toml lacks scipy>=1.17"),
        (ENVIRONMENT.replace("python>=3.11", "python>=3.12"), "python: pyproject.toml says '>=3.11'"),
        (ENVIRONMENT.replace("pip,", "pip, numpy>=2.5,"), "numpy is asked for twice"),
    ],
)
def test_each_kind_of_disagreement_is_named(environment, complaint):
    assert any(complaint in line for line in differences(PYPROJECT, environment))
