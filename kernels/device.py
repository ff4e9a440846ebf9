"""How the CUDA kernels are compiled and launched: grids, streams and device memory in one place.

Every kernel guards its index and strides over the grid, so any grid is right; blocks have THREADS threads, and no work
launches no kernel. Arrays are cupy's or numba's. A kernel runs on the stream of its arrays: cupy's current one, else
the default one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from hybridmpi.kernels import rounding_cuda  # noqa: F401 - what products compile to, for every CUDA kernel

THREADS = 256  # per block: enough to fill an SM, few enough for 255 registers a thread
MAX_BLOCKS = 2048  # about 16 blocks on each of 132 SMs; more work strides


def cuda_kernel(*signatures: str) -> Callable[[Callable], Any]:
    """Return a decorator that compiles a CUDA kernel on first launch, for the types it is launched with.

    `signatures`, in which V stands for float32 and float64, are what the tests compile to PTX without a GPU.
    """

    def decorate(function: Callable) -> Any:
        kernel = cuda.jit(function)
        kernel.tested_signatures = [s.replace("V", value) for s in signatures for value in ("float32", "float64")]
        return kernel

    return decorate


def launch(kernel: Any, work: int, *arguments: Any) -> None:
    """Launch `kernel` for `work` items on the stream of the device arrays among the arguments. Local.

    Raises ValueError for arrays of several devices: a kernel would read another device's memory, or nobody's.
    """
    if work > 0:
        cupy = sys.modules.get("cupy")
        theirs = [a for a in arguments if cupy is not None and isinstance(a, cupy.ndarray)]
        if len(devices := {array.device.id for array in theirs}) > 1:
            raise ValueError(f"arrays of devices {sorted(devices)} in one kernel: expected those of one device")
        stream = _stream_at(cupy.cuda.get_current_stream().ptr, *devices) if theirs else cuda.default_stream()
        # The kernel is on cupy's own stream, behind what fills its arrays: without `sync=False` numba would make the
        # host wait for that stream, once for each array.
        known = [cuda.as_cuda_array(a, sync=False) if any(a is one for one in theirs) else a for a in arguments]
        kernel[min(-(-work // THREADS), MAX_BLOCKS), THREADS, stream](*known)


def new_array(like: Any, shape: int | tuple[int, ...], dtype: Any = np.int64) -> Any:
    """Return an uninitialised device array of the kind of `like`. Local."""
    cupy = _cupy_of(like)
    if cupy is not None:
        return cupy.empty(shape, dtype)
    return cuda.device_array(shape, dtype)


def _cupy_of(array: Any) -> Any:
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else None


@cache
def _stream_at(pointer: int, device: int) -> Any:
    """Return numba's stream for cupy's; each is made once."""
    return cuda.external_stream(pointer) if pointer else cuda.default_stream()
