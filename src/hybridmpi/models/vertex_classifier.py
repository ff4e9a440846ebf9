"""What models share that tell the label of every vertex of a graph: a table of words, a pass, a layer on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.dynamic import GraphPass, VertexFunction
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.models.prediction import PASSES
from hybridmpi.nn import Dropout, Embedding, Linear, Module, cross_entropy


class GraphsOfBatch(Protocol):
    """Graphs with data "word" and "label", int [V]: -1 at vertices without a word, or with nothing to tell; `weight`:
    the number of labels."""

    graphs: Graphs
    weight: int


def labelled(hidden: Tensor, labels: np.ndarray, count: int) -> tuple[Tensor, np.ndarray]:
    """Return the rows and labels of the vertices that have one, `count` of them. Local. hidden: [V, h]; labels: [V]."""
    if count < len(labels):
        there = np.flatnonzero(labels >= 0)
        hidden, labels = autograd.gather_rows(hidden, there), labels[there]
    return hidden, labels


class VertexClassifier(Module):
    """Base of models whose vertex functions pull "word" and push `h` [V, hidden], from which the label is told.

    Tables: `words` [words, width]. functions: for each type of the graphs. state: as GraphPass wants it. dropout: the
    share dropped of words' rows, all occurrences of a word in a batch alike, since they are computed once, and of what
    labels are told from. A subclass adds `multiplications`.
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        labels: Count,
        width: Count,
        hidden: Count,
        functions: Mapping[str, VertexFunction],
        state: Mapping[str, int] | None = None,
        dropout: Share = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.words = Embedding(words, width, dtype=dtype)
        self.passing = GraphPass(functions, state)
        self.dropout = Dropout(dropout)
        self.output = Linear(hidden, labels, dtype=dtype)

    def loss(self, batch: GraphsOfBatch) -> Tensor:
        """Return the mean cross-entropy of the labelled vertices, 0 without any. Local; pulls rows.

        Raises UsageError for graphs that do not fit the functions, SparseIndexError for a word outside the table.
        """
        hidden, labels = labelled(self.hidden(batch.graphs), batch.graphs.data["label"], batch.weight)
        return cross_entropy(self.output(self.dropout(hidden)), labels)

    def evaluate(self, batch: GraphsOfBatch) -> np.ndarray:
        """Return the logits of all vertices, labelled or not, as an array [V, labels]; remembers nothing. Local; pulls
        rows."""
        with no_grad():
            return self.output(self.hidden(batch.graphs)).data

    def rows_wanted(self, batch: GraphsOfBatch) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table. Local."""
        words = batch.graphs.data["word"]
        return {"words": words[words >= 0]}

    def flops(self, batch: GraphsOfBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        labels, hidden = self.output.weight.shape
        products = self.multiplications(batch.graphs, rows["words"]) + batch.weight * hidden * labels
        return PASSES * 2.0 * products

    def multiplications(self, graphs: Graphs, words: int) -> float:
        """Return the multiplications of the functions' products, forward, in graphs with so many different words.
        Local."""
        raise NotImplementedError

    def hidden(self, graphs: Graphs) -> Tensor:
        """Return what each vertex pushes, [V, hidden]. Local; pulls rows."""
        return self.passing(graphs, word=self.words_of(graphs)).h

    def words_of(self, graphs: Graphs) -> tuple[Tensor, np.ndarray]:
        """Return the rows of the different words of the graphs, and each vertex' row, -1 without a word: an input of a
        pass. Local; pulls rows."""
        rows, positions = self.words.rows_at(graphs.data["word"])
        return self.dropout(rows), positions
