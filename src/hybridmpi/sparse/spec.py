"""TableSpec: all that a server must know to hold a table."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hybridmpi.arrays import trained_dtype
from hybridmpi.errors import UsageError
from hybridmpi.large_counts import LARGEST
from hybridmpi.sparse.partition import Kind, Partition


@dataclass(frozen=True)
class TableSpec:
    """A table of `rows` x `dim` values of `dtype`, its initial values, its partition, and how its rows are updated.

    `initial`: ("uniform", low, high), ("normal", mean, deviation) or ("constant", value); the value of a row depends on
    seed, table name and row only, never on the number of servers. ("made", function): a picklable function without
    arguments that returns the whole table. `reduction`: "mean" weights every rank's gradient by
    its examples, "sum" adds them. `optimizer`: a row optimiser of hybridmpi.optim. `homes`: the owner of each part of
    the partition; None: one part for each owner; (): no owner holds rows, every compute rank has a replica. `clocks`:
    owners note when each row last changed, so that clients can ask for what has changed (see conditional.py).
    """

    name: str
    rows: int
    dim: int
    dtype: np.dtype
    initial: tuple[Any, ...]
    reduction: Literal["mean", "sum"]
    partition: Kind
    optimizer: Any
    seed: int
    homes: tuple[int, ...] | None = None
    clocks: bool = False

    def __post_init__(self) -> None:
        if self.rows < 0 or self.dim < 1:
            raise UsageError(
                f"table '{self.name}': {self.rows} x {self.dim} is no shape: expected rows >= 0 and dim >= 1"
            )
        object.__setattr__(self, "dtype", trained_dtype(self.dtype, f"table '{self.name}'"))
        if self.row_bytes > LARGEST:
            raise UsageError(
                f"table '{self.name}': a row of {self.dim:,} x {self.dtype} is {self.row_bytes:,} bytes, and a message "
                f"holds whole rows, of up to {LARGEST:,} bytes: use more rows, for a parameter at servers a shape of "
                "two dimensions, or let it stay on every rank by modes = {name: 'allreduce'}"
            )

    def map(self, owners: int) -> Partition:
        """Return the partition map over `owners`. Local."""
        if self.homes is None:
            return Partition.even(self.rows, owners, self.partition)
        return Partition(self.rows, owners, self.partition, self.homes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return self.dim * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Bytes of one row's values and its optimiser state."""
        return self.row_bytes * (1 + len(self.optimizer.slots))

    def initial_seed(self) -> int:
        """Return the seed of this table's initial values: the common seed and the name, so tables differ. Local."""
        return (self.seed << 32) ^ zlib.crc32(self.name.encode())
