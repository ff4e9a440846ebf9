"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/hybridmpi, or ~/.cache/hybridmpi where that is not set. Local."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridmpi"
