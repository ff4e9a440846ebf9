"""manifest.json: what makes a directory a whole generation, and what proves that nothing in it changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint.files import FileRecord, Mark, written_aside
from hybridmpi.checkpoint.layout import FORMAT, MANIFEST_FILE
from hybridmpi.errors import CheckpointError


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Write manifest.json from `content` (JSON-able) with the format version and its own digest. Local."""
    with written_aside(directory / MANIFEST_FILE) as aside:
        aside.write_text(_text({"format": FORMAT, **content}), encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the content of manifest.json in `directory`. Local.

    Raises CheckpointError when it is absent (the write of this generation did not finish), damaged in any byte, or
    of another format.
    """
    path = Path(directory) / MANIFEST_FILE
    try:
        text = path.read_bytes().decode("utf-8")
        content = json.loads(text)
        recorded = content.pop("sha256")
        expected = _text(content)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory} is not a whole checkpoint: no {MANIFEST_FILE}, so its write did not finish or it is no "
            "checkpoint; open another generation"
        ) from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: unreadable or damaged: {error!r}; open another generation") from error
    if text != expected:
        raise CheckpointError(
            f"{path}: damaged: its text does not match its own sha256 {str(recorded)[:16]}...; open another generation"
        )
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: format {content['format']}: expected {FORMAT}; read it with the hybridmpi that wrote it"
        )
    return content


def to_entry(record: FileRecord) -> dict[str, Any]:
    """Return what the manifest keeps of `record`. Local."""
    entry = asdict(record)
    del entry["contents"]
    entry["marks"] = [[mark.end, mark.digest, mark.part] for mark in record.marks]
    return entry


def from_entry(entry: dict[str, Any]) -> FileRecord:
    """Return the record that `to_entry` turned into `entry`. Local."""
    marks = tuple(Mark(end, part, digest) for end, digest, part in entry["marks"])
    return FileRecord(entry["name"], entry["size"], entry["sha256"], entry["host"], marks)


def _text(content: dict[str, Any]) -> str:
    """Return the one text of `content`: JSON whose last key is the sha256 of the JSON without it."""
    body = json.dumps(content, ensure_ascii=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(content | {"sha256": digest}, ensure_ascii=True, allow_nan=False, indent=1) + "\n"
