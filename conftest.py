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
    if any(Path(device).exists() for device in GPU_DEVICES):
        return
    skip = pytest.mark.skip(reason=f"no GPU: neither {' nor '.join(GPU_DEVICES)} is here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
