"""Where things are kept that can be made again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/hybridmpi, or ~/.cache/hybridmpi where that is not set. Local.

    A user without a home, as in some containers, has a folder for temporary files.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridmpi"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"hybridmpi-{os.getuid()}"
