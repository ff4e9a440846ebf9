"""Where things are kept that can be made again."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybridmpi import environment


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/hybridmpi, or ~/.cache/hybridmpi where that is not set. Local.

    A user without a home, as in some containers, has a folder for temporary files.
    """
    try:
        return Path(environment.text("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridmpi"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"hybridmpi-{os.getuid()}"


def read_json(file: Path) -> Any:
    """Return the JSON value kept in `file`; None where it is absent or damaged. Local."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(file: Path, value: Any) -> None:
    """Keep a JSON value in `file`, written aside, then renamed. A folder that cannot be written keeps none. Local."""
    aside = file.with_name(f".{file.stem}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(value, indent=1), encoding="utf-8")
        aside.replace(file)
    except OSError:
        with suppress(OSError):  # below a file that is no folder, looking for it is an error too
            aside.unlink(missing_ok=True)
