"""Which server owns which row: the one source of the partition map, which any rank can evaluate for any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridmpi.errors import UsageError

Kind = Literal["block", "cyclic"]


@dataclass(frozen=True)
class Partition:
    """The rows [0, rows) of a table dealt to `owners`.

    block: contiguous ranges, sizes differing by at most one; neighbours stay together.
    cyclic: row i belongs to owner i mod owners; the frequent rows at the head of a sorted vocabulary are spread.
    With fewer rows than owners, some owners have none.
    """

    rows: int
    owners: int
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in ("block", "cyclic"):
            raise UsageError(f"partition = {self.kind!r}: expected 'block' or 'cyclic'")

    def range_of(self, owner: int) -> tuple[int, int, int]:
        """Return (first, stride, count): local row i of `owner` is global row first + i * stride. Local."""
        if self.kind == "cyclic":
            return owner, self.owners, max(0, -(-(self.rows - owner) // self.owners))
        small, larger = divmod(self.rows, self.owners)
        return owner * small + min(owner, larger), 1, small + (owner < larger)

    def owner_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the owner of every global row in `ids` [n], int64. Local."""
        if self.kind == "cyclic":
            return ids % self.owners
        starts = [self.range_of(owner)[0] for owner in range(self.owners)]
        return np.searchsorted(np.array(starts), ids, side="right") - 1

    def split(self, ids: np.ndarray) -> list[tuple[np.ndarray | slice, np.ndarray]]:
        """Return, per owner, (where its rows stand in `ids`, their local numbers), for sorted unique `ids`. Local.

        `where` is a slice for block partitions, an index array for cyclic ones; both select in ascending order.
        """
        if self.owners == 1:
            return [(slice(0, len(ids)), ids)]
        if self.kind == "cyclic":
            owner, local = ids % self.owners, ids // self.owners
            places = [np.flatnonzero(owner == s) for s in range(self.owners)]
            return [(place, local[place]) for place in places]
        starts = np.array([self.range_of(owner)[0] for owner in range(self.owners)] + [self.rows])
        # Owners without rows share their start with the next one, or with the end: their slices are empty.
        cuts = np.searchsorted(ids, starts)
        return [(slice(a, b), ids[a:b] - start) for a, b, start in zip(cuts[:-1], cuts[1:], starts[:-1], strict=True)]
