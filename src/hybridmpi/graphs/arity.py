"""Types by number of children, for models with a vertex function of its own for each arity."""

from __future__ import annotations

import numpy as np

from hybridmpi.errors import DataError
from hybridmpi.field_types import Natural, checks_arguments
from hybridmpi.graphs.graphs import Graphs


@checks_arguments
def by_arity(graphs: Graphs, most: Natural) -> Graphs:
    """Return the graphs with the types of inner vertices divided by number of children: "inner1", "inner2", ... Local.

    A type keeps its name for vertices without children. Type names are those of all types and of 0 to `most` children,
    whatever the graphs hold, so that those of every part of the data are the same. Raises DataError for a vertex with
    more than `most` children, UsageError where `most` < 0 or names would meet.
    """
    counts = np.diff(graphs.child_starts)
    if (beyond := np.flatnonzero(counts > most)).size:
        graph, vertex = graphs.locate(int(beyond[0]))
        raise DataError(
            f"graph {graph}, vertex {vertex}: {counts[beyond[0]]} children: expected {most} at most; the most that a "
            f"vertex of these graphs has is {counts.max()}"
        )
    names = [name + (str(count) if count else "") for name in graphs.type_names for count in range(most + 1)]
    types = graphs.types.astype(np.int64) * (most + 1) + counts
    return Graphs(graphs.starts, types, graphs.child_starts, graphs.children, graphs.slots, names, graphs.data)
