import os
from pathlib import Path

import pytest

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """A build cache of this test run: source with planted faults does not enter the user's own.

    Tests that run side by side share it: a build is named by its content and appears whole.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels-cache"
    folder.mkdir(exist_ok=True)
    return folder
