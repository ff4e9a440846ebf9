"""The memory of one pass for the vertices of one type, and what steps find there."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.memory import Block, address_of, size_of
from hybridmpi.dynamic.nodes import CONSTANT, EDGE, INPUT, VERTEX
from hybridmpi.dynamic.places import Buffer
from hybridmpi.dynamic.program import Program

if TYPE_CHECKING:
    from hybridmpi.dynamic.run import Run


class Input:
    """Rows of an external input, and for each vertex which of them is its own: int64 [V], -1 for none."""

    def __init__(self, rows: Tensor, positions: Any) -> None:
        self.rows, self.positions = rows, positions
        self.gradient: Any = None


class _Arrays(dict[Buffer, Any]):
    """Arrays of buffers, made when they are asked for: kernels need addresses only."""

    def __init__(self, work: TypeWork) -> None:
        self._work = work

    def __missing__(self, buffer: Buffer) -> Any:
        found = self[buffer] = self._work.view(buffer)
        return found


class TypeWork:
    """The memory of one pass for one vertex type: see `steps.Work`."""

    def __init__(self, run: Run, number: int, program: Program) -> None:
        self.number, self.program, self._run = number, program, run
        schedule = run.schedule
        self.first_row, last = schedule.offsets[number : number + 2]
        first_edge, last_edge = schedule.edge_offsets[number : number + 2]
        self.ranges: dict[str, tuple[int, int]] = {
            VERTEX: (0, last - self.first_row),
            EDGE: (0, last_edge - first_edge),
        }
        self.arrays: dict[Buffer, Any] = _Arrays(self)
        self.indices: dict[tuple[Any, ...], Any] = {}
        self._table = array("q", bytes(8 * max(len(program.table), 1)))
        self.address = self._table.buffer_info()[0]
        self._blocks: dict[int, Block] = {}
        self._places: dict[Buffer, int] = {}
        self._inverse: dict[str, Any] = {}
        for name in program.pulls:
            self._find_rows(name)
        for key in program.indices:
            found = self.indices[key] = self._index(key)
            self._table[program.table[key]] = address_of(found)

    def _find_rows(self, name: str) -> None:
        """Find the rows of an input that the vertices of this type use, each once."""
        run = self._run
        given = run.inputs[name]
        positions = given.positions[run.schedule.vertices[self.first_row : self.first_row + self.ranges[VERTEX][1]]]
        count = len(given.rows)
        if len(positions) and not (positions.min() >= 0 and positions.max() < count):
            run.refuse_pull(self.number, name, positions)
        if self.program.rows:
            used, self._inverse[name] = kernels.unique_inverse(positions, count)
            self.indices["used", name] = used
            self.ranges[INPUT + name] = (0, len(used))
        else:
            self._inverse[name] = positions

    def _index(self, key: tuple[Any, ...]) -> Any:
        kind = key[0]
        if kind == "row":
            return self._inverse[key[1]]
        if kind == "edge row":
            return self._inverse[key[1]][self._run.schedule.index(self.number, ("parent",))]
        if kind == "used":
            return self.indices[key]
        if kind == "output":
            return self._run.places_of_output(key[1], self.number)
        return np.ascontiguousarray(self._run.schedule.index(self.number, key))

    def rows_in(self, space: str) -> int:
        """Return how many rows a space has here."""
        return self.ranges[space][1]

    def reserve(self, part: int) -> int:
        """Return the bytes that a part of the program needs of a block, and remember where in them each buffer lies."""
        places, end, itemsize = self._places, 0, self._run.dtype.itemsize
        for buffer, _ in self.program.own[part]:
            if buffer.kind == "own" or self._few_used(buffer.key):
                places[buffer] = end
                end += size_of(self.ranges[buffer.space][1] * buffer.width * itemsize)
        return end

    def open(self, part: int, block: Block, first: int) -> None:
        """Tell kernels where the buffers of a part are: own ones from byte `first` of a block on."""
        places, table, run, program = self._places, self._table, self._run, self.program
        self._blocks[part] = block
        for buffer, number in program.own[part]:
            if buffer in places:
                places[buffer] += first
                table[number] = block.address + places[buffer]
                if buffer.kind == "rows":
                    kernels.gather(
                        run.inputs[buffer.key].rows.data, self.indices["used", buffer.key], self.view(buffer)
                    )
            else:
                table[number] = run.address("input", buffer.key)
        for buffer, number in program.others[part]:
            kind, key = buffer.kind, buffer.key
            if kind in _OWN_STATE:
                address = run.address(kind.removeprefix("own "), key)
                table[number] = address + run.state.rows_of(key, self.number)[0] * run.row_bytes(key)
            elif buffer.space == CONSTANT:
                self.arrays[buffer], table[number] = program.constants.found(buffer)  # kept until backward is done
            else:
                table[number] = run.address(kind, key)

    def _few_used(self, name: str) -> bool:
        """Return whether not all rows of an input are used."""
        return self.ranges[INPUT + name][1] < len(self._run.inputs[name].rows)

    def view(self, buffer: Buffer) -> Any:
        """Return the array of a buffer."""
        run, kind = self._run, buffer.kind
        if buffer in self._places:
            block = self._blocks[self.program.part_of[buffer]]
            return block.view(self._places[buffer], self.ranges[buffer.space][1], buffer.width, run.dtype)
        if kind in _OWN_STATE:
            first, last = run.state.rows_of(buffer.key, self.number)
            return run.array(kind.removeprefix("own "), buffer.key)[first:last].reshape(-1, buffer.width)
        return run.array("input" if kind == "rows" else kind, buffer.key)

    def point(self, number: int, array: Any) -> None:
        """Write the address of an array into the table that kernels read."""
        self._table[number] = address_of(array)

    def matrix(self, parameter: Tensor, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k]."""
        return self._run.matrix(parameter, turned)


_OWN_STATE = ("own state", "own state gradient")
