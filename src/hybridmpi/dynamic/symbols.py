"""Symbols: what a vertex function computes with while it is written down; and what each operation notes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.autograd.tracing import Traced
from hybridmpi.dynamic.nodes import CONSTANT, Node, Trace, wider
from hybridmpi.errors import UsageError

ROWS = -1
"""Stands for the number of rows in the shape of a symbol: each operation treats every row alike."""


_NO_VALUES = np.empty(0, np.float32)


class Symbol(Traced):
    """Stands for one row for each vertex (child, input row): a tensor [rows, *shape] without values."""

    __slots__ = ("node", "trace")

    def __init__(self, trace: Trace, node: Node) -> None:
        self.trace, self.node = trace, node
        super().__init__(_NO_VALUES, requires_grad=node.follows)

    @property
    def data(self) -> Any:
        """Raises UsageError: there are no values."""
        raise UsageError(
            "a vertex function read the values of a symbol: it is written down once, for all vertices, and runs "
            f"without values; operations that can stand in it are {', '.join(sorted(OPERATIONS))}, and layers made of "
            "them; decisions by values belong into a recursive function (await)"
        )

    @data.setter
    def data(self, values: Any) -> None:
        pass

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, *shape of a row], the number of rows as -1."""
        return (ROWS, *self.node.shape)

    def __len__(self) -> int:
        raise UsageError("the number of rows of a symbol: a vertex function does not know how many vertices there are")

    def __bool__(self) -> bool:
        return bool(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __repr__(self) -> str:
        return f"Symbol({self.node!r})"

    def note(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Symbol:
        """Write down an operation on this symbol. Local."""
        return Symbol(self.trace, OPERATIONS[operation](self.trace, *arguments, **options))


def node_of(trace: Trace, value: Any) -> Node:
    """Return the node of an operand: a symbol's, a parameter's, a constant's. Local. Raises UsageError for others."""
    if isinstance(value, Symbol):
        if value.trace is not trace:
            raise UsageError("a symbol of another vertex function, or of an earlier run of this one, was kept and used")
        return value.node
    if isinstance(value, Tensor):
        if not isinstance(value, Parameter) and value._backward is not None:
            raise UsageError(
                f"a vertex function uses a tensor of shape {value.shape} that was computed from others before: it "
                "would keep these values for ever; compute it from symbols, or give it as an input of the pass"
            )
        shape = value.shape
        return trace.add("parameter", attributes=(value,), space=CONSTANT, shape=shape, follows=value.requires_grad)
    if np.ndim(value) == 0:
        return trace.number(float(value))
    raise UsageError(f"a vertex function uses an array of shape {np.shape(value)}: make it a Tensor first")


def _elementwise(name: str) -> Callable[..., Node]:
    def note(trace: Trace, *operands: Any) -> Node:
        nodes = [node_of(trace, operand) for operand in operands]
        rank = max(len(node.shape) for node in nodes if node.space != CONSTANT)
        return trace.apply(name, *(_one_for_all(trace, node, rank) for node in nodes))

    return note


def _one_for_all(trace: Trace, node: Node, rank: int) -> Node:
    """Return a constant [1, ...] as one row for all rows of that rank; other nodes as they are."""
    if node.space == CONSTANT and len(node.shape) == rank + 1 and node.shape[0] == 1:
        return trace.reshape(node, node.shape[1:])
    return node


def _power(trace: Trace, x: Any, exponent: float) -> Node:
    return trace.apply("power", node_of(trace, x), trace.number(exponent))


def _product(trace: Trace, x: Any, weight: Any, turned: bool) -> Node:
    node, matrix = node_of(trace, x), node_of(trace, weight)
    if matrix.name != "parameter" or len(matrix.shape) != 2 or node.space == CONSTANT:
        raise UsageError(
            "a matrix product in a vertex function: expected rows of the function times a parameter [k, n], found "
            f"{node.space} {node.shape} times {matrix.name} {matrix.shape}"
        )
    inputs = matrix.shape[1 if turned else 0]
    if not node.shape or node.shape[-1] != inputs:
        raise UsageError(f"a matrix product of rows of shape {node.shape} with a weight for {inputs} inputs")
    return trace.product(node, matrix, turned)


def _linear(trace: Trace, x: Any, weight: Any, bias: Any = None) -> Node:
    y = _product(trace, x, weight, turned=True)
    return y if bias is None else trace.apply("add", y, node_of(trace, bias))


def _matmul(trace: Trace, a: Any, b: Any) -> Node:
    return _product(trace, a, b, turned=False)


def _concatenate(trace: Trace, parts: Sequence[Any], axis: int = 0) -> Node:
    nodes = [_one_for_all(trace, node_of(trace, part), rank=1) for part in parts]
    if axis not in (1, -1) or any(len(node.shape) != 1 for node in nodes):
        raise UsageError(
            f"concatenate in a vertex function: axis {axis} of rows of shapes {[node.shape for node in nodes]}: only "
            "vectors, [rows, width], along axis 1"
        )
    space = functools.reduce(wider, (node.space for node in nodes))
    return trace.concatenate(nodes, space)


def _reshape(trace: Trace, x: Any, *shape: Any) -> Node:
    node = node_of(trace, x)
    wanted = tuple(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)
    if not wanted or wanted[0] != ROWS or ROWS in wanted[1:] or math.prod(wanted[1:]) != node.width:
        raise UsageError(
            f"reshape in a vertex function of rows {node.shape} to {wanted}: expected -1 for the rows, then sizes that "
            f"multiply to {node.width}"
        )
    return trace.reshape(node, wanted[1:])


def _index(trace: Trace, x: Any, where: Any) -> Node:
    node = node_of(trace, x)
    where = where if isinstance(where, tuple) else (where,)
    if len(where) != 2 or where[0] != slice(None) or not node.shape or not isinstance(where[1], (int, slice)):
        raise UsageError(
            f"x[{', '.join(map(str, where))}] in a vertex function: expected x[:, first:stop] or x[:, number]; which "
            "rows there are is the graph's"
        )
    length, rest = node.shape[0], node.shape[1:]
    if isinstance(where[1], int):
        first = where[1] + length if where[1] < 0 else where[1]
        if not 0 <= first < length:
            raise UsageError(f"x[:, {where[1]}] in a vertex function of rows {node.shape}: outside [0, {length})")
        stop, shape = first + 1, rest or (1,)
        if not rest:
            raise UsageError(f"x[:, {where[1]}] of vectors: write x[:, {first}:{stop}] to keep rows of one element")
    else:
        first, stop, step = where[1].indices(length)
        if step != 1 or stop <= first:
            raise UsageError(f"x[:, {where[1]}] in a vertex function of rows {node.shape}: expected first:stop, step 1")
        shape = (stop - first, *rest)
    size = math.prod(rest)
    return trace.reshape(trace.slice(node, first * size, stop * size), shape)


def _sum(trace: Trace, x: Any, axis: Any = None, keepdims: bool = False) -> Node:
    node = node_of(trace, x)
    rank = len(node.shape) + 1
    axes = (axis,) if isinstance(axis, int) else axis
    axes = None if axes is None else tuple(sorted(a + rank if a < 0 else a for a in axes))
    if not axes or axes[0] < 1 or axes[-1] >= rank:
        raise UsageError(
            f"a sum over axis {axis} of [rows, *{node.shape}]: it cannot mix the rows of different vertices"
        )
    axes = tuple(a - 1 for a in axes)
    if not keepdims and len(axes) == len(node.shape):
        raise UsageError(
            f"a sum over all of rows {node.shape}: write keepdims=True, so that rows of one element remain"
        )
    total = trace.sum(node, axes)
    return total if keepdims else trace.reshape(total, tuple(n for a, n in enumerate(node.shape) if a not in axes))


def _mean(trace: Trace, x: Any, axis: Any = None, keepdims: bool = False) -> Node:
    before = node_of(trace, x).width
    total = _sum(trace, x, axis, keepdims)
    return trace.apply("multiply", total, trace.number(total.width / before))


OPERATIONS: dict[str, Callable[..., Node]] = {
    **{name: _elementwise(name) for name in ("add", "subtract", "multiply", "divide", "negative")},
    **{name: _elementwise(name) for name in ("exp", "log", "tanh", "sigmoid", "relu")},
    "power": _power,
    "linear": _linear,
    "matmul": _matmul,
    "concatenate": _concatenate,
    "reshape": _reshape,
    "index": _index,
    "sum": _sum,
    "mean": _mean,
}
