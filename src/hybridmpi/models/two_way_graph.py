"""A model of graphs whose vertices share children: a pass from the leaves up, then one over the reversed graphs, by
which a vertex knows its parents too (D-VAE, Zhang et al. 2019, arXiv 1904.11088, equations 5 to 7, both directions)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor, concatenate, sigmoid, tanh
from hybridmpi.dynamic import GraphPass, Vertex, VertexFunction
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.models.prediction import PASSES
from hybridmpi.models.vertex_classifier import GraphsOfBatch, VertexClassifier
from hybridmpi.nn import Embedding, Linear


class GatedSum(VertexFunction):
    """A gated recurrent unit whose state before is a sum over the children, of any number: each gives g(h) * m(h).

    What a vertex gives its parents is the same for all of them, and computed once. `inputs`: the width of each input.
    """

    @checks_arguments
    def __init__(self, inputs: Mapping[str, Count], hidden: Count, dtype: Any = np.float32) -> None:
        self.names = tuple(inputs)
        self.inputs = [Linear(width, 3 * hidden, bias=not n, dtype=dtype) for n, width in enumerate(inputs.values())]
        self.gates = Linear(hidden, 2 * hidden, bias=False, dtype=dtype)
        self.candidate = Linear(hidden, hidden, dtype=dtype)
        self.gate = Linear(hidden, hidden, dtype=dtype)
        self.mapping = Linear(hidden, hidden, bias=False, dtype=dtype)
        self.hidden = hidden

    def vertex(self, v: Vertex) -> None:
        """Compute a vertex with any number of children."""
        n, before = self.hidden, v.total(v.gather_all().given)
        x = sum((layer(v.pull(name)) for name, layer in zip(self.names[1:], self.inputs[1:], strict=True)),
                start=self.inputs[0](v.pull(self.names[0])))  # fmt: skip
        gates = sigmoid(x[:, : 2 * n] + self.gates(before))
        reset, keep = gates[:, :n], gates[:, n:]
        new = tanh(x[:, 2 * n :] + reset * self.candidate(before))
        h = new + keep * (before - new)
        v.scatter(given=sigmoid(self.gate(h)) * self.mapping(h))
        v.push(h=h)


class TwoWayGraphModel(VertexClassifier):
    """Tells the label of vertices of types "node" and "variable", with data "kind" beside "word", by a pass up and one
    down.

    Tables: `words` [words + 1, width], of which the last row is for vertices without a word; `kinds` [kinds, width].
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        kinds: Count,
        labels: Count,
        width: Count = 100,
        hidden: Count = 100,
        dropout: Share = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.kinds = Embedding(kinds, width, dtype=dtype)
        self.below = GatedSum({"kind": width, "word": width}, hidden, dtype)
        self.above = GatedSum({"below": hidden}, hidden, dtype)
        state = {"given": hidden}
        functions = {"node": self.below, "variable": self.below}
        super().__init__(words + 1, labels, width, 2 * hidden, functions, state, dropout, dtype)
        self.passing_down = GraphPass({"node": self.above, "variable": self.above}, state)

    def hidden(self, graphs: Graphs) -> Tensor:
        """Return what each vertex knows of below and of above, [V, 2 hidden]. Local; pulls rows."""
        below = self.passing(graphs, word=self.words_of(graphs), kind=self._rows_of(self.kinds, graphs.data["kind"])).h
        above = self.passing_down(graphs.reversed(), below=below).h
        return concatenate([below, above], axis=1)

    def words_of(self, graphs: Graphs) -> tuple[Tensor, np.ndarray]:
        """Return the rows of the different words of the graphs, the last one of the table for none, and each vertex'
        row. Local; pulls rows."""
        return self._rows_of(self.words, self._words_wanted(graphs))

    def rows_wanted(self, batch: GraphsOfBatch) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table. Local."""
        return {"words": self._words_wanted(batch.graphs), "kinds": batch.graphs.data["kind"]}

    def flops(self, batch: GraphsOfBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        return super().flops(batch, rows) + PASSES * 2.0 * rows["kinds"] * self.below.inputs[0].weight.size

    def multiplications(self, graphs: Graphs, words: int) -> float:
        """Return the multiplications of the functions' products but for kinds, forward, in graphs with so many
        different words. Local."""
        cell = self.above
        layers = cell.gates, cell.candidate, cell.gate, cell.mapping
        of_vertex = 2 * sum(layer.weight.size for layer in layers) + cell.inputs[0].weight.size
        return words * self.below.inputs[1].weight.size + graphs.vertices * of_vertex

    def _rows_of(self, table: Embedding, ids: np.ndarray) -> tuple[Tensor, np.ndarray]:
        distinct, positions = table.distinct(ids)
        return self.dropout(table.rows_of(distinct)), positions

    def _words_wanted(self, graphs: Graphs) -> np.ndarray:
        words = graphs.data["word"]
        return np.where(words < 0, self.words.rows - 1, words)
