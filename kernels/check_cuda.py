"""Values that must not be, on the device: a count for each thread, then their sum."""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.scan_cuda import exclusive_scan

COUNTERS = 16384  # threads at work at most


def nonfinite_count(x: Any) -> int:
    """CUDA form of `check.nonfinite_count`; waits for the device."""
    return _total(_count_nonfinite, x)


def count_beyond(x: Any, limit: float) -> int:
    """CUDA form of `check.count_beyond`; waits for the device."""
    return _total(_count_beyond, x, x.dtype.type(limit))


def _total(kernel: Any, x: Any, *arguments: Any) -> int:
    """Return the sum of the counts that the threads of `kernel` find."""
    if x.size == 0:
        return 0
    counts = new_array(x, min(x.size, COUNTERS) + 1)
    launch(kernel, len(counts), counts, x.reshape(-1), *arguments)
    exclusive_scan(counts)
    return int(counts[len(counts) - 1])


@cuda_kernel("void(int64[::1], V[::1])")
def _count_nonfinite(counts, flat):
    counters = len(counts) - 1  # the element behind them receives the total of the scan
    for t in range(cuda.grid(1), len(counts), cuda.gridsize(1)):
        count = 0
        if t < counters:
            for i in range(t, len(flat), counters):
                if flat[i] - flat[i] != 0:
                    count += 1
        counts[t] = count


@cuda_kernel("void(int64[::1], V[::1], V)")
def _count_beyond(counts, flat, limit):
    counters = len(counts) - 1
    for t in range(cuda.grid(1), len(counts), cuda.gridsize(1)):
        count = 0
        if t < counters:
            for i in range(t, len(flat), counters):
                if not abs(flat[i]) <= limit:
                    count += 1
        counts[t] = count
