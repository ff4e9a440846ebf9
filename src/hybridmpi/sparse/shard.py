"""Shard: the rows of one table that one owner holds, with their optimiser state and the gradients of the step."""

from __future__ import annotations

import numpy as np

from hybridmpi import kernels
from hybridmpi.errors import UsageError
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.staging import NO_ROWS, Staging


def initialise(values: np.ndarray, spec: TableSpec, first: int, stride: int) -> None:
    """Fill `values` [n, dim] with the initial values of global rows first + i * stride. Local.

    Counter-based: a row's values depend on the seed, the table's name and its number only.
    """
    kind, *arguments = spec.initial
    if kind == "constant":
        values.fill(*arguments)
    elif kind == "uniform":
        kernels.uniform_rows(values, first, stride, spec.initial_seed(), *arguments)
    elif kind == "normal":
        kernels.normal_rows(values, first, stride, spec.initial_seed(), *arguments)
    elif kind == "made":
        (make,) = arguments
        values[...] = make()[first::stride][: len(values)]
    else:
        raise UsageError(
            f"table '{spec.name}': initial values {spec.initial!r}: expected ('uniform', low, high), "
            "('normal', mean, deviation) or ('constant', value)"
        )


class Shard:
    """One owner's rows of a table: `values` [n, dim] (shared with its node), `state` (private), and the row update.

    New values are whatever `memory` holds: `initialise` fills them, or rows of other owners do."""

    def __init__(self, spec: TableSpec, owner: int, owners: int, memory: np.ndarray) -> None:
        """`memory`: the bytes that hold the values, at least n * dim * itemsize of them."""
        self.spec = spec
        partition = spec.map(owners)
        self.pieces, self.count = partition.pieces[owner], partition.count_of(owner)
        self.values = memory[: self.count * spec.row_bytes].view(spec.dtype).reshape(self.count, spec.dim)
        self.state: dict[str, np.ndarray] = spec.optimizer.new_state(self.values)
        self.staging = Staging(spec.dim, spec.dtype)
        # The step that last changed each row, where the table keeps count of that.
        self.clocks = np.zeros(self.count, np.int32) if spec.clocks else None
        # The aggregated gradient of the open step: the rows, and the sum of each.
        self._rows, self._sums = NO_ROWS, np.empty((0, spec.dim), spec.dtype)
        self._touched = 0
        # Rows that were pushed to each part, each rank's counted, since the shard is here or it was last asked.
        self.accesses = np.zeros(len(self.pieces), np.int64)
        self._ends = np.array([piece.start + piece.count for piece in self.pieces], np.int64)

    def initialise(self) -> None:
        """Fill the values with the initial values of their rows. Local."""
        for piece in self.pieces:
            initialise(self.values[piece.rows], self.spec, piece.first, piece.stride)

    def arrays(self) -> list[np.ndarray]:
        """Return all that belongs to the rows, values first, then each optimiser slot, [n, dim] each. Local."""
        return [self.values, *(self.state[slot] for slot in self.spec.optimizer.slots)]

    def aggregate(self, weights: dict[int, float], total: float | None = None) -> int:
        """Sum the staged rows in rank order, each touched row once; return how many there are. Local.

        `weights[client]`: the examples that its rows stand for, of `total` in this step (None: of them all); a mean
        weights by them, a sum does not.
        """
        staging = self.staging
        self.forget()  # what a step that was left out after its sums had aggregated
        if staging.used == 0:
            return 0
        if total is None:
            total = sum(weights.values())
        if self.spec.reduction == "sum":
            scale_of = dict.fromkeys(weights, 1.0)
        else:
            scale_of = {client: weight / total if total else 0.0 for client, weight in weights.items()}
        self._rows, self._sums, below = staging.sum(scale_of, self.count, self._ends)
        self.accesses += np.diff(below, prepend=0)
        return len(self._rows)

    @property
    def sums(self) -> np.ndarray:
        """The aggregated gradient of the touched rows, [n, dim]."""
        return self._sums[: len(self._rows)]

    def square_sum(self) -> float:
        """Return the sum of the squares of the aggregated gradient, in float64. Local."""
        return kernels.square_sum(self.sums)

    def count_touched(self, rows: int) -> None:
        """Take note of rows that were updated elsewhere than in `update`. Local."""
        self._touched += rows

    def take_touched(self) -> int:
        """Return how many rows were updated, added over the steps since the last call. Local."""
        touched, self._touched = self._touched, 0
        return touched

    def update(self, step: int, scale: float = 1.0) -> None:
        """Update every aggregated row once, by its sum times `scale`; `step` counts from 1. Local."""
        if len(self._rows) == 0:
            return
        self._touched += len(self._rows)
        sums = self.sums
        if scale != 1.0:
            sums *= sums.dtype.type(scale)
        self.spec.optimizer.update_rows(self.values, self.state, self._rows, sums, step)
        if self.clocks is not None:
            self.clocks[self._rows] = step
        self.forget()

    def forget(self) -> None:
        """Drop what was aggregated. Local."""
        self._rows = NO_ROWS

    def replaced(self, step: int) -> None:
        """Note that as of `step` all rows are others than before, whatever anybody has kept of them. Local."""
        if self.clocks is not None:
            self.clocks.fill(step)
