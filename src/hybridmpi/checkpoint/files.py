"""One file of a checkpoint: written aside, hashed on the way, flushed to disk and renamed: whole or absent."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EINVAL
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.errors import CheckpointError
from hybridmpi.wording import one_line

# What one read or write moves: enough for the disk's full rate, little enough to stay in cache.
SLAB_BYTES = 4 << 20
# How closely damage inside a large dataset is located; 1 TB then has 16,000 marks in its manifest.
MARK_BYTES = 64 << 20
# Slabs that were copied (a strided or device array) and may wait for the hashing thread. Slabs that are views of
# the caller's arrays cost nothing and never wait: writing and fsync then run ahead of the slower hashing.
SLABS_IN_FLIGHT = 4
# The part of a file that holds what HDF5 keeps for itself: structure, names, attributes, strings.
HEADERS = "the HDF5 structure"
# Large datasets start on a page: their writes and reads then move whole pages.
ALIGN_FROM, ALIGN_TO = 64 << 10, 4096


@dataclass(frozen=True)
class Mark:
    """The digest of everything before `end`; the bytes since the previous mark belong to `part` of the file."""

    end: int
    part: str
    digest: str


@dataclass(frozen=True)
class FileRecord:
    """What the manifest says of one file: its size in bytes, sha256, marks, and the table of contents in `contents`.

    `host` is the machine that wrote it. All plain data, so that a record can travel to the rank that commits.
    """

    name: str
    size: int
    sha256: str
    host: str
    marks: tuple[Mark, ...] = ()
    contents: dict[str, Any] = field(default_factory=dict)


class MarkedDigest:
    """sha256 of a stream of bytes that remembers the digest of the prefix at the end of every part.

    The first mark that a later reading does not reproduce names the part that was damaged, at no cost: one pass and
    the plain sha256 of the whole file, which `sha256sum` can check as well.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._end = 0
        self.marks: list[Mark] = []

    def update(self, piece: Any, part: str) -> None:
        """Add the bytes of `piece` (any buffer), which belong to `part`."""
        view = memoryview(piece).cast("B")
        self._sha256.update(view)
        self._end += len(view)
        mark = Mark(self._end, part, self._sha256.copy().hexdigest()[:16])
        if self.marks and self.marks[-1].part == part:
            self.marks[-1] = mark
        else:
            self.marks.append(mark)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        return self._sha256.hexdigest()


def open_file(path: str | os.PathLike, mode: str = "r") -> h5py.File:
    """Open an HDF5 file for reading ("r") or writing; the only place that does. Local.

    File locks fail on NFS and Lustre, so readers take none and writers go on without one. The format bounds keep
    the files readable by HDF5 1.10 tools.
    """
    if mode != "r":
        return h5py.File(
            path,
            mode,
            locking="best-effort",
            libver=("earliest", "v110"),
            alignment_threshold=ALIGN_FROM,
            alignment_interval=ALIGN_TO,
        )
    return h5py.File(path, "r", locking=False)


@contextmanager
def reading(path: Path) -> Iterator[h5py.File]:
    """Yield the HDF5 file `path` open for reading. Local.

    Raises CheckpointError naming the file for everything h5py raises on a missing or damaged file.
    """
    try:
        with open_file(path) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {one_line(error)}. Run 'hybridmpi inspect --verify {path.parent}', or "
            "open an older generation"
        ) from error


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield `.NAME.tmp` beside `path`; on leaving, flush it to disk and rename it to `path`. Local.

    On an error nothing of it stays. Raises CheckpointError naming the file when the system refuses.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        yield aside
        sync(aside)
        os.replace(aside, path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where a flush at close fails
        raise CheckpointError(
            f"{path}: cannot be written on {socket.gethostname()}: {one_line(error)}. Free space, check the "
            f"permissions of {path.parent} and save again; older generations are untouched"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's entries, are on disk. Local."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != EINVAL or not path.is_dir():  # some network file systems cannot sync a directory
            raise
    finally:
        os.close(descriptor)


def slabs(array: np.ndarray | h5py.Dataset, size: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) along the first axis of `array`, about `size` bytes and at least one row each. Local."""
    rows = max(1, size * len(array) // max(1, array.nbytes))
    for begin in range(0, len(array), rows):
        yield begin, min(begin + rows, len(array))


def write_file(
    directory: Path,
    name: str,
    arrays: Mapping[str, np.ndarray],
    describe: Callable[[h5py.File], None],
    contents: dict[str, Any],
) -> FileRecord:
    """Write one HDF5 file of a checkpoint, whole or not at all, and return its record. Local.

    `arrays` (path in the file -> array) become contiguous datasets; `describe(file)` adds attributes, strings and
    links. h5py lays the file out with all space allocated; the arrays are then written in slabs at the offsets that
    h5py gave them, while a thread hashes the same slabs. So the file is never read back, no array is copied as a
    whole, and hashing overlaps writing and fsync. Raises CheckpointError naming the file.
    """
    digest = MarkedDigest()
    hashed: list[Future] = []
    copies: deque[Future] = deque()

    with ThreadPoolExecutor(1, "checkpoint-sha256") as hasher:

        def hash_later(piece: Any, part: str, copied: bool) -> None:
            hashed.append(hasher.submit(digest.update, piece, part))
            if copied:
                copies.append(hashed[-1])
                if len(copies) > SLABS_IN_FLIGHT:
                    copies.popleft().result()

        with written_aside(directory / name) as aside:
            with open_file(aside, "w") as file:
                offsets = {key: _allocate(file, key, array) for key, array in arrays.items()}
                describe(file)
            with open(aside, "r+b", buffering=0) as raw:
                size = os.fstat(raw.fileno()).st_size
                position = 0
                for offset, key in sorted((at, key) for key, at in offsets.items() if at is not None):
                    _hash_headers(raw.fileno(), position, offset, hash_later)
                    position = _write_array(raw.fileno(), offset, key, arrays[key], hash_later)
                _hash_headers(raw.fileno(), position, size, hash_later)
        for future in hashed:
            future.result()
    return FileRecord(name, size, digest.hexdigest(), socket.gethostname(), tuple(digest.marks), contents)


def _allocate(file: h5py.File, key: str, array: np.ndarray) -> int | None:
    """Create a contiguous dataset with its space reserved, unfilled; return its offset, None if it has no bytes."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = file.create_dataset(key, array.shape, array.dtype, dcpl=creation, track_times=False)
    if array.ndim == 0:  # h5py passes no creation properties for scalars: writing one is what reserves its space
        dataset[()] = as_host(array)
    return dataset.id.get_offset()


def as_host(array: np.ndarray) -> np.ndarray:
    """Return `array` C-contiguous in host memory: itself where it is, a copy otherwise. Local."""
    return np.ascontiguousarray(array if namespace(array) is np else array.get())


def _write_array(descriptor: int, offset: int, key: str, array: np.ndarray, hash_later: Callable) -> int:
    """Write `array` at `offset` in slabs, handing each to the hasher; return the offset after it."""
    rows = array if array.ndim else array.reshape(1)
    for first, last in slabs(rows, MARK_BYTES):
        part = rows[first:last]
        name = key if len(part) == len(rows) else f"{key}[{first}:{last}]"
        for begin, end in slabs(part, SLAB_BYTES):
            host = as_host(part[begin:end])
            slab = memoryview(host.view(np.uint8).reshape(-1))
            hash_later(slab, name, copied=host.base is None)
            while slab:
                written = os.pwrite(descriptor, slab, offset)
                offset += written
                slab = slab[written:]
    return offset


def _hash_headers(descriptor: int, begin: int, end: int, hash_later: Callable) -> None:
    """Hand the bytes that HDF5 itself wrote, from `begin` to `end`, to the hasher."""
    while begin < end:
        piece = os.pread(descriptor, min(SLAB_BYTES, end - begin), begin)
        hash_later(piece, HEADERS, copied=True)
        begin += len(piece)
