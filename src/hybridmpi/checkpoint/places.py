"""Where the rows of an array lie in the files of a checkpoint, by the marks of its manifest, and what to call them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridmpi.checkpoint.files import FileRecord
from hybridmpi.checkpoint.layout import Progression
from hybridmpi.errors import CheckpointError

_RANGE = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@dataclass(frozen=True)
class Chunk:
    """Rows `first` to before `last` of an array: the bytes `begin` to before `end` of the file, and their CRC-32."""

    first: int
    last: int
    begin: int
    end: int
    crc: int | None


@dataclass(frozen=True)
class Place:
    """Where an array lies: the dataset `key` of `file`, in `chunks`, and which rows `span` of `title` it holds.

    `shape` is that in the file; a scalar is one row.
    """

    file: str
    key: str
    title: str
    span: Progression
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[Chunk, ...]

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def told(self, chunk: Chunk) -> str:
        """Return in words of the model what a chunk holds. Local."""
        return f"{self.title}{told_rows(self._rows(chunk)) if self.shape else ''}"

    def _rows(self, chunk: Chunk) -> Progression:
        span = self.span
        return Progression(span.first + chunk.first * span.stride, span.stride, chunk.last - chunk.first)


class Parts:
    """The parts of one file of a checkpoint, by its marks."""

    def __init__(self, record: FileRecord) -> None:
        self.record = record
        self._of: dict[str, list[tuple[int, int | None, Chunk]]] = {}
        begin = 0
        for mark in record.marks:
            match = _RANGE.fullmatch(mark.part)
            if match and len(match[2]) < 20 and len(match[3]) < 20:
                first, last = int(match[2]), int(match[3])
                self._of.setdefault(match[1], []).append((first, last, Chunk(first, last, begin, mark.end, mark.crc)))
            self._of.setdefault(mark.part, []).append((0, None, Chunk(0, 0, begin, mark.end, mark.crc)))
            begin = mark.end

    def place(self, key: str, title: str, span: Progression, shape: Sequence[int], dtype: np.dtype) -> Place:
        """Return where the dataset `key` lies. Local.

        Raises CheckpointError unless the marks have all bytes of an array of that shape and dtype, one after the other.
        """
        rows = shape[0] if shape else 1
        size = math.prod(shape) * dtype.itemsize
        row_bytes = size // rows if rows else 0
        found = self._of.get(key, [])
        whole = [chunk for _, last, chunk in found if last is None]
        if len(whole) == 1:
            chunks = [Chunk(0, rows, whole[0].begin, whole[0].end, whole[0].crc)]
        else:
            chunks = [chunk for _, last, chunk in found if last is not None]
        row = 0
        for number, chunk in enumerate(chunks):
            fits = chunk.first == row < chunk.last and chunk.end - chunk.begin == (chunk.last - chunk.first) * row_bytes
            if not fits or (number and chunk.begin != chunks[number - 1].end):
                break
            row = chunk.last
        if row != rows if size else found:
            raise CheckpointError(
                f"{self.record.name} holds no {key} of shape {tuple(shape)} and dtype {dtype.name}, {size:,} bytes"
            )
        return Place(self.record.name, key, title, span, tuple(shape), dtype, tuple(chunks))


def told_array(name: str, slot: str | None = None) -> str:
    """Return what to call a parameter, or a slot of its state, in messages. Local."""
    return f"parameter '{name}'" + (f", its state '{slot}'" if slot else "")


def told_rows(rows: Progression) -> str:
    """Return ', rows 1 to 9, every 2nd' and the like. Local."""
    if rows.count == 1:
        return f", row {rows.first}"
    text = f", rows {rows.first} to {rows.last}"
    return text + (f", every {_ordinal(rows.stride)}" if rows.stride > 1 else "")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
