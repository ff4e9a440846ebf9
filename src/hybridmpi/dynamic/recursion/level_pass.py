"""Passes over lowered calls: by levels, like any graphs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor, is_recording
from hybridmpi.dynamic.adjoint import differentiate
from hybridmpi.dynamic.graph_pass import outputs_of
from hybridmpi.dynamic.layout import RowOfValue
from hybridmpi.dynamic.memory import Pool
from hybridmpi.dynamic.nodes import Node
from hybridmpi.dynamic.phases import Batching
from hybridmpi.dynamic.program import Program, parameters_of
from hybridmpi.dynamic.recursion.expansion import Context
from hybridmpi.dynamic.recursion.lowering import OUTPUTS, rows_name
from hybridmpi.dynamic.recursion.types import PieceType, RootRows
from hybridmpi.dynamic.rewrite import sink_slices
from hybridmpi.dynamic.run import Input, Run, State
from hybridmpi.dynamic.schedule import Schedule, Wanted
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs


class Programs:
    """The programs of a context's types, written when they are first used. by_row: see `PieceType.write_down`."""

    def __init__(self, context: Context, batching: Batching, by_row: bool) -> None:
        self._context, self._batching, self._by_row = context, batching, by_row
        self._found: dict[Any, Program] = {}
        self.lists: dict[str, list[Node]] = {}

    def of(self, kind: PieceType, dtype: np.dtype, recording: bool) -> Program:
        """Return the program of a type. Local."""
        key = (kind.number, dtype, recording)
        if key not in self._found:
            names = {(source, number): rows_name(self._context, source, number) for source, number, _ in kind.rows}
            widths = {names[source, number]: entry.width for source, number, entry in kind.rows}
            trace = kind.write_down(names, self._by_row)
            backward: list[Node] = differentiate(trace) if recording else []
            trace, backward = sink_slices(trace, backward)
            layout = RowOfValue(kind.counts)
            self.lists[kind.name] = trace.nodes
            self._found[key] = Program(trace, backward, layout, widths, dtype, self._batching, rows=self._by_row)
        return self._found[key]


class ValueSchedule(Schedule):
    """Rounds of lowered calls, whose slots are rows of values: see `layout.RowOfValue`."""

    def __init__(self, graphs: Graphs, kinds: Sequence[PieceType], programs: Mapping[int, Program]) -> None:
        nothing = Wanted(frozenset(), False)
        super().__init__(graphs, [programs[n].wanted if n in programs else nothing for n in range(len(kinds))])
        state = State(programs, self)
        self._kinds, self._outputs = kinds, graphs.data[OUTPUTS]
        self._firsts: dict[int, np.ndarray] = {}
        for width in state.widths:
            first = self._firsts[width] = np.zeros(graphs.vertices + 1, np.int64)
            for number, program in programs.items():
                count = program.layout.counts.get(width, 0)
                begin, end = self.offsets[number : number + 2]
                if count:
                    row, _ = state.rows_of(width, number)
                    first[begin:end] = row + count * np.arange(end - begin)

    def index(self, number: int, key: tuple[Any, ...]) -> np.ndarray:
        """Return the rows of values in a slot, for each vertex of a type. Local."""
        rows, slot = super().index(number, key), key[1]
        mine = self.vertices[self.offsets[number] : self.offsets[number + 1]]
        return self._firsts[self._kinds[number].references[slot].width][rows] + self._outputs[mine, slot]


class LevelPass:
    """Runs lowered calls of a context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.times: Any = None
        self._programs = Programs(context, Batching(), by_row=True)
        self._pool = Pool()

    def run(self, graphs: Graphs, given: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """Return what the calls push, by name: tensors, data, and the root of each row. Local.

        given: the tensors among the arguments of the roots, [roots, width].
        """
        kinds = self._kinds(graphs)
        occurring = np.flatnonzero(np.bincount(graphs.types, minlength=len(kinds))).tolist()
        inputs = self._inputs(graphs, [kinds[number] for number in occurring], given)
        dtype = self._dtype(inputs, [kinds[number] for number in occurring])
        started = time.perf_counter()
        programs = {number: self._programs.of(kinds[number], dtype, is_recording()) for number in occurring}
        schedule = ValueSchedule(graphs, kinds, programs)
        run = Run(graphs.type_names, programs, schedule, inputs, dtype, self._pool, self.times)
        if self.times is not None:
            self.times.schedule(schedule, time.perf_counter() - started)
        run.forward()
        tensors = outputs_of(run, inputs, parameters_of(programs.values()))
        for kind in kinds:
            for name, entry in kind.pushes:
                if name not in tensors:  # of types that do not occur in this batch
                    tensors[name] = Tensor(np.empty((0, entry.width), dtype))
        vertices = {name: run.output_vertices.get(name, np.empty(0, np.int64)) for name in tensors}
        owners = {name: np.searchsorted(graphs.starts, at, "right") - 1 for name, at in vertices.items()}
        return tensors, self._data(graphs, kinds), owners

    def _data(self, graphs: Graphs, kinds: Sequence[PieceType]) -> dict[str, np.ndarray]:
        """Return the numbers that were pushed, by name, those of one name in the order of the vertices."""
        data: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for kind in kinds for name in kind.labels):
            pushes = np.array([name in kind.labels for kind in kinds])
            column = graphs.data.get(name, np.zeros(graphs.vertices, np.int64))  # none of these vertices pushes it
            data[name] = column[pushes[graphs.types]]
        return data

    def lists(self) -> dict[str, list[Node]]:
        """Return the operation lists of all types, for reports. Local."""
        return self._programs.lists

    def _kinds(self, graphs: Graphs) -> list[PieceType]:
        kinds = self.context.types.all[: len(graphs.type_names)]
        if tuple(kind.name for kind in kinds) != graphs.type_names or OUTPUTS not in graphs.data:
            raise UsageError(f"{graphs!r} was not lowered by this function of this object: lower the data with it")
        slots = np.array([len(kind.references) for kind in kinds])
        if (np.diff(graphs.child_starts) != slots[graphs.types]).any():
            raise UsageError(f"{graphs!r} was lowered by an object that computes something else: lower the data again")
        return kinds

    def _inputs(self, graphs: Graphs, kinds: Sequence[PieceType], given: Sequence[Tensor]) -> dict[str, Input]:
        """Return the rows that vertices pull, each row of a table once."""
        by_source: dict[Any, dict[str, Any]] = {}
        for kind in kinds:
            for source, number, entry in kind.rows:
                name = rows_name(self.context, source, number)
                if isinstance(source, RootRows):
                    if source.number < len(given) and given[source.number].shape[1] != entry.width:
                        raise UsageError(
                            f"calls lowered with rows of {entry.width} as tensor {source.number}: given "
                            f"{given[source.number].shape}"
                        )
                    owners = np.repeat(np.arange(len(graphs)), graphs.sizes)
                    by_source.setdefault(source, {})[name] = owners
                elif name in graphs.data:
                    by_source.setdefault(source, {})[name] = graphs.data[name]
                else:
                    raise UsageError(f"{graphs!r} has no rows '{name}' of table {source!r}: lower the data again")
        inputs: dict[str, Input] = {}
        for source, columns in by_source.items():
            if isinstance(source, RootRows):
                if source.number >= len(given):
                    raise UsageError(f"calls lowered with {source.number + 1} tensors or more: {len(given)} given")
                rows = given[source.number]
                inputs |= {name: Input(rows, positions) for name, positions in columns.items()}
            else:
                rows, positions = source.rows_at(np.stack(list(columns.values())))
                inputs |= {name: Input(rows, own) for name, own in zip(columns, positions, strict=True)}
        return inputs

    def _dtype(self, inputs: Mapping[str, Input], kinds: Sequence[PieceType]) -> np.dtype:
        dtypes = {given.rows.dtype for given in inputs.values()}
        dtypes |= {dtype for kind in kinds for dtype in kind.dtypes}
        if not dtypes:  # without vertices
            dtypes = {dtype for kind in self.context.types.all for dtype in kind.dtypes}
        if len(dtypes) > 1:
            raise UsageError(f"a pass of inputs and parameters of dtypes {sorted(map(str, dtypes))}: expected one")
        return dtypes.pop() if dtypes else np.dtype(np.float32)
