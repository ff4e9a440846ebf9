"""What a table tells of labels that looks no further than a vertex and its children: what a model has to beat."""

from __future__ import annotations

import numpy as np

from hybridmpi.graphs import Graphs
from hybridmpi.kernels.cpu import cpu_kernel


def majority(train: Graphs, held_out: Graphs) -> float:
    """Return the share of the labels of `held_out` that are the most frequent one of `train`; NaN for none. Local."""
    answer = _most_frequent(_labels(train))
    return _mean(_labels(held_out) == answer)


def by_children(train: Graphs, held_out: Graphs, known: str) -> float:
    """Return the share of held-out labels that are the most frequent among training vertices that look the same. Local.

    Vertices look the same with equal data `known` (int [V], -1: none) of their own, and of their children taken as a
    bag; of those that have neither label nor `known`, such as vertices put in between to make a tree binary, what is
    below counts. A vertex that looks like none of `train` gets the most frequent label of all. NaN for no labels.
    """
    seen = [graphs.data["label"] >= 0 for graphs in (train, held_out)]
    bags = [_bags_of(graphs, known)[chosen] for graphs, chosen in zip((train, held_out), seen, strict=True)]
    labels, wanted = _labels(train), _labels(held_out)
    if not len(labels):
        return _mean(wanted == -1)
    # Sorted by bag, then by how often it has its label, then by label: the last of each bag is its answer.
    pairs, counts = np.unique(np.stack([bags[0].view(np.int64), labels.astype(np.int64)]), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], counts, pairs[0]))
    table, answers = pairs[0][order], pairs[1][order]
    place = np.searchsorted(table, bags[1].view(np.int64), side="right") - 1
    found = (place >= 0) & (table[place] == bags[1].view(np.int64))
    return _mean(np.where(found, answers[place], _most_frequent(labels)) == wanted)


def frequencies(train: Graphs, held_out: Graphs) -> float:
    """Return the mean negative log likelihood of a vertex of `held_out`, its label (-1 is one too) and its number of
    children together, where a pair is as likely as it is frequent in `train`, each counted once more. Local.

    In nats; NaN for no vertices.
    """
    labels = [graphs.data["label"].astype(np.int64) + 1 for graphs in (train, held_out)]
    arities = [np.diff(graphs.child_starts) for graphs in (train, held_out)]
    kinds, numbers = (1 + max(int(part.max(initial=0)) for part in both) for both in (labels, arities))
    seen, wanted = (label * numbers + arity for label, arity in zip(labels, arities, strict=True))
    counts = np.bincount(seen, minlength=kinds * numbers) + 1.0
    return _mean(-np.log(counts / counts.sum())[wanted])


def _labels(graphs: Graphs) -> np.ndarray:
    labels = graphs.data["label"]
    return labels[labels >= 0]


def _most_frequent(labels: np.ndarray) -> int:
    return int(np.bincount(labels).argmax()) if len(labels) else -1


def _mean(right: np.ndarray) -> float:
    return float(right.mean()) if len(right) else float("nan")


def _bags_of(graphs: Graphs, known: str) -> np.ndarray:
    """Return a hash of what each vertex looks like, uint64 [V]: collisions are as good as impossible."""
    order = np.argsort(graphs.heights, kind="stable")
    own = _mixed(graphs.data[known].astype(np.uint64))
    between = (graphs.data["label"] < 0) & (graphs.data[known] < 0)
    return _bags(order, graphs.child_starts, graphs.children, own, between)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return uint64 [n] scattered over all 64 bits: the output function of splitmix64 (Steele et al., OOPSLA 2014)."""
    values = (values + np.uint64(2)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@cpu_kernel
def _bags(order, child_starts, children, own, between):
    """Return uint64 [V]: own[v] times three and the sum over its children of own, or of their bags where `between`."""
    bags = np.zeros(own.shape[0], np.uint64)
    for vertex in order:
        for edge in range(child_starts[vertex], child_starts[vertex + 1]):
            child = children[edge]
            bags[vertex] += bags[child] if between[child] else own[child]
        if not between[vertex]:
            bags[vertex] += np.uint64(3) * own[vertex]
    return bags
