"""Embedding: a table, that is, a parameter of which each step needs and changes only some rows."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from hybridmpi import kernels
from hybridmpi.arrays import namespace, trained_dtype
from hybridmpi.autograd import Tensor, gather_rows, is_recording, pulled_rows
from hybridmpi.autograd.initial import Initial, check_initial
from hybridmpi.autograd.tracing import body
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, Natural, checks_arguments
from hybridmpi.inputs import integers
from hybridmpi.nn.module import Module
from hybridmpi.sparse.rows import SparseRows, distinct_row_ids, row_ids


class Store(Protocol):
    """What serves the rows of one table."""

    rows: int
    dim: int
    dtype: np.dtype
    name: str

    def pull(self, ids: np.ndarray) -> Any:
        """Return the rows of sorted, distinct int64 ids [u] as [u, dim], valid until the end of the step."""


class Embedding(Module):
    """A table of `rows` x `dim`, of which each step needs and changes only some rows.

    It holds no values: `store`, which the Trainer attaches, serves the rows that a step asks for, and `take_gradient`
    says what the step's backward wants of them.

    init: what the store draws the rows from: ("uniform", low, high), ("normal", mean, deviation), ("constant", value).
    reduction: how the ranks' gradients combine: "mean" or "sum".
    """

    is_table = True

    @checks_arguments
    def __init__(
        self,
        rows: Natural,
        dim: Count,
        init: Initial = ("uniform", -0.1, 0.1),
        reduction: Literal["mean", "sum"] = "mean",
        dtype: Any = np.float32,
    ) -> None:
        check_initial(init, f"an Embedding of {rows} x {dim}")
        self.rows, self.dim, self.init, self.reduction = rows, dim, init, reduction
        self.dtype = trained_dtype(dtype, f"an Embedding of {rows} x {dim}")
        self.store: Store | None = None
        self.custody = ""  # whether a Trainer has it, or has trained it: see training/custody.py
        self._gradients: list[tuple[Any, Any]] = []

    def forward(self, ids: Any) -> Tensor:
        """Return the rows of `ids`, integers of any shape: a tensor [*ids.shape, dim]. Local; pulls from the store.

        In a recursive function `ids` is one number, and the result [1, dim]. Raises SparseIndexError for an id outside
        [0, rows), UsageError without a store.
        """
        at_work = body.get()
        if at_work is not None:
            return at_work.row(self, ids)
        distinct, positions = self.distinct(ids)
        return gather_rows(self.rows_of(distinct), positions)

    def distinct(self, ids: Any) -> tuple[Any, Any]:
        """Return the distinct ids, sorted int64 [u], and where each of `ids` is among them, int64 of their shape.
        Local.

        Raises SparseIndexError for an id outside [0, rows).
        """
        ids = self.check(ids)
        distinct, positions = kernels.unique_inverse(ids.reshape(-1), self.rows)
        return distinct, positions.reshape(ids.shape)

    def check(self, ids: Any) -> Any:
        """Return `ids` as an int64 array of its own. Local. Raises SparseIndexError for one outside [0, rows)."""
        return row_ids(ids, self.rows, self._attached().name)

    def rows_of(self, distinct: Any) -> Tensor:
        """Return the rows of sorted, distinct int64 ids [u] as a tensor [u, dim]. Local; pulls from the store.

        For operations that index by themselves. Raises SparseIndexError for ids that are not so: `distinct` makes them.
        """
        store = self._attached()
        distinct = distinct_row_ids(distinct, self.rows, store.name)
        values = store.pull(distinct)
        if not is_recording():
            return Tensor(values)
        gradients = self._gradients
        return pulled_rows(values, lambda gradient: gradients.append((distinct, gradient)))

    def rows_at(self, ids: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Return the rows of the different ids, of integers of any shape, [u, dim], and where each of `ids` is among
        them, int64 of ids.shape; -1 where an id is below 0, which means none. Local; pulls from the store.

        Raises SparseIndexError for an id that is no row.
        """
        ids = integers(ids, f"table '{self._attached().name}': id")
        shown = ids >= 0
        distinct, places = self.distinct(ids[shown])
        positions = np.full(ids.shape, -1)
        positions[shown] = places
        return self.rows_of(distinct), positions

    def take_gradient(self) -> SparseRows:
        """Return the gradient of all rows pulled since the last call, each id once, and forget it. Local; once a step.

        No rows [0, dim] if backward reached none. The values may be memory that a tensor shares: do not write to them.
        """
        gradients = self._gradients[:]
        self._gradients.clear()
        if not gradients:
            return SparseRows.empty(self.rows, self.dim, self.dtype)
        if len(gradients) == 1:
            return SparseRows(*gradients[0], self.rows)
        xp = namespace(gradients[0][1])
        ids, values = (xp.concatenate(parts) for parts in zip(*gradients, strict=True))
        return SparseRows(*kernels.aggregate(ids, values, self.rows), self.rows)

    def _attached(self) -> Store:
        if self.store is None:
            raise UsageError(
                f"an Embedding of {self.rows} x {self.dim} is used without a store: tables have values from the making "
                "of a Trainer (hybridmpi.Trainer(world, model, ...)) that finds them in the model's attributes, or in "
                "lists, tuples and dicts there, until it is closed; or set embedding.store"
            )
        return self.store
