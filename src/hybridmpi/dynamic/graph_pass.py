"""GraphPass: vertex functions over a batch of graphs, as one operation between tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.autograd import Parameter, Tensor, is_recording, record
from hybridmpi.autograd.tensor import as_tensor
from hybridmpi.dynamic.adjoint import differentiate
from hybridmpi.dynamic.layout import RowOfVertex
from hybridmpi.dynamic.memory import Pool
from hybridmpi.dynamic.nodes import Node, Trace
from hybridmpi.dynamic.phases import Batching
from hybridmpi.dynamic.program import Program, parameters_of
from hybridmpi.dynamic.report import Report, Times
from hybridmpi.dynamic.rewrite import sink_slices
from hybridmpi.dynamic.run import Run
from hybridmpi.dynamic.schedule import Schedule, Wanted
from hybridmpi.dynamic.serial import run_serially
from hybridmpi.dynamic.vertex import StateUnknownError, TracedVertex, VertexFunction
from hybridmpi.dynamic.work import Input
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs
from hybridmpi.nn import Module


class Outputs:
    """What a pass has pushed: a tensor [pushed, width] for each name, as an attribute, its rows in the order of the
    vertices; and `vertices`, by name, which these are, int64 [pushed]."""

    def __init__(self, tensors: Mapping[str, Tensor], vertices: Mapping[str, Any]) -> None:
        self.vertices = dict(vertices)
        self.__dict__.update(tensors)

    def __getattr__(self, name: str) -> Tensor:
        raise AttributeError(f"nothing was pushed as '{name}'; there is {', '.join(self.vertices) or 'nothing'}")


class GraphPass(Module):
    """Runs a vertex function for every vertex of a batch of graphs, children before parents.

    functions: for each type name of the graphs, the function of its vertices. They are written down once, batched by
    (round, type), and differentiated on their operation lists. state: the widths of what is scattered by name, only
    needed where every function gathers before it scatters (a chain whose first vertex gathers zeros).
    policy: "level", or "serial": one vertex after the other by ordinary operations, the oracle. batching: what "level"
    moves out of the rounds, to measure what it is worth.

    Calling it with graphs and inputs by name, each rows [n, width] or (rows, positions int64 [V]: each vertex' row, -1
    for none), returns `Outputs`. The results do not depend on the policy, to rounding.
    """

    def __init__(
        self,
        functions: Mapping[str, VertexFunction],
        state: Mapping[str, int] | None = None,
        policy: str = "level",
        batching: Batching = Batching(),  # noqa: B008 - frozen
    ) -> None:
        if not functions or not all(isinstance(function, VertexFunction) for function in functions.values()):
            raise UsageError(f"GraphPass of {functions!r}: expected a VertexFunction for each type name")
        if policy not in ("level", "serial"):
            raise UsageError(f"GraphPass: policy {policy!r}: expected 'level' or 'serial'")
        self.policy, self.batching = policy, batching
        self.functions = [functions[name] for name in sorted(functions)]
        self._names = sorted(functions)
        self._state = dict(state or {})
        self._plans: dict[Any, Plan] = {}
        self._pool = Pool()
        self._times: Times | None = None

    def forward(self, graphs: Graphs, **inputs: Tensor | tuple[Tensor, Any]) -> Outputs:
        """Return what the vertices push. Local. Raises UsageError for inputs or graphs that do not fit."""
        started = time.perf_counter()
        given = {name: _input(graphs, name, value) for name, value in inputs.items()}
        plan = self._plan(given)
        programs = {}
        for number, name in enumerate(graphs.type_names):
            if name in plan.programs:
                programs[number] = plan.programs[name]
            elif (graphs.types == number).any():
                raise UsageError(f"vertices of type '{name}': this pass has functions for {', '.join(self._names)}")
        if self.policy == "serial":
            return Outputs(*run_serially(graphs, self._by_name(), plan.widths, given, plan.dtype))
        nothing = Wanted(frozenset(), False)
        schedule = Schedule(
            graphs, [programs[n].wanted if n in programs else nothing for n in range(len(graphs.type_names))]
        )
        run = Run(graphs.type_names, programs, schedule, given, plan.dtype, self._pool, self._times)
        if self._times is not None:
            self._times.schedule(schedule, time.perf_counter() - started)
        run.forward()
        return Outputs(outputs_of(run, given, plan.parameters), run.output_vertices)

    def report(self, work: Callable[[], Any]) -> Report:
        """Return what passes within `work()` did: rounds, rows in each, time by operation. Local."""
        self._times = Times()
        started = time.perf_counter()
        try:
            work()
            lists = {
                name: program.trace.nodes for plan in self._plans.values() for name, program in plan.programs.items()
            }
            return Report(self._times, time.perf_counter() - started, lists)
        finally:
            self._times = None

    def _plan(self, inputs: Mapping[str, Input]) -> Plan:
        """Return the programs for inputs of these widths, of which some want gradients."""
        widths = {name: given.rows.shape[1] for name, given in inputs.items()}
        given = frozenset(rows.rows.dtype for rows in inputs.values())
        follow = frozenset(name for name, rows in inputs.items() if rows.rows.requires_grad)
        recording = is_recording()
        key = (tuple(widths.items()), given, follow, recording, self.training)
        if key not in self._plans:
            dtypes = given | {parameter.dtype for parameter in self.parameters()}
            if len(dtypes) != 1:
                raise UsageError(f"a pass of inputs and parameters of dtypes {sorted(map(str, dtypes))}: expected one")
            (dtype,) = dtypes
            self._plans[key] = Plan(self._by_name(), self._state, widths, follow, dtype, recording, self.batching)
        return self._plans[key]

    def _by_name(self) -> dict[str, VertexFunction]:
        return dict(zip(self._names, self.functions, strict=True))


class Plan:
    """The programs of a pass for inputs of certain widths, by type name; `widths` of what is scattered."""

    def __init__(
        self,
        functions: Mapping[str, VertexFunction],
        state: Mapping[str, int],
        inputs: Mapping[str, int],
        follow: frozenset[str],
        dtype: np.dtype,
        recording: bool,
        batching: Batching,
    ) -> None:
        """follow: the inputs that gradients flow to."""
        self.dtype, self.recording = dtype, recording
        self.widths = dict(state)
        # What is gathered wants a gradient if what some type scatters under that name does: nothing, to begin with.
        gathered: frozenset[str] = frozenset()
        while True:
            # As if gradients were wanted: without, a row computed from parameters would pass for a constant.
            traces = Context().run(self._write_down, functions, inputs, follow, gathered)
            found = frozenset().union(*(_names(trace, ("scatter",), following=True) for trace in traces.values()))
            if found == gathered:
                break
            gathered = found
        layout = RowOfVertex(self.widths)
        gathers = set().union(*(_names(trace, ("gather", "child")) for trace in traces.values()))
        self.programs: dict[str, Program] = {}
        for name, trace in traces.items():
            backward: list[Node] = differentiate(trace) if recording else []
            trace, backward = sink_slices(trace, backward)
            program = Program(trace, backward, layout, inputs, dtype, batching, rows=True)
            program.zeros = [layout.columns(what) for what in sorted(gathers - _names(trace, ("scatter",)))]
            self.programs[name] = program
        self.parameters = parameters_of(self.programs.values())

    def _write_down(
        self,
        functions: Mapping[str, VertexFunction],
        inputs: Mapping[str, int],
        follow: frozenset[str],
        gathered: frozenset[str],
    ) -> dict[str, Trace]:
        """Return the traces of all types, those first whose children are known. follow, gathered: the inputs, and the
        names of what is scattered, that gradients flow to."""
        traces: dict[str, Trace] = {}
        pushed: dict[str, int] = {}
        missing = dict(functions)
        while missing:
            unknown, before = {}, len(missing)
            for name, function in list(missing.items()):
                trace = Trace()
                vertex = TracedVertex(trace, name, self.widths, inputs, follow, gathered)
                try:
                    function.vertex(vertex)
                except StateUnknownError as error:
                    unknown[name] = str(error)
                    continue
                for what, width in vertex.scattered.items():
                    if self.widths.setdefault(what, width) != width:
                        raise UsageError(
                            f"type '{name}' scatters '{what}' of width {width}, others {self.widths[what]}: expected "
                            "one width for all types"
                        )
                for what, width in vertex.pushed.items():
                    if pushed.setdefault(what, width) != width:
                        raise UsageError(
                            f"type '{name}' pushes '{what}' of width {width}, others {pushed[what]}: expected one "
                            "width for all types"
                        )
                traces[name] = trace
                del missing[name]
            if len(missing) == before:
                told = ", ".join(f"type '{name}' gathers '{what}'" for name, what in unknown.items())
                raise UsageError(
                    f"{told}, whose width nothing tells: no function scatters it without gathering it first; give "
                    "GraphPass(..., state={name: width})"
                )
        return traces


def _names(trace: Trace, operations: tuple[str, ...], following: bool = False) -> set[str]:
    """Return the names of what is scattered, or gathered; if `following` only what a gradient flows to."""
    return {n.attributes[-1] for n in trace.nodes if n.name in operations and (n.follows or not following)}


def _input(graphs: Graphs, name: str, value: Any) -> Input:
    rows, positions = value if isinstance(value, tuple) else (value, None)
    rows = as_tensor(rows, None, f"input '{name}'")
    if len(rows.shape) != 2:
        raise UsageError(f"input '{name}' is {rows!r}: expected a tensor [rows, width], or (tensor, positions)")
    if positions is None:
        if len(rows) != graphs.vertices:
            raise UsageError(
                f"input '{name}' of {len(rows)} rows for {graphs.vertices} vertices: expected one for each, or (rows, "
                "positions)"
            )
        positions = np.arange(graphs.vertices)
    positions = inputs.integers(positions, f"input '{name}': position")
    if positions.shape != (graphs.vertices,):
        raise UsageError(
            f"positions {positions.shape} of input '{name}': expected ({graphs.vertices},), a row for each vertex"
        )
    return Input(rows, positions)


def outputs_of(run: Run, inputs: Mapping[Any, Input], parameters: list[Parameter]) -> dict[str, Tensor]:
    """Return the outputs of a run that has gone forward as tensors, which know its backward; the run is closed if no
    gradient can come from them. Local.

    All of them hang on one tensor without elements, made before them: so its turn in backward comes when all their
    gradients are there.
    """
    gradients: dict[str, Any] = {}
    tensors = [given.rows for given in inputs.values()]

    def backward(_: Any) -> Iterator[Tensor]:
        for name, rows in run.outputs.items():
            gradient = gradients.get(name)
            gradients[name] = np.zeros_like(rows) if gradient is None else np.ascontiguousarray(gradient, rows.dtype)
        run.backward(gradients)
        for given in inputs.values():
            if given.rows.requires_grad:
                given.rows.accumulate(given.gradient)
        return iter(())

    hub = record(np.zeros(0, run.dtype), (*tensors, *parameters), backward)
    if not hub.requires_grad:
        run.close()
        return {name: Tensor(rows) for name, rows in run.outputs.items()}

    def keep(name: str) -> Callable[[Any], None]:
        def deliver(gradient: Any) -> None:
            gradients[name] = gradient
            hub.accumulate(hub.data)

        return deliver

    return {name: record(rows, (hub,), keep(name)) for name, rows in run.outputs.items()}
