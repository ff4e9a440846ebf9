"""Rows of a table inside the graph: the rows that were pulled are a source, lookups index into them."""

from __future__ import annotations

from typing import Any

from hybridmpi import inputs, kernels
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Backward, Tensor, as_tensor, record
from hybridmpi.errors import UsageError


def pulled_rows(values: Any, deliver: Backward) -> Tensor:
    """Return pulled rows [u, dim] as a tensor whose gradient [u, dim] goes to `deliver`, at most once. Local."""
    values = inputs.real_array(values, "pulled_rows")
    return record(values, (), deliver, source=True)


def gather_rows(rows: Tensor, positions: Any) -> Tensor:
    """Return rows[positions], shape [*positions.shape, dim], for integer positions in [0, len(rows)), else UsageError.
    Local.

    Backward sums the gradients of a row that is named several times, in the order of the positions.
    """
    rows = as_tensor(rows, None, "gather_rows: rows")
    if rows.data.ndim != 2:
        raise UsageError(f"gather_rows of shape {rows.shape}: expected [rows, width]")
    positions = inputs.integers(positions, "gather_rows: position", 0, len(rows))
    dim = rows.shape[1]
    flat = positions.reshape(-1)

    def backward(gradient: Any) -> None:
        gradient = namespace(gradient).ascontiguousarray(gradient, rows.dtype).reshape(len(flat), dim)
        rows.accumulate(kernels.position_sums(gradient, flat, rows.shape[0]))

    return record(kernels.gather(rows.data, flat).reshape(*positions.shape, dim), (rows,), backward)


def sum_bags(rows: Tensor, positions: Any, starts: Any) -> Tensor:
    """Return the sum of the rows of each bag, [bags, dim]: bag b is positions[starts[b]:starts[b + 1]]. Local.

    rows [u, dim]; positions int64 [n] in [0, u), in which a row may be named several times; starts int64 [bags + 1]
    rises from 0 to n. An empty bag gives zeros. The rows are added in the order of the positions, and [n, dim] is never
    made: neither here nor in backward. Raises UsageError for positions and starts that are not so.
    """
    rows = as_tensor(rows, None, "sum_bags: rows")
    positions = inputs.integers(positions, "sum_bags: position", 0, len(rows))
    if rows.data.ndim != 2 or positions.ndim != 1:
        raise UsageError(f"sum_bags of rows {rows.shape} and positions {positions.shape}: expected [u, dim] and [n]")
    starts = inputs.starts(starts, len(positions), "sum_bags: starts")
    sums = namespace(rows.data).empty((len(starts) - 1, rows.shape[1]), rows.dtype)
    kernels.segment_sum(rows.data, positions, starts, sums)

    def backward(gradient: Any) -> None:
        xp = namespace(gradient)
        whole = xp.zeros(rows.shape, rows.dtype)
        kernels.scatter_add_bags(whole, positions, starts, xp.ascontiguousarray(gradient))
        rows.accumulate(whole)

    return record(sums, (rows,), backward)
