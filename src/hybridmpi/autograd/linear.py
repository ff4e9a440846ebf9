"""Matrix products: x @ w, and the layer x @ W.T + b."""

from __future__ import annotations

import math
from typing import Any

from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.autograd.tracing import traceable
from hybridmpi.errors import UsageError


@traceable
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for matrices [m, k] and [k, n], or a stack a [..., k] and one matrix b [k, n]. Local."""
    if not isinstance(a, Tensor):
        a = as_tensor(a, b if isinstance(b, Tensor) else None, "matmul")
    b = as_tensor(b, a, "matmul")
    if b.data.ndim != 2 or a.data.ndim < 1 or a.shape[-1] != b.shape[0]:
        raise UsageError(f"matmul of shapes {a.shape} and {b.shape}: expected [..., k] and [k, n]")

    def backward(gradient: Any) -> None:
        if a.requires_grad:
            a.accumulate(gradient @ b.data.T)
        if b.requires_grad:
            b.accumulate_product(_matrix(a.data).T, _matrix(gradient))

    return record(a.data @ b.data, (a, b), backward)


@traceable
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias for x [..., inputs], weight [outputs, inputs], bias [outputs]. Local."""
    if not isinstance(x, Tensor):
        x = as_tensor(x, weight, f"the input of {_layer_of(weight)}")
    if not x.shape or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"linear: x has shape {x.shape} and weight {weight.shape}: expected [..., {weight.shape[1]}]")
    y = x.data @ weight.data.T
    if bias is not None:
        y += bias.data

    def backward(gradient: Any) -> None:
        rows = _matrix(gradient)
        if x.requires_grad:
            x.accumulate(gradient @ weight.data)
        if weight.requires_grad:
            weight.accumulate_product(rows.T, _matrix(x.data))
        if bias is not None and bias.requires_grad:
            bias.accumulate(rows.sum(axis=0))

    return record(y, (x, weight) if bias is None else (x, weight, bias), backward)


def _layer_of(weight: Tensor) -> str:
    """Return the name of the layer that has a weight, in words."""
    name = getattr(weight, "name", "?")
    return f"layer '{name.rpartition('.')[0] or name}'"


def _matrix(array: Any) -> Any:
    """Return `array` with all axes but the last joined into one."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
