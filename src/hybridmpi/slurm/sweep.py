"""Sweeps: the settings of each task of an array job, and a directory of its own for each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hybridmpi.errors import UsageError
from hybridmpi.training.job import Job

OPENING, CLOSING = "[{(", "]})"


def tasks(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the settings "section.key=value" of every task: all combinations of "section.key=a,b,c". Local, pure.

    The last sweep changes fastest. A comma within brackets or quotes is part of a value. Raises UsageError for a sweep
    without values, with a value twice, or of a key twice.
    """
    axes = []
    for text in sweeps:
        key, equals, values = text.partition("=")
        parts = _split(values)
        if not (equals and key.strip() and all(parts)):
            raise UsageError(f"--sweep {text}: expected section.key=value,value,... such as optimizer.rate=0.01,0.02")
        if len(set(parts)) < len(parts):
            raise UsageError(f"--sweep {text}: a value is there twice")
        axes.append([f"{key.strip()}={value}" for value in parts])
    keys = [axis[0].partition("=")[0] for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"--sweep {twice}: is there twice; give all its values at once")
    return list(itertools.product(*axes)) if axes else []


def directories(settings: Sequence[tuple[str, ...]], job: Job) -> list[str]:
    """Return a checkpoint directory for each task, below that of the job, named by what is set. Local, pure."""
    names = []
    for task in settings:
        parts = [setting.partition("=") for setting in task]
        name = "_".join(f"{key.rpartition('.')[2]}-{value}" for key, _, value in parts)
        names.append(re.sub(r"[^\w.+-]", "-", name, flags=re.ASCII))
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names)]
    return [f"{job.checkpoint.directory}/{name}" for name in names]


def _split(values: str) -> list[str]:
    """Split at commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in OPENING) - (character in CLOSING)
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
