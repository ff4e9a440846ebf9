"""A user's UTF-8 text file, read in blocks; what it may be and may not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from hybridmpi.errors import DataError
from hybridmpi.streams import reason

STANDARD_LIBRARY = "stdlib"
SHOWN = 300  # characters of a path
BLOCK = 1 << 23
"""Bytes of a text file that are decoded at a time: bounds the memory that the strings take."""


def status_of(path: Path) -> os.stat_result | None:
    """Return what the system says of `path`; None where nothing is there. Local. Raises DataError where it may not be
    looked at, or is no path at all."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a name that is too long, a zero byte
        shown = str(path).replace("\0", "\\0")[:SHOWN]
        raise DataError(f"data source '{shown}' cannot be read: {reason(error)}; expected a path") from error


class TextFile:
    """The file at `source`. Local. Raises DataError where it is missing, empty or no file."""

    def __init__(self, source: str) -> None:
        self.path = Path(source)
        status = status_of(self.path)
        if not source or status is None:
            raise DataError(
                f"data source '{source}': no such file in {Path.cwd()}; expected the path of a text file or "
                f"'{STANDARD_LIBRARY}'"
            )
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"data source '{source}' is a directory or a device: expected one text file")
        self.status = status
        if self.status.st_size == 0:
            raise DataError(f"data source '{source}' is empty: expected a text file with words")

    def identity(self) -> list[object]:
        """Return what a cache knows this file and its present content by. Local."""
        return ["text", str(self.path.resolve()), self.status.st_size, self.status.st_mtime_ns]

    def refuse(self, word: str, line: int, meaning: str) -> NoReturn:
        """Raise DataError for a word that stands for something else, `meaning`, in line `line`. Local."""
        raise DataError(
            f"data source '{self.path}', line {line:,}: the word '{word}' stands for {meaning} here: write it "
            "otherwise in the text"
        )

    def blocks(self) -> Iterator[str]:
        """Yield the text in blocks of whole lines, without the byte-order mark, with a newline at the very end. Local.

        Raises DataError where it cannot be read, is binary or not UTF-8.
        """
        offset = 0
        try:
            with self.path.open("rb") as file:
                while data := file.read(BLOCK):
                    data += file.readline()
                    text = self._decode(data, offset)
                    offset += len(data)
                    yield text if text.endswith("\n") else text + "\n"
        except OSError as error:
            raise DataError(f"data source '{self.path}' cannot be read: {error.strerror}") from error

    def _decode(self, data: bytes, offset: int) -> str:
        if (zero := data.find(b"\0")) >= 0:
            raise DataError(
                f"data source '{self.path}' is binary: a zero byte at offset {offset + zero}; expected UTF-8 text"
            )
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"data source '{self.path}' is not UTF-8: byte 0x{data[error.start]:02x} at offset "
                f"{offset + error.start}; convert it first, for example by iconv -t UTF-8"
            ) from error
        return text.removeprefix("\ufeff") if offset == 0 else text
