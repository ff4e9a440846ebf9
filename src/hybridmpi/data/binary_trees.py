"""Graphs of any arity made binary, for vertex functions with a left and a right child."""

from __future__ import annotations

import numpy as np

from hybridmpi.graphs import Graphs
from hybridmpi.kernels.cpu import cpu_kernel


def binary(graphs: Graphs) -> Graphs:
    """Return `graphs` with at most two children at each vertex, in slots 0 and 1. Local.

    A vertex with children a, b, c, ... keeps a, and its second child becomes a new vertex with b and, the same way, the
    rest. New vertices stand before their vertex, are of its type, and have -1 in all data, which are integers.
    """
    old, child_starts, children = _binary(graphs.starts, graphs.child_starts, graphs.children)
    kept = old >= 0
    vertex = np.where(kept, old, -1 - old)
    more = np.concatenate([[0], np.cumsum(np.maximum(np.diff(graphs.child_starts) - 2, 0))])
    return Graphs(
        graphs.starts + more[graphs.starts],
        graphs.types[vertex],
        child_starts,
        children,
        np.arange(len(children)) - np.repeat(child_starts[:-1], np.diff(child_starts)),
        graphs.type_names,
        {name: np.where(kept, array[vertex], -1).astype(array.dtype) for name, array in graphs.data.items()},
    )


@cpu_kernel
def _binary(starts, child_starts, children):
    """Return (old int64 [W], child_starts int64 [W + 1], children int64) of the binary form.

    old: the number of a vertex before; of a new vertex -1 less that of the vertex that it was put in for.
    """
    count = child_starts.shape[0] - 1
    place = np.empty(count, np.int64)  # the new number of each vertex
    total, edges = 0, 0
    for vertex in range(count):
        arity = child_starts[vertex + 1] - child_starts[vertex]
        total += max(arity - 2, 0)
        place[vertex] = total
        total += 1
        edges += arity + max(arity - 2, 0)
    old = np.empty(total, np.int64)
    new_starts, new_children = np.zeros(total + 1, np.int64), np.empty(edges, np.int64)
    new, edge = 0, 0
    for vertex in range(count):
        first, last = child_starts[vertex], child_starts[vertex + 1]
        if last - first > 2:
            # From the end: the last two, then each one before with what was just made.
            for left in range(last - 2, first, -1):
                new_children[edge] = place[children[left]]
                new_children[edge + 1] = place[children[last - 1]] if left == last - 2 else new - 1
                edge += 2
                old[new] = -1 - vertex
                new += 1
                new_starts[new] = edge
            new_children[edge], new_children[edge + 1] = place[children[first]], new - 1
            edge += 2
        else:
            for child in range(first, last):
                new_children[edge] = place[children[child]]
                edge += 1
        old[new] = vertex
        new += 1
        new_starts[new] = edge
    return old, new_starts, new_children
