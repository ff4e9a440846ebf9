"""Tensor: an array that remembers how it was computed, and `backward`, which walks that memory in reverse.

The whole idea. An operation computes its result with ordinary arrays and calls `record(data, parents, backward)`,
where `backward(gradient)` is a closure that, given the gradient of the loss with respect to the result, calls
`parent.accumulate(...)` with its contribution to each parent. A long one may be a generator, which yields each parent
as soon as it has no more for it. Results are numbered in the order in which they are made,
so visiting them from the highest number to the lowest sees every user of a value before the value itself. A closure
refers to its parents, never to its own result: there are no cycles, and memory goes as soon as it is not needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.errors import UsageError

Backward = Callable[[Any], "Iterator[Tensor] | None"]

_recording: ContextVar[bool] = ContextVar("hybridmpi_recording", default=True)
_numbers = itertools.count()


class Tensor:
    """An array of numbers, `data`, with the gradient of a scalar with respect to it, `grad`, if `requires_grad`. Local.

    data: numpy or cupy array, used as it is (no copy); anything else becomes a float32 array.
    """

    __slots__ = ("__weakref__", "_backward", "_number", "_owns_grad", "_parents", "data", "grad", "requires_grad")

    # numpy's operators must leave `array + tensor` to Tensor.__radd__.
    __array_ufunc__ = None

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data = data if hasattr(data, "dtype") else np.asarray(data, np.float32)
        self.requires_grad = requires_grad
        self.grad = None
        self._owns_grad = False
        self._parents: Sequence[Tensor] = ()
        self._backward: Backward | None = None
        self._number = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `data`."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of `data`."""
        return self.data.dtype

    @property
    def size(self) -> int:
        """The number of elements of `data`."""
        return self.data.size

    def __len__(self) -> int:
        return len(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __await__(self) -> Iterator[Tensor]:
        """In a recursive function (`dynamic.recursive`): wait for the numbers and return them, a float or an array of
        a row. No gradient flows this way."""
        return (yield self)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"

    def detach(self) -> Tensor:
        """Return a tensor of the same array without its history. Local."""
        return Tensor(self.data)

    def accumulate(self, gradient: Any) -> None:
        """Add `gradient`, an array of this tensor's shape, to `grad`. Local; called by the closures of operations.

        An array given here may be shared with others: it is kept as it is or copied, never written to.
        """
        if not self.requires_grad:
            return
        if self.grad is None:
            # A leaf's gradient outlives backward, so it is a copy of its own; others pass theirs on and forget it.
            self._owns_grad = self._backward is None
            self.grad = gradient.copy() if self._owns_grad else gradient
        elif self._owns_grad:
            self.grad += gradient
        else:
            self.grad = self.grad + gradient
            self._owns_grad = True

    def accumulate_product(self, left: Any, right: Any) -> None:
        """Add the matrix product left @ right to `grad`; a Parameter lets it be written in place. Local."""
        if self.requires_grad:
            self.accumulate(left @ right)

    def backward(self, gradient: Any = None, between: Callable[[], Any] | None = None) -> None:
        """Add the gradient of this tensor to `grad` of every leaf and Parameter it was computed from. Local.

        gradient: what is multiplied in from outside, of this tensor's shape; for a single element 1 if left out.
        between: called after every operation, for work that goes on beside this.
        The history is used up. Raises UsageError for a tensor without history or one gone through before.
        """
        if not self.requires_grad:
            raise UsageError(
                "backward() of a tensor that depends on nothing with requires_grad: was it computed under no_grad()?"
            )
        if gradient is None and self.size != 1:
            raise UsageError(f"backward() of shape {self.shape} needs a gradient of that shape; only a scalar has 1")
        xp = namespace(self.data)
        gradient = xp.ones(self.shape, self.dtype) if gradient is None else xp.asarray(gradient, self.dtype)
        if gradient.shape != self.shape:
            raise UsageError(f"backward() of shape {self.shape} was given a gradient of shape {gradient.shape}")
        self.accumulate(gradient)
        results, awaited = _history(self)
        for result in results:
            closure, result._backward = result._backward, _used_up
            parents, result._parents = result._parents, ()
            gradient, result.grad = result.grad, None
            left = list(parents)
            if gradient is not None:
                for parent in closure(gradient) or ():
                    left.remove(parent)
                    _report_written((parent,), awaited)
            _report_written(left, awaited)
            if between is not None:
                between()


def _history(last: Tensor) -> tuple[list[Tensor], dict[Tensor, int]]:
    """Return the results that `last` was computed from, newest first, and the uses of each parent that has a hook."""
    found, stack, awaited = {last}, [last], {}
    while stack:
        for parent in stack.pop()._parents:
            if getattr(parent, "on_written", None) is not None:
                awaited[parent] = awaited.get(parent, 0) + 1
            if parent._backward is not None and parent not in found:
                found.add(parent)
                stack.append(parent)
    return sorted((t for t in found if t._backward is not None), key=_number, reverse=True), awaited


def _number(tensor: Tensor) -> int:
    return tensor._number


def _report_written(parents: Sequence[Tensor], awaited: dict[Tensor, int]) -> None:
    """Count off one use of each awaited parent; call the hook of one that has no more to come."""
    for parent in parents:
        if parent in awaited:
            awaited[parent] -= 1
            if not awaited[parent]:
                parent.on_written(parent)


def _used_up(gradient: Any) -> None:
    raise UsageError(
        "backward() a second time through the same result: its history was used up by the first; "
        "compute the result again, or add the losses and go backward once"
    )


def is_recording() -> bool:
    """Return whether operations remember their history: true except under no_grad(). Local."""
    return _recording.get()


@contextmanager
def no_grad() -> Iterator[None]:
    """Within this context operations remember nothing: for evaluation. Local."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


def needs_gradient(*parents: Tensor) -> bool:
    """Return whether an operation on `parents` must keep what its backward needs. Local."""
    return _recording.get() and any(parent.requires_grad for parent in parents)


def record(data: Any, parents: Sequence[Tensor], backward: Backward, source: bool = False) -> Tensor:
    """Return `data` as the result of an operation on `parents` with its `backward` closure. Local.

    source: the operation itself brings in something trainable (the rows of a table), whatever its parents are.
    """
    result = Tensor(data)
    if _recording.get() and (source or any(parent.requires_grad for parent in parents)):
        result.requires_grad = True
        result._parents = tuple(parents)
        result._backward = backward
        result._number = next(_numbers)
    return result


def as_tensor(value: Any, like: Tensor) -> Tensor:
    """Return `value` as a tensor; a plain number takes the dtype and the array library of `like`. Local."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "dtype") and value.shape:
        return Tensor(value)
    return Tensor(namespace(like.data).asarray(value, like.dtype))
