"""Memory that grows while a pass runs: nobody knows before how many calls there will be."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.dynamic.fusing import table_address
from hybridmpi.dynamic.memory import address_of
from hybridmpi.dynamic.nodes import CONSTANT, EDGE, VERTEX
from hybridmpi.dynamic.places import Buffer
from hybridmpi.dynamic.program import Program

LEAST_ROWS = 64


class Arena:
    """Rows of one width, of which `used` are taken. `rows` are other memory after it has grown: `grown` counts that."""

    def __init__(self, width: int, dtype: np.dtype, capacity: int) -> None:
        self.rows = np.empty((max(capacity, LEAST_ROWS), width), dtype)
        self.used, self.grown = 0, 0

    def take(self, count: int) -> int:
        """Return the first of so many more rows. Local."""
        first, self.used = self.used, self.used + count
        if self.used > len(self.rows):
            rows = np.empty((max(self.used, 2 * len(self.rows)), self.rows.shape[1]), self.rows.dtype)
            rows[:first] = self.rows[:first]
            self.rows = rows
            self.grown += 1
        return first


class Chunk:
    """Memory for so many vertices of the type of that number, `used` of them taken: see `steps.Work`."""

    def __init__(self, run: Any, number: int, program: Program, capacity: int) -> None:
        self.number, self.program, self.capacity, self.used, self._run = number, program, capacity, 0, run
        self.first_rows = {
            width: run.state[width].take(count * capacity) for width, count in program.layout.counts.items()
        }
        self.indices: dict[tuple[Any, ...], Any] = {key: np.empty(capacity, np.int64) for key in program.indices}
        self.arrays: dict[Buffer, Any] = {}
        self._table = np.zeros(max(len(program.table), 1), np.int64)
        self.address = table_address(self._table)
        for key, rows in self.indices.items():
            self.point(program.table[key], rows)
        self._seen: Any = None

    def open(self, part: int) -> None:
        """Make arrays for the buffers of forward (0) or backward (1), unless nothing has moved since. Local."""
        moved = (part, self._run.moved())
        if moved == self._seen:
            return
        self._seen = moved
        for own, others in list(zip(self.program.own, self.program.others, strict=True))[: part + 1]:
            for buffer, number in (*own, *others):
                if buffer.kind != "own" or buffer not in self.arrays:
                    array = self.arrays[buffer] = self._array(buffer)
                    self.point(number, array)

    def point(self, number: int, array: Any) -> None:
        """Write the address of an array into the table that kernels read. Local."""
        self._table[number] = address_of(array)

    def _array(self, buffer: Buffer) -> Any:
        run, kind, key = self._run, buffer.kind, buffer.key
        if kind == "own":
            return np.empty((self.capacity, buffer.width), run.dtype)
        if buffer.space == CONSTANT:
            return self.program.constants.array(buffer)
        if kind in ("state", "own state"):
            rows = run.state[key].rows
        elif kind in ("state gradient", "own state gradient"):
            rows = run.state_gradients[key]
        elif kind == "input":
            return run.sources[run.source_of[key]].rows
        elif kind == "input gradient":
            return run.source_gradients[run.source_of[key]]
        elif kind == "output":
            return run.pushed[key].rows
        else:
            return run.push_gradients[key]
        if not kind.startswith("own"):
            return rows
        first = self.first_rows[key]
        return rows[first : first + self.capacity * self.program.layout.counts[key]].reshape(-1, buffer.width)

    def matrix(self, parameter: Any, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k]."""
        return self._run.matrix(parameter, turned)

    def ranges(self, first: int, last: int) -> dict[str, tuple[int, int]]:
        """Return the rows at work, by space. Local."""
        return {VERTEX: (first, last), EDGE: (0, 0)}
