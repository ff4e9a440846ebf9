"""`--verify`: every byte of a checkpoint held against its manifest; where it is damaged, in words of the model."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint import Damage
from hybridmpi.checkpoint.generations import broken_manifests, find, generations
from hybridmpi.checkpoint.layout import INDEX_FILE, MANIFEST_FILE, Progression
from hybridmpi.checkpoint.manifest import read_manifest
from hybridmpi.checkpoint.places import told_array, told_rows
from hybridmpi.checkpoint.verify import verify
from hybridmpi.errors import CheckpointError
from hybridmpi.inspection.text import human_size

_RANGE = re.compile(r"(.*)\[(\d+):(\d+)\]")


def check(path: str | os.PathLike) -> dict[str, Any]:
    """Return what is damaged in the generation that `path` means, as plain data. Local, reads every byte once.

    "damage" has an entry for each damaged file, with the parameter, the slot and the rows that hold its first damaged
    byte, if it is in a parameter. Below a root, generations whose manifests are damaged are found as well: they do not
    count as checkpoints any more, which nobody should have to guess. Raises CheckpointError when there is no whole
    generation at all.
    """
    directory = find(path)
    damage = [_told(directory, found) for found in verify(directory)]
    beside = [] if Path(path) == directory or Path(path).is_file() else _broken_manifests(directory.parent)
    manifest = read_manifest(directory)
    return {
        "path": str(directory),
        "step": manifest["step"],
        "files": {entry["name"]: entry["size"] for entry in manifest["files"]},
        "damage": damage + beside,
        "others": [str(other) for other in generations(directory.parent) if other != directory and _opens(other)],
    }


def _opens(directory: Path) -> bool:
    try:
        read_manifest(directory)
    except CheckpointError:
        return False
    return True


def _broken_manifests(root: Path) -> list[dict[str, Any]]:
    """Return the damage of generations below `root` whose manifest is there, but not what was written."""
    text = "not what was written: this generation no longer counts as a checkpoint"
    return [
        asdict(Damage(f"{directory.name}/{MANIFEST_FILE}", "", text)) | {"parameter": None, "slot": None, "rows": None}
        for directory, _ in broken_manifests(root)
    ]


def _told(directory: Path, damage: Damage) -> dict[str, Any]:
    """Return damage with the parameter, the slot and the rows (first, stride, count) it is in; None if unknown."""
    return asdict(damage) | {"parameter": None, "slot": None, "rows": None} | _place(read_manifest(directory), damage)


def _place(manifest: dict[str, Any], damage: Damage) -> dict[str, Any]:
    """Return which parameter lies at a part of a file: /tables/NAME/values[0:100], /optimizer/NAME/SLOT."""
    part, begin, end = damage.part, None, None
    if match := _RANGE.fullmatch(part):
        part, begin, end = match[1], int(match[2]), int(match[3])
    for name, table in manifest["tables"].items():
        for shard in table["shards"]:
            if shard["file"] == damage.file and part.startswith(shard["path"] + "/"):
                within = part.removeprefix(shard["path"] + "/")
                if within == "values" or within.startswith("state/"):
                    begin, end = begin or 0, shard["count"] if end is None else end
                    first = shard["first"] + begin * shard["stride"]
                    rows = {"first": first, "stride": shard["stride"], "count": end - begin}
                    slot = None if within == "values" else within.removeprefix("state/")
                    return {"parameter": name, "slot": slot, "rows": rows}
    match part.strip("/").split("/"):
        case ["parameters", name] | ["optimizer", name, _] if name in manifest["parameters"]:
            slot = part.rsplit("/", 1)[1] if part.startswith("/optimizer/") else None
            shape = manifest["parameters"][name]["shape"]
            begin, end = begin or 0, (shape[0] if shape else 1) if end is None else end
            return {"parameter": name, "slot": slot, "rows": {"first": begin, "stride": 1, "count": end - begin}}
        case ["carried", name]:
            return {"parameter": f"carried/{name}"}
    return {}


def render(found: dict[str, Any]) -> str:
    """Return what `check` found as text: each file, what is damaged, and what to go on from. Local."""
    damaged = {damage["file"] for damage in found["damage"]}
    lines = [f"{found['path']}, step {found['step']:,}"]
    width = max(map(len, found["files"]))
    for name, size in found["files"].items():
        lines.append(f"  {name:<{width}}  {human_size(size):>10}  {'DAMAGED' if name in damaged else 'ok'}")
    if not found["damage"]:
        return "\n".join([*lines, "verified: every byte is what was written"])
    for damage in found["damage"]:
        lines.append(f"DAMAGED {damage['file']}: {damage['text']}{_where(damage)}")
    return "\n".join([*lines, *_advice(found, damaged)])


def _where(damage: dict[str, Any]) -> str:
    """Return in words of the model what is damaged, "" if it is no parameter."""
    if damage["parameter"] is None:
        return ""
    rows = damage["rows"]
    place = told_array(damage["parameter"], damage["slot"]) + (told_rows(Progression(**rows)) if rows else "")
    return f"\n  which is in {place}"


def _advice(found: dict[str, Any], damaged: set[str]) -> list[str]:
    """Return what to do about damage."""
    own = damaged & set(found["files"])
    lines: list[str] = []
    if own == {INDEX_FILE}:
        lines.append(
            f"{INDEX_FILE} only serves other HDF5 tools: hybridmpi reads and resumes this checkpoint without it"
        )
    elif own and found["others"]:
        lines.append("restore the damaged files from a copy, or go on from another generation, checked first:")
        lines += [f"  hybridmpi inspect --verify {other}" for other in found["others"][:3]]
    elif own:
        lines.append("restore the damaged files from a copy: there is no other generation beside this one")
    return lines
