"""A folder of arrays that are slow to make: whole or absent, found by everything that they depend on."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from hashlib import blake2b
from pathlib import Path

import numpy as np


def path(folder: Path, identity: object) -> Path:
    """Return the file in `folder` for the JSON-able `identity` of what it holds. Local."""
    return folder / f"{blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()}.npz"


def read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, object]] | None:
    """Return the arrays and the JSON values kept in `file`; None where it is absent or damaged. Local.

    An .npz file is a zip archive: its checksums tell a damaged one, which is then made again.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive.items())
        return arrays, json.loads(arrays.pop("texts").tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def write(file: Path, arrays: dict[str, np.ndarray], texts: dict[str, object]) -> None:
    """Keep `arrays` and the JSON-able `texts` in `file`: written aside, then renamed. Local. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.stem}.{os.getpid()}.npz")
    try:
        np.savez(aside, **arrays, texts=np.frombuffer(json.dumps(texts).encode(), np.uint8))
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def keep(file: Path, arrays: dict[str, np.ndarray], texts: dict[str, object], what: str) -> None:
    """Write as `write` does; where that is impossible, warn that the `what` will be made again. Local."""
    try:
        write(file, arrays, texts)
    except OSError as error:
        warnings.warn(
            f"the {what} could not be kept in {file}: {error}; it will be made again next time. Name a folder that can "
            "be written to as data.cache",
            RuntimeWarning,
            stacklevel=3,
        )
