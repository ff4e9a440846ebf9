"""How an operation meets a value that is not there yet: it notes itself in a trace in place of computing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from hybridmpi.autograd.tensor import Tensor

Operation = TypeVar("Operation", bound=Callable[..., Tensor])


class Traced(Tensor):
    """A value of a function that is only being written down. Operations given one call `note` and return its result."""

    __slots__ = ()

    def note(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Write down the operation of that name with these arguments; return what stands for its result. Local."""
        raise NotImplementedError


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
