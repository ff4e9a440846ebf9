"""`--export`: a checkpoint as one plain file, HDF5 or .npz, without links, servers or shards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.checkpoint.files import Aside, write_laid_out, written_aside
from hybridmpi.checkpoint.image import laid_out
from hybridmpi.checkpoint.layout import MANIFEST_FILE
from hybridmpi.errors import UsageError
from hybridmpi.inspection.contents import CARRIED, Contents
from hybridmpi.inspection.npz import NpzWriter
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import human_size
from hybridmpi.paths import require_output
from hybridmpi.wording import plural

# Rows of a table are put into their order in memory, so much of them at once.
SLAB = 16 << 20
SUFFIXES = (".h5", ".hdf5", ".npz")
WORDS = "vocabulary/words"


def export(
    contents: Contents, target: str | os.PathLike, patterns: Sequence[str] | None, with_state: bool, force: bool
) -> dict[str, Any]:
    """Write the chosen parameters, and their optimiser state where wanted, into one file; return what it is. Local.

    Names in the file are those of index.h5: parameters/NAME, optimizer/NAME/SLOT, carried/NAME (chosen by pattern, or
    with the state of all), vocabulary/words, and meta, the settings as JSON text. Rows of tables are in their order.
    Memory stays some tens of MiB, whatever is written. The file is written aside and renamed. Raises UsageError for
    another ending than .h5, .hdf5, .npz, for a file that exists (unless `force`) or lies in a checkpoint, and
    CheckpointError for a damaged checkpoint or a full disk.
    """
    path = Path(target)
    _check_target(path, force)
    arrays = {}
    for name in contents.select(patterns):
        stored = contents.arrays[name]
        arrays[name if stored.kind == "carried" else f"parameters/{name}"] = stored
        if with_state:
            arrays |= {f"optimizer/{name}/{slot}": state for slot, state in contents.slots[name].items()}
    if with_state and not patterns:
        arrays |= {name: stored for name, stored in contents.arrays.items() if name.startswith(CARRIED)}
    with written_aside(path, "nothing else was changed") as aside:
        write = _write_npz if path.suffix == ".npz" else _write_hdf5
        write(aside, arrays, contents)
    return {
        "path": str(contents.directory),
        "step": contents.checkpoint.step,
        "file": str(path),
        "size": path.stat().st_size,
        "arrays": {key: {"shape": list(s.shape), "dtype": s.dtype.name} for key, s in arrays.items()},
        "words": len(contents.words) or None,
    }


def _check_target(path: Path, force: bool) -> None:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--export {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if (path.parent / MANIFEST_FILE).exists():
        raise UsageError(f"--export {path}: that lies within a checkpoint, which must stay as it is; write elsewhere")
    require_output(path, "--export", force)


def _about(contents: Contents) -> str:
    checkpoint = contents.checkpoint
    about = {"step": checkpoint.step, "created": checkpoint.created, **checkpoint.meta}
    return json.dumps(about, ensure_ascii=False)


def _write_hdf5(aside: Aside, arrays: dict[str, StoredArray], contents: Contents) -> None:
    def describe(file: h5py.File) -> None:
        file.attrs["step"] = contents.checkpoint.step
        if contents.words:
            file.create_dataset(WORDS, data=contents.words, dtype=h5py.string_dtype(), track_times=False)
        file.create_dataset("meta", data=_about(contents), dtype=h5py.string_dtype(), track_times=False)

    def slabs(key: str) -> Iterator[tuple[np.ndarray, str, bool]]:
        stored = arrays[key]
        return ((values, key, True) for _, values in stored.in_order(stored.rows_of(SLAB)))

    image, offsets = laid_out({key: (stored.shape, stored.dtype) for key, stored in arrays.items()}, describe)
    write_laid_out(aside, image, offsets, slabs)


def _write_npz(aside: Aside, arrays: dict[str, StoredArray], contents: Contents) -> None:
    aside.needs = sum(stored.nbytes for stored in arrays.values())
    with NpzWriter(aside.path) as file:
        for key, stored in arrays.items():
            file.write(key, stored.shape, stored.dtype, (v for _, v in stored.in_order(stored.rows_of(SLAB))))
        if contents.words:
            file.write_texts(WORDS, contents.words)
        file.write("meta", (), *_text(_about(contents)))


def _text(text: str) -> tuple[np.dtype, list[np.ndarray]]:
    value = np.array([text])
    return value.dtype, [value]


def render(found: dict[str, Any]) -> str:
    """Return what `export` wrote as text, with how to read it. Local."""
    arrays = found["arrays"]
    first = next(iter(arrays), "meta")
    words = f" and {plural(found['words'], 'word')}" if found["words"] else ""
    if found["file"].endswith(".npz"):
        how = f"numpy.load({found['file']!r})[{first!r}]"
    else:
        how = f"h5py.File({found['file']!r})[{first!r}][...]"
    what = f"{plural(len(arrays), 'array')}{words} of step {found['step']:,}, {human_size(found['size'])}"
    return f"{found['file']}: {what}\nin Python: {how}"
