"""The Tree-LSTM as a recursive function: modules and parameters of tree_lstm.py, the structure in Python's words."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.dynamic import push, recursive
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.graphs import Graphs, Node, root_nodes
from hybridmpi.models.tree_lstm import Cell, Leaf, NaryInner, State, SumInner
from hybridmpi.models.vertex_classifier import GraphsOfBatch, labelled
from hybridmpi.nn import Embedding, Linear, Module, cross_entropy


class RecursiveTreeLSTM(Module):
    """Tells the label of every vertex of a binary tree: equal to `tree_lstm.TreeLSTM` of these parameters.

    Tables: `words` [words, width]. cell: "nary" or "sum". Batches are of graphs that `lower` has made. Raises
    UsageError for another cell.
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        labels: Count,
        width: Count = 300,
        hidden: Count = 150,
        cell: Cell = "nary",
        dtype: Any = np.float32,
    ) -> None:
        self.words = Embedding(words, width, dtype=dtype)
        self.leaf = Leaf(width, hidden, dtype)
        self.inner = NaryInner(hidden, dtype) if cell == "nary" else SumInner(hidden, dtype)
        self.output = Linear(hidden, labels, dtype=dtype)
        self.nothing = Tensor(np.zeros((1, hidden), dtype))

    @recursive
    def encode(self, node: Node) -> State:
        """Return (h, c) of a vertex."""
        if node.word >= 0:
            h, c = self.leaf(self.words(node.word))
        else:
            below = [self.missing(node) if child is None else self.encode(child) for child in map(node.child, (0, 1))]
            h, c = self.inner(*below[0], *below[1])
        push(h=h, label=node.label)
        return h, c

    @recursive
    def missing(self, node: Node) -> State:
        """Return (h, c) of a child that this node lacks: zeros, as a call of its own, so that layers take them like
        states of others."""
        return self.nothing, self.nothing

    def lower(self, graphs: Graphs) -> Graphs:
        """Return binary trees as `loss` and `evaluate` want them: the function runs here, once. Local."""
        return self.encode.lower(root_nodes(graphs))

    def loss(self, batch: GraphsOfBatch) -> Tensor:
        """Return the mean cross-entropy of the labelled vertices. Local; pulls rows."""
        outputs = self.encode.over(batch.graphs)
        hidden, labels = labelled(outputs.h, outputs.label, batch.weight)
        return cross_entropy(self.output(hidden), labels)

    def evaluate(self, batch: GraphsOfBatch) -> np.ndarray:
        """Return the logits of all vertices as an array [V, labels], graph by graph; remembers nothing. Local; pulls
        rows."""
        with no_grad():
            return self.output(self.encode.over(batch.graphs).h).data
