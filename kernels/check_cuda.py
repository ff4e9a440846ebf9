"""Non-finite values on the device: a count for each thread, then their sum."""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.scan_cuda import exclusive_scan

COUNTERS = 16384  # threads at work at most


def nonfinite_count(x: Any) -> int:
    """CUDA form of `check.nonfinite_count`; waits for the device."""
    if x.size == 0:
        return 0
    counts = new_array(x, min(x.size, COUNTERS) + 1)
    launch(_count_nonfinite, len(counts), counts, x.reshape(-1))
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
