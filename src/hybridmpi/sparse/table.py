"""Table: a sparse parameter as a compute rank sees it, the store behind an Embedding."""

from __future__ import annotations

import time

import numpy as np

from hybridmpi.sparse.client import Client
from hybridmpi.sparse.reader import RowReader
from hybridmpi.sparse.rows import distinct_row_ids
from hybridmpi.sparse.spec import TableSpec


class Table:
    """One table of a service: its shape, and its rows on request. Local; a pull waits for the owners."""

    def __init__(self, client: Client, number: int, spec: TableSpec, reader: RowReader | None = None) -> None:
        """`reader`: what reads rows within a step, by what this rank knows of them; it is at work only then."""
        self.client, self.number, self.reader = client, number, reader
        self.name, self.rows, self.dim, self.dtype = spec.name, spec.rows, spec.dim, spec.dtype
        self.pull_seconds = 0.0

    @property
    def spec(self) -> TableSpec:
        """What the table is, and where its rows lie at present."""
        return self.client.specs[self.number]

    def pull(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows `ids` (unique, sorted, else SparseIndexError) as [n, dim], as they are after this rank's last
        push; in a step no older than its reader's cache allows."""
        ids = distinct_row_ids(ids, self.rows, self.name)
        started = time.perf_counter()
        source = self.reader if self.reader is not None and self.reader.active else self.client
        rows = source.pull(self.number, ids)
        self.pull_seconds += time.perf_counter() - started
        if (recording := self.client.world.recording) is not None:
            about = {"step": recording.step, "table": self.name, "rows": len(ids), "bytes": rows.nbytes}
            recording.add("pull", started, time.perf_counter(), **about)
        return rows
