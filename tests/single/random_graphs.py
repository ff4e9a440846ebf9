"""Random batches of graphs for hypothesis, and graphs as plain Python to hold them against."""

import numpy as np
from hypothesis import strategies as st

from hybridmpi.graphs import Graphs


@st.composite
def graphs(draw, types=("leaf", "inner", "other"), arity=3, max_vertices=10, max_graphs=4, leaves=("leaf",), words=7):
    """Draw Graphs: mixed arity and types, roots at different heights, shared children, a child twice, gaps between
    slots, single vertices, empty graphs, none at all; children before or after their parents.

    `arity`: slots that a vertex may have; `max_vertices`: of one graph; `leaves`: types that have no children (any
    other may be without, too). Data: "word" int32 from 0 to words - 1, "label" int32 from -1 to 4. How large the
    graphs are, and of what kind, shrinks; the rest follows from one seed, so that thousands take seconds.
    """
    sizes = draw(st.lists(st.integers(0, max_vertices), max_size=max_graphs))
    fill = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))  # how many of the slots have a child
    sharing = draw(st.booleans())
    ordered = draw(st.booleans())  # children are numbered before their parents
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=int)])
    lists = [_graph(random, size, arity, fill, sharing, ordered) for size in sizes]
    below = [
        [(slot, start + child) for slot, child in vertex]
        for start, g in zip(starts, lists, strict=False)
        for vertex in g
    ]
    counts = [len(vertex) for vertex in below]
    inner = [number for number, name in enumerate(types) if name not in leaves]
    kinds = [int(random.choice(inner if count else len(types))) for count in counts]
    return Graphs(
        starts,
        kinds,
        np.concatenate([[0], np.cumsum(counts, dtype=int)]),
        [child for vertex in below for _, child in vertex],
        [slot for vertex in below for slot, _ in vertex],
        types,
        {
            "word": random.integers(0, words, len(counts)).astype(np.int32),
            "label": random.integers(-1, 5, len(counts)).astype(np.int32),
        },
    )


def _graph(random, size, arity, fill, sharing, ordered):
    """Return for each vertex its (slot, child), ascending. Without sharing every vertex has one parent at most."""
    number = np.arange(size) if ordered else random.permutation(size)
    free, below = [], [[] for _ in range(size)]
    for place in range(size):
        candidates = list(range(place)) if sharing else free
        for slot in range(arity):
            if candidates and random.random() < fill:
                # Of the last ones mostly: high graphs, whose vertices are of the same height seldom.
                near = len(candidates) - 1 - min(int(random.exponential(2)), len(candidates) - 1)
                child = candidates[near] if sharing else candidates.pop(near)
                below[number[place]].append((slot, int(number[child])))
        free.append(place)
    return below


def as_lists(graphs):
    """Return each graph as a list of its vertices: (type name, {slot: child within the graph}, data as a dict)."""
    found = []
    for start, end in zip(graphs.starts[:-1], graphs.starts[1:], strict=True):
        vertices = []
        for v in range(start, end):
            edges = range(graphs.child_starts[v], graphs.child_starts[v + 1])
            below = {int(graphs.slots[e]): int(graphs.children[e] - start) for e in edges}
            data = {name: array[v].tolist() for name, array in graphs.data.items()}
            vertices.append((graphs.type_names[graphs.types[v]], below, data))
        found.append(vertices)
    return found


def height(vertices, v):
    """Return the longest path down from vertex `v` of a graph as `as_lists` gives it."""
    return max((1 + height(vertices, child) for child in vertices[v][1].values()), default=0)


def assert_same(ours, expected):
    """Fail unless two Graphs are the same, array by array, dtypes too."""
    assert ours.type_names == expected.type_names and list(ours.data) == list(expected.data)
    for name in ("starts", "types", "child_starts", "children", "slots", "heights"):
        mine, theirs = getattr(ours, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, name)
    for name, array in expected.data.items():
        assert ours.data[name].dtype == array.dtype, name
        np.testing.assert_array_equal(ours.data[name], array, name)
