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
from typing import Any, NoReturn

import numpy as np

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.errors import UsageError

Backward = Callable[[Any], "Iterator[Tensor] | None"]

_recording: ContextVar[bool] = ContextVar("hybridmpi_recording", default=True)
_numbers = itertools.count()


class Tensor(inputs.HoldsArray):
    """An array of numbers, `data`, with the gradient of a scalar with respect to it, `grad`, if `requires_grad`. Local.

    data: numpy or cupy array of float32 or float64, used as it is (no copy); of all other real numbers one is made,
    float32 unless they are as wide as float64. In sets and as keys a tensor is itself; what asks for the numbers (`==`,
    `<`, `bool`, functions of numpy that are no operation here) is refused: they are in `data`. Raises UsageError for
    what is no array of real numbers or is masked.
    """

    __slots__ = ("__weakref__", "_backward", "_number", "_owns_grad", "_parents", "data", "grad", "requires_grad")

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        if type(data) is not np.ndarray or data.dtype.char not in "fd" or not data.dtype.isnative:
            data = _numbers_of(data)
        self.data = data
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
        if not self.data.shape:
            raise UsageError("len of a tensor of one number, which has no axis: expected one of a shape")
        return self.data.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        if self.size != 1:
            raise UsageError(f"a number of a tensor of shape {self.shape}: only one of a single element is a number")
        return float(self.data.item())

    def __int__(self) -> int:
        return int(float(self))

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        self._refuse("if, and, or, not: the numbers")

    def __contains__(self, value: Any) -> NoReturn:
        self._refuse("in: the numbers")

    def _compare(self, other: Any) -> NoReturn:
        self._refuse("a comparison: the numbers")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __array__(self, *arguments: Any, **options: Any) -> NoReturn:
        self._refuse("an array of numpy: the numbers")

    def __array_function__(self, function: Any, *arguments: Any) -> NoReturn:
        self._refuse(f"numpy.{function.__name__}: the numbers")

    def _refuse(self, what: str) -> NoReturn:
        _ = self.data  # where there is none yet, that is the error
        raise UsageError(
            f"{what} of a {type(self).__name__} of shape {self.shape} are asked for: they are in its `data`, through "
            "which no gradient flows (tensor.data == 0, numpy.sign(tensor.data)); whether two are the same one: `is`; "
            "what gradients flow through is in hybridmpi.autograd"
        )

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
        if gradient is None:
            gradient = xp.ones(self.shape, self.dtype)
        else:
            gradient = xp.asarray(inputs.floats(gradient, self.dtype, "the gradient given to backward()", self.shape))
        self.accumulate(gradient)
        results, awaited = _history(self)
        for result in results:
            closure, result._backward = result._backward, _used_up
            parents, result._parents = result._parents, ()
            gradient, result.grad = result.grad, None
            left = list(parents)
            if gradient is not None:
                for parent in closure(gradient) or ():
                    del left[next(place for place, other in enumerate(left) if other is parent)]
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


def as_tensor(value: Any, like: Tensor | None = None, what: str = "a tensor") -> Tensor:
    """Return `value`, which is data where it is no Tensor, as one; of the dtype and the array library of `like`, if
    that is given. Local. Raises UsageError, which begins with `what`; see `inputs`."""
    if isinstance(value, Tensor):
        return value
    if like is None:
        return Tensor(_numbers_of(value, what))
    return Tensor(namespace(like.data).asarray(inputs.floats(value, like.dtype, what)))


def _numbers_of(data: Any, what: str = "a Tensor") -> Any:
    """Return what a Tensor is made of as its array."""
    if isinstance(data, (np.float32, np.float64)):  # what numpy returns where no axis is left
        return data
    typed = hasattr(data, "dtype")
    data = inputs.real_array(data, what)
    wide = typed and data.dtype.kind == "f" and data.dtype.itemsize >= 8
    return inputs.floats(data, np.float64 if wide else np.float32, what)
