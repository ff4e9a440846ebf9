"""What `rounding.mul_rn` compiles to in CUDA kernels: numba knows once this is imported, as `device` does."""

from __future__ import annotations

from numba import types
from numba.cuda import libdevice
from numba.cuda.extending import overload

from hybridmpi.kernels.rounding import mul_rn


@overload(mul_rn, target="cuda")
def _mul_rn_on_device(a, b):
    if a == b == types.float32:
        return lambda a, b: libdevice.fmul_rn(a, b)
    if a == b == types.float64:
        return lambda a, b: libdevice.dmul_rn(a, b)
    return None  # a compile error: mixed types would be widened unseen
