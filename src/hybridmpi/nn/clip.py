"""Clipping by the global norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hybridmpi import inputs, kernels
from hybridmpi.autograd import Parameter
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Positive, checks_arguments


@checks_arguments
def clip_global_norm(gradients: Iterable[Parameter | Any], limit: Positive) -> float:
    """Scale all gradients in place so that their joint Euclidean norm is at most `limit`; return the norm before.
    Local.

    gradients: parameters (their grad; those without one are left out) or arrays, such as the flat buffers that hold the
    gradients of many parameters. Where the norm is not finite nothing is scaled: the caller decides. Pascanu et al.
    2013.
    """
    arrays = [item.grad if isinstance(item, Parameter) else item for item in gradients]
    arrays = [array for array in arrays if array is not None]
    for array in arrays:
        if inputs.real_array(array, "clip_global_norm") is not array or array.dtype.kind != "f":
            raise UsageError(
                f"clip_global_norm of a {type(array).__name__}: expected parameters, or arrays of floating point, "
                "which are scaled where they are"
            )
    norm = math.sqrt(sum(kernels.square_sum(array) for array in arrays))
    if norm > limit and math.isfinite(norm):
        for array in arrays:
            array *= array.dtype.type(limit / norm)
    return norm
