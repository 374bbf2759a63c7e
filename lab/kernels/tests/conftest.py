from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """A build cache of this test session: source with planted faults does not enter the user's own."""
    return tmp_path_factory.mktemp("kernels-cache")
