"""Counter-based initial values on the device: the CPU form's generator, a thread for each group of four columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from hybridmpi.kernels import initial
from hybridmpi.kernels.device import cuda_kernel, launch
from hybridmpi.kernels.rounding import mul_rn

philox = cuda.jit(device=True)(initial.philox.py_func)
unit_interval = cuda.jit(device=True)(initial.unit_interval.py_func)
normal_quantile = cuda.jit(device=True)(initial.normal_quantile.py_func)


def uniform_rows(out: Any, first: int, stride: int, seed: int, low: float, high: float) -> None:
    """CUDA form of `initial.uniform_rows`."""
    initial.check_rows("uniform_rows", out, first, stride, seed)
    launch(_uniform_rows, _groups(out), out, first, stride, np.uint64(seed), low, high - low)


def normal_rows(out: Any, first: int, stride: int, seed: int, mean: float, deviation: float) -> None:
    """CUDA form of `initial.normal_rows`."""
    initial.check_rows("normal_rows", out, first, stride, seed)
    launch(_normal_rows, _groups(out), out, first, stride, np.uint64(seed), mean, deviation)


def _groups(out: Any) -> int:
    return len(out) * -(-out.shape[1] // 4)


@cuda_kernel("void(V[:, ::1], int64, int64, uint64, float64, float64)")
def _uniform_rows(out, first, stride, seed, low, width):
    n, d = out.shape
    groups = (d + 3) // 4
    for item in range(cuda.grid(1), n * groups, cuda.gridsize(1)):
        i, group = item // groups, item % groups
        c = 4 * group
        words = philox(np.uint64(first + i * stride), np.uint64(group), seed)
        for k in range(min(4, d - c)):
            out[i, c + k] = low + mul_rn(width, unit_interval(words[k]))


@cuda_kernel("void(V[:, ::1], int64, int64, uint64, float64, float64)")
def _normal_rows(out, first, stride, seed, mean, deviation):
    n, d = out.shape
    groups = (d + 3) // 4
    for item in range(cuda.grid(1), n * groups, cuda.gridsize(1)):
        i, group = item // groups, item % groups
        c = 4 * group
        words = philox(np.uint64(first + i * stride), np.uint64(group), seed)
        for k in range(min(4, d - c)):
            out[i, c + k] = mean + mul_rn(deviation, normal_quantile(unit_interval(words[k])))
