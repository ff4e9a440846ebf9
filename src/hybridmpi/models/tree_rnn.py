"""A recursive network over trees: the state of a vertex is one layer over those of its children (Socher et al. 2011,
Parsing natural scenes and natural language with recursive neural networks, equation 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.autograd import concatenate, tanh
from hybridmpi.dynamic import Vertex, VertexFunction
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.models.vertex_classifier import VertexClassifier
from hybridmpi.nn import Linear


class Leaf(VertexFunction):
    """h = tanh(W x + b): a word's row, brought to the width of states."""

    @checks_arguments
    def __init__(self, width: Count, hidden: Count, dtype: Any = np.float32) -> None:
        self.layer = Linear(width, hidden, dtype=dtype)

    def vertex(self, v: Vertex) -> None:
        """Compute a leaf."""
        h = tanh(self.layer(v.pull("word")))
        v.scatter(h=h)
        v.push(h=h)


class Inner(VertexFunction):
    """h = tanh(W [left; right] + b); zeros stand for a child that is missing."""

    @checks_arguments
    def __init__(self, hidden: Count, dtype: Any = np.float32) -> None:
        self.layer = Linear(2 * hidden, hidden, dtype=dtype)

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with one child or two."""
        h = tanh(self.layer(concatenate([v.gather(0).h, v.gather(1).h], axis=1)))
        v.scatter(h=h)
        v.push(h=h)


class TreeRNN(VertexClassifier):
    """Tells the label of every vertex of a binary tree of types "leaf" and "inner", by a recursive network.

    Tables: `words` [words, width].
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        labels: Count,
        width: Count = 100,
        hidden: Count = 100,
        dropout: Share = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.leaf, self.inner = Leaf(width, hidden, dtype), self.composition(hidden, dtype)
        functions = {"leaf": self.leaf, "inner": self.inner}
        super().__init__(words, labels, width, hidden, functions, None, dropout, dtype)

    def composition(self, hidden: int, dtype: Any) -> VertexFunction:
        """Return what an inner vertex computes."""
        return Inner(hidden, dtype)

    def multiplications(self, graphs: Graphs, words: int) -> float:
        """Return the multiplications of the functions' products, forward, in graphs with so many different words.
        Local."""
        inner = graphs.vertices - np.count_nonzero(graphs.types == graphs.type_names.index("leaf"))
        matrices = (parameter.size for parameter in self.inner.parameters() if len(parameter.shape) == 2)
        return words * self.leaf.layer.weight.size + inner * sum(matrices)
