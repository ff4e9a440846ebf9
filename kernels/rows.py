"""Rows of a table on the CPU: gather, scatter and scatter-add, also of one row for a whole bag of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel


def gather(table: np.ndarray, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return rows `ids` int64[n] of `table` [rows, d]: [n, d], in `out` where given. Local.

    `ids` lie in [0, rows). Raises ValueError for an `out` of another shape.
    """
    if out is None:
        out = np.empty((len(ids), table.shape[1]), table.dtype)
    check_shapes("gather", table, ids, out)
    _gather(table, ids, out)
    return out


def scatter(out: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write `values` [n, d] to rows `positions` int64[n] of `out` [u, d]; positions are unique. Local.

    Raises ValueError where the shapes do not fit.
    """
    check_shapes("scatter", out, positions, values)
    _scatter(out, positions, values)


def scatter_add(out: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Add `values` [n, d] to rows `positions` int64[n] of `out` [u, d], one after the other in order of n. Local.

    Positions may repeat. Raises ValueError where the shapes do not fit.
    """
    check_shapes("scatter_add", out, positions, values)
    _scatter_add(out, positions, values)


def scatter_add_bags(out: np.ndarray, positions: np.ndarray, starts: np.ndarray, values: np.ndarray) -> None:
    """Add row b of `values` [bags, d] to rows `positions[starts[b]:starts[b + 1]]` of `out` [u, d], for every b. Local.

    `positions` int64[n] may repeat, also within a bag; `starts` int64[bags + 1] rises from 0 to n. One after the other
    in order of n, as `scatter_add` of the rows repeated, which are never made. This is what the gradient of a bag's sum
    is, whose forward is `segment_sum`. Raises ValueError where the shapes do not fit.
    """
    check_bags(out, starts, values)
    _scatter_add_bags(out, positions, starts, values)


def check_bags(out: Any, starts: Any, values: Any) -> None:
    """Raise ValueError unless `values` have a row for each bag, as wide as those of `out`. Local."""
    if values.shape != (len(starts) - 1, out.shape[1]):
        raise ValueError(
            f"scatter_add_bags: the values have shape {values.shape}, expected {(len(starts) - 1, out.shape[1])}: "
            f"one row for each bag, as wide as the table {out.shape}"
        )


def check_shapes(name: str, table: Any, positions: Any, rows: Any) -> None:
    """Raise ValueError unless `rows` [n, d] are one row of `table` [r, d] for each of `positions` [n]. Local."""
    if rows.shape != (len(positions), table.shape[1]):
        raise ValueError(
            f"{name}: the rows have shape {rows.shape}, expected {(len(positions), table.shape[1])}: "
            f"one for each of {len(positions)} ids, as wide as the table {table.shape}"
        )


@cpu_kernel
def _gather(table, ids, out):
    for i in range(len(ids)):
        row = ids[i]
        for c in range(table.shape[1]):
            out[i, c] = table[row, c]


@cpu_kernel
def _scatter(out, positions, values):
    for i in range(len(positions)):
        row = positions[i]
        for c in range(out.shape[1]):
            out[row, c] = values[i, c]


@cpu_kernel
def _scatter_add(out, positions, values):
    for i in range(len(positions)):
        row = positions[i]
        for c in range(out.shape[1]):
            out[row, c] += values[i, c]


@cpu_kernel
def _scatter_add_bags(out, positions, starts, values):
    for b in range(len(values)):
        value = values[b]
        for i in range(starts[b], starts[b + 1]):
            row = out[positions[i]]
            for c in range(len(value)):
                row[c] += value[c]
