"""numpy or cupy, and the one function that makes an array fit for the wire."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from hybridmpi.errors import HybridMPIError, UsageError

WIRE_DTYPES = frozenset(np.dtype(t) for t in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


TRAINED_DTYPES = tuple(np.dtype(t) for t in (np.float32, np.float64))
"""What parameters and tables may be of: what kernels, optimisers and sums compute in."""


def trained_dtype(dtype: Any, whose: str) -> np.dtype:
    """Return the dtype of something that is trained, in native byte order. Local. Raises UsageError unless it is
    float32 or float64; `whose` names what it is of."""
    try:
        found = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    except (TypeError, ValueError):
        found = None
    if found is None or found not in TRAINED_DTYPES:  # a dtype equals None where None means float64
        raise UsageError(
            f"{whose} of dtype {dtype!r}: expected numpy.float32 or numpy.float64; fewer bits are for the wire between "
            "nodes (wire = 'bfloat16' or 'float16'), integers and complex numbers are not trained"
        )
    return found


def namespace(array: Any) -> ModuleType:
    """Return the array library of `array`: numpy, or cupy for its device arrays. Local."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    return np


def is_fit(array: np.ndarray) -> bool:
    """Return whether MPI may read and write `array` as it lies: C-contiguous, native byte order, wire dtype. Local."""
    return array.flags.c_contiguous and array.dtype.isnative and array.dtype in WIRE_DTYPES


def fit_to_send(array: Any) -> Any:
    """Return `array` in a form that MPI can send: C-contiguous, native byte order, a wire dtype. Local.

    A Fortran-ordered array passes through MPI without an error and comes out scrambled; a strided or byte-swapped
    one raises deep inside mpi4py. So every send goes through here: the same object when it is already fit, a copy
    otherwise. Device arrays are synchronised, since MPI does not know of streams. Raises HybridMPIError for a dtype
    that has no MPI counterpart.
    """
    xp = namespace(array)
    if xp is np:
        array = np.asarray(array)
    else:
        xp.cuda.get_current_stream().synchronize()
    if is_fit(array):
        return array
    dtype = array.dtype.newbyteorder("=")
    if dtype not in WIRE_DTYPES:
        raise HybridMPIError(
            f"an array of dtype {array.dtype} cannot travel over MPI: expected one of "
            f"{', '.join(sorted(d.name for d in WIRE_DTYPES))}; convert it first (bool: to uint8)"
        )
    return xp.ascontiguousarray(array, dtype=dtype)


def fit_to_receive(array: Any) -> Any:
    """Return `array` if MPI may write into it in place; raise HybridMPIError otherwise. Local.

    A receive buffer cannot be copied silently: the caller would never see the data.
    """
    xp = namespace(array)
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()
    if not is_fit(array) or not (xp is not np or array.flags.writeable):
        raise HybridMPIError(
            f"MPI cannot write into this array (shape {array.shape}, dtype {array.dtype}, strides {array.strides}): "
            "expected a writable C-contiguous array in native byte order; pass numpy.ascontiguousarray(array)"
        )
    return array
