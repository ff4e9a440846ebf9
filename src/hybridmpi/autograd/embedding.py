"""Rows of a table inside the graph: the rows that were pulled are a source, lookups index into them."""

from __future__ import annotations

from typing import Any

from hybridmpi import kernels
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Backward, Tensor, record


def pulled_rows(values: Any, deliver: Backward) -> Tensor:
    """Return pulled rows [u, dim] as a tensor whose gradient [u, dim] goes to `deliver`, at most once. Local."""
    return record(values, (), deliver, source=True)


def gather_rows(rows: Tensor, positions: Any) -> Tensor:
    """Return rows[positions], shape [*positions.shape, dim], for int64 positions in [0, len(rows)). Local.

    Backward sums the gradients of a row that is named several times, in the order of the positions.
    """
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
    made: neither here nor in backward.
    """
    sums = namespace(rows.data).empty((len(starts) - 1, rows.shape[1]), rows.dtype)
    kernels.segment_sum(rows.data, positions, starts, sums)

    def backward(gradient: Any) -> None:
        xp = namespace(gradient)
        whole = xp.zeros(rows.shape, rows.dtype)
        kernels.scatter_add_bags(whole, positions, starts, xp.ascontiguousarray(gradient))
        rows.accumulate(whole)

    return record(sums, (rows,), backward)
