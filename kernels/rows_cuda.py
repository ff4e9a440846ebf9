"""Rows of a table on the device: gather, scatter and both scatter-adds, a thread for each element.

Rows were checked before they came here; a row outside the table would still be dropped (gather: zeros) rather than
reach memory of others.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.order_cuda import find_segments, sort_ids
from hybridmpi.kernels.rows import check_bags, check_shapes


def gather(table: Any, ids: Any, out: Any = None) -> Any:
    """CUDA form of `rows.gather`."""
    if out is None:
        out = new_array(table, (len(ids), table.shape[1]), table.dtype)
    check_shapes("gather", table, ids, out)
    launch(_gather, out.size, table, ids, out)
    return out


def scatter(out: Any, positions: Any, values: Any) -> None:
    """CUDA form of `rows.scatter`."""
    check_shapes("scatter", out, positions, values)
    launch(_scatter, values.size, out, positions, values)


def scatter_add(out: Any, positions: Any, values: Any) -> None:
    """CUDA form of `rows.scatter_add`: one thread adds all values of an element, in order, hence without atomics."""
    check_shapes("scatter_add", out, positions, values)
    if values.size == 0:
        return
    keys, order = sort_ids(positions, len(out))
    unique, starts, _ = find_segments(keys)
    launch(_add_segments, len(unique) * out.shape[1], out, unique, starts, order, values)


def scatter_add_bags(out: Any, positions: Any, starts: Any, values: Any) -> None:
    """CUDA form of `rows.scatter_add_bags`: as `scatter_add`, with the bag of each position looked up."""
    check_bags(out, starts, values)
    if values.size == 0 or len(positions) == 0:
        return
    bags = new_array(positions, len(positions))
    launch(_number_bags, len(values), starts, bags)
    keys, order = sort_ids(positions, len(out))
    unique, firsts, _ = find_segments(keys)
    launch(_add_bag_segments, len(unique) * out.shape[1], out, unique, firsts, order, bags, values)


@cuda_kernel("void(V[:, ::1], int64[::1], V[:, ::1])")
def _gather(table, ids, out):
    rows, width = table.shape
    for e in range(cuda.grid(1), len(ids) * width, cuda.gridsize(1)):
        i, c = e // width, e % width
        out[i, c] = table[ids[i], c] if 0 <= ids[i] < rows else out.dtype.type(0)  # a bare 0 would widen to float64


@cuda_kernel("void(V[:, ::1], int64[::1], V[:, ::1])")
def _scatter(out, positions, values):
    rows, width = out.shape
    for e in range(cuda.grid(1), len(positions) * width, cuda.gridsize(1)):
        i, c = e // width, e % width
        if 0 <= positions[i] < rows:
            out[positions[i], c] = values[i, c]


@cuda_kernel("void(V[:, ::1], int64[::1], int64[::1], int64[::1], V[:, ::1])")
def _add_segments(out, unique, starts, order, values):
    rows, width = out.shape
    for e in range(cuda.grid(1), len(unique) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        if 0 <= unique[j] < rows:
            total = out[unique[j], c]
            for i in range(starts[j], starts[j + 1]):
                total += values[order[i], c]
            out[unique[j], c] = total


@cuda_kernel("void(int64[::1], int64[::1])")
def _number_bags(starts, bags):
    for b in range(cuda.grid(1), len(starts) - 1, cuda.gridsize(1)):
        for i in range(starts[b], starts[b + 1]):
            bags[i] = b


@cuda_kernel("void(V[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], V[:, ::1])")
def _add_bag_segments(out, unique, firsts, order, bags, values):
    rows, width = out.shape
    for e in range(cuda.grid(1), len(unique) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        if 0 <= unique[j] < rows:
            total = out[unique[j], c]
            for i in range(firsts[j], firsts[j + 1]):
                total += values[bags[order[i]], c]
            out[unique[j], c] = total
