"""Tree-FC: one layer over two children, what systems for dynamic models are compared by (TensorFlow Fold, Looks et al.
2017, arXiv 1702.02181; Cavs, arXiv 1712.04048)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.dynamic import GraphPass, Vertex, VertexFunction
from hybridmpi.field_types import checks_arguments
from hybridmpi.models.prediction import PASSES
from hybridmpi.models.vertex_classifier import GraphsOfBatch
from hybridmpi.nn import Linear, Module


class Leaf(VertexFunction):
    """The state of a leaf is its row. It has a name of its own: nobody wants its gradient."""

    def vertex(self, v: Vertex) -> None:
        """Compute a leaf."""
        v.scatter(row=v.pull("word"))


class Inner(VertexFunction):
    """h = relu(W [h_l; h_r] + b). below: the name of its children's states. is_root: whether it is for the loss."""

    @checks_arguments
    def __init__(self, layer: Linear, below: str, is_root: bool) -> None:
        self.layer, self.below, self.is_root = layer, below, is_root

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with two children."""
        children = [getattr(v.gather(slot), self.below) for slot in (0, 1)]
        h = autograd.relu(self.layer(autograd.concatenate(children, axis=1)))
        if self.is_root:
            v.push(h=h)
        else:
            v.scatter(h=h)


class TreeFC(Module):
    """Moves the states of roots to 1. Types are "leaf", "low" (just above leaves), "inner" and "root", data "word" [V],
    -1 but at leaves.

    table: [words, hidden], the states of the leaves by word, which are not trained.
    """

    def __init__(self, table: np.ndarray) -> None:
        hidden = table.shape[1]
        self.table = Tensor(table)
        self.layer = Linear(2 * hidden, hidden, dtype=table.dtype)
        # So large that states keep their size from the leaves to the root (He et al. 2015, arXiv 1502.01852).
        bound = math.sqrt(6 / (2 * hidden))
        self.layer.weight.init = ("uniform", -bound, bound)
        functions = {
            "leaf": Leaf(),
            "low": Inner(self.layer, "row", False),
            "inner": Inner(self.layer, "h", False),
            "root": Inner(self.layer, "h", True),
        }
        self.passing = GraphPass(functions)

    def loss(self, batch: GraphsOfBatch) -> Tensor:
        """Return the mean over roots of half |h - 1|^2. Local."""
        error = self._roots(batch) - 1.0
        return (error * error).sum() * (0.5 / max(len(error), 1))

    def flops(self, batch: GraphsOfBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward. Local."""
        inner = np.count_nonzero(batch.graphs.types != batch.graphs.type_names.index("leaf"))
        return PASSES * 2.0 * inner * self.layer.weight.size

    def evaluate(self, batch: GraphsOfBatch) -> np.ndarray:
        """Return the states of roots as an array [roots, hidden], remembering nothing. Local."""
        with no_grad():
            return self._roots(batch).data

    def _roots(self, batch: GraphsOfBatch) -> Tensor:
        return self.passing(batch.graphs, word=(self.table, batch.graphs.data["word"])).h
