"""An .npz file written piece by piece, so that arrays need not fit into memory (numpy.savez wants them whole)."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

# Of words, which numpy stores at the length of the longest, so many are laid out at once.
TEXTS = 1 << 12


class NpzWriter:
    """Writes arrays into `path`, a zip of .npy files as `numpy.load` reads it; a context manager. Local."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w", allowZip64=True)

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()

    def write(
        self, key: str, shape: Sequence[int], dtype: np.dtype, pieces: Iterable[np.ndarray], compressed: bool = False
    ) -> None:
        """Add the array `key`; `pieces` are its values in C order, of any shapes."""
        member = zipfile.ZipInfo(f"{key}.npy")  # its fixed date makes equal arrays equal files
        member.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        with self._zip.open(member, "w", force_zip64=True) as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in pieces:
                file.write(memoryview(np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8)))

    def write_texts(self, key: str, texts: Sequence[str]) -> None:
        """Add texts as an array of strings, compressed: most of it is padding."""
        dtype = np.dtype((np.str_, max(1, max(map(len, texts), default=1))))
        some = (np.array(texts[begin : begin + TEXTS], dtype) for begin in range(0, len(texts), TEXTS))
        self.write(key, (len(texts),), dtype, some, compressed=True)
