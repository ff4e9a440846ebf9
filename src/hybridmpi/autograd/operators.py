"""Gives Tensor its operators and methods: each name is bound to the operation that implements it."""

from __future__ import annotations

from typing import Any

from hybridmpi.autograd import elementwise, linear, reduction, shape
from hybridmpi.autograd.tensor import Tensor


def _reversed_subtract(x: Tensor, other: Any) -> Tensor:
    return elementwise.subtract(other, x)


def _reversed_divide(x: Tensor, other: Any) -> Tensor:
    return elementwise.divide(other, x)


def _reversed_matmul(x: Tensor, other: Any) -> Tensor:
    return linear.matmul(other, x)


UFUNCS = {
    "add": elementwise.add,
    "subtract": elementwise.subtract,
    "multiply": elementwise.multiply,
    "divide": elementwise.divide,
    "negative": elementwise.negative,
    "power": elementwise.power,
    "matmul": linear.matmul,
    "exp": elementwise.exp,
    "log": elementwise.log,
    "tanh": elementwise.tanh,
}
"""Functions of numpy that are operations: so `array + tensor` is one too."""


def _ufunc(x: Tensor, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
    operation = UFUNCS.get(ufunc.__name__)
    if operation is None or method != "__call__" or options:
        x._refuse(f"numpy.{ufunc.__name__}: the numbers")
    return operation(*arguments)


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
    "__rmatmul__": _reversed_matmul,
    "__array_ufunc__": _ufunc,
    "__getitem__": shape.index,
    "sum": reduction.sum,
    "mean": reduction.mean,
    "reshape": shape.reshape,
    "transpose": shape.transpose,
}

for _name, _operation in OPERATORS.items():
    setattr(Tensor, _name, _operation)
