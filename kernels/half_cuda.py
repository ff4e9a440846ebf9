"""16-bit forms of float32 on the device: the CPU form's element rules, a thread for each element.

Only integers, comparisons and additions, which nothing fuses: the same bits as on the CPU, but for a NaN's payload.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels import half
from hybridmpi.kernels.device import cuda_kernel, launch

bfloat16_bits = cuda.jit(device=True)(half.bfloat16_bits.py_func)
bfloat16_value = cuda.jit(device=True)(half.bfloat16_value.py_func)
float16_bits = cuda.jit(device=True)(half.float16_bits.py_func)
float16_value = cuda.jit(device=True)(half.float16_value.py_func)


def to_bfloat16(values: Any, out: Any) -> None:
    """CUDA form of `half.to_bfloat16`."""
    half.check_halves("to_bfloat16", values, out)
    launch(_to_bfloat16, out.size, values, out)


def from_bfloat16(halves: Any, out: Any) -> None:
    """CUDA form of `half.from_bfloat16`."""
    half.check_halves("from_bfloat16", out, halves)
    launch(_from_bfloat16, out.size, halves, out)


def add_bfloat16(halves: Any, target: Any) -> None:
    """CUDA form of `half.add_bfloat16`."""
    half.check_halves("add_bfloat16", target, halves)
    launch(_add_bfloat16, target.size, halves, target)


def to_float16(values: Any, out: Any) -> None:
    """CUDA form of `half.to_float16`."""
    half.check_halves("to_float16", values, out)
    launch(_to_float16, out.size, values, out)


def from_float16(halves: Any, out: Any) -> None:
    """CUDA form of `half.from_float16`."""
    half.check_halves("from_float16", out, halves)
    launch(_from_float16, out.size, halves, out)


def add_float16(halves: Any, target: Any) -> None:
    """CUDA form of `half.add_float16`."""
    half.check_halves("add_float16", target, halves)
    launch(_add_float16, target.size, halves, target)


@cuda_kernel("void(float32[::1], uint16[::1])")
def _to_bfloat16(values, out):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        out[i] = bfloat16_bits(values[i])


@cuda_kernel("void(uint16[::1], float32[::1])")
def _from_bfloat16(halves, out):
    for i in range(cuda.grid(1), len(halves), cuda.gridsize(1)):
        out[i] = bfloat16_value(halves[i])


@cuda_kernel("void(uint16[::1], float32[::1])")
def _add_bfloat16(halves, target):
    for i in range(cuda.grid(1), len(halves), cuda.gridsize(1)):
        target[i] += bfloat16_value(halves[i])


@cuda_kernel("void(float32[::1], uint16[::1])")
def _to_float16(values, out):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        out[i] = float16_bits(values[i])


@cuda_kernel("void(uint16[::1], float32[::1])")
def _from_float16(halves, out):
    for i in range(cuda.grid(1), len(halves), cuda.gridsize(1)):
        out[i] = float16_value(halves[i])


@cuda_kernel("void(uint16[::1], float32[::1])")
def _add_float16(halves, target):
    for i in range(cuda.grid(1), len(halves), cuda.gridsize(1)):
        target[i] += float16_value(halves[i])
