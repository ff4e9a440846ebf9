"""Operations element by element, with numpy's broadcasting; each forward beside its backward."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.autograd.tracing import traceable
from hybridmpi.errors import UsageError


def unbroadcast(gradient: Any, shape: tuple[int, ...]) -> Any:
    """Return `gradient` summed over the axes along which an array of `shape` was repeated. Local."""
    if gradient.shape == shape:
        return gradient
    added = gradient.ndim - len(shape)
    stretched = tuple(
        axis for axis in range(gradient.ndim) if axis < added or (shape[axis - added] == 1 != gradient.shape[axis])
    )
    return gradient.sum(axis=stretched, keepdims=True).reshape(shape)


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors; numbers and arrays follow a tensor's dtype."""
    if isinstance(a, Tensor):
        return a, b if isinstance(b, Tensor) else as_tensor(b, a, "an operand")
    return (as_tensor(a, b, "an operand"), b) if isinstance(b, Tensor) else (Tensor(a), Tensor(b))


@traceable
def add(a: Any, b: Any) -> Tensor:
    """Return a + b. Local."""
    a, b = _pair(a, b)

    def backward(gradient: Any) -> None:
        if a.requires_grad:
            a.accumulate(unbroadcast(gradient, a.shape))
        if b.requires_grad:
            b.accumulate(unbroadcast(gradient, b.shape))

    return record(a.data + b.data, (a, b), backward)


@traceable
def subtract(a: Any, b: Any) -> Tensor:
    """Return a - b. Local."""
    a, b = _pair(a, b)

    def backward(gradient: Any) -> None:
        if a.requires_grad:
            a.accumulate(unbroadcast(gradient, a.shape))
        if b.requires_grad:
            b.accumulate(unbroadcast(-gradient, b.shape))

    return record(a.data - b.data, (a, b), backward)


@traceable
def multiply(a: Any, b: Any) -> Tensor:
    """Return a * b, element by element. Local."""
    a, b = _pair(a, b)

    def backward(gradient: Any) -> None:
        if a.requires_grad:
            a.accumulate(unbroadcast(gradient * b.data, a.shape))
        if b.requires_grad:
            b.accumulate(unbroadcast(gradient * a.data, b.shape))

    return record(a.data * b.data, (a, b), backward)


@traceable
def divide(a: Any, b: Any) -> Tensor:
    """Return a / b, element by element. Local."""
    a, b = _pair(a, b)
    quotient = a.data / b.data

    def backward(gradient: Any) -> None:
        scaled = gradient / b.data
        if a.requires_grad:
            a.accumulate(unbroadcast(scaled, a.shape))
        if b.requires_grad:
            b.accumulate(unbroadcast(-scaled * quotient, b.shape))

    return record(quotient, (a, b), backward)


@traceable
def negative(x: Tensor) -> Tensor:
    """Return -x. Local."""
    x = as_tensor(x)
    return record(-x.data, (x,), lambda gradient: x.accumulate(-gradient))


@traceable
def power(x: Tensor, exponent: float) -> Tensor:
    """Return x ** exponent for a plain number `exponent`. Local."""
    x = as_tensor(x)
    if not isinstance(exponent, Real) or isinstance(exponent, bool):
        raise UsageError(f"power: exponent {exponent!r}: expected a plain number; a ** b is exp(b * log(a))")
    exponent = float(exponent)

    def backward(gradient: Any) -> None:
        x.accumulate(gradient * (exponent * x.data ** (exponent - 1)))

    return record(x.data**exponent, (x,), backward)


@traceable
def exp(x: Tensor) -> Tensor:
    """Return e ** x. Local."""
    x = as_tensor(x)
    y = namespace(x.data).exp(x.data)
    return record(y, (x,), lambda gradient: x.accumulate(gradient * y))


@traceable
def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of x. Local."""
    x = as_tensor(x)
    return record(namespace(x.data).log(x.data), (x,), lambda gradient: x.accumulate(gradient / x.data))


@traceable
def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of x. Local."""
    x = as_tensor(x)
    y = namespace(x.data).tanh(x.data)
    return record(y, (x,), lambda gradient: x.accumulate(gradient * (1 - y * y)))


@traceable
def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), computed as (1 + tanh(x / 2)) / 2, which cannot overflow and is vectorised. Local."""
    x = as_tensor(x)
    y = 0.5 + 0.5 * namespace(x.data).tanh(0.5 * x.data)
    return record(y, (x,), lambda gradient: x.accumulate(gradient * (y * (1 - y))))


@traceable
def relu(x: Tensor) -> Tensor:
    """Return max(x, 0), with derivative 0 at 0. Local."""
    x = as_tensor(x)
    return record(namespace(x.data).maximum(x.data, 0), (x,), lambda gradient: x.accumulate(gradient * (x.data > 0)))


def dropout(x: Tensor, rate: float, uniform: Any) -> Tensor:
    """Return x with each element zeroed where `uniform` [shape of x] is below `rate`, the others scaled up. Local."""
    x = as_tensor(x)
    if not (isinstance(rate, Real) and 0 <= rate < 1):
        raise UsageError(f"dropout: rate {rate!r}: expected a number in [0, 1)")
    uniform = inputs.floats(uniform, np.float32, "dropout: uniform", x.shape)
    kept = (uniform >= rate) * x.dtype.type(1 / (1 - rate))
    return record(x.data * kept, (x,), lambda gradient: x.accumulate(gradient * kept))
