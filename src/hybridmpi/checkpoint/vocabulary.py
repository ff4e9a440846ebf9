"""The vocabulary of a checkpoint: the one thing that HDF5 is asked for, and only of bytes that are what was written."""

from __future__ import annotations

import io

import h5py
import numpy as np

from hybridmpi.checkpoint.source import Source, damaged
from hybridmpi.errors import CheckpointError
from hybridmpi.wording import one_line

WORDS = "/vocabulary/words"
# A string in an HDF5 dataset: its length, and where its characters are.
_REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])


class _Bytes(io.RawIOBase):
    """The bytes of an open file, for HDF5: it opens no file itself."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._source.record.size)[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        count = max(0, min(len(buffer), self._source.record.size - self._at))
        buffer[:count] = self._source.bytes_at(self._at, count)
        buffer[count:] = bytes(len(buffer) - count)
        self._at += len(buffer)
        return len(buffer)


def read_words(source: Source, count: int) -> list[str]:
    """Return the `count` words that `write_words` stored, in a file whose structure is verified. Local.

    Raises DamageError naming the file.
    """
    try:
        with h5py.File(_Bytes(source), "r") as file:
            dataset = _plain_dataset(file)
            if dataset.shape != (count,):
                raise ValueError(f"{WORDS}: expected {count:,} words by the manifest, found shape {dataset.shape}")
            if count:
                _check_lengths(source, dataset)
            return list(dataset.asstr()[:])
    except CheckpointError:
        raise
    except Exception as error:  # h5py raises nearly anything for what it cannot read
        raise damaged(source.path, f"the vocabulary cannot be read: {one_line(error)}") from error


def _plain_dataset(file: h5py.File) -> h5py.Dataset:
    """Return the words' dataset, whose bytes lie in this file, one after the other; raise ValueError for another."""
    group = file.id
    for name in WORDS.strip("/").split("/"):
        if group.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{name} is a link out of this place")
        group = h5py.h5o.open(group, name.encode())
    if not isinstance(group, h5py.h5d.DatasetID):
        raise ValueError(f"{WORDS} is no dataset")
    creation, dataset = group.get_create_plist(), h5py.Dataset(group)
    if creation.get_layout() != h5py.h5d.CONTIGUOUS or creation.get_external_count() or creation.get_nfilters():
        raise ValueError(f"{WORDS} does not lie in this file as it was written")
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{WORDS} holds no strings")
    return dataset


def _check_lengths(source: Source, dataset: h5py.Dataset) -> None:
    """Raise ValueError where the words together would be longer than the file that holds them."""
    offset, size = dataset.id.get_offset(), len(dataset) * _REFERENCE.itemsize
    if offset is None or dataset.id.get_storage_size() != size or offset + size > source.record.size:
        raise ValueError(f"{WORDS} has no bytes of its own")
    lengths = np.frombuffer(source.bytes_at(offset, size), _REFERENCE)["length"]
    if int(lengths.sum(dtype=np.uint64)) > source.record.size:
        raise ValueError(f"{WORDS} says that its words are longer than the file")


def write_words(file: h5py.File, words: list[str]) -> None:
    """Store `words`. Local. Raises CheckpointError naming the first that HDF5 cannot hold."""
    for position, word in enumerate(words):
        if "\0" in word:
            raise CheckpointError(f"vocabulary word {position}, {word!r}: HDF5 strings end at NUL; remove it")
    dataset = file.create_dataset(WORDS, (len(words),), h5py.string_dtype(), track_times=False)
    try:
        if words:
            dataset[:] = words
    except UnicodeEncodeError as error:
        raise CheckpointError(f"a vocabulary word is not valid UTF-8: {error}; clean the word list") from error
