"""Every builder against plain recursive Python; wrong input is an error that says where."""

import ast
import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_lists, assert_same, graphs

from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs, by_arity, chains, from_ast, from_brackets, from_edges, from_nested, from_parents

ANY_TIME = settings(deadline=None)  # kernels are compiled on the way
TREES = ("leaf", "inner")
LABELS = st.integers(-1, 4)
WORDS = st.text("abz-.\\/\u00a0é0", min_size=1, max_size=4)
NESTED = st.recursive(st.integers(0, 99), lambda below: st.lists(below, min_size=1, max_size=4) | st.tuples(below))
# (label, word) or (label, [trees])
LABELLED = st.recursive(
    st.tuples(LABELS, WORDS), lambda below: st.tuples(LABELS, st.lists(below, min_size=1, max_size=4)), max_leaves=12
)
BLANKS = st.sampled_from(["", " ", "  ", "\t"])


def postorder(tree, below):
    """Return the vertices of a tree as (node, numbers of its children), children before parents, by recursion."""
    found = []

    def visit(node):
        children = [visit(child) for child in below(node)]
        found.append((node, children))
        return len(found) - 1

    visit(tree)
    return found


def tree_lists(trees, below, data):
    """Return what `as_lists` gives for these trees: types by having children, slots 0, 1, ..."""
    return [
        [(TREES[bool(children)], dict(enumerate(children)), data(node)) for node, children in postorder(tree, below)]
        for tree in trees
    ]


@ANY_TIME
@given(st.lists(st.lists(st.integers(0, 2**16), max_size=9), max_size=3), st.randoms())
def test_from_parents(seeds, random):
    """A random forest with the numbers of its vertices mixed."""
    lists = []
    for graph in seeds:
        number = list(range(len(graph)))
        random.shuffle(number)
        parents = [-1] * len(graph)
        for place, seed in enumerate(graph):
            above = seed % (place + 1) - 1  # -1, or a vertex before this one
            parents[number[place]] = -1 if above < 0 else number[above]
        lists.append(parents)
    below = [[[c for c, p in enumerate(parents) if p == v] for v in range(len(parents))] for parents in lists]
    expected = [[(TREES[bool(cs)], dict(enumerate(cs)), {}) for cs in graph] for graph in below]
    assert as_lists(from_parents(lists)) == expected
    assert as_lists(from_parents([np.array(parents, np.int16) for parents in lists])) == expected
    slots = [[100 - v for v in range(len(parents))] for parents in lists]
    types = [[v % 3 for v in range(len(parents))] for parents in lists]
    expected = [[("abc"[v % 3], {100 - c: c for c in cs}, {}) for v, cs in enumerate(graph)] for graph in below]
    assert as_lists(from_parents(lists, types, slots, ("a", "b", "c"))) == expected


@ANY_TIME
@given(graphs(), st.randoms())
def test_from_edges(batch, random):
    edges = [[(c, v, slot) for v, (_, below, _) in enumerate(g) for slot, c in below.items()] for g in as_lists(batch)]
    for entry in edges:
        random.shuffle(entry)
    types = [batch.types[a:b] for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]
    assert_same(from_edges(batch.sizes, edges, types, batch.type_names).with_data(**batch.data), batch)
    tables = [np.array(entry, np.int64).reshape(-1, 3) for entry in edges]
    assert_same(from_edges(batch.sizes, tables, types, batch.type_names).with_data(**batch.data), batch)
    # Without slots: in the order of the edges.
    without = from_edges(batch.sizes, [[edge[:2] for edge in entry] for entry in edges])
    for graph, entry in zip(as_lists(without), edges, strict=True):
        for v, (kind, below, _) in enumerate(graph):
            expected = [child for child, parent, _ in entry if parent == v]
            assert (kind, below) == (TREES[bool(expected)], dict(enumerate(expected)))


@ANY_TIME
@given(st.lists(st.integers(0, 5), max_size=5))
def test_chains(lengths):
    expected = [[("step", {0: t - 1} if t else {}, {}) for t in range(length)] for length in lengths]
    assert as_lists(chains(lengths)) == expected


@ANY_TIME
@given(st.lists(NESTED, max_size=3))
def test_from_nested(trees):
    def below(node):
        return [] if isinstance(node, int) else node

    def data(node):
        return {"word": node if isinstance(node, int) else -1}

    assert as_lists(from_nested(trees)) == tree_lists(trees, below, data)


def test_from_nested_numbers_any_values():
    words = {"the": 4}
    batch = from_nested([(("the", "cat"), "sleeps"), "the"], words)
    assert words == {"the": 4, "sleeps": 1, "cat": 2} or words == {"the": 4, "cat": 1, "sleeps": 2}
    assert batch.data["word"].tolist() == [4, words["cat"], -1, words["sleeps"], -1, 4]
    unknown = collections.defaultdict(lambda: 9, the=4)
    assert from_nested([("the", "cat")], unknown).data["word"].tolist() == [4, 9, -1]
    assert from_nested([("the", "cat")], len).data["word"].tolist() == [3, 3, -1]


@ANY_TIME
@given(st.lists(LABELLED, max_size=3), st.data())
def test_from_brackets(trees, data):
    def blank():
        return data.draw(BLANKS)

    def text(tree):
        label, rest = tree
        if isinstance(rest, str):
            return f"({blank()}{label} {rest}{blank()})"
        return f"({blank()}{label}{blank()}{blank().join(map(text, rest))}{blank()})"

    lines = [line for tree in trees for line in (blank() + text(tree) + "\n", blank())]
    words = {}
    batch = from_brackets(lines, words)

    def below(tree):
        return [] if isinstance(tree[1], str) else tree[1]

    def values(tree):
        return {"word": words[tree[1]] if isinstance(tree[1], str) else -1, "label": tree[0]}

    assert as_lists(batch) == tree_lists(trees, below, values)
    names = {}
    named = from_brackets(lines, words.__getitem__, names)
    assert [list(names)[label] for label in named.data["label"]] == [str(label) for label in batch.data["label"]]
    assert sorted(names.values()) == list(range(len(names)))


def test_names_as_labels_and_words_as_treebanks_write_them():
    words, labels = {}, {"S": 0}
    batch = from_brackets(["(S (NP (D the) (N 1\u00a01\\/2)) (VP (V -LRB-)) (. .))"], words, labels)
    assert list(words) == ["the", "1\u00a01\\/2", "-LRB-", "."]
    assert list(labels) == ["S", "D", "N", "NP", "V", "VP", "."]
    assert batch.data["label"].tolist() == [1, 2, 3, 4, 5, 6, 0]
    assert np.diff(batch.child_starts).tolist() == [0, 0, 2, 0, 1, 0, 3]


BRACKETS = {
    "(2 a) b": (7, "'b' after the end of the tree"),
    "(2 a))": (6, "')' after the end of the tree"),
    "(2 a)(2 b)": (6, "'(' after the end of the tree: expected one tree a line"),
    "(2 a) (3 (2 b)": (7, "'(' after the end of the tree"),
    "(2 (2 a) b)": (10, "word 'b' beside a tree"),
    "(2 a (2 b))": (6, "a tree beside a word"),
    "(2 a b)": (6, "a second word 'b' in one leaf"),
    "((2 a))": (2, "'(' where a label should be"),
    "(2 (2 a)": (1, "'(' is never closed: 1 closing bracket is missing"),
    "(2 (2 a) (2 (2 b": (13, "'(' is never closed: 3 closing brackets are missing"),
    "word": (1, "'word' outside brackets"),
    ")": (1, "')' outside brackets"),
    "(2 (2 a) ())": (11, "brackets without a label and a word"),
    "(2 (2))": (6, "a label and nothing else"),
    "(2 (x a) (2 b))": (5, "label 'x' is no int32"),
    "(2 (2 a) (9999999999 b))": (11, "label '9999999999' is no int32"),
    "(2.5 a)": (2, "label '2.5' is no int32"),
}


@pytest.mark.parametrize("line", BRACKETS)
def test_wrong_brackets_say_where(line):
    column, message = BRACKETS[line]
    with pytest.raises(DataError) as caught:
        from_brackets(["(1 a)", "", "(2 (3 b) (4 c))", line, "(1 a)"], {})
    assert str(caught.value).startswith(f"line 4, column {column}: {message}")


@ANY_TIME
@given(st.text("()a1 ", max_size=12))
def test_any_text_is_a_tree_or_an_error(line):
    """Read by a grammar of a few lines, too: what that takes is a tree, all else an error."""
    pieces = line.replace("(", " ( ").replace(")", " ) ").split()

    def tree(place):
        """Return the place after the tree that begins at `place`."""
        assert pieces[place] == "(" and pieces[place + 1] not in ("(", ")")
        place += 2
        if pieces[place] not in ("(", ")"):
            assert pieces[place + 1] == ")"
            return place + 2
        first = place
        while pieces[place] == "(":
            place = tree(place)
        assert place > first and pieces[place] == ")"
        return place + 1

    try:
        right = not pieces or tree(0) == len(pieces)
    except (AssertionError, IndexError):
        right = False
    if right:
        assert len(from_brackets([line], {}, {})) == bool(pieces)
    else:
        with pytest.raises(DataError, match="line 1, column"):
            from_brackets([line], {}, {})


SOURCE = """
class A(B, key=c):
    x: int = f(1, *a)[2:3]
    def g(self, /, y=-1, *, z=None, **rest) -> "t":
        return {k: v for k, v in rest.items() if k < y <= z} or [lambda: 0]
def h():
    pass
"""


def test_from_ast():
    trees = [ast.parse(SOURCE), ast.parse("a + b", mode="eval"), ast.Pass()]

    def below(node):
        return [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]

    def name_length(node):
        return len(node.id) if isinstance(node, ast.Name) else -1

    kinds = {"Name": 0}
    batch = from_ast(trees, kinds, length=name_length)
    expected = tree_lists(trees, below, lambda node: {"kind": kinds[type(node).__name__], "length": name_length(node)})
    assert as_lists(batch) == expected
    assert sorted(kinds.values()) == list(range(len(kinds)))
    assert from_ast([], kinds).vertices == 0


@pytest.mark.parametrize("depth", [100_000])
def test_no_builder_recurses(depth):
    nested = 1
    for _ in range(depth):
        nested = (nested,)
    node = ast.Pass()
    for _ in range(depth):
        node = ast.If(test=ast.Constant(value=1), body=[node], orelse=[])
    for batch in (
        from_nested([nested]),
        from_brackets(["(1 " * depth + "(2 a)" + ")" * depth], {}),
        from_ast([node], {}),
        from_parents([[-1, *range(depth)]]),
        from_edges([depth + 1], [np.column_stack([np.arange(depth), np.arange(1, depth + 1)])]),
    ):
        assert batch.heights.max() == depth
    while not isinstance(nested, int):
        nested = nested[0]  # taken apart step by step: as a whole it would be by recursion
    while isinstance(node, ast.If):
        node = node.body.pop()


def test_by_arity():
    batch = from_nested([(1, (2,), (3, 4, 5)), 6])
    divided = by_arity(batch, 3)
    assert divided.type_names == ("leaf", "leaf1", "leaf2", "leaf3", "inner", "inner1", "inner2", "inner3")
    assert [divided.type_names[t] for t in divided.types] == [
        *("leaf", "leaf", "inner1", "leaf", "leaf", "leaf", "inner3", "inner3", "leaf")
    ]
    assert_same(Graphs(divided.starts, batch.types, *(divided.child_starts, divided.children, divided.slots),
                       batch.type_names, divided.data), batch)  # fmt: skip
    with pytest.raises(DataError, match="graph 0, vertex 6: 3 children: expected 2 at most"):
        by_arity(batch, 2)
    with pytest.raises(UsageError, match="by_arity: most = -1 "):
        by_arity(batch, -1)
    with pytest.raises(UsageError, match="expected distinct strings"):
        by_arity(Graphs([0], [], [0], [], [], ("a", "a1")), 1)


MISUSE = {
    "parent too large": (
        lambda: from_parents([[-1], [-1, 2]]),
        DataError,
        "graph 1, vertex 1: parent 2 does not exist",
    ),
    "parent below -1": (lambda: from_parents([[-2]]), DataError, "graph 0, vertex 0: parent -2 does not exist"),
    "own parent": (lambda: from_parents([[-1, 1]]), DataError, "graph 0, vertex 1, slot 0: a cycle of 1 vertex"),
    "float parents": (lambda: from_parents([[-1.0]]), UsageError, "graph 0: parents of dtype float64"),
    "one list": (lambda: from_parents([-1, 0]), UsageError, r"graph 0: parents of shape \(\)"),
    "a slot twice": (
        lambda: from_parents([[-1, 0, 0]], slots=[[0, 1, 1]]),
        DataError,
        "graph 0, vertex 0, slot 1: two children in one slot",
    ),
    "few slots": (lambda: from_parents([[-1, 0]], slots=[[0]]), UsageError, "graph 0: 1 slots for 2 vertices"),
    "slots of few": (lambda: from_parents([[-1], [-1]], slots=[[0]]), UsageError, "slots of 1 graphs: expected those"),
    "types alone": (lambda: from_parents([[-1]], [[0]]), UsageError, "types without type_names"),
    "names alone": (lambda: from_edges([1], [[]], type_names=("a",)), UsageError, "types without type_names"),
    "edge beyond": (
        lambda: from_edges([2, 2], [[(0, 1)], [(0, 1), (2, 1)]]),
        DataError,
        "graph 1, edge 1: child 2, parent 1: expected vertices of this graph, of which there are 2",
    ),
    "edge below": (lambda: from_edges([2], [[(-1, 1)]]), DataError, "graph 0, edge 0: child -1, parent 1"),
    "ragged edges": (
        lambda: from_edges([2], [[(0, 1), (0, 1, 1)]]),
        UsageError,
        "graph 0: edges: a list of which numpy makes no array",
    ),
    "mixed edges": (
        lambda: from_edges([2, 2], [[(0, 1)], [(0, 1, 1)]]),
        UsageError,
        "graph 1: its edges have slots, those of others have none",
    ),
    "wide edges": (lambda: from_edges([2], [[(0, 1, 1, 1)]]), UsageError, r"graph 0: edges of shape \(1, 4\)"),
    "lists of edges": (lambda: from_edges([2], []), UsageError, "0 lists of edges for 1 numbers of vertices"),
    "negative size": (lambda: from_edges([-1], [[]]), UsageError, "the least -1"),
    "edge cycle": (lambda: from_edges([2], [[(0, 1), (1, 0)]]), DataError, "a cycle of 2 vertices"),
    "negative chain": (lambda: chains([3, -2]), UsageError, "a chain of length -2, at position 1"),
    "an empty tuple": (lambda: from_nested([1, (1, ())]), DataError, r"graph 1, vertex 1: \(\) has no entries"),
    "a word": (
        lambda: from_nested([(1, "a")]),
        DataError,
        "graph 0, vertex 1: the word of leaf 'a' is 'a': expected an",
    ),
    "a large word": (lambda: from_nested([1 << 31]), DataError, "graph 0, vertex 0: the word of leaf 2147483648"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_wrong_input_says_where(name):
    function, error, message = MISUSE[name]
    with pytest.raises(error, match=message):
        function()
