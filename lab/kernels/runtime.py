"""Load the Cython bridge (built on first use) and the GPU runtime that this machine has."""

import functools
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

from lab.errors import LabError
from lab.kernels.build import build_extension

_NAMES = {
    "nvidia": (("libcudart.so.13", "libcudart.so.12", "libcudart.so"), ("libcuda.so.1",)),
    "amd": (("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"), ()),
}


@functools.cache
def bridge(cache: Path | None = None) -> ModuleType:
    """The compiled _runtime module. LabError when Cython or a C compiler is missing."""
    path = build_extension(cache).path
    loader = importlib.machinery.ExtensionFileLoader("_runtime", str(path))
    spec = importlib.util.spec_from_file_location("_runtime", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def gpu(vendor: str, cache: Path | None = None):
    """The GPU runtime of `vendor` ("nvidia" or "amd") as a _runtime.Gpu. LabError when it is not here."""
    module = bridge(cache)
    try:
        return module.Gpu(vendor, *_NAMES[vendor])
    except module.GpuError as error:
        raise LabError(
            f"no {vendor} runtime: {error}", hint="install the driver and runtime, or run on the host"
        ) from None
