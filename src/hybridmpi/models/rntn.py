"""Recursive neural tensor network (Socher et al. 2013, Recursive deep models for semantic compositionality over a
sentiment treebank, section 4.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.autograd import Parameter, concatenate, tanh
from hybridmpi.dynamic import Vertex, VertexFunction
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.models.tree_rnn import TreeRNN
from hybridmpi.nn import Linear


class Inner(VertexFunction):
    """h = tanh(p' V p + W p + b), p = [left; right]: V has a matrix for each element of h.

    `tensor` [2 hidden, hidden x 2 hidden] holds them side by side, so that p' V is one product.
    """

    @checks_arguments
    def __init__(self, hidden: Count, dtype: Any = np.float32) -> None:
        bound = 1 / (4 * hidden)  # p' V p has (2 hidden)^2 terms for each element
        self.tensor = Parameter((2 * hidden, 2 * hidden * hidden), ("uniform", -bound, bound), dtype)
        self.layer = Linear(2 * hidden, hidden, dtype=dtype)
        self.hidden = hidden

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with one child or two."""
        both, d = concatenate([v.gather(0).h, v.gather(1).h], axis=1), self.hidden
        quadratic = ((both @ self.tensor).reshape(-1, d, 2 * d) * both.reshape(-1, 1, 2 * d)).sum(axis=2)
        h = tanh(quadratic + self.layer(both))
        v.scatter(h=h)
        v.push(h=h)


class TensorNetwork(TreeRNN):
    """Tells the label of every vertex of a binary tree of types "leaf" and "inner", by a recursive tensor network.

    Tables: `words` [words, width]. The tensor has 4 hidden^3 entries: 25 to 35 units were
    published.
    """

    def composition(self, hidden: int, dtype: Any) -> VertexFunction:
        """Return what an inner vertex computes."""
        return Inner(hidden, dtype)
