"""What HDF5 itself writes into a file, kept in memory: HDF5 never meets a full disk, nor a file that is not ours.

HDF5 ends the program where it cannot write what it still holds. So it never writes to a disk here: it lays a file out
in memory, all but the values of arrays, whose places it only reserves.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import h5py
import numpy as np

PAGE = 64 << 10
# Large datasets start on a page: their writes and reads then move whole pages.
ALIGN_FROM, ALIGN_TO = 64 << 10, 4096


class Image(io.RawIOBase):
    """A file in memory of which only the pages that were written exist; the rest reads as zeros. Local."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self._at = 0
        self._pages: dict[int, bytearray] = {}

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to `offset` from the begin (0), from here (1) or from the end (2); return the new place."""
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` from here on; return its size."""
        piece = self.read_at(self._at, len(buffer))
        buffer[:] = piece
        self._at += len(piece)
        return len(piece)

    def write(self, piece: memoryview) -> int:
        """Write `piece` here; return its size."""
        view = memoryview(piece).cast("B")
        for number, begin, end, done in _pages(self._at, len(view)):
            page = self._pages.setdefault(number, bytearray(PAGE))
            page[begin:end] = view[done : done + end - begin]
        self._at += len(view)
        self.size = max(self.size, self._at)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Let the file end at `size`."""
        self.size = self._at if size is None else size
        return self.size

    def read_at(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on. Local."""
        found = bytearray(count)
        for number, begin, end, done in _pages(offset, count):
            if number in self._pages:
                found[done : done + end - begin] = self._pages[number][begin:end]
        return bytes(found)


def _pages(offset: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (page, begin and end in it, bytes before it) of a stretch of a file."""
    done = 0
    while done < count:
        number, begin = divmod(offset + done, PAGE)
        end = min(PAGE, begin + count - done)
        yield number, begin, end, done
        done += end - begin


@contextmanager
def written(image: io.RawIOBase) -> Iterator[h5py.File]:
    """Yield `image`, as a new HDF5 file that HDF5 1.10 tools can read, open for writing. Local."""
    with h5py.File(
        image,
        "w",
        libver=("earliest", "v110"),
        alignment_threshold=ALIGN_FROM,
        alignment_interval=ALIGN_TO,
    ) as file:
        yield file


def laid_out(
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]], describe: Callable[[h5py.File], None]
) -> tuple[Image, dict[str, int]]:
    """Return an HDF5 file without the values of `arrays` (path -> shape, dtype), and the offset of each. Local.

    Arrays become contiguous little-endian datasets; those without bytes have no offset. `describe(file)` adds
    attributes, strings and links.
    """
    image, offsets = Image(), {}
    with written(image) as file:
        for key, (shape, dtype) in arrays.items():
            offset = _reserve(file, key, shape, dtype)
            if offset is not None:
                offsets[key] = offset
        describe(file)
    return image, offsets


def _reserve(file: h5py.File, key: str, shape: tuple[int, ...], dtype: np.dtype) -> int | None:
    """Create a contiguous dataset with its space reserved, unfilled; return its offset, None if it has no bytes."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = file.create_dataset(key, shape, stored_dtype(dtype), dcpl=creation, track_times=False)
    if shape == ():  # h5py passes no creation properties for scalars: writing one is what reserves its space
        dataset[()] = np.zeros((), dtype)
    return dataset.id.get_offset()


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """Return how values of `dtype` lie on disk: in little-endian order. Local."""
    return dtype.newbyteorder("<")
