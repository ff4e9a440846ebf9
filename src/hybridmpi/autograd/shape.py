"""Operations that only move elements: reshape, transpose, concatenate, index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.autograd.tracing import traceable
from hybridmpi.errors import UsageError

_BASIC = (int, slice, type(None), type(Ellipsis))


@traceable
def reshape(x: Tensor, *shape: int | tuple[int, ...]) -> Tensor:
    """Return x in another shape, a view where the memory layout allows. Local."""
    x = as_tensor(x)
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    return record(x.data.reshape(wanted), (x,), lambda gradient: x.accumulate(gradient.reshape(x.shape)))


def transpose(x: Tensor, *axes: int) -> Tensor:
    """Return x with its axes in the order `axes` (none given: reversed), a view. Local."""
    x = as_tensor(x)
    order = axes or tuple(reversed(range(x.data.ndim)))
    back = tuple(order.index(axis) for axis in range(len(order)))
    return record(x.data.transpose(order), (x,), lambda gradient: x.accumulate(gradient.transpose(back)))


@traceable
def concatenate(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors joined along `axis`. Local."""
    first = next((part for part in parts if isinstance(part, Tensor)), None)
    parts = [as_tensor(part, first, "concatenate") for part in parts]
    if not parts:
        raise UsageError("concatenate of no tensors: expected one or more")

    def backward(gradient: Any) -> None:
        first = 0
        for part in parts:
            last = first + part.shape[axis]
            if part.requires_grad:
                where = [slice(None)] * gradient.ndim
                where[axis] = slice(first, last)
                part.accumulate(gradient[tuple(where)])
            first = last

    return record(namespace(parts[0].data).concatenate([part.data for part in parts], axis=axis), parts, backward)


@traceable
def index(x: Tensor, where: Any) -> Tensor:
    """Return x[where]: slices, integers or integer arrays; gradients of repeated elements are summed. Local."""
    x = as_tensor(x)
    where = tuple(map(_place, where)) if isinstance(where, tuple) else _place(where)

    def backward(gradient: Any) -> None:
        xp = namespace(x.data)
        whole = xp.zeros(x.shape, x.dtype)
        if all(isinstance(part, _BASIC) for part in (where if isinstance(where, tuple) else (where,))):
            whole[where] = gradient  # names no element twice
        else:
            xp.add.at(whole, where, gradient)
        x.accumulate(whole)

    return record(x.data[where], (x,), backward)


def _place(part: Any) -> Any:
    """Return one part of an index: arrays of integers or truth values as they were when the index was taken."""
    if isinstance(part, _BASIC):
        return part
    array = inputs.plain_array(part, "an index")
    if array.dtype.kind == "b":
        return array.copy()
    return inputs.integers(array, "an index")
