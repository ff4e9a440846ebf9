"""Where a picture puts vertices and edges, and what it writes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from random_graphs import graphs

from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs, chains, from_brackets, from_edges, plot
from hybridmpi.graphs.picture import BENDS, CLEAR, SHARED, _apart, _bend, places

ANY_TIME = settings(deadline=None)  # kernels are compiled on the way


@ANY_TIME
@given(graphs(max_vertices=30, max_graphs=1))
def test_vertices_of_a_round_stand_apart(graph):
    x = places(graph)
    for height in range(graph.heights.max(initial=-1) + 1):
        assert np.all(np.diff(np.sort(x[graph.heights == height])) > 1 - 1e-9)


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=8), st.randoms())
def test_apart_is_as_near_as_can_be(wanted, random):
    wanted = np.sort(np.array(wanted, float)) / 4
    found = _apart(wanted)
    assert np.all(np.diff(found) > 1 - 1e-9)
    other = np.cumsum([random.uniform(-6, 6), *(random.uniform(1, 2) for _ in wanted[1:])])
    for share in (0.01, 0.1, 1.0):  # other places that are apart, also those right beside what was found
        mixed = (1 - share) * found + share * other
        assert ((found - wanted) ** 2).sum() <= ((mixed - wanted) ** 2).sum() + 1e-9
    np.testing.assert_allclose(_apart(found), found, atol=1e-9)


def test_edges_pass_the_vertices_between():
    rows = [np.array([0.0]), np.array([0.0]), np.array([0.0, 1.0])]
    assert _bend((0.0, 1), (0.0, 0), rows, []) == 0
    assert abs(_bend((0.0, 2), (0.0, 0), rows, [])) == min(abs(b) for b in BENDS if abs(b) / 2 >= CLEAR)
    assert _bend((0.0, 1), (0.0, 0), rows, [0.0]) == BENDS[1]
    assert _bend((1.0, 2), (0.0, 0), rows, []) == 0  # passes at 0.5
    crowded = [np.array([0.0]), np.arange(-9, 9, 0.5), np.array([0.0])]
    assert _bend((0.0, 2), (0.0, 0), crowded, []) in BENDS


def drawn(graph, **options):
    axes = Figure().add_subplot()
    plot(graph, 0, axes, **options)
    return axes


def test_a_tree():
    words = {}
    tree = from_brackets(["(3 (2 a$b) (4 (1 good) (0 _film)))"], words)
    axes = drawn(tree, names=list(words))
    edges, shared, leaves, inner = axes.collections
    assert axes.get_title() == "graph 0: 5 vertices, 3 rounds"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("round 0: 3 vertices", "round 1: 1 vertex", "round 2: 1 vertex")
    ]
    assert leaves.get_offsets().tolist() == [[0, 0], [1, 0], [2, 0]]
    assert inner.get_offsets().tolist() == [[1.5, 1], [0.75, 2]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["leaf", "inner"]
    assert [path.vertices.tolist() for path in edges.get_paths()][-2:] == [
        *([[0.75, 2], [0, 2], [0, 0]], [[0.75, 2], [1.5, 2], [1.5, 1]])
    ]
    assert len(edges.get_paths()) == 4 and not shared.get_paths()
    assert sorted(text.get_text() for text in axes.texts) == [*"01234", "_film", r"a\$b", "good"]


def test_edges_to_shared_children_are_red():
    graph = from_edges([4], [[(0, 1), (0, 2), (1, 2), (2, 3), (2, 3)]])
    axes = drawn(graph)
    assert axes.get_title() == "graph 0: 4 vertices, 4 rounds, 1 with several parents"
    edges, shared = axes.collections[:2]
    assert [len(group.get_paths()) for group in (edges, shared)] == [1, 4]
    assert matches(shared, SHARED) and not matches(edges, SHARED)
    curves = {tuple(path.vertices.ravel()) for path in [*edges.get_paths(), *shared.get_paths()]}
    assert len(curves) == 5  # a child twice: two curves


def matches(collection, colour):
    from matplotlib.colors import to_rgba

    return all(tuple(edge) == to_rgba(colour) for edge in collection.get_edgecolor())


@pytest.mark.parametrize("suffix", ["png", "svg", "PDF"])
def test_files(tmp_path, suffix):
    file = tmp_path / f"graph.{suffix}"
    plot(chains([3, 4]).with_data(word=np.arange(7)), 1, file, {3: "(", 4: "$x^{", 5: "\\frac", 6: "\u00fc"})
    start = file.read_bytes()[:5]
    assert start in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_graphs_of_nothing_and_of_one_vertex(tmp_path):
    plot(Graphs([0, 0], [], [0], [], [], ("any",)), 0, tmp_path / "none.svg")
    plot(chains([1]), 0, str(tmp_path / "one.svg"))
    assert {file.name for file in tmp_path.iterdir()} == {"none.svg", "one.svg"}


def test_what_cannot_be_drawn(tmp_path):
    for number, said in ((1, "graph 1 is none of 1: expected 0 to 0"), (-1, "number = -1 "), (True, "number = True ")):
        with pytest.raises(UsageError, match=f"plot: {said}"):
            plot(chains([1]), number, tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"expected a name that ends in \.png"):
        plot(chains([1]), 0, tmp_path / "a.gif")
    with pytest.raises(UsageError, match="there is no folder '.*nowhere'"):
        plot(chains([1]), 0, tmp_path / "nowhere" / "a.png")
