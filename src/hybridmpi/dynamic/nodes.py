"""The operation list of a vertex function: nodes in the order in which they are computed, no two alike.

A node stands for one row for each vertex of a type (or for each child, each row of an external input), of which only
the `shape` is known. Backward is written in the same nodes, behind those of forward (adjoint.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hybridmpi.errors import UsageError

CONSTANT, VERTEX, EDGE = "constant", "vertex", "edge"
"""Spaces: what a node has a row for: nothing (one for all), each vertex of the type, each of their children. The space
of rows of an external input is called by the input's name after `INPUT`; only the rows that the type uses count."""
INPUT = "input "

ELEMENTWISE = frozenset(
    ("add", "subtract", "multiply", "divide", "negative", "exp", "log", "tanh", "sigmoid", "relu", "positive")
    + ("power", "copy")
)
"""Computed element by element, from nodes of the same space and shape, constants and numbers."""
SINKS = frozenset(("scatter", "push", "outflow", "pull_gradient", "parameter_product", "parameter_sum"))
"""What has an effect in place of a value. Of backward are: `outflow`, a gradient for what a child has scattered;
`pull_gradient`, one for rows of an input; `parameter_product` (a, b), a.T b for a parameter; `parameter_sum`."""


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation. `attributes`: what else it needs, hashable. `follows`: whether a gradient can flow through it."""

    number: int
    name: str
    inputs: tuple[Node, ...]
    attributes: tuple[Any, ...]
    space: str
    shape: tuple[int, ...]
    follows: bool

    @property
    def width(self) -> int:
        """The elements of one row."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        operands = ", ".join([*(f"%{node.number}" for node in self.inputs), *map(_said, self.attributes)])
        rows = "x".join(map(str, self.shape))
        return f"%{self.number} = {self.name}({operands})" + ("" if self.name in SINKS else f"  {self.space} [{rows}]")


def _said(attribute: Any) -> str:
    return getattr(attribute, "name", None) or str(attribute)


def wider(a: str, b: str) -> str:
    """Return the space in which nodes of two spaces are used together. Local."""
    if a == b or b == CONSTANT:
        return a
    if a == CONSTANT:
        return b
    return EDGE if EDGE in (a, b) else VERTEX


class Trace:
    """The nodes of one vertex type. The same operation on the same nodes is the same node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[Any, ...], Node] = {}

    def add(
        self,
        name: str,
        inputs: Iterable[Node] = (),
        attributes: tuple[Any, ...] = (),
        *,
        space: str | None = None,
        shape: tuple[int, ...] | None = None,
        follows: bool | None = None,
    ) -> Node:
        """Return the node of an operation. Local. space, shape, follows: those of the inputs unless given."""
        inputs = tuple(inputs)
        key = (name, tuple(node.number for node in inputs), attributes)
        node = self._known.get(key)
        if node is None:
            if space is None:
                space = CONSTANT
                for operand in inputs:
                    space = wider(space, operand.space)
            if follows is None:
                follows = any(operand.follows for operand in inputs)
            shape = inputs[0].shape if shape is None else shape
            node = Node(len(self.nodes), name, inputs, attributes, space, shape, follows)
            self.nodes.append(node)
            self._known[key] = node
        return node

    def number(self, value: float) -> Node:
        """Return the node of a plain number, which stands for a row of it of any shape. Local."""
        return self.add("number", attributes=(float(value),), space=CONSTANT, shape=(), follows=False)

    def expand(self, node: Node, space: str) -> Node:
        """Return a node with its rows repeated for a wider space. Local."""
        if node.space in (space, CONSTANT):
            return node
        while node.name == "expand":
            node = node.inputs[0]
        return self.add("expand", (self.dense(node),), (space,), space=space)

    def spread(self, node: Node, shape: tuple[int, ...]) -> Node:
        """Return a node with its rows broadcast to a shape. Local."""
        if node.shape == shape or node.name == "number":
            return node
        return self.add("broadcast", (node if node.space == CONSTANT else self.dense(node),), (shape,), shape=shape)

    def copy(self, node: Node, space: str) -> Node:
        """Return a node whose rows are those of `node`, in a place of their own. Local."""
        return self.add("copy", (self.expand(node, space),), (space,), space=space)

    def dense(self, node: Node) -> Node:
        """Return a node whose rows lie one after the other: `node`, or a copy. Local."""
        return self.copy(node, node.space) if is_scattered(node) else node

    def computed(self, node: Node, space: str) -> Node:
        """Return a node in `space` that is the result of an operation element by element: `node`, or a copy. Such a
        one can be written to several places at once. Local."""
        return node if node.name in ELEMENTWISE and node.space == space else self.copy(node, space)

    def product(self, node: Node, matrix: Node, turned: bool) -> Node:
        """Return the node of the product of each row with a matrix [k, n], or if `turned` [n, k]. Local."""
        outputs = matrix.shape[0 if turned else 1]
        shape = (*node.shape[:-1], outputs)
        return self.add("product", (self.dense(node), matrix), (turned,), space=node.space, shape=shape)

    def concatenate(self, nodes: Iterable[Node], space: str) -> Node:
        """Return the node of rows joined to longer ones. Local."""
        parts = [self.computed(node, space) for node in nodes]
        width = sum(part.width for part in parts)
        return parts[0] if len(parts) == 1 else self.add("concatenate", parts, space=space, shape=(width,))

    def sum(self, node: Node, axes: tuple[int, ...]) -> Node:
        """Return the node of sums over axes of each row, which stay as axes of length 1. Local."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(node.shape))
        return self.add("sum", (self.dense(node),), (axes,), shape=shape)

    def total(self, node: Node) -> Node:
        """Return the node of sums over the children of each vertex. Local."""
        return self.add("total", (self.computed(node, EDGE),), space=VERTEX)

    def apply(self, name: str, *operands: Node) -> Node:
        """Return the node of an operation element by element, with numpy's broadcasting within a row. Local."""
        space, shape = CONSTANT, ()
        for operand in operands:
            space = wider(space, operand.space)
            if operand.name != "number":
                shape = _broadcast(name, shape, operand) if shape else operand.shape
        if shape == () and all(operand.name == "number" for operand in operands):
            raise UsageError(f"{name} of plain numbers in a vertex function: compute it before")
        operands = tuple(self.spread(self.expand(operand, space), shape) for operand in operands)
        return self.add(name, operands, space=space, shape=shape)

    def slice(self, node: Node, first: int, stop: int) -> Node:
        """Return elements first to stop of each row, as [stop - first]. Local."""
        if (first, stop) == (0, node.width):
            return self.reshape(node, (node.width,))
        if node.name == "concatenate":
            begin = 0
            for part in node.inputs:
                if (begin, begin + part.width) == (first, stop):
                    return part
                begin += part.width
        return self.add("slice", (node,), (first, stop), shape=(stop - first,))

    def reshape(self, node: Node, shape: tuple[int, ...]) -> Node:
        """Return a node with rows of another shape of as many elements. Local."""
        if node.shape == shape:
            return node
        if node.name == "reshape":
            return self.reshape(node.inputs[0], shape)
        return self.add("reshape", (node,), (shape,), shape=shape)


def is_scattered(node: Node) -> bool:
    """Return whether the rows of a node are read here and there, or are one for all, so that a matrix product of them
    needs a copy. Local."""
    if node.name in ("slice", "reshape"):
        return is_scattered(node.inputs[0])
    return (
        node.name in ("gather", "child", "expand", "pushed_gradient")
        or node.space == CONSTANT
        or (node.name == "pull" and node.space == VERTEX)
    )


def _broadcast(name: str, shape: tuple[int, ...], operand: Node) -> tuple[int, ...]:
    if operand.space != CONSTANT and len(operand.shape) != len(shape):
        fits = False
    else:
        own = (1,) * (len(shape) - len(operand.shape)) + operand.shape
        shape = (1,) * (len(own) - len(shape)) + shape
        fits = all(a == b or 1 in (a, b) for a, b in zip(shape, own, strict=True))
    if not fits:
        raise UsageError(f"{name} in a vertex function: rows of shapes {shape} and {operand.shape} do not go together")
    return tuple(b if a == 1 else a for a, b in zip(shape, own, strict=True))
