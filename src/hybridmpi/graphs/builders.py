"""Graphs from parents, from edges, and from lengths: the vertices are numbered already. One entry is one graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs.graphs import Graphs

LEAF, INNER = 0, 1
TREE_TYPES = ("leaf", "inner")
"""The types of vertices without and with children, where a builder is told of no others."""


def from_parents(
    parents: Sequence[Any],
    types: Sequence[Any] | None = None,
    slots: Sequence[Any] | None = None,
    type_names: Sequence[str] | None = None,
) -> Graphs:
    """Return one graph for each entry of `parents`, which holds the parent of each of its vertices, -1 for a root.

    Vertices keep their numbers, which count from 0 in each graph. `types`, `slots`: for each graph, an int for each
    vertex; types index `type_names`, a root's slot is not read. Without slots the children of a vertex fill 0, 1, ...
    in the order of their numbers; without types they are "leaf" and "inner". Raises DataError, UsageError. Local.
    """
    lists = [_row(f"graph {graph}: parents", entry) for graph, entry in enumerate(parents)]
    starts = _starts([len(entry) for entry in lists])
    parent = _laid_out(lists)
    graph_of = np.repeat(np.arange(len(lists)), np.diff(starts))
    size = np.diff(starts)[graph_of]
    if (wrong := np.flatnonzero((parent < -1) | (parent >= size))).size:
        vertex, graph = wrong[0], graph_of[wrong[0]]
        raise DataError(
            f"graph {graph}, vertex {vertex - starts[graph]}: parent {parent[vertex]} does not exist: expected -1 for "
            f"a root or a vertex of this graph, 0 to {size[vertex] - 1}"
        )
    child = np.flatnonzero(parent >= 0)
    slot = None if slots is None else _for_each_vertex("slots", slots, starts)[child]
    return _of_edges(starts, child, parent[child] + starts[graph_of[child]], slot, types, type_names)


def from_edges(
    vertices: Sequence[int],
    edges: Sequence[Any],
    types: Sequence[Any] | None = None,
    type_names: Sequence[str] | None = None,
) -> Graphs:
    """Return one graph for each entry of `vertices`, its number of vertices, and of `edges`, int [e, 2 or 3].

    An edge is (child, parent) or (child, parent, slot), vertices counted from 0 in each graph; without slots the
    children of a vertex fill 0, 1, ... in the order of its edges. `types`: as in `from_parents`. Raises DataError,
    UsageError. Local.
    """
    sizes = _row("numbers of vertices", vertices)
    if len(edges) != len(sizes) or (sizes < 0).any():
        raise UsageError(
            f"{len(edges)} lists of edges for {len(sizes)} numbers of vertices, the least {sizes.min(initial=0)}: "
            "expected one list for each graph, and no negative number"
        )
    tables = [_edge_table(graph, entry) for graph, entry in enumerate(edges)]
    columns = {table.shape[1] for table in tables if len(table)} or {2}
    if len(columns) > 1:
        graph = next(g for g, table in enumerate(tables) if len(table) and table.shape[1] != min(columns))
        raise UsageError(f"graph {graph}: its edges have slots, those of others have none: expected all or none")
    width = columns.pop()
    table = np.concatenate([np.empty((0, width), np.int64), *(table for table in tables if len(table))])
    starts = _starts(sizes)
    graph_of = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    size = sizes[graph_of][:, None]
    if (wrong := np.flatnonzero(((table[:, :2] < 0) | (table[:, :2] >= size)).any(axis=1))).size:
        edge, graph = wrong[0], graph_of[wrong[0]]
        number = edge - np.searchsorted(graph_of, graph)
        raise DataError(
            f"graph {graph}, edge {number}: child {table[edge, 0]}, parent {table[edge, 1]}: expected vertices of this "
            f"graph, of which there are {sizes[graph]}, counted from 0"
        )
    child, parent = (table[:, side] + starts[graph_of] for side in (0, 1))
    return _of_edges(starts, child, parent, table[:, 2] if width == 3 else None, types, type_names)


def chains(lengths: Sequence[int]) -> Graphs:
    """Return a chain for each of `lengths` int [graphs]: vertex t has child t - 1 in slot 0; type "step". Local.

    What a recurrent layer over sequences of true lengths runs on. Raises UsageError for a negative length.
    """
    sizes = _row("lengths of chains", lengths)
    if (sizes < 0).any():
        raise UsageError(f"a chain of length {sizes.min()}, at position {sizes.argmin()}: expected 0 or more")
    starts = _starts(sizes)
    has_child = np.ones(starts[-1] + 1, np.int64)
    has_child[starts] = 0  # the first of each chain; the last place is no vertex
    child = np.flatnonzero(has_child) - 1
    child_starts = _starts(has_child[:-1])
    return Graphs(starts, np.zeros(starts[-1], np.int32), child_starts, child, np.zeros_like(child), ("step",))


def _of_edges(
    starts: np.ndarray,
    child: np.ndarray,
    parent: np.ndarray,
    slot: np.ndarray | None,
    types: Sequence[Any] | None,
    type_names: Sequence[str] | None,
) -> Graphs:
    """Return the graphs of edges in any order, numbered through; without `slot`, in the order of each vertex' edges."""
    order = np.argsort(parent, kind="stable") if slot is None else np.lexsort((slot, parent))
    counts = np.bincount(parent, minlength=starts[-1])
    child_starts = _starts(counts)
    slots = np.arange(len(child)) - np.repeat(child_starts[:-1], counts) if slot is None else slot[order]
    if (types is None) != (type_names is None):
        raise UsageError("types without type_names, or the other way round: expected both or neither")
    if types is None:
        return Graphs(starts, np.where(counts > 0, INNER, LEAF), child_starts, child[order], slots, TREE_TYPES)
    return Graphs(starts, _for_each_vertex("types", types, starts), child_starts, child[order], slots, type_names)


def _starts(counts: Any) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _row(what: str, given: Any) -> np.ndarray:
    array = inputs.integers(given, what)
    if array.ndim != 1:
        raise UsageError(f"{what} of shape {array.shape}: expected one row of integers")
    return array


def _edge_table(graph: int, given: Any) -> np.ndarray:
    array = inputs.integers(given, f"graph {graph}: edges")  # not some edges with a slot and some without
    if not array.size:
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise UsageError(
            f"graph {graph}: edges of shape {array.shape}: expected (child, parent) or (child, parent, slot) for all "
            "edges"
        )
    return array


def _laid_out(rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *rows])


def _for_each_vertex(what: str, given: Sequence[Any], starts: np.ndarray) -> np.ndarray:
    """Return the entries of all graphs in one row, int64 [V]."""
    if len(given) != len(starts) - 1:
        raise UsageError(f"{what} of {len(given)} graphs: expected those of {len(starts) - 1}")
    rows = [_row(f"graph {graph}: {what}", entry) for graph, entry in enumerate(given)]
    for graph, (row, size) in enumerate(zip(rows, np.diff(starts), strict=True)):
        if len(row) != size:
            raise UsageError(f"graph {graph}: {len(row)} {what} for {size} vertices: expected one for each")
    return _laid_out(rows)
