"""Shard: the rows of one table that one owner holds, with their optimiser state and the gradients of the step."""

from __future__ import annotations

import numpy as np

from hybridmpi import kernels
from hybridmpi.errors import UsageError
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.spec import TableSpec

NO_ROWS = np.empty(0, np.int64)


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


class Staging:
    """Row gradients that arrived for one table in this step, from all clients, in one growing buffer. Local."""

    def __init__(self, dim: int, dtype: np.dtype) -> None:
        self.ids = np.empty(0, np.int64)
        self.values = np.empty((0, dim), dtype)
        self.used = 0
        self.pieces: list[tuple[int, int, int]] = []

    def add(self, client: int, ids: np.ndarray, values: np.ndarray, form: Form) -> None:
        """Copy a client's rows in, which have come in `form`."""
        start, stop = self.used, self.used + len(ids)
        if stop > len(self.ids):
            capacity = max(stop, 2 * len(self.ids))
            self.ids, old_ids = np.empty(capacity, np.int64), self.ids
            self.values, old_values = np.empty((capacity, values.shape[1]), self.values.dtype), self.values
            self.ids[:start], self.values[:start] = old_ids[:start], old_values[:start]
        self.ids[start:stop] = ids
        form.read(values, self.values[start:stop])
        self.pieces.append((client, start, stop))
        self.used = stop

    def in_rank_order(self, scale_of: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return (places, scale): all staged rows ordered by client, whatever order they arrived in, and what each
        client's rows are multiplied by (indexed by place)."""
        scale = np.empty(self.used, self.values.dtype)
        order = []
        for client, start, stop in sorted(self.pieces):
            scale[start:stop] = scale_of[client]
            order.append(np.arange(start, stop))
        places = np.concatenate(order) if order else np.empty(0, np.int64)
        return places, scale

    def clear(self) -> None:
        """Forget the step's rows; the buffer stays."""
        self.used = 0
        self.pieces.clear()


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
        # The aggregated gradient of the open step: rows, and as many of the sums, whose memory stays.
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
        places, scale = staging.in_rank_order(scale_of)
        ids = staging.ids[places]
        order = kernels.argsort_ids(ids, self.count)
        ordered = ids[order]
        self.accesses += np.diff(np.searchsorted(ordered, self._ends), prepend=0)
        firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self._rows = ordered[firsts]
        starts = np.append(firsts, len(ordered))
        if len(self._rows) > len(self._sums):
            self._sums = np.empty((2 * len(self._rows), self.spec.dim), self.spec.dtype)
        kernels.segment_sum(staging.values[: staging.used], places[order], starts, self._sums[: len(self._rows)], scale)
        staging.clear()
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
