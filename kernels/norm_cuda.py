"""Sums of squares on the device: a sum for each thread, which fewer threads then add up, in a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.rounding import mul_rn

ADDERS = (16384, 128, 1)  # threads at work at most, round by round


def square_sum(x: Any) -> float:
    """CUDA form of `norm.square_sum`; waits for the device."""
    if x.size == 0:
        return 0.0
    sums = new_array(x, min(x.size, ADDERS[0]), np.float64)
    launch(_add_squares, len(sums), sums, x.reshape(-1))
    for adders in ADDERS[1:]:
        sums, parts = new_array(x, min(len(sums), adders), np.float64), sums
        launch(_add, len(sums), sums, parts)
    return float(sums[0])


@cuda_kernel("void(float64[::1], V[::1])")
def _add_squares(sums, flat):
    for t in range(cuda.grid(1), len(sums), cuda.gridsize(1)):
        total = 0.0
        for i in range(t, len(flat), len(sums)):
            value = np.float64(flat[i])
            total += mul_rn(value, value)
        sums[t] = total


@cuda_kernel("void(float64[::1], float64[::1])")
def _add(sums, parts):
    for t in range(cuda.grid(1), len(sums), cuda.gridsize(1)):
        total = 0.0
        for i in range(t, len(parts), len(sums)):
            total += parts[i]
        sums[t] = total
