"""Gives Tensor its operators and methods: each name is bound to the operation that implements it."""

from __future__ import annotations

from typing import Any

from hybridmpi.autograd import elementwise, linear, reduction, shape
from hybridmpi.autograd.tensor import Tensor


def _reversed_subtract(x: Tensor, other: Any) -> Tensor:
    return elementwise.subtract(other, x)


def _reversed_divide(x: Tensor, other: Any) -> Tensor:
    return elementwise.divide(other, x)


OPERATORS = {
    "__add__": elementwise.add,
    "__radd__": elementwise.add,
    "__sub__": elementwise.subtract,
    "__rsub__": _reversed_subtract,
    "__mul__": elementwise.multiply,
    "__rmul__": elementwise.multiply,
    "__truediv__": elementwise.divide,
    "__rtruediv__": _reversed_divide,
    "__neg__": elementwise.negative,
    "__pow__": elementwise.power,
    "__matmul__": linear.matmul,
    "__getitem__": shape.index,
    "sum": reduction.sum,
    "mean": reduction.mean,
    "reshape": shape.reshape,
    "transpose": shape.transpose,
}

for _name, _operation in OPERATORS.items():
    setattr(Tensor, _name, _operation)
