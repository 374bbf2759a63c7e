"""The research kernel lab: all-reduce kernels beside a CPU simulator of their protocols.

Public names are loaded when first used: `import lab` costs neither numba, nor torch, nor a GPU runtime.
"""

from importlib import import_module

__version__ = "0.1.0"

# public name -> the module that defines it
_PUBLIC: dict[str, str] = {
    "LabError": "lab.errors",
    "ProtocolDefect": "lab.assertion",
    "check": "lab.assertion",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_PUBLIC))
