"""Where what is compiled once is kept between runs: one folder of the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The lab's folder in the user's cache directory: XDG_CACHE_HOME if that is an absolute path, else ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "research-kernel-lab"
