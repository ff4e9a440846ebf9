"""What a pass whose calls wait for values keeps: memory that grows, batches in their order, and backward over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.autograd import Parameter, Tensor, is_recording
from hybridmpi.dynamic.phases import AFTER, ROUND
from hybridmpi.dynamic.program import Program
from hybridmpi.dynamic.recursion.arenas import LEAST_ROWS, Arena, Chunk
from hybridmpi.dynamic.recursion.expansion import Context
from hybridmpi.dynamic.recursion.lowering import rows_name
from hybridmpi.dynamic.recursion.types import PieceType, RootRows
from hybridmpi.dynamic.recursion.vertices import Location, Vertex
from hybridmpi.dynamic.work import Input
from hybridmpi.errors import UsageError

if TYPE_CHECKING:
    from hybridmpi.dynamic.recursion.queue_pass import QueuePass


class QueueRun:
    """The memory of a pass whose calls wait for values, and its batches in the order in which they ran."""

    def __init__(self, passes: QueuePass, given: Sequence[Tensor]) -> None:
        self._passes, self._recording = passes, is_recording()
        self.dtype = _dtype(passes.context, given)
        self.state: dict[int, Arena] = {}
        self.pushed: dict[str, Arena] = {}
        self.pushers: dict[str, list[int]] = {}
        self.sources: dict[int, Arena] = {}
        self.source_of: dict[str, int] = {}
        self.state_gradients: dict[int, Any] = {}
        self.source_gradients: dict[int, Any] = {}
        self.push_gradients: dict[str, Any] = {}
        self.inputs: dict[Any, Input] = {}
        self.outputs: dict[str, Any] = {}
        self.orders: dict[str, Any] = {}
        self.chunks: list[Chunk] = []
        self._pulled: dict[int, dict[int, int]] = {}
        self._current: dict[int, Chunk] = {}
        self._batches: list[tuple[Chunk, int, int]] = []
        self._matrices: dict[int, Any] = {}
        for number, tensor in enumerate(given):
            self._bring(passes.context.source(RootRows(number)), range(len(tensor)), tensor)

    def row(self, width: int, location: Location) -> int:
        """Return the row of state at a location. Local."""
        vertex, number = location
        chunk = vertex.chunk
        return chunk.first_rows[width] + vertex.row * chunk.program.layout.counts[width] + number

    def forward(self, kind: PieceType, vertices: list[Vertex]) -> None:
        """Run vertices of one type. Local."""
        program = self._passes.programs.of(kind, self.dtype, self._recording)
        first = 0
        while first < len(vertices):
            chunk = self._chunk(kind, program, len(vertices) - first)
            last = min(len(vertices), first + chunk.capacity - chunk.used)
            self._forward(chunk, kind, vertices[first:last])
            first = last

    def _forward(self, chunk: Chunk, kind: PieceType, vertices: list[Vertex]) -> None:
        first = chunk.used
        last = chunk.used = first + len(vertices)
        for row, vertex in enumerate(vertices, first):
            vertex.chunk, vertex.row = chunk, row
        for key, rows in chunk.indices.items():
            if key[0] == "slot":
                width, slot = kind.references[key[1]].width, key[1]
                rows[first:last] = [self.row(width, vertex.gathered[slot]) for vertex in vertices]
        for place, (source, number, entry) in enumerate(kind.rows):
            name = rows_name(self._passes.context, source, number)
            positions = self._look_up(source, name, entry.width, [vertex.rows[place] for vertex in vertices])
            if ("row", name) in chunk.indices:
                chunk.indices["row", name][first:last] = positions
        for name, entry in kind.pushes:
            if name not in self.pushed:
                self.pushed[name] = Arena(entry.width, self.dtype, self._size(("pushed", name)))
            begin = self.pushed[name].take(len(vertices))
            self.pushers.setdefault(name, []).extend([vertex.number for vertex in vertices])
            chunk.indices["output", name][first:last] = np.arange(begin, begin + len(vertices))
        chunk.open(0)
        ranges = chunk.ranges(first, last)
        for step in chunk.program.forward[ROUND]:
            step.run(chunk, ranges)
        self._batches.append((chunk, first, last))

    def _chunk(self, kind: PieceType, program: Program, count: int) -> Chunk:
        """Return a chunk with room for vertices of a type."""
        chunk = self._current.get(kind.number)
        if chunk is None or chunk.used == chunk.capacity:
            for width in program.layout.counts:
                if width not in self.state:
                    self.state[width] = Arena(width, self.dtype, self._size(("state", width)))
            if not kind.dtypes <= {self.dtype}:
                raise UsageError(
                    f"{kind.name}: rows and parameters of dtypes {sorted(map(str, kind.dtypes))} in a pass of "
                    f"{self.dtype}: expected one"
                )
            before = 0 if chunk is None else 2 * chunk.capacity
            chunk = Chunk(self, kind.number, program, max(count, before, self._size(("type", kind.number))))
            self._current[kind.number] = chunk
            self.chunks.append(chunk)
        return chunk

    def _look_up(self, source: Any, name: str, width: int, ids: list[int]) -> list[int]:
        """Return where rows of a source are in its arena; those that are not there yet are pulled."""
        number = self._passes.context.source(source)
        self.source_of[name] = number
        known = self._pulled.setdefault(number, {})
        new = sorted({row for row in ids if row not in known})
        if new:
            self._bring(number, new, source.rows_of(np.array(new)))
        return [known[row] for row in ids]

    def _bring(self, number: int, ids: Sequence[int], rows: Tensor) -> None:
        """Copy rows of a source to its arena."""
        if number not in self.sources:
            self.sources[number] = Arena(rows.shape[1], self.dtype, self._size(("source", number)))
        arena = self.sources[number]
        first = arena.take(len(ids))
        arena.rows[first : first + len(ids)] = rows.data
        self._pulled.setdefault(number, {}).update(zip(ids, range(first, first + len(ids)), strict=True))
        self.inputs[number, first] = Input(rows, None)

    def finish(self) -> None:
        """Compute what no other vertex waits for. Local."""
        for chunk in self.chunks:
            chunk.open(0)
            for step in chunk.program.forward[AFTER]:
                step.run(chunk, chunk.ranges(0, chunk.used))

    def backward(self, gradients: Mapping[str, Any]) -> None:
        """Give parameters and `inputs` their gradients, from those of the outputs. Local."""
        for name, arena in self.pushed.items():
            self.push_gradients[name] = np.empty((arena.used, arena.rows.shape[1]), self.dtype)
            self.push_gradients[name][self.orders[name]] = gradients[name]
        for width, arena in self.state.items():
            self.state_gradients[width] = np.zeros((arena.used, width), self.dtype)
        for number, arena in self.sources.items():
            self.source_gradients[number] = np.zeros((arena.used, arena.rows.shape[1]), self.dtype)
        for chunk in self.chunks:
            chunk.open(1)
        for chunk, first, last in reversed(self._batches):
            ranges = chunk.ranges(first, last)
            for step in chunk.program.backward[ROUND]:
                step.run(chunk, ranges)
        for chunk in self.chunks:
            for step in chunk.program.backward[AFTER]:
                step.run(chunk, chunk.ranges(0, chunk.used))
        for (number, first), given in self.inputs.items():
            given.gradient = self.source_gradients[number][first : first + len(given.rows)]
        self.close()

    def close(self) -> None:
        """Give the memory back. Local."""
        self.chunks.clear()  # they hold this
        self._current.clear()
        self._batches.clear()

    def moved(self) -> int:
        """Return a number that changes when arenas have moved. Local."""
        return sum(arena.grown + 1 for arenas in (self.state, self.pushed, self.sources) for arena in arenas.values())

    def matrix(self, parameter: Parameter, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k], copied: rows come few at a time."""
        if not turned:
            return parameter.data
        if id(parameter) not in self._matrices:
            self._matrices[id(parameter)] = np.ascontiguousarray(parameter.data.T)
        return self._matrices[id(parameter)]

    def sizes(self) -> dict[Any, int]:
        """Return how much of everything was used. Local."""
        sizes: dict[Any, int] = {("state", width): arena.used for width, arena in self.state.items()}
        sizes |= {("pushed", name): arena.used for name, arena in self.pushed.items()}
        sizes |= {("source", number): arena.used for number, arena in self.sources.items()}
        for chunk in self.chunks:
            sizes["type", chunk.number] = sizes.get(("type", chunk.number), 0) + chunk.used
        return sizes

    def _size(self, key: Any) -> int:
        """Return how many rows of something to begin with: a quarter more than the last pass used."""
        return self._passes.sizes.get(key, LEAST_ROWS) * 5 // 4


def _dtype(context: Context, given: Sequence[Tensor]) -> np.dtype:
    dtypes = {tensor.dtype for tensor in given}
    dtypes |= {dtype for kind in context.types.all for dtype in kind.dtypes}
    if len(dtypes) != 1:
        raise UsageError(f"calls with rows and parameters of dtypes {sorted(map(str, dtypes))}: expected one")
    return dtypes.pop()
