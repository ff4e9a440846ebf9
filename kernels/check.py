"""Non-finite values on the CPU."""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel


def nonfinite_count(x: np.ndarray) -> int:
    """Return how many elements of `x`, of any shape, are NaN or infinite. Local."""
    return _nonfinite_count(x.reshape(-1))


@cpu_kernel
def _nonfinite_count(flat):
    count = 0
    for i in range(len(flat)):  # by index: numba's array iterator does not vectorise
        count += flat[i] - flat[i] != 0  # NaN for NaN and infinities, 0 otherwise: one subtraction, no branch
    return count
