"""One file of a checkpoint, read: a regular file of its recorded size, each byte held against its digest.

Values are read from where the manifest says that they lie. HDF5 is not asked, so that nothing that a file says of
itself can lead elsewhere: no link, no external storage, no declared size.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from errno import ELOOP
from pathlib import Path

import numpy as np

from hybridmpi.checkpoint.files import HEADERS, SLAB_BYTES, FileRecord, MarkedDigest
from hybridmpi.checkpoint.image import stored_dtype
from hybridmpi.checkpoint.layout import Overlap
from hybridmpi.checkpoint.places import Chunk, Place
from hybridmpi.errors import DamageError

WHOLE = -1
"""Stands for all of a file among the chunks that were verified."""


@contextmanager
def opened_plainly(path: Path) -> Iterator[int]:
    """Yield a descriptor of the regular file `path`, open for reading. Local.

    Raises OSError for what is none: a link, which may lead anywhere, a pipe or a device, which may never answer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def source(directory: Path, record: FileRecord, verified: set[tuple[str, int]]) -> Iterator[Source]:
    """Yield the file of `record`, open for reading; `verified` knows its parts that are known to be whole. Local.

    Raises DamageError naming the file when it is missing, no regular file, or has another size.
    """
    path = directory / record.name
    try:
        with opened_plainly(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size != record.size:
                how = "cut short" if size < record.size else "it grew"
                raise damaged(path, f"expected {record.size} bytes, found {size}: {how}, or was replaced")
            with ThreadPoolExecutor(1, "checkpoint-crc") as hasher:  # it has no thread before its first piece
                yield Source(path, record, descriptor, verified, hasher)
    except FileNotFoundError as error:
        raise damaged(path, f"expected {record.size} bytes, found no file") from error
    except OSError as error:
        raise damaged(path, f"cannot be read: {why(error)}") from error


class Source:
    """One open file of a checkpoint."""

    def __init__(
        self,
        path: Path,
        record: FileRecord,
        descriptor: int,
        verified: set[tuple[str, int]],
        hasher: ThreadPoolExecutor,
    ) -> None:
        self.path, self.record = path, record
        self._descriptor, self._verified, self._hasher = descriptor, verified, hasher

    def read(self, place: Place, targets: Sequence[tuple[Overlap, np.ndarray]]) -> None:
        """Read rows of an array into those of each target [n, ...] that they belong to. Local.

        Every chunk with such rows is read as a whole once, in slabs, held against its digest on the way, and read for
        all targets together. Where rows lie as in the target they are read into it directly. Raises DamageError naming
        the parameter and the rows; targets then hold anything.
        """
        for chunk in place.chunks:
            wanted = [(part, out) for shared, out in targets if (part := _within(shared, chunk)) is not None]
            if not wanted:
                continue
            known = self._known(chunk)
            first, last = chunk.first, chunk.last
            if known:
                first = min(part.start for part, _ in wanted)
                last = 1 + max(part.start + (part.count - 1) * part.step for part, _ in wanted)
            crc = self._read_chunk(place, chunk, first, last, wanted)
            if not known:
                self._hold(chunk, crc, place.told(chunk))

    def _read_chunk(
        self, place: Place, chunk: Chunk, first: int, last: int, wanted: list[tuple[Overlap, np.ndarray]]
    ) -> int:
        """Read rows `first` to before `last` of a chunk in slabs, into all that want some; return their CRC-32."""
        row_bytes, stored = place.row_bytes, stored_dtype(place.dtype)
        hashing: Future | None = None
        at_once = max(1, min(last - first, SLAB_BYTES // row_bytes))
        scratch = None
        for begin in range(first, last, at_once):
            end = min(begin + at_once, last)
            span = Chunk(begin, end, 0, 0, None)
            offset = chunk.begin + (begin - chunk.first) * row_bytes
            parts = [(part, out) for shared, out in wanted if (part := _within(shared, span)) is not None]
            rows = _direct(parts, end - begin, stored)
            if rows is not None:
                parts = []
            else:
                if scratch is None:
                    scratch = np.empty((at_once, *place.shape[1:]), stored)
                rows = scratch[: end - begin]
            piece = memoryview(rows.reshape(-1).view(np.uint8))
            self._fill(piece, offset)
            # One after the other, in a thread: the digest of one slab is taken while the next one is read.
            hashing = self._hasher.submit(_crc_after, piece, hashing)
            for part, out in parts:
                into = out[part.other_start :: part.other_step][: part.count]
                into[...] = rows[part.start - begin :: part.step][: part.count].reshape(into.shape)
            if scratch is not None:
                hashing.result()  # its memory takes the next slab
        return hashing.result()

    def structure(self) -> None:
        """Hold all that HDF5 wrote for itself against its digests. Local. Raises DamageError."""
        begin = 0
        for mark in self.record.marks:
            chunk = Chunk(0, 0, begin, mark.end, mark.crc)
            begin = mark.end
            if mark.part == HEADERS and not self._known(chunk):
                crc, buffer = 0, bytearray(min(SLAB_BYTES, chunk.end - chunk.begin))
                for offset in range(chunk.begin, chunk.end, SLAB_BYTES):
                    piece = memoryview(buffer)[: min(SLAB_BYTES, chunk.end - offset)]
                    self._fill(piece, offset)
                    crc = zlib.crc32(piece, crc)
                self._hold(chunk, crc, HEADERS)

    def bytes_at(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on, as they are. Local."""
        piece = bytearray(count)
        self._fill(memoryview(piece), offset)
        return bytes(piece)

    def _known(self, chunk: Chunk) -> bool:
        """Return whether a chunk is known to be whole; one without a digest of its own, with all of its file."""
        name = self.record.name
        if chunk.crc is None and (name, WHOLE) not in self._verified:
            self._verify_whole()
        return chunk.crc is None or (name, chunk.begin) in self._verified

    def _hold(self, chunk: Chunk, crc: int, told: str) -> None:
        if crc != chunk.crc:
            raise damaged(self.path, f"bytes {chunk.begin} to {chunk.end - 1} are not what was written: {told}")
        self._verified.add((self.record.name, chunk.begin))

    def _verify_whole(self) -> None:
        """Hold all of a file of an earlier version, which has digests of what lies before each mark only."""
        digest, position, begin = MarkedDigest(), 0, 0
        buffer = bytearray(min(SLAB_BYTES, max(1, self.record.size)))
        for mark in self.record.marks:
            begin = position
            while position < mark.end:
                piece = memoryview(buffer)[: mark.end - position]
                self._fill(piece, position)
                digest.update(piece, mark.part)
                position += len(piece)
            if digest.marks[-1].digest != mark.digest:
                raise damaged(self.path, f"bytes {begin} to {mark.end - 1} are not what was written: {mark.part}")
        if digest.hexdigest() != self.record.sha256:
            raise damaged(self.path, f"sha256 is {digest.hexdigest()}, expected {self.record.sha256}")
        self._verified.add((self.record.name, WHOLE))

    def _fill(self, piece: memoryview, offset: int) -> None:
        done = 0
        while done < len(piece):
            count = os.preadv(self._descriptor, [piece[done:]], offset + done)
            if not count:
                raise damaged(self.path, f"ended at byte {offset + done} while it was read")
            done += count


def damaged(path: Path, text: str) -> DamageError:
    """Return the error that says what is wrong with a file of a checkpoint. Local."""
    return DamageError(
        f"{path}: {text}. Restore the file from a copy, or go on from another checkpoint: "
        f"'hybridmpi inspect {path.parent.parent} --steps --verify' tells which are whole"
    )


def why(error: OSError) -> str:
    """Return the system's reason in words. Local."""
    return "it is a link, which a checkpoint never holds" if error.errno == ELOOP else error.strerror or str(error)


def _crc_after(piece: memoryview, before: Future | None) -> int:
    """Return the CRC-32 of all up to `piece`; what is `before` has ended."""
    return zlib.crc32(piece, 0 if before is None else before.result())


def _within(shared: Overlap, chunk: Chunk) -> Overlap | None:
    """Return the part of an overlap whose rows lie in a chunk, None of none."""
    begin = max(0, -(-(chunk.first - shared.start) // shared.step))
    end = min(shared.count, -(-(chunk.last - shared.start) // shared.step))
    if begin >= end:
        return None
    return Overlap(
        shared.start + begin * shared.step,
        shared.step,
        shared.other_start + begin * shared.other_step,
        shared.other_step,
        end - begin,
    )


def _direct(parts: list[tuple[Overlap, np.ndarray]], rows: int, stored: np.dtype) -> np.ndarray | None:
    """Return the rows of the one target that wants all `rows` of a slab just as they lie on disk, None else."""
    if len(parts) != 1:
        return None
    ((part, out),) = parts
    if part.count != rows or part.step != 1 or part.other_step != 1 or out.dtype != stored:
        return None
    into = out[part.other_start : part.other_start + rows]
    return into if into.flags.c_contiguous else None
