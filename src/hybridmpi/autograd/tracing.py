"""How an operation meets a value that is not there yet: it notes itself in a trace in place of computing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from hybridmpi.autograd.tensor import Tensor

Operation = TypeVar("Operation", bound=Callable[..., Tensor])


class Traced(Tensor):
    """A value of a function that is only being written down. Operations given one call `note` and return its result."""

    __slots__ = ()

    def note(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Write down the operation of that name with these arguments; return what stands for its result. Local."""
        raise NotImplementedError

    def note_module(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Write down what a module does with these arguments; return what stands for its result. Local."""
        return module.forward(*arguments, **options)


def traceable(operation: Operation) -> Operation:
    """Let an operation of tensors also take `Traced` ones, alone or in a list or tuple that is its first argument."""
    name = operation.__name__

    @functools.wraps(operation)
    def traced(*arguments: Any, **options: Any) -> Any:
        first = arguments[0] if arguments else None
        for argument in first if type(first) in (list, tuple) else arguments:
            if isinstance(argument, Traced):
                return argument.note(name, arguments, options)
        return operation(*arguments, **options)

    return traced


class Body(Protocol):
    """A call of a recursive function that is at work: what layers and functions used in it turn to."""

    def row(self, table: Any, number: int) -> Tensor:
        """Return a row of a table, [1, dim]."""

    def push(self, rows: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Give rows to the outside."""

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Call a recursive function; return what stands for its results."""


body: ContextVar[Body | None] = ContextVar("hybridmpi_body", default=None)
"""The call at work in this thread; None outside of recursive functions."""
