"""Sums over duplicate rows on the device: a thread for each (segment, column) adds in the order of the CPU form.

The products with `scale` are rounded before they are added: the same bits as on the CPU.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.order_cuda import find_segments, sort_ids
from hybridmpi.kernels.rounding import mul_rn
from hybridmpi.kernels.segments import check_gradient, check_segments


def segment_sum(values: Any, order: Any, starts: Any, out: Any, scale: Any = None) -> None:
    """CUDA form of `segments.segment_sum`."""
    check_segments(values, starts, out, scale)
    if scale is None:
        launch(_segment_sum, out.size, values, order, starts, out)
    else:
        launch(_segment_sum_scaled, out.size, values, order, starts, out, scale)


def aggregate(ids: Any, values: Any, rows: int, scale: Any = None) -> tuple[Any, Any]:
    """CUDA form of `segments.aggregate`; waits for the device to learn how many ids are unique."""
    check_gradient(ids, values, scale)
    keys, order = sort_ids(ids, rows)
    unique, starts, _ = find_segments(keys)
    sums = new_array(values, (len(unique), values.shape[1]), values.dtype)
    segment_sum(values, order, starts, sums, scale)
    return unique, sums


def position_sums(values: Any, positions: Any, count: int, scale: Any = None) -> Any:
    """CUDA form of `segments.position_sums`."""
    check_gradient(positions, values, scale)
    sums = new_array(values, (count, values.shape[1]), values.dtype)
    keys, order = sort_ids(positions, count)
    starts = new_array(positions, count + 1)
    launch(_find_starts, count + 1, keys, starts)
    segment_sum(values, order, starts, sums, scale)
    return sums


@cuda_kernel("void(int64[::1], int64[::1])")
def _find_starts(keys, starts):
    for j in range(cuda.grid(1), len(starts), cuda.gridsize(1)):
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] < j:
                low = middle + 1
            else:
                high = middle
        starts[j] = low


@cuda_kernel("void(V[:, ::1], int64[::1], int64[::1], V[:, ::1])")
def _segment_sum(values, order, starts, out):
    segments, width = out.shape
    for e in range(cuda.grid(1), segments * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        total = out.dtype.type(0)
        for i in range(starts[j], starts[j + 1]):
            total += values[order[i], c]
        out[j, c] = total


@cuda_kernel("void(V[:, ::1], int64[::1], int64[::1], V[:, ::1], V[::1])")
def _segment_sum_scaled(values, order, starts, out, scale):
    segments, width = out.shape
    for e in range(cuda.grid(1), segments * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        total = out.dtype.type(0)
        for i in range(starts[j], starts[j + 1]):
            total += mul_rn(scale[order[i]], values[order[i], c])
        out[j, c] = total
