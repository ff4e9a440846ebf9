"""Replica: a table that every compute rank holds whole, for tables whose gradient is better sent to everybody."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hybridmpi import kernels
from hybridmpi.sparse.rows import distinct_row_ids
from hybridmpi.sparse.shard import Shard
from hybridmpi.sparse.spec import TableSpec


class Replica:
    """A whole table on this compute rank, the store behind an Embedding. Local: a pull is a gather from memory.

    All ranks apply the same gradients in the same order, so their replicas have the same bits. A new one holds zeros:
    `shard.initialise` fills it, or rows that come from owners do.
    """

    def __init__(self, number: int, spec: TableSpec) -> None:
        self.number, self.spec = number, spec
        self.name, self.rows, self.dim, self.dtype = spec.name, spec.rows, spec.dim, spec.dtype
        memory = np.zeros(spec.rows * spec.row_bytes, np.uint8)
        self.shard = Shard(replace(spec, homes=None, clocks=False), 0, 1, memory)
        self.pull_seconds = 0.0

    def pull(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows `ids` (unique, sorted, else SparseIndexError) as [n, dim]."""
        ids = distinct_row_ids(ids, self.rows, self.name)
        started = time.perf_counter()
        rows = np.empty((len(ids), self.dim), self.dtype)
        kernels.gather(self.shard.values, ids, out=rows)
        self.pull_seconds += time.perf_counter() - started
        return rows
