"""Which owner holds which row: the one source of the partition map, which any rank can evaluate for any other.

A table's rows are dealt to *parts*, block or cyclic; each part lies, as a whole, at one owner. An owner keeps the parts
that it has one after another, in the order of their numbers: that gives every row its local number there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.field_types import Range

Kind = Literal["block", "cyclic"]

Parts = Annotated[int, Range(0, 65_537)]
"""How many parts a table may be dealt to; 0: one for each owner. Every rank keeps a record of each, and each message
is divided by them. So many take a fifth of a second for a table, and more of them balance nothing any better."""

Homes = Annotated[tuple[int, ...], Range(0)]
"""The owner of each part of a table."""


class Piece(NamedTuple):
    """A part where it lies: its row i is global row first + i * stride, and local row start + i of its owner."""

    part: int
    first: int
    stride: int
    count: int
    start: int

    @property
    def rows(self) -> slice:
        """The local rows of the part at its owner."""
        return slice(self.start, self.start + self.count)


@dataclass(frozen=True)
class Partition:
    """The rows [0, rows) of a table dealt to parts, and the parts to `owners`: part i lies at owner homes[i].

    Without any parts no owner holds a row: every compute rank has a replica of the table.
    block: contiguous ranges, sizes differing by at most one; neighbours stay together.
    cyclic: row i belongs to part i mod parts; the frequent rows at the head of a sorted vocabulary are spread.
    With fewer rows than parts, some parts have none.
    """

    rows: int
    owners: int
    kind: Kind
    homes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in ("block", "cyclic"):
            raise UsageError(f"partition = {self.kind!r}: expected 'block' or 'cyclic'")
        if not all(0 <= home < self.owners for home in self.homes):
            raise UsageError(
                f"a partition into {len(self.homes)} parts at owners {self.homes}: expected each at an owner from 0 to "
                f"{self.owners - 1}"
            )

    @classmethod
    def even(cls, rows: int, owners: int, kind: Kind, parts: int | None = None) -> Partition:
        """Return the partition into so many parts (None: one for each owner), dealt to the owners in turn. Local."""
        return cls(rows, owners, kind, tuple(part % owners for part in range(parts or owners)))

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self.homes)

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """The parts that each owner holds, in the order in which they lie there."""
        held: list[list[Piece]] = [[] for _ in range(self.owners)]
        for part, home in enumerate(self.homes):
            start = held[home][-1].start + held[home][-1].count if held[home] else 0
            held[home].append(Piece(part, *self._rows_of(part), start))
        return tuple(map(tuple, held))

    def _rows_of(self, part: int) -> tuple[int, int, int]:
        """Return (first, stride, count) of a part."""
        if self.kind == "cyclic":
            return part, self.parts, max(0, -(-(self.rows - part) // self.parts))
        small, larger = divmod(self.rows, self.parts)
        return part * small + min(part, larger), 1, small + (part < larger)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many rows each owner holds, int64 [owners]."""
        return np.array([self.count_of(owner) for owner in range(self.owners)], np.int64)

    def owner_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the owner of each of `ids`, in any order, int64. Local."""
        part = ids % self.parts if self.kind == "cyclic" else np.searchsorted(self._firsts, ids, side="right") - 1
        return self._homes[part]

    def count_of(self, owner: int) -> int:
        """Return how many rows an owner holds. Local."""
        return sum(piece.count for piece in self.pieces[owner])

    def rows_at(self, owner: int) -> np.ndarray:
        """Return the global rows of an owner in the order in which they lie there, int64. Local."""
        rows = [np.arange(piece.count, dtype=np.int64) * piece.stride + piece.first for piece in self.pieces[owner]]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def split(self, ids: np.ndarray) -> list[tuple[np.ndarray | slice, np.ndarray]]:
        """Return, per owner, (where its rows stand in `ids`, their local numbers), for sorted unique `ids`. Local.

        `where` selects in ascending order: a slice where the rows are contiguous in `ids`, else an index array.
        """
        if not self.parts:
            raise AssertionError(f"a table of {self.rows} rows has no parts: it lies on every compute rank")
        if self.parts == 1:
            nothing = (slice(0, 0), ids[:0])
            return [(slice(0, len(ids)), ids) if owner == self.homes[0] else nothing for owner in range(self.owners)]
        if self.kind == "block" and self._in_order:
            return self._split_ranges(ids)
        if self.kind == "cyclic":
            part, local = ids % self.parts, ids // self.parts
        else:
            part = np.searchsorted(self._firsts, ids, side="right") - 1
            local = ids - self._firsts[part]
        if not self._one_each:
            local = local + self._starts[part]
            part = self._homes[part]
        places = [np.flatnonzero(part == owner) for owner in range(self.owners)]
        return [(place, local[place]) for place in places]

    def _split_ranges(self, ids: np.ndarray) -> list[tuple[slice, np.ndarray]]:
        """Split where every owner's rows are one range of the table."""
        # Parts without rows share their start with the next one, or with the end: their slices are empty.
        ends = np.append(self._firsts, self.rows)
        held = self.pieces
        cuts = np.searchsorted(ids, ends)
        result = []
        for owner in range(self.owners):
            if not held[owner]:
                result.append((slice(0, 0), ids[:0]))
                continue
            first, last = held[owner][0].part, held[owner][-1].part
            start, stop = int(cuts[first]), int(cuts[last + 1])
            result.append((slice(start, stop), ids[start:stop] - ends[first]))
        return result

    @cached_property
    def _in_order(self) -> bool:
        """Whether each owner's parts are neighbours, so that its rows are one range."""
        return all(b.part == a.part + 1 for held in self.pieces for a, b in zip(held, held[1:], strict=False))

    @cached_property
    def _one_each(self) -> bool:
        """Whether part i is all that owner i holds."""
        return self.homes == tuple(range(self.parts))

    @cached_property
    def _firsts(self) -> np.ndarray:
        return np.array([self._rows_of(part)[0] for part in range(self.parts)], np.int64)

    @cached_property
    def _homes(self) -> np.ndarray:
        return np.array(self.homes, np.int64)

    @cached_property
    def _starts(self) -> np.ndarray:
        starts = np.zeros(self.parts, np.int64)
        for held in self.pieces:
            for piece in held:
                starts[piece.part] = piece.start
        return starts
