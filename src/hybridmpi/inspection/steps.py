"""`--steps`: all generations in a directory, with what the run's metrics say of each step."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint import newest
from hybridmpi.checkpoint.generations import REPLACED, generations
from hybridmpi.checkpoint.layout import MANIFEST_FILE
from hybridmpi.checkpoint.manifest import read_manifest
from hybridmpi.errors import CheckpointError
from hybridmpi.inspection.damage import check
from hybridmpi.inspection.text import ago, columns, human_size, number, when

METRICS_FILE = "metrics.jsonl"
_STEP = re.compile(rb'"kind": "(?:step|evaluation)",(?: "time": [^,]+,)? "step": (\d+),')


def survey(path: str | os.PathLike, check_bytes: bool = False) -> dict[str, Any]:
    """Return all generations below a root, or beside one generation, lowest step first, as plain data. Local.

    "state" is "whole", "incomplete" (no manifest), "damaged" (its manifest is, or a file is missing or has another
    size) or "replaced" (whole, and about to be succeeded by a new one of the same step). "loss" and "held_out" are
    those of metrics.jsonl beside them, where it tells them, NaN and infinities as text. With `check_bytes` every byte
    of those with a manifest is read, and "damage" lists what is wrong; one that a job removes meanwhile is "gone".
    Raises CheckpointError where there are no generations.
    """
    root = Path(path)
    if not root.exists():
        raise CheckpointError(f"{path}: no such file or directory; expected a directory that a run saved into")
    if not generations(root):  # a generation itself, or a file in it
        root = (root if root.is_dir() else root.parent).absolute().parent
    found = [_generation(directory) for directory in reversed(generations(root))]
    if not found:
        raise CheckpointError(
            f"{path}: no step-NNNNNNNN directories there or beside it; expected a directory that a run saved into "
            "(checkpoint.directory of its job)"
        )
    latest = newest(root)
    told = read_metrics(root / METRICS_FILE, {generation["step"] for generation in found})
    for generation in found:
        generation["newest"] = latest is not None and generation["name"] == latest.name
        generation |= {"loss": None, "held_out": None} | told.get(generation["step"], {})
        if check_bytes and generation["state"] != "incomplete":
            with suppress(CheckpointError):
                generation["damage"] = _damage(root, generation)
            if not (root / generation["name"] / MANIFEST_FILE).exists():
                generation.pop("damage", None)
                generation |= {"state": "gone", "why": "removed or replaced while it was read"}
    return {"path": str(root), "generations": found}


def _generation(directory: Path) -> dict[str, Any]:
    step = int(directory.name.removesuffix(REPLACED).split("-")[1])
    size = 0
    with suppress(OSError):  # it may be pruned meanwhile
        size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    about = {"name": directory.name, "step": step, "size": size, "created": None, "servers": None, "why": ""}
    if not (directory / MANIFEST_FILE).exists():
        why = f"no {MANIFEST_FILE}: being written, or a write that was cut off"
        return about | {"state": "incomplete", "why": why}
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return about | {"state": "damaged", "why": str(error).removeprefix(f"{directory}/").split(";")[0]}
    about |= {"created": manifest["created"], "servers": manifest["servers"]}
    if manifest["step"] != step:
        return about | {"state": "damaged", "why": f"holds step {manifest['step']}: its directory was renamed"}
    if missing := [entry["name"] for entry in manifest["files"] if not _is_there(directory, entry)]:
        return about | {"state": "damaged", "why": f"missing or of another size: {', '.join(missing)}"}
    return about | {"state": "replaced" if directory.name.endswith(REPLACED) else "whole"}


def _damage(root: Path, generation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with any byte of a generation that has a manifest."""
    if generation["created"] is None:
        return [{"file": MANIFEST_FILE, "text": generation["why"]}]
    return check(root / generation["name"])["damage"]


def _is_there(directory: Path, entry: dict[str, Any]) -> bool:
    try:
        return (directory / entry["name"]).stat().st_size == entry["size"]
    except OSError:
        return False


def read_metrics(file: Path, steps: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return {step: {"loss", "held_out"}} of a metrics file for `steps`; what was written last counts. Local.

    Only the lines of these steps are parsed, so that a file of a gigabyte is read in seconds. None of it where the file
    is absent; a line that is cut short, as the last one of a running job may be, is left out.
    """
    found: dict[int, dict[str, Any]] = {}
    with suppress(OSError), open(file, "rb") as lines:
        for line in lines:
            match = _STEP.search(line, 0, 80)
            if match is None or int(match[1]) not in steps:
                continue
            with suppress(ValueError, AttributeError):
                values = json.loads(line)
                about = found.setdefault(int(match[1]), {})
                if values["kind"] == "step":
                    about["loss"] = _plain(values.get("loss"))
                else:
                    about["held_out"] = _first_measure(values)
    return found


def _first_measure(values: dict[str, Any]) -> dict[str, float | str] | None:
    """Return the measure that an evaluation names first, such as perplexity."""
    for name, value in values.items():
        if isinstance(value, float) and name not in ("time", "seconds"):
            return {name: _plain(value)}
    return None


def _plain(value: Any) -> float | str | None:
    """Return a number; text for one that is not finite, which JSON has no numbers for; None for what is none."""
    if not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else str(value)


def render(found: dict[str, Any]) -> str:
    """Return what `survey` found as text: a line for each generation. Local."""
    rows = [("step", "written", "", "size", "loss", "held out", "state")]
    for generation in found["generations"]:
        created, held_out = generation["created"], generation["held_out"]
        state = generation["state"] + (", the newest" if generation["newest"] else "")
        if "damage" in generation and generation["created"] is not None:
            damaged = ", ".join(damage["file"] for damage in generation["damage"])
            state += f", DAMAGED: {damaged}" if damaged else ", every byte verified"
        rows.append((
            f"{generation['step']:,}",
            when(created) if created else "-",
            ago(created) if created else "",
            human_size(generation["size"]),
            number(generation["loss"]),
            ", ".join(f"{name} {number(value)}" for name, value in (held_out or {}).items()) or "-",
            state + (f" ({generation['why']})" if generation["why"] else ""),
        ))  # fmt: skip
    return "\n".join([found["path"], *columns(rows, right=(0, 3, 4))])
