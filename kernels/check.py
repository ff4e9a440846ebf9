"""Values that must not be, on the CPU: those that are not finite, and those beyond a limit."""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel

BLOCK = 1 << 20  # elements whose count fits 32 bits


def nonfinite_count(x: np.ndarray) -> int:
    """Return how many elements of `x`, of any shape, are NaN or infinite. Local."""
    flat = x.reshape(-1)
    return _count_wide(flat) if flat.itemsize == 8 else _count_narrow(flat)


def count_beyond(x: np.ndarray, limit: float) -> int:
    """Return how many elements of `x`, of any shape, are not in [-limit, limit]: NaN counts too. Local."""
    return _count_beyond(x.reshape(-1), x.dtype.type(limit))


# NaN for NaN and infinities, 0 otherwise: one subtraction, no branch. A vector holds as many counts as values only
# where both are equally wide, hence two loops; each reads as fast as memory gives.


@cpu_kernel
def _count_wide(flat):
    count = 0
    for i in range(len(flat)):  # by index: numba's array iterator does not vectorise
        count += flat[i] - flat[i] != 0
    return count


@cpu_kernel
def _count_narrow(flat):
    total = 0
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        count = np.uint32(0)
        for i in range(len(part)):
            count = np.uint32(count + np.uint32(part[i] - part[i] != 0))
        total += np.int64(count)
    return total


@cpu_kernel
def _count_beyond(flat, limit):
    total = 0
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        count = np.uint32(0)
        for i in range(len(part)):
            count = np.uint32(count + np.uint32(not abs(part[i]) <= limit))
        total += np.int64(count)
    return total
