"""What a program consists of: steps, each over the rows of a round or of all vertices of a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic import fusing
from hybridmpi.dynamic.nodes import CONSTANT, Node
from hybridmpi.dynamic.places import Buffer, Place

Ranges = Mapping[str, tuple[int, int]]
"""For each space the rows at work, first and last + 1."""


class Work(Protocol):
    """The memory of one pass for one vertex type: arrays of buffers [rows, width] and of indices, and the address of a
    table of the addresses of those that kernels know by number."""

    arrays: Mapping[Buffer, Any]
    indices: Mapping[tuple[str, ...], Any]
    address: int

    def point(self, number: int, array: Any) -> None:
        """Write the address of an array into the table."""

    def matrix(self, parameter: Tensor, turned: bool) -> Any:
        """Return a matrix [k, n], or if `turned` the transpose of one [n, k]."""


ANY = 1 << 62
"""More rows than there can be."""


class Step:
    """One step. `space`: of its rows; `label`: for the report.

    `kernel`: what does all of it for up to `few` rows, if there is such a kernel.
    """

    space: str
    label: str
    kernel: fusing.Kernel | None = None
    few: int = ANY

    def run(self, work: Work, ranges: Ranges) -> None:
        """Do it for the rows of `ranges`. Local."""
        raise NotImplementedError


def rows_of(work: Work, place: Place, node: Node, first: int, last: int) -> Any:
    """Return rows of a node as an array [last - first, *shape]: a view where they lie one after the other. Local."""
    array = work.arrays[place.buffer][:, place.column : place.column + node.width]
    if node.space == CONSTANT:
        return array.reshape(1, *node.shape)
    array = array[first:last] if place.index is None else array[work.indices[place.index][first:last]]
    return array if len(node.shape) == 1 else array.reshape(last - first, *node.shape)


class Kernel(Step):
    """Operations element by element in one generated kernel."""

    def __init__(self, space: str, label: str, kernel: Any) -> None:
        self.space, self.label, self.kernel = space, label, kernel

    def run(self, work: Work, ranges: Ranges) -> None:
        """Run the kernel."""
        first, last = ranges[self.space]
        self.kernel(first, last, work.address)


class Operations(Step):
    """Operations element by element, one after the other, by the array library: without kernels, and on a device."""

    def __init__(
        self,
        space: str,
        label: str,
        nodes: Sequence[Node],
        reads: Mapping[Node, Place],
        stores: Sequence[tuple[Node, Place, bool]],
    ) -> None:
        self.space, self.label = space, label
        self._nodes, self._reads, self._stores = nodes, reads, stores

    def run(self, work: Work, ranges: Ranges) -> None:
        """Compute the nodes, then write those that are wanted."""
        first, last = ranges[self.space]
        values: dict[Node, Any] = {}
        for node, place in self._reads.items():
            values[node] = rows_of(work, place, node, first, last)
        for node in self._nodes:
            operands = [x.attributes[0] if x.name == "number" else values[x] for x in node.inputs]
            values[node] = FUNCTIONS[node.name](*operands)
        for node, place, add in self._stores:
            value = values[node].reshape(-1, node.width)
            target = work.arrays[place.buffer][:, place.column : place.column + node.width]
            if place.index is None:
                target[first:last] = value
            elif add:
                np.add.at(target, work.indices[place.index][first:last], value)
            else:
                target[work.indices[place.index][first:last]] = value


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negative": np.negative,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "positive": lambda x: (x > 0).astype(x.dtype),
    "power": np.power,
    "copy": lambda x: x,
}


class Clear(Step):
    """Zeros, to which others add."""

    def __init__(self, node: Node, place: Place) -> None:
        self.space, self.label, self._buffer = node.space, "clear", place.buffer

    def run(self, work: Work, ranges: Ranges) -> None:
        """Fill with zeros."""
        first, last = ranges[self.space]
        work.arrays[self._buffer][first:last] = 0


class RowFunction(Step):
    """An operation within each row that is not element by element: sum, broadcast, pad."""

    def __init__(self, node: Node, x: Place, out: Place) -> None:
        self.space, self.label = node.space, node.name
        self._node, self._x, self._out = node, x, out

    def run(self, work: Work, ranges: Ranges) -> None:
        """Compute it with the array library."""
        first, last = ranges[self.space]
        node, operand = self._node, self._node.inputs[0]
        x = rows_of(work, self._x, operand, first, last)
        out = rows_of(work, self._out, node, first, last)
        if node.name == "sum":
            np.sum(x, axis=tuple(axis + 1 for axis in node.attributes[0]), keepdims=True, out=out)
        elif node.name == "broadcast":
            out[...] = x
        else:
            begin, stop, _ = node.attributes
            out[...] = 0
            out[:, begin:stop] = x
