"""One vertex after the other by ordinary operations on tensors: slow, simple, and what the batched form must equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.vertex import VertexFunction
from hybridmpi.graphs import Graphs


class _State:
    """What `gather` returns: a tensor for each name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.__dict__.update(tensors)


class SerialVertex:
    """One vertex, with its children's tensors: see `vertex.Vertex`."""

    def __init__(
        self, children: Mapping[int, Mapping[str, Tensor]], missing: Mapping[str, Tensor], inputs: Any
    ) -> None:
        """children: by slot, what they scattered; missing: zeros for each name; inputs: name -> (rows, position)."""
        self._children, self._missing, self._inputs = children, missing, inputs
        self.scattered: dict[str, Tensor] = {}
        self.pushed: dict[str, Tensor] = {}

    def gather(self, slot: int) -> _State:
        """Return a child's state."""
        return _State(self._children.get(slot, self._missing))

    def gather_all(self) -> _State:
        """Return the state of all children, a row for each."""
        if not self._children:
            return _State({name: Tensor(zeros.data[:0]) for name, zeros in self._missing.items()})
        parts = [self._children[slot] for slot in sorted(self._children)]
        return _State({name: autograd.concatenate([part[name] for part in parts]) for name in self._missing})

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over children."""
        if len(rows) != len(self._children):  # a value of the vertex, repeated
            zeros = np.zeros((len(self._children), *[1] * (len(rows.shape) - 1)), rows.dtype)
            rows = autograd.add(rows, Tensor(zeros))
        return autograd.sum(rows, axis=0, keepdims=True)

    def pull(self, name: str = "input") -> Tensor:
        """Return this vertex' row."""
        rows, position = self._inputs[name]
        return autograd.gather_rows(rows, np.array([position]))

    def scatter(self, **state: Tensor) -> None:
        """Keep the state for the parents."""
        self.scattered.update(state)

    def push(self, **rows: Tensor) -> None:
        """Keep rows for the outputs."""
        self.pushed.update(rows)


def run_serially(
    graphs: Graphs,
    functions: Mapping[str, VertexFunction],
    widths: Mapping[str, int],
    inputs: Mapping[str, Any],
    dtype: np.dtype,
) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """Return what is pushed, by name, and which vertices have pushed it. Local."""
    missing = {name: Tensor(np.zeros((1, width), dtype)) for name, width in widths.items()}
    states: dict[int, Mapping[str, Tensor]] = {}
    pushed: dict[str, dict[int, Tensor]] = {}
    for vertex in np.argsort(graphs.heights, kind="stable").tolist():
        edges = range(graphs.child_starts[vertex], graphs.child_starts[vertex + 1])
        children = {int(graphs.slots[edge]): missing | states[int(graphs.children[edge])] for edge in edges}
        rows = {name: (value.rows, value.positions[vertex]) for name, value in inputs.items()}
        one = SerialVertex(children, missing, rows)
        functions[graphs.type_names[graphs.types[vertex]]].vertex(one)
        states[vertex] = one.scattered
        for name, tensor in one.pushed.items():
            pushed.setdefault(name, {})[vertex] = tensor
    vertices = {name: np.array(sorted(found), np.int64) for name, found in pushed.items()}
    return {
        name: autograd.concatenate([pushed[name][vertex] for vertex in vertices[name].tolist()]) for name in pushed
    }, vertices
