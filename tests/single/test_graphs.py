"""Graphs as arrays against plain Python, on random mixed batches; wrong graphs are errors that say where."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_lists, assert_same, graphs, height

from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs, chains

ANY_TIME = settings(deadline=None)  # kernels are compiled on the way
TREE = ([0, 3], [0, 0, 1], [0, 0, 0, 2], [0, 1], [0, 1], ("leaf", "inner"))


@ANY_TIME
@given(graphs())
def test_heights_roots_and_sizes(batch):
    lists = as_lists(batch)
    assert batch.heights.tolist() == [height(g, v) for g in lists for v in range(len(g))]
    assert batch.heights.dtype == np.int32
    assert batch.sizes.tolist() == [len(g) for g in lists] and len(batch) == len(lists)
    children = [
        start + child
        for start, g in zip(batch.starts, lists, strict=False)
        for _, below, _ in g
        for child in below.values()
    ]
    assert batch.roots().tolist() == sorted(set(range(batch.vertices)) - set(children))
    assert batch.edges == len(children)
    for v in range(batch.vertices):
        graph, within = batch.locate(v)
        assert batch.starts[graph] + within == v and 0 <= within < batch.sizes[graph]


@ANY_TIME
@given(graphs(), st.data())
def test_select_and_join(batch, data):
    assert_same(batch.select(np.arange(len(batch))), batch)
    numbers = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6) if len(batch) else st.just([]))
    lists = as_lists(batch)
    selected = batch.select(numbers)
    assert as_lists(selected) == [lists[number] for number in numbers]
    # Built anew it passes every check and gives the same arrays: what select and join need not check is right.
    assert_same(selected, anew(selected))
    joined = Graphs.join([batch, selected, batch])
    assert as_lists(joined) == lists + as_lists(selected) + lists
    assert_same(joined, anew(joined))
    assert_same(Graphs.join([batch]), batch)
    assert_same(Graphs.join([batch.select([number]) for number in numbers] or [batch.select([])]), selected)


@ANY_TIME
@given(graphs())
def test_reversed(batch):
    turned = batch.reversed()
    assert_same(turned, anew(turned))
    for ours, g in zip(as_lists(turned), as_lists(batch), strict=True):
        for v, (kind, below, data) in enumerate(ours):
            parents = [p for p, vertex in enumerate(g) for child in vertex[1].values() if child == v]
            assert below == dict(enumerate(parents))
            assert (kind, data) == (g[v][0], g[v][2])
    again = turned.reversed()
    assert [[sorted(below.values()) for _, below, _ in g] for g in as_lists(again)] == [
        [sorted(below.values()) for _, below, _ in g] for g in as_lists(batch)
    ]
    np.testing.assert_array_equal(again.heights, batch.heights)


def anew(batch):
    return Graphs(
        batch.starts, batch.types, batch.child_starts, batch.children, batch.slots, batch.type_names, batch.data
    )


def test_data_travels_with_the_vertices():
    tree = Graphs(*TREE, {"word": np.array([5, 6, -1], np.int32)})
    more = tree.with_data(place=np.eye(3), word=[7, 8, 9])
    assert tree.data["word"].tolist() == [5, 6, -1] and "place" not in tree.data
    batch = Graphs.join([more, more]).select([1])
    np.testing.assert_array_equal(batch.data["place"], np.eye(3))
    assert batch.data["word"].tolist() == [7, 8, 9] and batch.heights.tolist() == [0, 0, 1]
    assert_same(pickle.loads(pickle.dumps(batch)), batch)
    assert repr(batch) == "Graphs(1 graphs, 3 vertices, 2 edges; types: leaf, inner; data: word, place)"


def test_graphs_of_nothing():
    none = Graphs([0], [], [0], [], [], ())
    for batch in (none, none.select([]), Graphs.join([none, none]), none.reversed(), none.with_data(word=[])):
        assert (len(batch), batch.vertices, batch.edges, batch.roots().size) == (0, 0, 0, 0)
        assert (batch.starts.tolist(), batch.child_starts.tolist()) == ([0], [0])
    empty = Graphs([0, 0, 1, 1], [0], [0, 0], [], [], ("only",))
    assert empty.sizes.tolist() == [0, 1, 0] and empty.heights.tolist() == [0]
    assert empty.select([0, 2, 1]).sizes.tolist() == [0, 0, 1]


def test_depth_costs_nothing():
    batch = chains([100_000, 1])
    assert batch.heights[99_999] == 99_999 and batch.reversed().heights[0] == 99_999
    assert_same(batch.select([0, 1]), batch)


def test_a_child_twice_and_shared():
    diamond = Graphs([0, 3], [0, 0, 0], [0, 0, 2, 4], [0, 0, 0, 1], [0, 7, 1, 2], ("any",))
    assert diamond.heights.tolist() == [0, 1, 2] and diamond.roots().tolist() == [2]
    turned = diamond.reversed()
    assert turned.children.tolist() == [1, 1, 2, 2] and turned.slots.tolist() == [0, 1, 2, 0]
    assert turned.heights.tolist() == [2, 1, 0]


WRONG = {  # graphs of two vertices, a leaf and what is said here; the second graph
    "unknown type": ((0, 2), (), (), "graph 1, vertex 1: type 2 is none of 2 (leaf, inner): expected 0 to 1"),
    "negative type": ((0, -1), (), (), "graph 1, vertex 1: type -1 is none of 2"),
    "dangling": ((0, 1), (9,), (4,), "graph 1, vertex 1, slot 4: child 9 does not exist: there are 5 vertices"),
    "negative child": ((0, 1), (-1,), (0,), "graph 1, vertex 1, slot 0: child -1 does not exist"),
    "foreign": ((0, 1), (2,), (0,), "graph 1, vertex 1, slot 0: child 2 belongs to graph 0: expected a vertex of the"),
    "negative slot": ((0, 1), (3,), (-1,), "graph 1, vertex 1, slot -1: a slot is negative"),
    "repeated slot": ((0, 1), (3, 3), (2, 2), "graph 1, vertex 1, slot 2: two children in one slot"),
    "unsorted slots": ((0, 1), (3, 3), (2, 1), "graph 1, vertex 1, slot 1: comes after slot 2: list the children"),
    "itself": ((0, 1), (4,), (6,), "graph 1, vertex 1, slot 6: a cycle of 1 vertex"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_graphs_say_where(name):
    types, children, slots, message = WRONG[name]
    with pytest.raises(DataError) as caught:
        Graphs(
            [0, 3, 5],
            [0, 0, 1, *types],
            [0, 0, 0, 2, 2, 2 + len(children)],
            [0, 1, *children],
            [0, 1, *slots],
            ("leaf", "inner"),
        )
    assert message in str(caught.value)


@ANY_TIME
@given(graphs(arity=4), st.data())
def test_a_cycle_is_found_wherever_it_is(batch, data):
    """Close a path of a right graph into a cycle: the error names a vertex on it, and every step of it is an edge."""
    with_children = np.flatnonzero(batch.heights)
    if not len(with_children):
        return
    top = data.draw(st.sampled_from(with_children.tolist()))
    below = top
    while batch.child_starts[below] < batch.child_starts[below + 1] and data.draw(st.booleans()):
        below = int(batch.children[batch.child_starts[below]])
    place = batch.child_starts[below + 1]
    child_starts = batch.child_starts.copy()
    child_starts[below + 1 :] += 1
    children, slots = np.insert(batch.children, place, top), np.insert(batch.slots, place, 99)
    with pytest.raises(DataError, match="a cycle of") as caught:
        Graphs(batch.starts, batch.types, child_starts, children, slots, batch.type_names)
    where, path = str(caught.value).split(": a cycle of")[0], str(caught.value).split(": ")[2].split(";")[0]
    graph, first, slot = (int(word.split()[1]) for word in where.split(", "))
    walk = [int(step) for step in path.split(" -> ") if step != "..."]
    assert walk[0] == walk[-1] == first
    start = batch.starts[graph]
    for vertex, child in zip(walk[:8], walk[1:8], strict=False):
        assert start + child in children[child_starts[start + vertex] : child_starts[start + vertex + 1]]
    mine = slice(child_starts[start + first], child_starts[start + first + 1])
    assert start + walk[1] in children[mine][slots[mine] == slot]


def test_long_cycles_are_cut_short():
    n = 1000
    with pytest.raises(DataError) as caught:
        Graphs([0, n], np.zeros(n, int), np.arange(n + 1), (np.arange(n) + 1) % n, np.zeros(n, int), ("any",))
    assert "a cycle of 1000 vertices, each the parent of the next: 0 -> 1 -> 2" in str(caught.value)
    assert "7 -> ... -> 0; a vertex runs after its children" in str(caught.value)


MISUSE = {
    "float children": ({"children": [0.0, 1.0]}, "children of dtype float64: expected integers"),
    "types in a table": ({"types": [[0, 0, 1]]}, r"types of shape \(1, 3\): expected one row"),
    "a slot beyond int32": (
        {"slots": [0, 1 << 40]},
        r"slots 1099511627776 at position 1 .* outside \[-2147483648,",
    ),
    "no starts": ({"starts": []}, "starts is empty: expected 0, and where each graph ends"),
    "starts too short": ({"starts": [0, 2]}, "starts runs from 0 to 2: expected 0 to 3, the number of vertices"),
    "starts not from 0": ({"starts": [1, 3]}, "starts runs from 1 to 3"),
    "falling starts": ({"starts": [0, 3, 2, 3]}, "starts: graph 1 begins at 3 and ends at 2"),
    "falling child_starts": ({"child_starts": [0, 1, 0, 2]}, "child_starts: vertex 1 begins at 1 and ends at 0"),
    "child_starts too long": ({"child_starts": [0, 0, 0, 0, 2]}, "child_starts of length 5 for 3 vertices"),
    "slots too short": ({"slots": [0]}, "1 slots for 2 children"),
    "type names twice": ({"type_names": ("leaf", "leaf")}, "expected distinct strings"),
    "one type name": ({"type_names": "leaf"}, "expected distinct strings"),
    "short data": ({"data": {"word": [1, 2]}}, r"data 'word' of shape \(2,\) for 3 vertices: expected one entry"),
    "a number as data": ({"data": {"word": 1}}, r"data 'word' of shape \(\) for 3 vertices"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_arrays_of_the_wrong_kind(name):
    changed, message = MISUSE[name]
    names = ("starts", "types", "child_starts", "children", "slots", "type_names")
    with pytest.raises(UsageError, match=message):
        Graphs(**(dict(zip(names, TREE, strict=True)) | changed))


def test_misuse_of_methods():
    tree = Graphs(*TREE, {"word": [5, 6, -1]})
    for numbers, message in (
        ([0, 1], "number 1 at position 1 is none of 1 graphs"),
        ([-1], "number -1 at position 0"),
        ([0.5], "numbers of graphs of dtype float64"),
        (0, "numbers of graphs of shape"),
        ([True], "dtype bool"),
    ):
        with pytest.raises(UsageError, match=message):
            tree.select(numbers)
    with pytest.raises(UsageError, match="join of no Graphs"):
        Graphs.join([])
    for other, message in (
        (Graphs(*TREE), r"part 1 has data \[\], part 0 \['word'\]"),
        (Graphs(*TREE[:-1], ("a", "b"), tree.data), "part 1 has type names"),
        (tree.with_data(word=np.zeros((3, 2), int)), r"data 'word' of part 1 has \(2,\) for each vertex"),
    ):
        with pytest.raises(UsageError, match=message):
            Graphs.join([tree, other])
    with pytest.raises(UsageError, match="data 'label' of shape"):
        tree.with_data(label=[1])
    with pytest.raises(UsageError, match="vertex 3 of Graphs"):
        tree.locate(3)
