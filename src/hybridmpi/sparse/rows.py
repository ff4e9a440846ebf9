"""SparseRows: some rows of a table, what a sparse gradient or a pull is; and the check of row ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridmpi.errors import SparseIndexError


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of a table with `num_rows` rows: unique sorted int64 `indices` [n] and their `values` [n, dim]."""

    indices: np.ndarray
    values: np.ndarray
    num_rows: int

    @classmethod
    def empty(cls, num_rows: int, dim: int, dtype: np.dtype | type = np.float32) -> SparseRows:
        """Return no rows at all, of the right dtype and width. Local."""
        return cls(np.empty(0, np.int64), np.empty((0, dim), dtype), num_rows)

    def __len__(self) -> int:
        return len(self.indices)

    def to_dense(self) -> np.ndarray:
        """Return the whole table with zeros where there is no row: the oracle's view, [num_rows, dim]. Local."""
        dense = np.zeros((self.num_rows, self.values.shape[1]), self.values.dtype)
        dense[self.indices] = self.values
        return dense


def check_ids(ids: np.ndarray, num_rows: int, table: str) -> None:
    """Raise SparseIndexError unless every id lies in [0, num_rows). Local.

    The one check of row ids: it runs on entry, before anything is made unique or sent, so that a bad id changes
    nothing. The message names the table, the range seen and the first offending position.
    """
    if ids.size == 0:
        return
    if ids.dtype.kind not in "iu":
        raise SparseIndexError(f"table '{table}': row ids must be integers, got dtype {ids.dtype}; cast them to int64")
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < num_rows:
        return
    flat = ids.reshape(-1)
    first = int(np.flatnonzero((flat < 0) | (flat >= num_rows))[0])
    place = tuple(int(i) for i in np.unravel_index(first, ids.shape))
    raise SparseIndexError(
        f"table '{table}': id {int(flat[first])} at position {place if len(place) != 1 else place[0]} of {ids.size} "
        f"ids (shape {ids.shape}) is outside [0, {num_rows}); the ids seen span {low} to {high}. "
        "Give the table more rows or map unknown ids to one row"
    )
