"""One file of a checkpoint: written aside, hashed on the way, flushed to disk and renamed: whole or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EFBIG, EINVAL, ENOSPC
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.checkpoint.image import Image, laid_out, stored_dtype
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


@dataclass(frozen=True)
class Mark:
    """The digest of everything before `end`; the bytes since the previous mark belong to `part` of the file.

    `crc` is the CRC-32 of these bytes alone, so that a part can be read, and checked, without what lies before it; None
    in files of earlier versions.
    """

    end: int
    part: str
    digest: str
    crc: int | None = None


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
    """sha256 of a stream of bytes that remembers the digest of the prefix, and the CRC-32, at the end of every part.

    The first mark that a later reading does not reproduce names the part that was damaged, at no cost: one pass and
    the plain sha256 of the whole file, which `sha256sum` can check as well. A part that is read alone has its CRC-32.
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
        same = bool(self.marks) and self.marks[-1].part == part
        crc = zlib.crc32(view, self.marks[-1].crc if same else 0)
        mark = Mark(self._end, part, self._sha256.copy().hexdigest()[:16], crc)
        if same:
            self.marks[-1] = mark
        else:
            self.marks.append(mark)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        return self._sha256.hexdigest()


@dataclass
class Aside:
    """A file that is being written beside its final name; `needs`: its size in bytes, 0 while that is not known."""

    path: Path
    needs: int = 0


@contextmanager
def written_aside(path: Path, advice: str = "older generations are untouched") -> Iterator[Aside]:
    """Yield `.NAME.tmp` beside `path`; on leaving, flush it to disk and rename it to `path`. Local.

    On an error nothing of it stays. Raises CheckpointError naming the file when the system refuses, and how much room
    there is where that is why.
    """
    aside = Aside(path.with_name(f".{path.name}.tmp"))
    try:
        yield aside
        sync(aside.path)
        os.replace(aside.path, path)
        sync(path.parent)
    except OSError as error:
        said = f"{path}: cannot be written on {socket.gethostname()}: {one_line(error)}{_room(aside, error)}"
        raise CheckpointError(
            f"{said}. Free space, check the permissions of {path.parent} and save again; {advice}"
        ) from error
    finally:
        with suppress(OSError):
            aside.path.unlink(missing_ok=True)


def _room(aside: Aside, error: OSError) -> str:
    """Return in words how much room a file needs and how much there is, where that is what `error` is about."""
    if error.errno not in (ENOSPC, EDQUOT, EFBIG):
        return ""
    needs = f"it needs {aside.needs:,} bytes" if aside.needs else "the disk is full"
    with suppress(OSError):
        written, free = os.stat(aside.path).st_blocks * 512, shutil.disk_usage(aside.path.parent).free
        return f" ({needs}; {written + free:,} are free)"
    return f" ({needs})"


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


def sync_names(path: Path) -> None:
    """Wait until the names of `path` and of all folders above it, up to where the file system is mounted, are on disk:
    whoever made them may not have waited. Local."""
    path = path.absolute()
    device = os.stat(path).st_dev
    for folder in path.parents:
        if os.stat(folder).st_dev != device:
            return
        with suppress(PermissionError):  # where this user may not look, this job has made nothing
            sync(folder)


def slabs(array: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
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
    links. h5py lays the file out in memory; the arrays are then written in slabs at the offsets that h5py gave them,
    what h5py wrote between them, while a thread hashes the same slabs. So the file is never read back, no array is
    copied as a whole, and hashing overlaps writing and fsync. Raises CheckpointError naming the file.
    """
    digest = MarkedDigest()
    hashed: list[Future] = []
    copies: deque[Future] = deque()
    image, offsets = laid_out({key: (array.shape, array.dtype) for key, array in arrays.items()}, describe)

    with ThreadPoolExecutor(1, "checkpoint-sha256") as hasher:

        def hash_later(piece: Any, part: str, copied: bool) -> None:
            hashed.append(hasher.submit(digest.update, piece, part))
            if copied:
                copies.append(hashed[-1])
                if len(copies) > SLABS_IN_FLIGHT:
                    copies.popleft().result()

        with written_aside(directory / name) as aside:
            write_laid_out(aside, image, offsets, lambda key: _slabs_of(key, arrays[key]), hash_later)
        for future in hashed:
            future.result()
    return FileRecord(name, image.size, digest.hexdigest(), socket.gethostname(), tuple(digest.marks), contents)


def write_laid_out(
    aside: Aside,
    image: Image,
    offsets: Mapping[str, int],
    slabs_of: Callable[[str], Iterator[tuple[np.ndarray, str, bool]]],
    also: Callable[[Any, str, bool], None] = lambda piece, part, copied: None,
) -> None:
    """Write the HDF5 file `image`, with the values of arrays at their `offsets`, from begin to end. Local.

    `slabs_of(key)` yields an array's values in their order, as (C-contiguous slab, part of the file, whether it is a
    copy); `also` is given all that is written. Raises OSError where the system refuses.
    """
    aside.needs = image.size
    with open(aside.path, "wb", buffering=0) as file:
        position = 0
        for offset, key in sorted((at, key) for key, at in offsets.items()):
            position = _write_structure(file.fileno(), image, position, offset, also)
            for slab, part, copied in slabs_of(key):
                stored = slab.astype(stored_dtype(slab.dtype), copy=False)
                piece = memoryview(stored.reshape(-1).view(np.uint8))
                also(piece, part, copied or stored is not slab)
                position = _write(file.fileno(), piece, position)
        _write_structure(file.fileno(), image, position, image.size, also)


def _write_structure(descriptor: int, image: Image, begin: int, end: int, also: Callable) -> int:
    """Write what HDF5 itself put from `begin` to `end`; return `end`."""
    while begin < end:
        piece = image.read_at(begin, min(SLAB_BYTES, end - begin))
        also(piece, HEADERS, True)
        begin = _write(descriptor, memoryview(piece), begin)
    return begin


def _write(descriptor: int, piece: memoryview, offset: int) -> int:
    """Write all of `piece` at `offset`; return the offset after it."""
    while piece:
        written = os.pwrite(descriptor, piece, offset)
        offset += written
        piece = piece[written:]
    return offset


def as_host(array: np.ndarray) -> np.ndarray:
    """Return `array` C-contiguous in host memory: itself where it is, a copy otherwise. Local."""
    return np.ascontiguousarray(array if namespace(array) is np else array.get())


def _slabs_of(key: str, array: np.ndarray) -> Iterator[tuple[np.ndarray, str, bool]]:
    """Yield the slabs of an array, each with its part of the file, and whether it is a copy."""
    rows = array if array.ndim else array.reshape(1)
    for first, last in slabs(rows, MARK_BYTES):
        stretch = rows[first:last]
        part = key if len(stretch) == len(rows) else f"{key}[{first}:{last}]"
        for begin, end in slabs(stretch, SLAB_BYTES):
            host = as_host(stretch[begin:end])
            yield host, part, host.base is None
