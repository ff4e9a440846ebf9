"""SparseRows: some rows of a table, what a sparse gradient or a pull is; and the entrance of row ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.errors import SparseIndexError

_REMEDY = "Give the table more rows or map unknown ids to one row"


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


def row_ids(ids: Any, num_rows: int, table: str) -> np.ndarray:
    """Return ids in [0, num_rows) as an int64 array of its own, of the shape given. Local.

    The one entrance of row ids: it runs before anything is made unique or sent, so that a bad id changes nothing.
    Raises SparseIndexError for an id outside, which names the table, the range seen and the first offending position;
    UsageError for what is no array of integers.
    """
    return inputs.integers(ids, f"table '{table}': id", 0, num_rows, SparseIndexError, _REMEDY)


def distinct_row_ids(ids: Any, num_rows: int, table: str) -> np.ndarray:
    """Return sorted, distinct ids [u] in [0, num_rows) as int64. Local. Raises SparseIndexError for other ids."""
    return inputs.ascending(ids, f"table '{table}': id", num_rows, SparseIndexError)
