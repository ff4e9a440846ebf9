"""One pass over a batch of graphs: memory for all that its vertices compute, forward, and backward over the record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.fusing import table_address
from hybridmpi.dynamic.memory import Block, Pool, address_of, size_of
from hybridmpi.dynamic.nodes import EDGE, INPUT, VERTEX, Node
from hybridmpi.dynamic.phases import AFTER, BEFORE, ROUND
from hybridmpi.dynamic.places import Buffer
from hybridmpi.dynamic.program import Program
from hybridmpi.dynamic.report import Times
from hybridmpi.dynamic.schedule import Schedule
from hybridmpi.dynamic.sequence import Sequence
from hybridmpi.dynamic.steps import Ranges, Step
from hybridmpi.errors import UsageError


class Input:
    """Rows of an external input, and for each vertex which of them is its own: int64 [V], -1 for none."""

    def __init__(self, rows: Tensor, positions: Any) -> None:
        self.rows, self.positions = rows, positions
        self.gradient: Any = None


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
        self.arrays: dict[Buffer, Any] = {}
        self.indices: dict[tuple[Any, ...], Any] = {}
        self._table = np.zeros(max(len(program.table), 1), np.int64)
        self.address = table_address(self._table)
        self._inverse: dict[str, Any] = {}
        for name in program.pulls:
            self._find_rows(name)
        for key in program.indices:
            self.indices[key] = self._index(key)

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

    def nbytes(self, buffers: set[Buffer], dtype: np.dtype) -> int:
        """Return the bytes of the block that buffers need."""
        total = 0
        for buffer in buffers:
            if buffer.kind in ("own", "rows"):
                total += size_of(self.rows_in(buffer.space), buffer.width, dtype)
        return total

    def open(self, buffers: set[Buffer], block: Block) -> None:
        """Make arrays for buffers, and tell their addresses to the kernels."""
        for buffer in buffers:
            self.arrays[buffer] = self._array(buffer, block)
        for entry, number in self.program.table.items():
            array = self.arrays.get(entry) if isinstance(entry, Buffer) else self.indices[entry]
            if array is not None:
                self._table[number] = address_of(array)

    def _array(self, buffer: Buffer, block: Block) -> Any:
        run, kind = self._run, buffer.kind
        if kind == "own":
            return block.array(self.rows_in(buffer.space), buffer.width, run.dtype)
        if kind in ("state", "state gradient"):
            return run.shared[kind, buffer.key]
        if kind in ("own state", "own state gradient"):
            first, last = run.state.rows_of(buffer.key, self.number)
            return run.shared[kind.removeprefix("own "), buffer.key][first:last].reshape(-1, buffer.width)
        if kind == "matrix":
            return np.ascontiguousarray(buffer.key.data)
        if kind == "constant":
            return constant_of(buffer.key).reshape(1, buffer.width)
        if kind == "input":
            return run.inputs[buffer.key].rows.data
        if kind == "input gradient":
            return run.inputs[buffer.key].gradient
        if kind == "rows":
            rows, used = run.inputs[buffer.key].rows.data, self.indices["used", buffer.key]
            if len(used) == len(rows):
                return rows
            return kernels.gather(rows, used, block.array(len(used), buffer.width, run.dtype))
        return (run.outputs if kind == "output" else run.output_gradients)[buffer.key]

    def point(self, number: int, array: Any) -> None:
        """Write the address of an array into the table that kernels read."""
        self._table[number] = address_of(array)

    def matrix(self, parameter: Tensor, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k]."""
        return self._run.matrix(parameter, turned)


def constant_of(node: Node) -> Any:
    """Return the values of a node that depends on parameters alone. Local."""
    if node.name == "parameter":
        return np.ascontiguousarray(node.attributes[0].data)
    values = constant_of(node.inputs[0])
    if node.name == "reshape":
        return values.reshape(node.shape)
    return np.ascontiguousarray(np.broadcast_to(values, node.shape))


class State:
    """How many rows of state there are, by key: for each type those of all its vertices; and a last one of zeros."""

    def __init__(self, programs: Mapping[int, Program], schedule: Schedule) -> None:
        self.widths: dict[Any, int] = {}
        self.rows: dict[Any, int] = {}
        self._ends: dict[tuple[Any, int], tuple[int, int]] = {}
        for number, program in programs.items():
            vertices = schedule.offsets[number + 1] - schedule.offsets[number]
            for key, width in program.layout.widths.items():
                self.widths[key] = width
                first = self.rows.setdefault(key, 1) - 1
                last = first + vertices * program.layout.counts[key]
                self.rows[key] = last + 1
                self._ends[key, number] = first, last

    def rows_of(self, key: Any, number: int) -> tuple[int, int]:
        """Return the first and last + 1 row of a type. Local."""
        return self._ends[key, number]


class Run:
    """A pass. `forward` and then, at most once, `backward`; `close` gives its memory back.

    programs: for each type that occurs, by number. pushed: for each output the types that push it and its width.
    """

    def __init__(
        self,
        type_names: tuple[str, ...],
        programs: Mapping[int, Program],
        schedule: Schedule,
        inputs: Mapping[str, Input],
        dtype: np.dtype,
        pool: Pool,
        times: Times | None,
    ) -> None:
        self.type_names, self.schedule, self.inputs, self.dtype = type_names, schedule, inputs, dtype
        self.state = State(programs, schedule)
        self.shared: dict[tuple[str, Any], Any] = {}
        self.outputs: dict[str, Any] = {}
        self.output_vertices: dict[str, Any] = {}
        self.output_gradients: dict[str, Any] = {}
        self._pool, self._times = pool, times
        self._places: dict[str, Any] = {}
        self._matrices: dict[int, Any] = {}
        self._prepare_outputs(programs)
        self.works = {number: TypeWork(self, number, program) for number, program in programs.items()}
        self._turned: set[int] | None = None

    def _prepare_outputs(self, programs: Mapping[int, Program]) -> None:
        """Find where each row that is pushed goes: in the order of the vertices."""
        schedule, widths = self.schedule, {}
        for program in programs.values():
            widths |= program.pushes
        for name, width in widths.items():
            pushes = np.zeros(len(schedule.vertices), bool)
            for number, program in programs.items():
                if name in program.pushes:
                    pushes[schedule.offsets[number] : schedule.offsets[number + 1]] = True
            if pushes.all():
                self._places[name] = schedule.vertices
                self.output_vertices[name] = np.arange(len(pushes))
            else:
                of_vertex = np.empty_like(pushes)
                of_vertex[schedule.vertices] = pushes
                self._places[name] = (np.cumsum(of_vertex) - 1)[schedule.vertices]
                self.output_vertices[name] = np.flatnonzero(of_vertex)
            self.outputs[name] = np.empty((len(self.output_vertices[name]), width), self.dtype)

    def places_of_output(self, name: str, number: int) -> Any:
        """Return the row of an output for each vertex of a type."""
        return np.ascontiguousarray(
            self._places[name][self.schedule.offsets[number] : self.schedule.offsets[number + 1]]
        )

    def _worth_turning(self) -> set[int]:
        """Return the parameters [n, k] of which a transposed copy is made: where several products by BLAS of a few rows
        each would read them across. Measured, a product of 2 to 64 rows then takes twice to six times as long, and the
        copy as long as two such products lose."""
        counts: dict[int, int] = {}
        for number, work in self.works.items():
            batches = [batch for batch in self.schedule.batches if batch.type == number]
            for phase, steps in work.program.products.items():
                for step in steps:
                    if phase != ROUND:
                        sizes = [work.rows_in(step.space)]
                    elif step.space == EDGE:
                        sizes = [batch.last_child - batch.first_child for batch in batches]
                    else:
                        sizes = [batch.last - batch.first for batch in batches]
                    several = max(step.few, 1)
                    key = id(step.parameter)
                    counts[key] = counts.get(key, 0) + sum(size > several for size in sizes)
        return {key for key, count in counts.items() if count > 1}

    def matrix(self, parameter: Tensor, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k]."""
        if not turned:
            return parameter.data
        found = self._matrices.get(id(parameter))
        if found is None:
            if self._turned is None:
                self._turned = self._worth_turning()
            found = parameter.data.T
            if id(parameter) in self._turned:
                found = np.ascontiguousarray(found)
            self._matrices[id(parameter)] = found
        return found

    def refuse_pull(self, number: int, name: str, positions: Any) -> None:
        """Raise UsageError for a vertex that pulls a row there is none of."""
        place = int(np.argmax((positions < 0) | (positions >= len(self.inputs[name].rows))))
        vertex = int(self.schedule.vertices[self.schedule.offsets[number] + place])
        raise UsageError(
            f"vertex {vertex} of the batch, of type '{self.type_names[number]}', pulls '{name}', and its row is "
            f"{positions[place]}: expected 0 to {len(self.inputs[name].rows) - 1}"
        )

    def forward(self) -> None:
        """Compute what is pushed, into `outputs`."""
        self._block = self._open(0, "state")
        for key in self.state.widths:
            self.shared["state", key][-1] = 0  # what a child that is not there has scattered
        for work in self.works.values():
            work.open(work.program.buffers[0], self._block)
        self._go(self.schedule.batches, lambda program: program.forward)

    def backward(self, gradients: Mapping[str, Any]) -> None:
        """Give parameters and `inputs` their gradients, from those of the outputs."""
        self.output_gradients = dict(gradients)
        for given in self.inputs.values():
            given.gradient = np.zeros(given.rows.shape, self.dtype)
        self._more = self._open(1, "state gradient")
        for key in self.state.widths:
            self.shared["state gradient", key][...] = 0
        for work in self.works.values():
            work.open(work.program.buffers[1], self._more)
        self._go(self.schedule.batches[::-1], lambda program: program.backward)
        self._pool.give_back(self._more)
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._pool.give_back(self._block)
        self.works.clear()
        self.shared.clear()

    def _open(self, part: int, kind: str) -> Block:
        widths, rows = self.state.widths, self.state.rows
        nbytes = sum(size_of(rows[key], width, self.dtype) for key, width in widths.items())
        nbytes += sum(work.nbytes(work.program.buffers[part], self.dtype) for work in self.works.values())
        block = self._pool.take(nbytes)
        for key, width in widths.items():
            self.shared[kind, key] = block.array(rows[key], width, self.dtype)
        return block

    def _go(self, batches: Iterable[Any], steps_of: Any) -> None:
        """Do the steps before the rounds, those of each round, and those after them."""
        works = self.works
        for work in works.values():
            self._do(work, steps_of(work.program)[BEFORE], work.ranges)
        rounds = {number: steps_of(work.program)[ROUND] for number, work in works.items()}
        for number, first, last, first_edge, last_edge in batches:
            steps = rounds[number]
            if steps:
                self._do(works[number], steps, {VERTEX: (first, last), EDGE: (first_edge, last_edge)})
        for work in works.values():
            self._do(work, steps_of(work.program)[AFTER], work.ranges)

    def _do(self, work: TypeWork, steps: Iterable[Step], ranges: Ranges) -> None:
        if self._times is None:
            for step in steps:
                step.run(work, ranges)
            return
        for step in (part for step in steps for part in (step.steps if isinstance(step, Sequence) else [step])):
            started = time.perf_counter()
            step.run(work, ranges)
            first, last = ranges[step.space]
            self._times.add(self.type_names[work.number], step.label, last - first, time.perf_counter() - started)
