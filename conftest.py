"""What all tests share: a fixed Hypothesis profile, plots without a screen, and the rule for GPU tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")  # before matplotlib is imported by any test

# The first call of a compiled function takes seconds, so a deadline per example would only measure that.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

GPU_DEVICES = ("/dev/kfd", "/dev/nvidia0")  # AMD's and NVIDIA's, without loading either runtime


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.suffix != ".ipynb")  # long ones first: none is left alone at the end
    side_by_side = "PYTEST_XDIST_WORKER" in os.environ
    for item in items:
        if side_by_side and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    _skip_gpu_tests(items)


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether the tests of this one's file make something once for all of them, so that one process should run them."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values()
    return any(found[-1].scope == "module" for found in definitions)


def _skip_gpu_tests(items: list[pytest.Item]) -> None:
    if any(Path(device).exists() for device in GPU_DEVICES):
        return
    skip = pytest.mark.skip(reason=f"no GPU: neither {' nor '.join(GPU_DEVICES)} is here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
