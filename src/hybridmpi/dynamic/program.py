"""A program: the operation list of a vertex type, forward and backward, as steps over rows in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybridmpi.autograd import Parameter
from hybridmpi.dynamic import fusing
from hybridmpi.dynamic.constants import Constants
from hybridmpi.dynamic.layout import Layout
from hybridmpi.dynamic.nodes import CONSTANT, EDGE, ELEMENTWISE, INPUT, SINKS, VERTEX, Node, Trace
from hybridmpi.dynamic.phases import AFTER, BEFORE, ROUND, Batching, phases_of
from hybridmpi.dynamic.places import Buffer, Place, Places
from hybridmpi.dynamic.products import ParameterProduct, ParameterSum, Product
from hybridmpi.dynamic.schedule import Wanted
from hybridmpi.dynamic.sequence import joined
from hybridmpi.dynamic.steps import Clear, Kernel, Operations, RowFunction, Step
from hybridmpi.errors import UsageError

Steps = dict[str, list[Step]]

# Nodes that are read where they are, or assembled by what is computed into them.
_VIEWS = frozenset(
    ("gather", "child", "inflow", "pushed_gradient", "pull", "parameter", "number", "slice", "reshape", "expand")
    + ("concatenate",)
)

# What uses a node by having it written, or added, where it belongs.
_STORED = frozenset(("scatter", "push", "outflow", "pull_gradient", "total", "collect", "concatenate"))


class Program:
    """What the vertices of one type do: `forward` and `backward`, the steps of each phase.

    own, others: what must be there before forward runs and, of backward's own, before backward: buffers with memory of
    the type's own, and such as others have made, each with its number. indices: the arrays of row numbers that are
    used. table: buffers and indices by the number that kernels know them by. constants: parameters as they are used.
    parameters: those that get a gradient, in the order in which backward is done with them. zeros: columns of state
    that others gather and these vertices do not scatter. inflows: where parents add gradients: (key of the layout,
    width of all of a vertex' rows, columns of them).
    """

    def __init__(
        self,
        trace: Trace,
        backward: Sequence[Node],
        layout: Layout,
        inputs: Mapping[str, int],
        dtype: np.dtype,
        batching: Batching,
        rows: bool,
    ) -> None:
        self.trace, self.dtype, self.batching, self.rows = trace, dtype, batching, rows
        _check_dtypes(trace, dtype)
        self.table: dict[Any, int] = {}
        self.constants = Constants()
        self.indices: set[tuple[str, ...]] = set()
        self.layout = layout
        self._places = Places(layout, inputs)
        used = _used(trace.nodes)
        forward = [node for node in trace.nodes[: len(trace.nodes) - len(backward)] if node in used]
        backward = [node for node in backward if node in used]
        self._users: dict[Node, list[Node]] = {}
        for node in (*forward, *backward):
            for operand in node.inputs:
                self._users.setdefault(operand, []).append(node)
        self._phases = phases_of(forward, frozenset(("gather", "child")), frozenset(("scatter",)), BEFORE, batching)
        self._phases |= phases_of(backward, frozenset(("inflow",)), frozenset(("outflow",)), AFTER, batching)
        # In order: all ranks, and all runs, are to lay their memory out alike.
        buffers: tuple[dict[Buffer, int], dict[Buffer, int]] = ({}, {})
        self.forward = self._steps(forward, buffers[0])
        self.backward = self._steps(backward, buffers[1])
        self.own: list[list[tuple[Buffer, int]]] = [[], []]
        self.others: list[list[tuple[Buffer, int]]] = [[], []]
        self.part_of: dict[Buffer, int] = {}
        for part, used_then in enumerate(buffers):
            for buffer, number in used_then.items():
                if self.part_of.setdefault(buffer, part) == part:
                    (self.own if buffer.kind in ("own", "rows") else self.others)[part].append((buffer, number))
        slots = frozenset(node.attributes[0] for node in forward if node.name == "gather")
        self.wanted = Wanted(slots, any(node.space == EDGE for node in forward))
        self.pulls = {node.attributes[0] for node in forward if node.name == "pull"}
        self.zeros: list[slice] = []
        self.inflows = _joined_columns(layout.own(n.attributes[0]) + (n.width,) for n in backward if n.name == "inflow")
        self.pushes = {node.attributes[0]: node.width for node in forward if node.name == "push"}
        self.products = {
            phase: [
                step
                for steps in (self.forward, self.backward)
                for step in steps[phase]
                if isinstance(step, Product) and step.turned
            ]
            for phase in (BEFORE, ROUND, AFTER)
        }
        self.parameters = self._parameters()
        for steps in (self.forward, self.backward):
            for phase in steps:
                steps[phase] = joined(steps[phase])

    def _parameters(self) -> list[Any]:
        """Return the parameters that backward gives a gradient, those that it is done with first before the others."""
        found: dict[int, Any] = {}
        for phase in (BEFORE, ROUND, AFTER):
            for step in self.backward[phase]:
                if isinstance(step, (ParameterProduct, ParameterSum)):
                    found.pop(id(step.parameter), None)
                    found[id(step.parameter)] = step.parameter
        return list(found.values())

    def _steps(self, nodes: Sequence[Node], buffers: dict[Buffer, int]) -> Steps:
        """Return the steps of the nodes of forward, or of backward, by phase."""
        depths = self._depths(nodes)
        groups: dict[tuple[Any, ...], list[Node]] = {}
        for node in nodes:
            if node.name not in _VIEWS and node.space != CONSTANT:
                phase = self._phases[node]
                if node.name in ELEMENTWISE:
                    key = (phase, depths[node], 0, node.space, node.width)
                elif node.name in _STORED:
                    continue  # stores of the group that computes what they put away
                else:
                    key = (phase, depths[node], 1, node.number)
                groups.setdefault(key, []).append(node)
        steps: Steps = {BEFORE: [], ROUND: [], AFTER: []}
        for node in nodes:
            if node.name in ("total", "collect"):
                place = self._places.give(node)
                # Rows of inputs have no rounds: they are cleared when backward begins.
                phase = self._phases[node.inputs[0]] if node.space == VERTEX else BEFORE
                steps[phase].append(self._clear(node, self._used(place, buffers)))
        for key in sorted(groups, key=lambda key: key[1:3]):
            make = self._group if key[2] == 0 else self._single
            steps[key[0]].append(make(groups[key], buffers))
        return steps

    def _depths(self, nodes: Sequence[Node]) -> dict[Node, int]:
        """Return for each node how many steps must come before its own. Operations element by element share a step."""
        depths: dict[Node, int] = {}
        for node in nodes:
            depth = -1 if node.name in _VIEWS else 0  # what is there before needs no step
            for operand in node.inputs:
                if operand in depths:
                    together = (
                        node.name in ELEMENTWISE
                        and operand.name in ELEMENTWISE
                        and (node.space, node.width, self._phases[node])
                        == (operand.space, operand.width, self._phases[operand])
                    )
                    stored = node.name in _VIEWS or node.name in ("total", "collect")
                    depth = max(depth, depths[operand] + (0 if together or stored else 1))
            depths[node] = depth
        return depths

    def _used(self, place: Place, buffers: dict[Buffer, int]) -> Place:
        """Note that a place is used."""
        buffers[place.buffer] = self._number(place.buffer)
        if place.index is not None:
            self.indices.add(place.index)
            self._number(place.index)
        return place

    def _read(self, node: Node, buffers: dict[Buffer, int]) -> Place:
        return self._used(self._places.of(node), buffers)

    def _single(self, nodes: list[Node], buffers: dict[Buffer, int]) -> Step:
        (node,) = nodes
        operand = self._read(node.inputs[0], buffers)
        if node.name == "parameter_product":
            return self._parameter_product(node, operand, self._read(node.inputs[1], buffers))
        if node.name == "parameter_sum":
            return self._parameter_sum(node, operand)
        out = self._used(self._places.give(node), buffers)
        return self._product(node, operand, out, buffers) if node.name == "product" else RowFunction(node, operand, out)

    def _product(self, node: Node, x: Place, out: Place, buffers: dict[Buffer, int]) -> Step:
        operand, matrix = node.inputs
        kernel = None
        if self.batching.fused and node.width == node.shape[-1] and x.index is None:
            (parameter,) = matrix.attributes
            values = self._used(Place(self._places.buffer("matrix", parameter, CONSTANT, matrix.shape[1]), 0), buffers)
            places = [self._matrix(place) for place in (x, values, out)]
            product = fusing.Product(*places, operand.width, node.width, node.attributes[0])
            kernel = fusing.compile_product(self.dtype, product)
        return Product(node, x, out, kernel)

    def _parameter_product(self, node: Node, a: Place, b: Place) -> Step:
        (parameter,) = node.attributes
        target = Place(self._places.buffer("gradient", parameter, CONSTANT, node.shape[1]), 0)
        kernels = None
        vectors = all(operand.width == operand.shape[-1] for operand in node.inputs)
        if self.batching.fused and vectors and isinstance(parameter, Parameter):
            places = [self._matrix(place) for place in (a, b, target)]
            kernels = tuple(
                fusing.compile_product(self.dtype, fusing.Gradient(*places, *node.shape, add)) for add in (False, True)
            )
        return ParameterProduct(node, a, b, self._number(target.buffer), kernels)

    def _parameter_sum(self, node: Node, x: Place) -> Step:
        width = node.inputs[0].width
        parameter, shapes, _ = node.attributes
        target = Place(self._places.buffer("gradient", parameter, CONSTANT, width), 0)
        adding = None
        as_it_lies = all(math.prod(shape) == width for shape in shapes)
        if self.batching.fused and as_it_lies and isinstance(parameter, Parameter):
            adding = self._kernel(
                width, [fusing.Load(self._operand(x))], [fusing.Store(0, self._operand(target), True)]
            )
        return ParameterSum(node, x, self._number(target.buffer), adding)

    def _clear(self, node: Node, place: Place) -> Step:
        if not self.batching.fused:
            return Clear(node, place)
        store = fusing.Store(0, self._operand(place))
        return Kernel(node.space, "clear", self._kernel(place.buffer.width, [fusing.Number(0.0)], [store]))

    def _kernel(self, width: int, values: Sequence[fusing.Value], stores: Sequence[fusing.Store]) -> fusing.Kernel:
        return fusing.compile_kernel(width, self.dtype, tuple(values), tuple(stores))

    def _matrix(self, place: Place) -> fusing.Matrix:
        """Return a place in the terms of kernels of products."""
        return fusing.Matrix(self._number(place.buffer), place.buffer.width, place.column)

    def _group(self, nodes: list[Node], buffers: dict[Buffer, int]) -> Step:
        """Return the step of operations element by element that are computed together."""
        inside = set(nodes)
        stores: list[tuple[Node, Place, bool]] = []
        for node in nodes:
            places = [(self._used(place, buffers), add) for place, add in self._targets(node)]
            users = self._users.get(node, ())
            if any(user not in inside and user.name not in _STORED for user in users) and not self._kept(places):
                places.append((self._used(self._places.give(node), buffers), False))
            for place, add in places:
                if not add and place.index is None:
                    self._places.give(node, place)
                stores.append((node, place, add))
        label = ", ".join(dict.fromkeys(node.name for node in nodes))
        reads: dict[Node, Place] = {}
        for node in nodes:
            for operand in node.inputs:
                if operand not in inside and operand.name != "number":
                    reads[operand] = self._read(operand, buffers)
        space = nodes[0].space
        if not self.batching.fused:
            return Operations(space, label, nodes, reads, stores)
        values: list[Any] = []
        numbers: dict[Node, int] = {}
        for node, place in reads.items():
            numbers[node] = len(values)
            values.append(fusing.Load(self._operand(place)))
        for node in nodes:
            for operand in node.inputs:
                if operand.name == "number" and operand not in numbers:
                    numbers[operand] = len(values)
                    values.append(fusing.Number(operand.attributes[0]))
            numbers[node] = len(values)
            values.append(fusing.Apply(node.name, tuple(numbers[operand] for operand in node.inputs)))
        stored = [fusing.Store(numbers[node], self._operand(place), add) for node, place, add in stores]
        return Kernel(space, label, self._kernel(nodes[0].width, values, stored))

    def _kept(self, places: list[tuple[Place, bool]]) -> bool:
        return any(not add and place.index is None for place, add in places)

    def _targets(self, node: Node) -> list[tuple[Place, bool]]:
        """Return where what is computed is to be written or added, by what uses it."""
        places, found = self._places, []
        for user in self._users.get(node, ()):
            name = user.attributes[-1] if user.attributes else None
            if user.name == "scatter":
                found.append((places.own_state("own state", name), False))
            elif user.name == "push":
                found.append((places.output("output", name, node.width), False))
            elif user.name == "outflow":
                index = ("child",) if node.space == EDGE else ("slot", user.attributes[0])
                found.append((places.state("state gradient", name, index), True))
            elif user.name == "pull_gradient":
                kind = "row" if node.space == VERTEX else "used"
                found.append((places.input("input gradient", name, (kind, name)), True))
            elif user.name == "total":
                found.append((replace(places.of(user), index=("parent",)), True))
            elif user.name == "collect":
                space = user.space.removeprefix(INPUT)
                found.append((replace(places.of(user), index=("row", space)), True))
            elif user.name == "concatenate":
                whole, column = places.give(user), 0
                for part in user.inputs:
                    if part is node:
                        found.append((whole.at(column), False))
                    column += part.width
        return found

    def _operand(self, place: Place) -> fusing.Operand:
        """Return a place in the terms of kernels."""
        stride = 0 if place.buffer.space == CONSTANT else place.buffer.width
        index = None if place.index is None else self._number(place.index)
        return fusing.Operand(self._number(place.buffer), stride, place.column, index)

    def _number(self, entry: Any) -> int:
        return self.table.setdefault(entry, len(self.table))


def _check_dtypes(trace: Trace, dtype: np.dtype) -> None:
    """Raise UsageError for a parameter or another tensor of which kernels would take the bytes for others."""
    for node in trace.nodes:
        if node.name == "parameter" and node.attributes[0].dtype != dtype:
            raise UsageError(
                f"a vertex function of {dtype} uses {node.attributes[0]!r}: expected all of its tensors in one dtype"
            )


def parameters_of(programs: Iterable[Program]) -> list[Any]:
    """Return the parameters that programs give a gradient, each once. Local."""
    return list({id(parameter): parameter for program in programs for parameter in program.parameters}.values())


def _joined_columns(places: Iterable[tuple[Any, int, int, int]]) -> list[tuple[Any, int, slice]]:
    """Return places (key, width, column, columns) with those joined that lie side by side."""
    found: list[tuple[Any, int, slice]] = []
    for key, width, first, count in sorted(places, key=lambda place: (str(place[0]), place[2])):
        last = first + count
        if found and found[-1][0] == key and found[-1][2].stop == first:
            first = found.pop()[2].start
        found.append((key, width, slice(first, last)))
    return found


def _used(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that anything with an effect is computed from."""
    used: set[Node] = set()
    for node in reversed(nodes):
        if node.name in SINKS or node in used:
            used.add(node)
            used.update(node.inputs)
    return used
