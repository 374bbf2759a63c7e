"""Protocols by name: the ones that come with the lab, and a user's own `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lab.errors import LabError, UnknownNameError
from lab.protocol.published import MODULES
from lab.protocol.write import Protocol

BUILT_IN = {
    "one_shot": "lab.protocol.library.one_shot",
    "two_shot": "lab.protocol.library.two_shot",
    "low_latency": "lab.protocol.library.low_latency",
    "reduce_scatter": "lab.protocol.library.reduce_scatter",
    "all_gather": "lab.protocol.library.all_gather",
    "two_communicators": "lab.protocol.library.two_communicators",
    "pull": "lab.protocol.library.pull",
    "pull_two_stage": "lab.protocol.library.pull_two_stage",
    "add_rmsnorm": "lab.protocol.library.add_rmsnorm",
    "add_rmsnorm_two_stage": "lab.protocol.library.add_rmsnorm_two_stage",
    "mixed_algorithms": "lab.protocol.library.mixed_algorithms",
    "seed_one_shot": "lab.protocol.seed.seed_rdna_ar",
    "seed_two_shot": "lab.protocol.seed.seed_rdna_ar",
    "repaired_two_shot": "lab.protocol.seed.repaired_rdna_ar",
    **MODULES,
}
_DEFINES_NONE = "it defines none; decorate a function with @protocol(...) from lab.protocol.write"


def names() -> list[str]:
    """The protocols that come with the lab."""
    return list(BUILT_IN)


def load(reference: str) -> Protocol:
    """The protocol that `reference` names: a name of `names()`, or `path/to/file.py:name`.

    Raises:
        LabError: There is no such protocol, or its file cannot be run.
    """
    if ":" in reference or reference.endswith(".py"):
        return _from_file(reference)
    if reference not in BUILT_IN:
        raise UnknownNameError("protocol", reference, BUILT_IN, hint="`lab list` shows all; a file is `path.py:name`")
    return getattr(importlib.import_module(BUILT_IN[reference]), reference)


def _from_file(reference: str) -> Protocol:
    path_text, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    path = Path(path_text)
    if not path.is_file():
        raise LabError("there is no such protocol file", value=path_text)
    found = {key: value for key, value in vars(_run(path)).items() if isinstance(value, Protocol)}
    own = {key: value for key, value in found.items() if Path(value.kernel.__code__.co_filename) == path.resolve()}
    defined = own or found
    if not name:
        hint = f"it defines {', '.join(defined)}" if defined else _DEFINES_NONE
        raise LabError("say which protocol of the file", value=path_text, hint=hint)
    if name not in found:
        raise UnknownNameError(f"protocol in {path_text}", name, defined, hint=None if defined else _DEFINES_NONE)
    return found[name].named(reference)


def _run(path: Path) -> ModuleType:
    """Run a protocol file as a module; its directory may be imported from, as for a script."""
    # The loader is named because the module finder looks at files that end with .py only.
    loader = importlib.machinery.SourceFileLoader(f"lab_user_{path.stem}", str(path.resolve()))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except LabError:
        raise
    except (Exception, SystemExit) as problem:
        frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename == str(path.resolve())]
        where = f"line {frames[-1].lineno}: {frames[-1].line}" if frames else None
        raise LabError(
            f"the protocol file raised {type(problem).__name__}: {problem}", value=str(path), hint=where
        ) from problem
    finally:
        sys.path.pop(0)
    return module


__all__ = ["BUILT_IN", "load", "names"]
