"""The words of trees in their order, without the trees: what a model of sequences sees of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridmpi.data import graph_baselines
from hybridmpi.data.labelled_graphs import LabelledGraphs
from hybridmpi.graphs import Graphs, chains


def as_sequences(trees: LabelledGraphs) -> LabelledGraphs:
    """Return the words of labelled trees as chains, whose last word has the label of the root. Local."""
    parts = leaf_chains(trees.train), leaf_chains(trees.held_out)
    baselines = {"the most frequent class": graph_baselines.majority(*parts)}
    return replace(trees, train=parts[0], held_out=parts[1], baselines=baselines)


def leaf_chains(trees: Graphs) -> Graphs:
    """Return a chain (see graphs.chains) for each tree, of its vertices without children in the order of their numbers,
    which in trees in post-order is that of the text. Local.

    Data "word" as in the trees; "label": at the last word that of the root, the last vertex nobody has for a child; -1
    elsewhere. A tree of nothing becomes a chain of nothing.
    """
    leaf = np.diff(trees.child_starts) == 0
    before = np.concatenate([[0], np.cumsum(leaf)])
    ends = before[trees.starts]
    found = chains(np.diff(ends))
    roots = trees.roots()
    label = np.full(found.vertices, -1, np.int32)
    tree = np.searchsorted(trees.starts, roots, side="right") - 1
    label[ends[tree + 1] - 1] = trees.data["label"][roots]
    return found.with_data(word=trees.data["word"][leaf], label=label)
