"""Tree-FC: one layer over two children, what systems for dynamic models are compared by (TensorFlow Fold, Looks et al.
2017, arXiv 1702.02181; Cavs, arXiv 1712.04048)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.dynamic import GraphPass, Vertex, VertexFunction
from hybridmpi.models.prediction import PASSES
from hybridmpi.models.vertex_classifier import GraphsOfBatch
from hybridmpi.nn import Linear, Module


class Leaf(VertexFunction):
    """The state of a leaf is its row."""

    def vertex(self, v: Vertex) -> None:
        """Compute a leaf."""
        v.scatter(h=v.pull("word"))
        v.push(h=v.pull("word"))


class Inner(VertexFunction):
    """h = relu(W [h_l; h_r] + b)."""

    def __init__(self, hidden: int, dtype: Any) -> None:
        self.layer = Linear(2 * hidden, hidden, dtype=dtype)
        # So large that states keep their size from the leaves to the root (He et al. 2015, arXiv 1502.01852).
        bound = math.sqrt(6 / (2 * hidden))
        self.layer.weight.init = ("uniform", -bound, bound)

    def vertex(self, v: Vertex) -> None:
        """Compute an inner vertex."""
        h = autograd.relu(self.layer(autograd.concatenate([v.gather(0).h, v.gather(1).h], axis=1)))
        v.scatter(h=h)
        v.push(h=h)


class TreeFC(Module):
    """Moves the states of labelled vertices to 1: of types "leaf" and "inner", data "word" and "label".

    table: [words, hidden], the states of the leaves by word, which are not trained.
    """

    def __init__(self, table: np.ndarray) -> None:
        self.table = Tensor(table)
        self.inner = Inner(table.shape[1], table.dtype)
        self.passing = GraphPass({"leaf": Leaf(), "inner": self.inner})

    def loss(self, batch: GraphsOfBatch) -> Tensor:
        """Return the mean over labelled vertices (label >= 0) of half |h - 1|^2. Local."""
        error = self._labelled(batch) - 1.0
        return (error * error).sum() * (0.5 / max(batch.weight, 1))

    def flops(self, batch: GraphsOfBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward. Local."""
        inner = np.count_nonzero(batch.graphs.types == batch.graphs.type_names.index("inner"))
        return PASSES * 2.0 * inner * self.inner.layer.weight.size

    def evaluate(self, batch: GraphsOfBatch) -> np.ndarray:
        """Return the states of labelled vertices as an array [labelled, hidden], remembering nothing. Local."""
        with no_grad():
            return self._labelled(batch).data

    def _labelled(self, batch: GraphsOfBatch) -> Tensor:
        data = batch.graphs.data
        return autograd.gather_rows(
            self.passing(batch.graphs, word=(self.table, data["word"])).h, np.flatnonzero(data["label"] >= 0)
        )
