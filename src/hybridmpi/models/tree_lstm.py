"""Tree-LSTMs (Tai et al. 2015, arXiv 1503.00075): words at the leaves, a memory cell at every vertex.

A leaf with word x:     [i o u] = Wx x + bx,           c = s(i) tanh(u),                          h = s(o) tanh(c)
An inner vertex, nary:  [i o u f_l f_r] = U [h_l; h_r] + b,
              or, sum:  [i o u] = U (sum of h_k) + b,  f_k = Uf h_k + bf, for any number of children k
                                                       c = s(i) tanh(u) + sum of s(f_k) c_k,      h = s(o) tanh(c)

What a vertex computes is a module on tensors; vertex functions call it, and so may any other program on the same
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from hybridmpi.autograd import Tensor, concatenate, sigmoid, tanh
from hybridmpi.dynamic import Vertex, VertexFunction
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.models.vertex_classifier import VertexClassifier
from hybridmpi.nn import Linear, Module

Cell = Literal["nary", "sum"]
CELLS: tuple[Cell, ...] = get_args(Cell)

State = tuple[Tensor, Tensor]
"""h and c of a vertex, or of n, [n, hidden] each."""


class Leaf(Module):
    """State of a leaf, from its word's vector."""

    @checks_arguments
    def __init__(self, width: Count, hidden: Count, dtype: Any = np.float32) -> None:
        self.gates = Linear(width, 3 * hidden, dtype=dtype)

    def forward(self, x: Tensor) -> State:
        """Return (h, c) for x [n, width]. Local."""
        return _state(*_parts(self.gates(x), 3))


class NaryInner(Module):
    """State of a vertex with a left and a right child, each of which has its own weights."""

    @checks_arguments
    def __init__(self, hidden: Count, dtype: Any = np.float32) -> None:
        self.gates = Linear(2 * hidden, 5 * hidden, dtype=dtype)

    def forward(self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor) -> State:
        """Return (h, c); all [n, hidden], zeros for a child that is missing. Local."""
        i, o, u, left, right = _parts(self.gates(concatenate([left_h, right_h], axis=1)), 5)
        return _state(i, o, u, sigmoid(left) * left_c + sigmoid(right) * right_c)


class SumInner(Module):
    """State of a vertex with any number of children, all of the same weights."""

    @checks_arguments
    def __init__(self, hidden: Count, dtype: Any = np.float32) -> None:
        self.gates = Linear(hidden, 3 * hidden, dtype=dtype)
        self.forget = Linear(hidden, hidden, dtype=dtype)

    def forward(self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor) -> State:
        """Return (h, c); all [n, hidden], zeros for a child that is missing. Local."""
        kept = sigmoid(self.forget(left_h)) * left_c + sigmoid(self.forget(right_h)) * right_c
        return _state(*_parts(self.gates(left_h + right_h), 3), kept)

    def over_children(self, h: Tensor, c: Tensor, total: Callable[[Tensor], Tensor]) -> State:
        """Return (h, c) of vertices [n, hidden] for h and c of their children [m, hidden]; `total` sums a vertex'
        children, [m, hidden] to [n, hidden]. Local."""
        return _state(*_parts(self.gates(total(h)), 3), total(sigmoid(self.forget(h)) * c))


def _parts(gates: Tensor, count: int) -> list[Tensor]:
    size = gates.shape[1] // count
    return [gates[:, k * size : (k + 1) * size] for k in range(count)]


def _state(i: Tensor, o: Tensor, u: Tensor, kept: Tensor | None = None) -> State:
    c = sigmoid(i) * tanh(u)
    if kept is not None:
        c = c + kept
    return sigmoid(o) * tanh(c), c


class LeafFunction(VertexFunction):
    """Pulls its word."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf

    def vertex(self, v: Vertex) -> None:
        """Compute a leaf."""
        _put(v, *self.leaf(v.pull("word")))


class BinaryFunction(VertexFunction):
    """Gathers from slots 0 and 1, either of which may be empty."""

    def __init__(self, inner: NaryInner | SumInner) -> None:
        self.inner = inner

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with at most two children."""
        left, right = v.gather(0), v.gather(1)
        _put(v, *self.inner(left.h, left.c, right.h, right.c))


class SumFunction(VertexFunction):
    """Gathers from all children."""

    def __init__(self, inner: SumInner) -> None:
        self.inner = inner

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with any number of children."""
        children = v.gather_all()
        _put(v, *self.inner.over_children(children.h, children.c, v.total))


def _put(v: Vertex, h: Tensor, c: Tensor) -> None:
    v.scatter(h=h, c=c)
    v.push(h=h)


class TreeLSTM(VertexClassifier):
    """Tells the label of every vertex of a tree of types "leaf" and "inner".

    Tables: `words` [words, width]. `leaf` and `inner` are the modules. cell: "nary" for at most two children, in slots
    0 and 1, "sum" for any number. Raises UsageError for another cell.
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        labels: Count,
        width: Count = 300,
        hidden: Count = 150,
        cell: Cell = "nary",
        dropout: Share = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.leaf = Leaf(width, hidden, dtype)
        self.inner = NaryInner(hidden, dtype) if cell == "nary" else SumInner(hidden, dtype)
        inner = BinaryFunction(self.inner) if cell == "nary" else SumFunction(self.inner)
        functions = {"leaf": LeafFunction(self.leaf), "inner": inner}
        super().__init__(words, labels, width, hidden, functions, None, dropout, dtype)

    def multiplications(self, graphs: Graphs, words: int) -> float:
        """Return the multiplications of the functions' products, forward, in graphs with so many different words.
        Local."""
        leaves = np.count_nonzero(graphs.types == graphs.type_names.index("leaf"))
        inner = (graphs.vertices - leaves) * self.inner.gates.weight.size
        if isinstance(self.inner, SumInner):
            inner += graphs.edges * self.inner.forget.weight.size
        return inner + words * self.leaf.gates.weight.size
