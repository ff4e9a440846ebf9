"""Sums and means over axes."""

from __future__ import annotations

import math
from typing import Any

from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.autograd.tracing import traceable

Axes = int | tuple[int, ...] | None


@traceable
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis` (None: over all). Local."""
    x = as_tensor(x)

    def backward(gradient: Any) -> None:
        x.accumulate(_spread(gradient, x, axis, keepdims))

    return record(x.data.sum(axis=axis, keepdims=keepdims), (x,), backward)


@traceable
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis` (None: over all). Local."""
    x = as_tensor(x)
    axes = range(x.data.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    count = math.prod(x.shape[a] for a in axes)

    def backward(gradient: Any) -> None:
        x.accumulate(_spread(gradient / x.dtype.type(count), x, axis, keepdims))

    return record(x.data.mean(axis=axis, keepdims=keepdims, dtype=x.dtype), (x,), backward)


def _spread(gradient: Any, x: Tensor, axis: Axes, keepdims: bool) -> Any:
    """Return the gradient of a reduction repeated along the axes that it had removed (a read-only view)."""
    xp = namespace(x.data)
    gradient = xp.asarray(gradient)
    if axis is not None and not keepdims:
        gradient = xp.expand_dims(gradient, axis)
    return xp.broadcast_to(gradient, x.shape)
