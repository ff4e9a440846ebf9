"""Sums of squares on the CPU, for the norms of gradients."""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel

BLOCK = 256  # sums side by side: enough to fill the pipelines of the widest vectors, few enough for the fastest cache


def square_sum(x: np.ndarray) -> float:
    """Return the sum of the squares of `x`, of any shape, in float64: no float32 overflows it. Local.

    The order of additions depends on the number of elements only.
    """
    return _square_sum(x.reshape(-1))


@cpu_kernel
def _square_sum(flat):
    sums = np.zeros(BLOCK)
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        for i in range(len(part)):
            value = np.float64(part[i])
            sums[i] += value * value
    total = 0.0
    for i in range(BLOCK):
        total += sums[i]
    return total
