"""manifest.json: what makes a directory a whole generation, and what proves that nothing in it changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint.files import FileRecord, Mark, written_aside
from hybridmpi.checkpoint.layout import FORMAT, MANIFEST_FILE
from hybridmpi.checkpoint.schema import FORMATS, check_content
from hybridmpi.checkpoint.source import opened_plainly, why
from hybridmpi.errors import CheckpointError, DamageError


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Write manifest.json from `content` (JSON-able) with the format version and its own digest. Local."""
    text = _text({"format": FORMAT, **content}).encode()
    with written_aside(directory / MANIFEST_FILE) as aside:
        aside.needs = len(text)
        aside.path.write_bytes(text)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the content of manifest.json in `directory`, all of it checked (see `schema`). Local.

    Raises CheckpointError when it is absent (the write of this generation did not finish) or of another format, and
    DamageError when it is damaged in any byte, or says what cannot be.
    """
    path = Path(directory) / MANIFEST_FILE
    try:
        with opened_plainly(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            text = file.read().decode("utf-8")
        content = json.loads(text)
        recorded = content.pop("sha256")
        expected = _text(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{directory} is not a whole checkpoint: no {MANIFEST_FILE}, so its write did not finish or it is no "
            "checkpoint; open another generation"
        ) from error
    except OSError as error:
        raise DamageError(f"{path}: unreadable or damaged: {why(error)}; open another generation") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamageError(f"{path}: unreadable or damaged: {_reason(error)}; open another generation") from error
    if text != expected:
        raise DamageError(
            f"{path}: damaged: its text does not match its own sha256 {str(recorded)[:16]}...; open another generation"
        )
    version = content.get("format")
    if type(version) is not int or version not in FORMATS:
        raise CheckpointError(
            f"{path}: format {str(version)[:20]}: expected one of {', '.join(map(str, FORMATS))}; read it with the "
            "hybridmpi that wrote it"
        )
    try:
        check_content(content)
    except (ValueError, KeyError, CheckpointError) as error:
        raise DamageError(f"{path}: says what cannot be: {_reason(error)}; open another generation") from error
    return content


def _reason(error: Exception) -> str:
    """Return what is wrong in words, and not a megabyte of them."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    return text if len(text) <= 300 else text[:297] + "..."


def to_entry(record: FileRecord) -> dict[str, Any]:
    """Return what the manifest keeps of `record`. Local."""
    entry = asdict(record)
    del entry["contents"]
    entry["marks"] = [[mark.end, mark.digest, mark.part, mark.crc] for mark in record.marks]
    return entry


def from_entry(entry: dict[str, Any]) -> FileRecord:
    """Return the record that `to_entry` turned into `entry`. Local."""
    marks = tuple(Mark(end, part, digest, *crc) for end, digest, part, *crc in entry["marks"])
    return FileRecord(entry["name"], entry["size"], entry["sha256"], entry["host"], marks)


def _text(content: dict[str, Any]) -> str:
    """Return the one text of `content`: JSON whose last key is the sha256 of the JSON without it."""
    body = json.dumps(content, ensure_ascii=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(content | {"sha256": digest}, ensure_ascii=True, allow_nan=False, indent=1) + "\n"
