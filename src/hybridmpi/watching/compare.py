"""What runs are called beside each other: by what differs in their jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridmpi.watching.history import History

# With more differences than this, runs are called by their paths.
DIFFERENCES = 3
# Where a run writes, and how it tells of itself, says nothing about it.
_NOTHING = ("checkpoint.", "metrics.", "data.cache", "training.progress")
_RANKS = ("compute_ranks", "servers", "nodes")


def labels(runs: Sequence[History], paths: Sequence[str]) -> list[str]:
    """Return a name for each run: the settings that differ between them, as "mode=ps, servers=2"; their paths where too
    many do, and beside the settings where these are the same. Local."""
    places = _shortened(paths)
    settings = [_settings(run) for run in runs]
    keys = dict.fromkeys(key for found in settings for key in found)
    differing = [key for key in keys if len({repr(found.get(key)) for found in settings}) > 1]
    # How many ranks there are follows from a setting that says so.
    if "world.servers" in differing:
        differing = [key for key in differing if key not in ("compute_ranks", "servers")]
    if not differing or len(differing) > DIFFERENCES:
        return places
    last = [key.split(".")[-1] for key in differing]
    names = [key if last.count(short) > 1 else short for key, short in zip(differing, last, strict=True)]
    found = [
        ", ".join(f"{name}={_shown(values.get(key))}" for key, name in zip(differing, names, strict=True))
        for values in settings
    ]
    return [f"{name} ({place})" if found.count(name) > 1 else name for name, place in zip(found, places, strict=True)]


def _settings(run: History) -> dict[str, Any]:
    flat = {
        f"{section}.{key}": value
        for section, values in run.job.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }
    flat |= {name: run.starts[-1].line.get(name) for name in _RANKS if run.starts}
    return {key: value for key, value in flat.items() if not key.startswith(_NOTHING)}


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _shortened(paths: Sequence[str]) -> list[str]:
    """Return the paths of runs without what they have in common."""
    folders = [str(Path(p).parent if Path(p).suffix == ".jsonl" else Path(p)) for p in paths]
    folders = [os.path.normpath(folder) for folder in folders]
    if len(set(folders)) == 1:
        return [str(path) for path in paths] if len(set(paths)) > 1 else folders
    common = os.path.commonpath([os.path.abspath(folder) for folder in folders])
    return [os.path.relpath(os.path.abspath(folder), common) for folder in folders]
