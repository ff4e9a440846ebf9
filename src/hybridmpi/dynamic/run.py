"""One pass over a batch of graphs: memory for all that its vertices compute, forward, and backward over the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic import fusing
from hybridmpi.dynamic.memory import Block, Pool, address_of, size_of
from hybridmpi.dynamic.nodes import EDGE, VERTEX
from hybridmpi.dynamic.phases import AFTER, BEFORE, ROUND
from hybridmpi.dynamic.program import Program, Steps
from hybridmpi.dynamic.report import Times
from hybridmpi.dynamic.schedule import Schedule
from hybridmpi.dynamic.sequence import Joined, plan_of
from hybridmpi.dynamic.steps import Ranges, Step
from hybridmpi.dynamic.work import Input, TypeWork
from hybridmpi.errors import UsageError


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
        self._arrays: dict[tuple[str, Any], Any] = {}
        self._addresses: dict[tuple[str, Any], int] = {}
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

    def array(self, kind: str, key: Any) -> Any:
        """Return an array that all types use: kind "state", "input" or "output", or the gradient of one."""
        found = self._arrays.get((kind, key))
        if found is None:
            found = self._arrays[kind, key] = self._array(kind, key)
        return found

    def _array(self, kind: str, key: Any) -> Any:
        if kind == "input":
            return np.ascontiguousarray(self.inputs[key].rows.data)
        if kind == "input gradient":
            return self.inputs[key].gradient
        if kind == "output":
            return self.outputs[key]
        return self.output_gradients[key]

    def address(self, kind: str, key: Any) -> int:
        """Return where an array lies that all types use."""
        found = self._addresses.get((kind, key))
        if found is None:
            found = self._addresses[kind, key] = address_of(self.array(kind, key))
        return found

    def row_bytes(self, key: Any) -> int:
        """Return the bytes of a row of state."""
        return self.state.widths[key] * self.dtype.itemsize

    def forward(self) -> None:
        """Compute what is pushed, into `outputs`."""
        self._block = self._open(0, "state")
        for key in self.state.widths:
            self.array("state", key)[-1] = 0  # what a child that is not there has scattered
        for number, work in self.works.items():
            for columns in work.program.zeros:
                first, last = self.state.rows_of(None, number)
                self.array("state", None)[first:last, columns] = 0
        self._go(1, lambda program: program.forward)

    def backward(self, gradients: Mapping[str, Any]) -> None:
        """Give parameters and `inputs` their gradients, from those of the outputs."""
        self.output_gradients = dict(gradients)
        for given in self.inputs.values():
            if given.rows.requires_grad:
                given.gradient = np.zeros(given.rows.shape, self.dtype)
        self._more = self._open(1, "state gradient")
        for number, work in self.works.items():
            for key, width, columns in work.program.inflows:
                first, last = self.state.rows_of(key, number)
                self.array("state gradient", key)[first:last].reshape(-1, width)[:, columns] = 0
        self._go(-1, lambda program: program.backward)
        self._pool.give_back(self._more)
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._pool.give_back(self._block)
        self.works.clear()
        self._arrays.clear()

    def _open(self, part: int, kind: str) -> Block:
        """Return a block in which all that forward (part 0) or backward (1) needs has its place."""
        rows = self.state.rows
        sizes = {key: size_of(rows[key] * self.row_bytes(key)) for key in rows}
        own = {number: work.reserve(part) for number, work in self.works.items()}
        block = self._pool.take(sum(sizes.values()) + sum(own.values()))
        for key, nbytes in sizes.items():
            first = block.take(nbytes)
            self._arrays[kind, key] = block.view(first, rows[key], self.state.widths[key], self.dtype)
            self._addresses[kind, key] = block.address + first
        for number, work in self.works.items():
            work.open(part, block, block.take(own[number]))
        return block

    def _go(self, direction: int, steps_of: Callable[[Program], Steps]) -> None:
        """Do the steps before the rounds, those of each round, upwards (1) or downwards (-1), and those after them."""
        works = self.works
        for work in works.values():
            self._do(work, steps_of(work.program)[BEFORE], work.ranges)
        rounds = {number: steps_of(work.program)[ROUND] for number, work in works.items()}
        if any(rounds.values()):
            self._go_through(direction, rounds)
        for work in works.values():
            self._do(work, steps_of(work.program)[AFTER], work.ranges)

    def _go_through(self, direction: int, rounds: Mapping[int, Sequence[Step]]) -> None:
        """Do the rounds: those of few rows without coming back to Python in between."""
        table = self.schedule.table
        at, stop = (0, len(table)) if direction > 0 else (len(table) - 1, -1)
        plans = np.zeros((len(self.type_names), 5), np.int64)
        for number, steps in rounds.items():
            plans[number] = plan_of(steps, self.works[number])
        call, batches, plans_address = fusing.rounds(), address_of(table), address_of(plans)
        while at != stop:
            if self._times is None:
                at = call(batches, at, stop, direction, plans_address)
                if at == stop:
                    return
            number, first, last, first_edge, last_edge = table[at].tolist()
            self._do(self.works[number], rounds[number], {VERTEX: (first, last), EDGE: (first_edge, last_edge)})
            at += direction

    def _do(self, work: TypeWork, steps: Iterable[Step], ranges: Ranges) -> None:
        if self._times is None:
            for step in steps:
                step.run(work, ranges)
            return
        for step in chain.from_iterable(step.steps if isinstance(step, Joined) else (step,) for step in steps):
            started = time.perf_counter()
            step.run(work, ranges)
            first, last = ranges[step.space]
            self._times.add(self.type_names[work.number], step.label, last - first, time.perf_counter() - started)
