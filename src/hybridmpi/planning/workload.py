"""The workload: what a step of a model does to each parameter, as numbers that a model kind provides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hybridmpi.planning.access import Balance, balance, owner_access, shares
from hybridmpi.planning.alpha import Alpha
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.sparsity import Draws, expected_rows
from hybridmpi.sparse.partition import Kind, Partition


@dataclass(frozen=True)
class Dense:
    """A parameter whose gradient is dense. `slots`: arrays of optimiser state of its shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    slots: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the values."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Sparse:
    """A table of `rows` x `dim`. `draws`: the rows that a rank touches in a step; without any, only `alpha` tells."""

    name: str
    rows: int
    dim: int
    dtype: str = "float32"
    slots: int = 0
    draws: tuple[Draws, ...] = ()
    partition: Kind = "cyclic"
    homes: tuple[int, ...] | None = None  # the owner of each part; None: one part for each owner

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, dim)."""
        return (self.rows, self.dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return self.dim * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the values."""
        return self.rows * self.row_bytes

    def map(self, owners: int) -> Partition:
        """Return where the rows lie. Local."""
        if self.homes is None:
            return Partition.even(self.rows, owners, self.partition)
        return Partition(self.rows, owners, self.partition, self.homes)


@dataclass(frozen=True)
class Touched:
    """Distinct rows of one table in a step, means over steps.

    `rank`: a rank's; `nodes[n]`: those of node n's ranks together; `all`: of all ranks together; `at_owner[o]`: which
    share of a rank's lies at owner o, `all_at_owner[o]`: how many rows of `all`.
    """

    rank: float
    nodes: tuple[float, ...]
    all: float
    at_owner: tuple[float, ...]
    all_at_owner: tuple[float, ...]

    def alpha(self, rows: int) -> Alpha:
        """Return the fractions of a table's `rows`, the fullest node's for "node". Local."""
        rows = max(rows, 1)
        return Alpha(self.rank / rows, max(self.nodes) / rows, self.all / rows)

    @classmethod
    def expected(cls, table: Sparse, machine: Machine) -> Touched:
        """Return what the table's draws touch on average. Local."""
        partition = table.map(machine.owners)
        by_ranks = {n: expected_rows(table.draws, n) for n in {1, machine.ranks, *machine.compute}}
        return cls(
            by_ranks[1],
            tuple(by_ranks[n] for n in machine.compute),
            by_ranks[machine.ranks],
            shares(table.draws, partition),
            tuple(owner_access(table.draws, partition, machine.ranks).tolist()),
        )

    @classmethod
    def measured(cls, table: Sparse, alpha: Alpha, machine: Machine) -> Touched:
        """Return measured fractions of the table as rows, the owners touched evenly. Local."""
        even = 1 / machine.owners
        return cls(
            alpha.rank * table.rows,
            tuple((alpha.rank if n == 1 else alpha.node) * table.rows if n else 0.0 for n in machine.compute),
            alpha.all * table.rows,
            (even,) * machine.owners,
            (even * alpha.all * table.rows,) * machine.owners,
        )

    def moved_to(self, alpha: float, rows: int) -> Touched:
        """Return what would be touched if a rank's fraction were `alpha`, as far as this tells. Local.

        Several ranks together act as k independent ones with k the same at every alpha: 1 - (1 - rank)^k = all. It
        holds here and at 0 and 1, and lies between elsewhere.
        """
        now, ends = min(self.rank / rows, 1 - 1e-12), 1 - 1e-12

        def together(touched: float) -> float:
            if not now:
                return alpha
            k = np.log1p(-min(touched / rows, ends)) / np.log1p(-now)
            return -np.expm1(k * np.log1p(-min(alpha, ends)))

        everybody = together(self.all)
        factor = everybody * rows / self.all if self.all else 0.0
        return Touched(
            alpha * rows,
            tuple(together(n) * rows if n else 0.0 for n in self.nodes),
            everybody * rows,
            self.at_owner,
            tuple(n * factor for n in self.all_at_owner),
        )


@dataclass(frozen=True)
class Workload:
    """One step of a job: parameters, what is touched, and what computing takes.

    `compute_seconds`: forward and backward of one rank, alone on its core; `lag_seconds`: how much longer the slowest
    rank of a step takes than the mean of them. `hidden_seconds`: how much of backward goes on while sums of dense
    gradients can be under way. `clip`: whether the norm of the whole gradient is limited. `units` of `unit` ("words"):
    what a step gets done.
    """

    dense: tuple[Dense, ...]
    tables: tuple[Sparse, ...]
    touched: Mapping[str, Touched]
    compute_seconds: float
    lag_seconds: float = 0.0
    hidden_seconds: float = 0.0
    clip: bool = False
    units: float = 1.0
    unit: str = "steps"

    @property
    def parameters(self) -> tuple[Dense | Sparse, ...]:
        """All parameters, dense ones first."""
        return (*self.dense, *self.tables)

    def without(self, name: str) -> Workload:
        """Return the workload without a parameter. Local."""
        dense = tuple(p for p in self.dense if p.name != name)
        return replace(self, dense=dense, tables=tuple(t for t in self.tables if t.name != name))

    def with_touched(self, name: str, touched: Touched) -> Workload:
        """Return the workload with other numbers of rows touched in one table. Local."""
        return replace(self, touched={**self.touched, name: touched})


def table_balance(table: Sparse, touched: Touched, machine: Machine) -> Balance:
    """Return how evenly the owners of a table are loaded, by bytes and by rows touched in a step. Local."""
    return balance(table.map(machine.owners), np.array(touched.all_at_owner))
