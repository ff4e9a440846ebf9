"""One call after the other by ordinary operations: slow, simple, and what the batched forms must equal."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.autograd.tracing import body as at_work
from hybridmpi.dynamic.recursion.frames import with_path
from hybridmpi.dynamic.recursion.outputs import Pushed
from hybridmpi.errors import UsageError


def values_of(row: Any) -> Any:
    """Return a row [width] as what `await` gives: a float, or the array. Local."""
    return float(row[0]) if len(row) == 1 else np.array(row)


class SerialBody:
    """A call that computes: see `autograd.tracing.Body`."""

    def __init__(self, run: SerialRun, path: str, root: int) -> None:
        self._run, self._path, self._root = run, path, root
        self._number = run.begun = run.begun + 1
        self._calls = 0

    def row(self, table: Any, number: Any) -> Tensor:
        """Return a row of a table."""
        distinct, positions = table.distinct(np.array([number]))
        return autograd.gather_rows(table.rows_of(distinct), positions)

    def push(self, rows: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """Keep what goes outside."""
        self._run.pushed.append((self._number, self._root, rows, data))

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Return the results of a call."""
        path = f"{self._path} > {function.name}[{self._calls}]"
        self._calls += 1
        return self._run.call(function, arguments, path, self._root)


class SerialRun:
    """Runs the calls of roots. Python's own limit of recursion holds."""

    def __init__(self) -> None:
        self.begun = 0
        self.pushed: list[tuple[int, int, Mapping[str, Tensor], Mapping[str, Any]]] = []

    def call(self, function: Any, arguments: Sequence[Any], path: str, root: int) -> Any:
        """Return the results of a call. Local."""
        token = at_work.set(SerialBody(self, path, root))
        try:
            result = function.run(arguments)
            return self._driven(result) if inspect.iscoroutine(result) else result
        except Exception as error:
            if getattr(error, "call_path_told", False):
                raise
            told = with_path(error, path)
            told.call_path_told = True  # type: ignore[attr-defined]
            if told is error:
                raise
            raise told from error
        finally:
            at_work.reset(token)

    def outputs(self, results: Sequence[Any]) -> Pushed:
        """Return what calls have pushed, and the results of roots, given those of each. Local."""
        tensors: dict[str, list[Tensor]] = {}
        data: dict[str, list[Any]] = {}
        roots: dict[str, list[int]] = {}
        for _, root, rows, labels in sorted(self.pushed, key=lambda push: push[0]):
            for name, tensor in rows.items():
                tensors.setdefault(name, []).append(tensor)
                roots.setdefault(name, []).append(root)
            for name, value in labels.items():
                data.setdefault(name, []).append(value)
        return Pushed(
            {name: autograd.concatenate(parts) for name, parts in tensors.items()},
            {name: np.array(values) for name, values in data.items()},
            {name: np.array(owners) for name, owners in roots.items()},
            _joined(results),
        )

    def _driven(self, coroutine: Any) -> Any:
        answer = None
        while True:
            try:
                awaited = coroutine.send(answer)
            except StopIteration as end:
                return end.value
            if not isinstance(awaited, Tensor):
                raise UsageError(f"awaits {awaited!r}: expected a tensor of this call")
            answer = values_of(awaited.data[0])


def _joined(results: Sequence[Any]) -> Any:
    """Return the results of roots with a row for each."""
    if results and type(results[0]) in (tuple, list):
        return type(results[0])([autograd.concatenate(parts) for parts in zip(*results, strict=True)])
    return autograd.concatenate(list(results)) if results and results[0] is not None else None
