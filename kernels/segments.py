"""Sums over duplicate rows on the CPU: a segmented sum over any order, and the aggregation of a sparse gradient.

Inside a segment the rows are added in the order in which they came, starting from zero, in the dtype of the values:
the same input gives the same bits on every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel
from hybridmpi.kernels.order import unique_inverse
from hybridmpi.kernels.prefetch import ask_to_read, rows_ahead


def segment_sum(
    values: np.ndarray, order: np.ndarray, starts: np.ndarray, out: np.ndarray, scale: np.ndarray | None = None
) -> None:
    """Sum rows of `values` [capacity, d] segment by segment into `out` [u, d]. Local.

    `order` int64[n] points anywhere into `values`, `starts` int64[u + 1] cuts it into segments: `out[j]` becomes the
    sum over i in [starts[j], starts[j + 1]) of `scale[order[i]] * values[order[i]]`, in that order; `scale` [capacity]
    has the dtype of the values, None stands for ones. An empty segment gives zeros. Raises ValueError where the shapes
    do not fit.
    """
    check_segments(values, starts, out, scale)
    if scale is None:
        _segment_sum(values, order, starts, out)
    else:
        _segment_sum_scaled(values, order, starts, out, scale)


def aggregate(
    ids: np.ndarray, values: np.ndarray, rows: int, scale: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted unique `ids` int64[u] and the sum of the values of each, [u, d]. Local.

    `ids` int64[n] in [0, rows), `values` [n, d], `scale` [n] of the same dtype multiplies each row (None: ones).
    Raises ValueError where the shapes do not fit.
    """
    check_gradient(ids, values, scale)
    unique, inverse = unique_inverse(ids, rows)
    return unique, position_sums(values, inverse, len(unique), scale)


def position_sums(values: np.ndarray, positions: np.ndarray, count: int, scale: np.ndarray | None = None) -> np.ndarray:
    """Return, for each position in [0, count), the sum of its rows of `values` [n, d], as [count, d]. Local.

    `positions` int64[n] say where each row belongs, `scale` [n] of the dtype of the values multiplies it (None: ones);
    a position without rows gets zeros. Raises ValueError where the shapes do not fit.
    """
    check_gradient(positions, values, scale)
    sums = np.empty((count, values.shape[1]), values.dtype)
    order, starts = _group(positions, count)
    segment_sum(values, order, starts, sums, scale)
    return sums


def check_segments(values: Any, starts: Any, out: Any, scale: Any) -> None:
    """Raise ValueError unless `out` has a row for each segment and `scale` one factor for each row. Local."""
    if out.shape != (len(starts) - 1, values.shape[1]):
        raise ValueError(
            f"segment_sum: out has shape {out.shape}, expected {(len(starts) - 1, values.shape[1])}: "
            "one row for each segment, as wide as the values"
        )
    if scale is not None and scale.shape != (len(values),):
        raise ValueError(f"segment_sum: scale has shape {scale.shape}, expected ({len(values)},): one for each row")


def check_gradient(ids: Any, values: Any, scale: Any) -> None:
    """Raise ValueError unless every id has a row of values and, where given, a scale. Local."""
    if len(values) != len(ids) or (scale is not None and scale.shape != ids.shape):
        raise ValueError(
            f"aggregate: {len(ids)} ids, values of shape {values.shape}, scale of shape "
            f"{None if scale is None else scale.shape}: expected one row of values, and one scale, per id"
        )


@cpu_kernel
def _group(inverse, segments):
    """Return the stable order of `inverse` and where each segment starts: a counting sort."""
    starts = np.zeros(segments + 1, np.int64)
    for i in range(len(inverse)):
        starts[inverse[i] + 1] += 1
    for j in range(segments):
        starts[j + 1] += starts[j]
    free = starts[:-1].copy()
    order = np.empty(len(inverse), np.int64)
    for i in range(len(inverse)):
        order[free[inverse[i]]] = i
        free[inverse[i]] += 1
    return order, starts


# The first row of a segment starts its sum: one pass over the sum less than clearing it. Adding it to zero keeps the
# bits of a sum from zero, in which -0.0 becomes 0.0. Elements are named by row and column, since numba counts
# references to a row that is a variable, which costs as much as adding it.


@cpu_kernel
def _segment_sum(values, order, starts, out):
    zero, ahead = out.dtype.type(0), rows_ahead(values)
    for j in range(len(starts) - 1):
        first, stop = starts[j], starts[j + 1]
        if first == stop:
            for c in range(out.shape[1]):
                out[j, c] = zero
        for i in range(first, stop):
            if i + ahead < len(order):
                ask_to_read(values, order[i + ahead])
            row = order[i]
            if i == first:
                for c in range(out.shape[1]):
                    out[j, c] = zero + values[row, c]
            else:
                for c in range(out.shape[1]):
                    out[j, c] += values[row, c]


@cpu_kernel
def _segment_sum_scaled(values, order, starts, out, scale):
    zero, ahead = out.dtype.type(0), rows_ahead(values)
    for j in range(len(starts) - 1):
        first, stop = starts[j], starts[j + 1]
        if first == stop:
            for c in range(out.shape[1]):
                out[j, c] = zero
        for i in range(first, stop):
            if i + ahead < len(order):
                ask_to_read(values, order[i + ahead])
            row, factor = order[i], scale[order[i]]
            if i == first:
                for c in range(out.shape[1]):
                    out[j, c] = zero + factor * values[row, c]
            else:
                for c in range(out.shape[1]):
                    out[j, c] += factor * values[row, c]
