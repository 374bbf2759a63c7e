import os
from pathlib import Path

import pytest

# Ranks on one GPU need a hardware queue each; CUDA reads this when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """A build cache of this test run: source with planted faults does not enter the user's own."""
    return tmp_path_factory.mktemp("kernels-cache")
