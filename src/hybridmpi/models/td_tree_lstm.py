"""Trees from the top down (after Zhang et al. 2016, arXiv 1511.00060): a vertex' state comes from its parent's, and
what it is, and how many children it has, is told from its state.

With a tree given, its structure is known before, and `likelihood` learns it. `grow` draws trees from the model: whether
a vertex has children depends on values that are computed in the same pass (EuroSys 2018, arXiv 1809.00832, section 6).

A vertex with state (h, c):       [k a] = V h + v,   kind ~ softmax(k),   number of children ~ softmax(a), in 0, 1, 2
Its children, x the kind's row:   [i f o u] for each = W [x; h] + b,   c' = s(f) c + s(i) tanh(u),   h' = s(o) tanh(c')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridmpi.autograd import Parameter, Tensor, concatenate, no_grad, sigmoid, tanh
from hybridmpi.dynamic import push, recursive
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.graphs import Graphs, Node, root_nodes
from hybridmpi.models.draws import below, choose
from hybridmpi.models.prediction import PASSES
from hybridmpi.models.vertex_classifier import GraphsOfBatch
from hybridmpi.nn import Embedding, Linear, Module, cross_entropy

MOST_CHILDREN = 2


class Down(Module):
    """The states of both children, from the kind's row and the state of their parent."""

    @checks_arguments
    def __init__(self, width: Count, hidden: Count, dtype: Any = np.float32) -> None:
        self.gates = Linear(width + hidden, 4 * MOST_CHILDREN * hidden, dtype=dtype)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (h, c) of each child, all [n, hidden]. Local."""
        gates, size, states = self.gates(concatenate([x, h], axis=1)), h.shape[1], []
        for child in range(MOST_CHILDREN):
            i, f, o, u = (gates[:, (4 * child + k) * size : (4 * child + k + 1) * size] for k in range(4))
            own = sigmoid(f) * c + sigmoid(i) * tanh(u)
            states.append((sigmoid(o) * tanh(own), own))
        return states


class TopDownTreeLSTM(Module):
    """A distribution of trees whose vertices have a kind, and at most two children.

    Tables: `kinds` [kinds + 1, width], the last of which are vertices without a label (-1). Batches are of graphs that
    `lower` has made.
    """

    @checks_arguments
    def __init__(self, kinds: Count, width: Count = 64, hidden: Count = 150, dtype: Any = np.float32) -> None:
        self.unlabelled = kinds
        self.kinds = Embedding(kinds + 1, width, dtype=dtype)
        self.down = Down(width, hidden, dtype)
        self.output = Linear(hidden, kinds + 1 + MOST_CHILDREN + 1, dtype=dtype)
        self.start = Parameter((1, hidden), ("normal", 0.0, 0.1), dtype=dtype)
        self.nothing = Tensor(np.zeros((1, hidden), dtype))

    @recursive
    def known(self, node: Node) -> None:
        """Tell a tree that is known from its root."""
        self.likelihood(node, self.start, self.nothing)

    @recursive
    def likelihood(self, node: Node, h: Tensor, c: Tensor) -> None:
        """Tell a vertex that is known, and what is below it."""
        kind, children = node.label if node.label >= 0 else self.unlabelled, node.children
        push(h=h, label=kind, count=len(children))
        if children:
            states = self.down(self.kinds(kind), h, c)
            for child, (child_h, child_c) in zip(children, states, strict=False):
                self.likelihood(child, child_h, child_c)

    @recursive
    def tree(self, seed: int, levels: int) -> None:
        """Draw a tree of so many levels at most."""
        self.grow(seed, levels, self.start, self.nothing)

    @recursive
    async def grow(self, seed: int, levels: int, h: Tensor, c: Tensor) -> None:
        """Draw a vertex, and what is below it if that is to have any children."""
        logits = await self.output(h)
        kind = choose(logits[: self.unlabelled + 1], seed)
        count = choose(logits[self.unlabelled + 1 :], below(seed, MOST_CHILDREN)) if levels > 1 else 0
        push(h=h, label=kind, count=count)
        if count:
            for child, (child_h, child_c) in enumerate(self.down(self.kinds(kind), h, c)[:count]):
                self.grow(below(seed, child), levels - 1, child_h, child_c)

    def lower(self, graphs: Graphs) -> Graphs:
        """Return trees with data "label" (the kind) and at most two children a vertex as `loss` wants them. Local.

        The function runs here, once, some 40 us a vertex. What comes has a vertex for each of a tree's, with data
        "label" (the number of its row of `kinds`) and "count" (of its children), and one more a tree, with -1 in both.
        """
        return self.known.lower(root_nodes(graphs))

    def loss(self, batch: GraphsOfBatch) -> Tensor:
        """Return the negative log likelihood of the batch's trees, a mean over their vertices. Local; pulls rows."""
        return self.told(self.known.over(batch.graphs))

    def rows_wanted(self, batch: GraphsOfBatch) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table: kinds of vertices with children.
        Local."""
        return {"kinds": batch.graphs.data["label"][batch.graphs.data["count"] > 0]}

    def flops(self, batch: GraphsOfBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        parents = np.count_nonzero(batch.graphs.data["count"] > 0)
        products = parents * self.down.gates.weight.size + batch.weight * self.output.weight.size
        return PASSES * 2.0 * products

    def told(self, vertices: Any) -> Tensor:
        """Return the negative log likelihood of vertices, which `known` or `tree` has pushed: a mean. Local."""
        logits, first = self.output(vertices.h), self.unlabelled + 1
        return cross_entropy(logits[:, :first], vertices.label) + cross_entropy(logits[:, first:], vertices.count)

    def draw(self, trees: int, levels: int, seed: int = 0) -> list[Any]:
        """Return drawn trees, each (kind, *children), a function of `seed`; remembers nothing. Local; pulls rows.

        levels: how many a tree has at most.
        """
        with no_grad():
            drawn = self.tree.over([below(seed, tree) for tree in range(trees)], [levels] * trees)
        found: list[Any] = [None] * trees
        # The vertices of a tree come in the order in which it is walked: each before its children.
        for root in range(trees):
            mine = np.flatnonzero(drawn.roots["h"] == root)
            open_vertices: list[tuple[list[Any], int]] = []
            for kind, count in zip(drawn.label[mine].tolist(), drawn.count[mine].tolist(), strict=True):
                vertex = [kind]
                if open_vertices:
                    parent, missing = open_vertices.pop()
                    parent.append(vertex)
                    if missing > 1:
                        open_vertices.append((parent, missing - 1))
                else:
                    found[root] = vertex
                if count:
                    open_vertices.append((vertex, count))
        return found
