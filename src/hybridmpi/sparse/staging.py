"""Staging: the row gradients that arrived for one table in a step, and their sums.

Each client's rows are added to the sums in one pass over them, client after client: what came is read once, from where
it came to, and nothing is sorted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hybridmpi import kernels
from hybridmpi.sparse.forms import Form

NO_ROWS = np.empty(0, np.int64)


class Piece(NamedTuple):
    """Some rows of one client: local numbers [n], and values [n, dim] in the dtype of the table."""

    client: int
    ids: np.ndarray
    values: np.ndarray


class Staging:
    """Row gradients that arrived for one table in this step, from all clients. Local."""

    def __init__(self, dim: int, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.used = 0
        self._pieces: list[Piece] = []
        # The sums of the last step: their memory stays.
        self._sums = np.empty((0, dim), dtype)

    def add(self, client: int, ids: np.ndarray, values: np.ndarray, form: Form, lasting: bool = False) -> None:
        """Take in rows of a client, which have come in `form`: ids [n], all different, and values [n, dim].

        `lasting`: this memory stays as it is until the rows are summed; else they are copied.
        """
        if not (lasting and form.dtype == self.dtype):
            come, values = values, np.empty(values.shape, self.dtype)
            form.read(come, values)
        self._pieces.append(Piece(client, ids if lasting else ids.copy(), values))
        self.used += len(ids)

    def sum(self, scale_of: dict[int, float], rows: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sum the rows and forget them; return (touched rows, sorted [u]; their sums [u, dim], valid until the next
        call; how many rows came below each of the ascending row numbers `ends`, the last of which is `rows`).

        A row is the sum over the clients in their order, whatever order they came in, of its values times
        `scale_of[client]`, from zero, in the dtype of the table.
        """
        pieces = sorted(self._pieces, key=lambda piece: piece.client)  # stable: a client's rounds stay in order
        self._pieces, self.used = [], 0
        ids = np.concatenate([piece.ids for piece in pieces]) if pieces else NO_ROWS
        touched, positions = kernels.unique_inverse(ids, rows)
        if len(touched) > len(self._sums):
            self._sums = np.empty((2 * len(touched), self._sums.shape[1]), self.dtype)
        sums = self._sums[: len(touched)]
        begun = np.zeros(len(touched), np.bool_)
        start = 0
        for client, numbers, values in pieces:
            stop = start + len(numbers)
            _add_rows(values, positions[start:stop], self.dtype.type(scale_of[client]), begun, sums)
            start = stop
        return touched, sums, _count_below(ends, touched, positions)


def _count_below(ends: np.ndarray, touched: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return how many of the rows touched[positions] lie below each of `ends`, the last of which is above all."""
    if len(ends) < 2:
        return np.full(len(ends), len(positions))
    counts = np.cumsum(np.bincount(positions, minlength=len(touched) + 1))
    return np.append(0, counts)[np.searchsorted(touched, ends)]


# Elements are named by row and column: numba counts references to a row that is a variable.


@njit(nogil=True, cache=True)
def _add_rows(values, positions, factor, begun, sums):
    """Add `factor` * `values` [n, d] to rows `positions` [n] of `sums`; those not in `begun` bool[u] yet are set."""
    zero = sums.dtype.type(0)
    for i in range(len(positions)):
        row = positions[i]
        if begun[row]:
            for c in range(sums.shape[1]):
                sums[row, c] += factor * values[i, c]
        else:
            begun[row] = True
            for c in range(sums.shape[1]):
                sums[row, c] = zero + factor * values[i, c]
