"""Recursive functions whose structure is known beforehand: in batches, against one call after the other."""

import copy
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from recursion_oracle import (
    HIDDEN,
    TAGS,
    WIDTH,
    WORDS,
    Cell,
    Node,
    TreeLSTM,
    assert_alike,
    assert_batched,
    chain,
    forests,
    inner_lstm,
    leaf_lstm,
    measured,
    prepared,
    slope_is_right,
    tree,
)

from hybridmpi import autograd, nn
from hybridmpi.autograd import Parameter, Tensor, no_grad
from hybridmpi.dynamic import GraphPass, VertexFunction, push, recursive
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs


class Other(nn.Module):
    """Functions of another module: each hands a vertex' children back to the first."""

    def __init__(self, dtype):
        self.mix = nn.Linear(2 * HIDDEN, HIDDEN, dtype=dtype)
        self.start = Parameter((1, HIDDEN), ("normal", 0.0, 1.0), dtype)
        self.tags = nn.Embedding(TAGS, HIDDEN, dtype=dtype)

    @recursive
    def inherit(self, model, node, state, beside):
        """Takes tensors within tuples and lists, numbers and None beside them; returns a tuple of unequal widths."""
        (h, nothing), (c, number) = state
        assert nothing is None and number == node.label
        if beside:
            h = h + beside[0][-1] * float(number)
        h = autograd.tanh(self.mix(autograd.concatenate([h, c], axis=1)))
        for kid in node.kids:
            h = h * model.visit(kid, h, c)
        return h, h[:, :2]

    @recursive
    def nothing(self, model, node, h):
        """Returns nothing; pushes at some vertices only, and a second row of the table at others."""
        if node.label % 2:
            h = h - self.tags(node.word % TAGS) * self.tags(node.label)
        if node.label != 3:
            push(quiet=h, score=node.label / 2)
        for kid in node.kids:
            model.visit(kid, h, self.start)  # its result is not used

    @recursive
    def parameter(self, model, node):
        """Returns a parameter, whatever happens below."""
        for kid in node.kids:
            self.nothing(model, kid, self.tags(kid.word % TAGS))
        return self.start

    @recursive
    def unchanged(self, h):
        """Returns its argument."""
        return h

    @recursive
    def twice(self, model, node, h, c):
        """Returns the same tensor twice, in a list, and a callee's result unchanged."""
        below = model.visit(node.kids[0], h, c) if node.kids else self.unchanged(c)
        for kid in node.kids[1:]:
            model.visit(kid, below, h)
        return [h, h, below]


class Model(nn.Module):
    """Does at each vertex what its number says, and calls functions of its own and of another module."""

    def __init__(self, dtype=np.float64):
        self.words = nn.Embedding(WORDS, WIDTH, dtype=dtype)
        self.cell, self.other = Cell(dtype), Other(dtype)

    @recursive
    def visit(self, node, h, c):
        """Inherits h and c; its number says what it does with them."""
        x = self.words(node.word)
        if node.act % 3 == 1:
            x = x * self.words(node.label) + self.words(node.word)
        h, kids, other = self.cell(x, h), node.kids, self.other
        if node.act == 1:  # the sum over all children
            for kid in kids:
                h = h + self.visit(kid, h, c)
        elif node.act == 2:  # one child after the other
            for kid in kids:
                c = autograd.sigmoid(self.visit(kid, c, h))
        elif node.act == 3 and kids:
            pair = other.inherit(self, kids[0], ((h, None), [c, kids[0].label]), [(c, h)] if node.label else ())
            h = autograd.concatenate([pair[1], pair[0][:, :2]], axis=1)
        elif node.act == 4:
            for kid in kids:
                assert other.nothing(self, kid, h) is None
        elif node.act == 5 and kids:
            h = h * other.parameter(self, kids[0])
        elif node.act == 6 and kids:
            first, second, below = other.twice(self, kids[0], h, c)
            h = first - 2.0 * second + below
        elif node.act == 7 and kids:  # a callee's result goes straight on to another, and out
            return self.visit(Node(kids[1:], node.word, 0, 1), self.visit(kids[0], h, c), h)
        elif node.act == 8:
            return h if not kids else other.unchanged(other.unchanged(c))
        if node.act % 2:
            push(h=h, label=node.label)
        elif node.act == 2:
            push(narrow=h[:, 1:3], kind=node.act)
            push(c=c)
        return h

    @recursive
    def root(self, node, h):
        """Nothing but calls: three results, one of them an argument."""
        inherited = self.other.inherit(self, node, ((h, None), (self.other.start * h, node.label)), ())
        return self.visit(node, h, h), inherited[0], h


def roots_of(trees, seed=0):
    rows = np.random.default_rng(seed).standard_normal((len(trees), HIDDEN))
    return Tensor(rows, requires_grad=True)


@pytest.fixture(scope="module")
def model():
    """One for all: what it has learned from some trees it uses, rightly or not, for the next."""
    return prepared(Model())


@settings(deadline=None, max_examples=25)
@given(trees=forests())
def test_batches_give_what_single_calls_give(model, trees):
    h = roots_of(trees)
    expected = measured(model, lambda: model.root.over(trees, h, policy="serial"), [h])
    for _ in range(2):
        assert_alike(measured(model, lambda: model.root.over(trees, h), [h]), expected)
    lowered = model.root.lower(trees, h)
    assert_alike(measured(model, lambda: model.root.over(lowered, h), [h]), expected)


@pytest.mark.parametrize("act", range(9))
def test_every_kind_of_body_on_its_own(act):
    model = prepared(Model())
    trees = [tree(np.random.default_rng([act, n]), 1 + 3 * n, 1) for n in range(4)]
    for root in trees:
        for node in [root, *root.kids]:
            node.act = act
    assert_batched(model, model.root, trees, roots_of(trees))


def test_gradients_are_finite_differences():
    model = prepared(Model())
    trees = [tree(np.random.default_rng([4, n]), 25, 9) for n in range(6)]
    h = roots_of(trees)

    def value():
        outputs = model.root.over(trees, h)
        pushed = (outputs.h**2).sum() + outputs.quiet.sum() + (outputs.c * outputs.c).sum() + outputs.narrow.sum()
        return pushed + sum((autograd.tanh(tensor) * 0.5).sum() for tensor in outputs.results)

    slope_is_right(model, value, [h])


class Leaf(VertexFunction):
    def __init__(self, gates):
        self.gates = gates

    def vertex(self, v):
        h, c = leaf_lstm(self.gates, v.pull("word"))
        v.scatter(h=h, c=c)
        v.push(h=h)


class Inner(Leaf):
    def vertex(self, v):
        left, right = v.gather(0), v.gather(1)
        h, c = inner_lstm(self.gates, (left.h, left.c), (right.h, right.c))
        v.scatter(h=h, c=c)
        v.push(h=h)


def test_a_tree_lstm_is_the_same_as_vertex_functions():
    model = prepared(TreeLSTM())
    passing = GraphPass({"leaf": Leaf(model.leaf), "inner": Inner(model.inner)})
    random = np.random.default_rng(3)
    trees = [binary(random, leaves) for leaves in (1, 2, 5, 9)]
    starts, kinds, child_starts, children, words = [0], [], [0], [], []
    for root in trees:
        number(root, kinds, child_starts, children, words)
        starts.append(len(kinds))
    slots = [place for start, end in zip(child_starts, child_starts[1:], strict=False) for place in range(end - start)]
    batch = Graphs(starts, kinds, child_starts, children, slots, ("inner", "leaf"))
    ids = np.array(words)

    class AsVertices:
        def __init__(self):
            distinct, positions = model.words.distinct(ids[ids >= 0])
            places = np.full(len(ids), -1)
            places[ids >= 0] = positions
            self.h, self.roots, self.results = None, {}, None
            self.h = passing(batch, word=(model.words.rows_of(distinct), places)).h

    class Recursively:
        def __init__(self):
            self.h, self.roots, self.results = model.encode.over(trees).h, {}, None

    assert_alike(measured(model, Recursively), measured(model, AsVertices))


def binary(random, leaves):
    if leaves == 1:
        return Node((), int(random.integers(WORDS)))
    left = int(random.integers(1, leaves))
    return Node((binary(random, left), binary(random, leaves - left)))


def number(node, kinds, child_starts, children, words):
    """Lay a binary tree out as arrays, each vertex before its children, as recursion pushes them."""
    me = len(kinds)
    kinds.append(0 if node.kids else 1)
    words.append(-1 if node.kids else node.word)
    children += [None] * len(node.kids)
    child_starts.append(len(children))
    first = child_starts[me]
    for place, kid in enumerate(node.kids):
        children[first + place] = len(kinds)
        number(kid, kinds, child_starts, children, words)


def test_lowered_data_is_selected_joined_and_trained_with():
    model = prepared(Model())
    trees = [tree(np.random.default_rng([8, n]), 5 + 3 * n, 9) for n in range(6)]
    model.root.lower(trees, roots_of(trees))
    lowered = model.root.lower(trees, roots_of(trees))  # again: now all that they do is known

    def assert_same(graphs, some):
        h = roots_of(some)
        expected = measured(model, lambda: model.root.over(some, h), [h])
        assert_alike(measured(model, lambda: model.root.over(graphs, h), [h]), expected)

    assert_same(lowered, trees)
    picked = [5, 0, 0, 3]
    assert_same(lowered.select(picked), [trees[place] for place in picked])
    assert_same(
        Graphs.join([lowered.select([1]), lowered.select([]), lowered.select([4, 2])]), trees[1:2] + trees[4:1:-2]
    )
    for parameter in model.parameters():  # a step changes them in place
        parameter.data[...] *= 0.7
    for _, table in model.named_tables():
        table.store.values *= 1.1
    assert_same(lowered, trees)
    assert_batched(model, model.root, trees, roots_of(trees))
    with no_grad():
        outputs = model.root.over(lowered, roots_of(trees))
    assert not outputs.h.requires_grad and not outputs.results[0].requires_grad
    assert_alike(
        {"h": outputs.h.data, "result": outputs.results[1].data},
        {"h": model.root.over(trees, roots_of(trees)).h.data, "result": outputs.results[1].data},
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_stands_by_itself(copied):
    model = prepared(TreeLSTM())
    roots = [binary(np.random.default_rng(2), 6)]
    expected = measured(model, lambda: model.encode.over(roots))
    lowered = model.encode.lower(roots)
    other = copied(model)
    for parameter in model.parameters():
        parameter.data[...] = 7.0
    assert_alike(measured(other, lambda: other.encode.over(roots)), expected)
    assert_alike(measured(other, lambda: other.encode.over(lowered)), expected)  # it has learned the same


def test_a_chain_of_ten_thousand_needs_no_stack():
    class Chain(nn.Module):
        def __init__(self):
            self.words, self.cell = nn.Embedding(WORDS, WIDTH, dtype=np.float64), Cell()

        @recursive
        def encode(self, node):
            return self.cell(self.words(node.word), self.encode(node.kids[0]) if node.kids else None)

    model, long = prepared(Chain()), chain(10_000, word=3)
    limit = sys.getrecursionlimit()
    outputs = model.encode.over([long, long.kids[0]])
    outputs.results.sum().backward()
    assert sys.getrecursionlimit() == limit
    h, words = None, Tensor(model.words.store.values[3:4])
    for _ in range(10_000):
        h = model.cell(words, h)
    np.testing.assert_allclose(outputs.results.data[0], h.data[0], atol=1e-12)
    assert np.isfinite(model.cell.own.weight.grad).all() and np.abs(model.cell.own.weight.grad).max() > 0


def test_what_modules_do_is_remembered_only_as_long_as_it_is_true():
    class Scaled(nn.Module):
        def __init__(self):
            self.by, self.inner, self.memory = 2.0, nn.Linear(HIDDEN, HIDDEN, dtype=np.float64), None

        def forward(self, x):
            return self.inner(x) * self.by + self.memory

    class Holder(nn.Module):
        def __init__(self):
            self.words, self.cell, self.scaled = nn.Embedding(WORDS, WIDTH, dtype=np.float64), Cell(), Scaled()

        @recursive
        def visit(self, node, c):
            h = self.cell(self.words(node.word), c)
            self.scaled.memory = h if node.label else c * 3.0  # not an argument, and another in each call
            h = self.scaled(h)
            for kid in node.kids:
                h = h + self.visit(kid, h)
            return h

    model = prepared(Holder())
    trees = [tree(np.random.default_rng([9, n]), 9, 1) for n in range(3)]
    assert_batched(model, model.visit, trees, roots_of(trees))
    model.scaled.by = -3.0
    assert_batched(model, model.visit, trees, roots_of(trees))
    model.scaled.inner.weight = Parameter((HIDDEN, HIDDEN), ("normal", 0.0, 2.0), np.float64)
    model.initialise(9)
    assert_batched(model, model.visit, trees, roots_of(trees))


def test_arguments_go_by_place_or_name_and_calls_stand_anywhere():
    class Named(nn.Module):
        def __init__(self):
            self.words, self.cell = nn.Embedding(WORDS, WIDTH, dtype=np.float64), Cell()

        @recursive
        def visit(self, node, state=None, *more, factor=1.0):
            h = self.cell(x=self.words(node.word), below=state) * factor
            return sum((self.visit(kid, state=h) + self.visit(kid) for kid in node.kids), h)

        @recursive
        def by_name_alone(self, node):
            return self.visit(node, factor=2.0)

    model = prepared(Named())
    trees = [tree(np.random.default_rng(n), 6, 1, 2) for n in range(3)]
    assert_batched(model, model.visit, trees)
    np.testing.assert_array_equal(model.visit(node=trees[1]).data, model.visit.over(trees[1:2]).results.data)
    with pytest.raises(UsageError, match=r"by_name_alone\[0\].*factor=\.\.\."):
        model.by_name_alone.over(trees)


def test_a_function_by_itself_and_what_other_passes_have_pushed():
    cell, words = Cell(), nn.Embedding(WORDS, WIDTH, dtype=np.float64)

    class Both(nn.Module):
        def __init__(self):
            self.cell, self.words = cell, words

    model = prepared(Both())

    @recursive
    def alone(node, h):
        h = cell(words(node.word), h)
        if node.kids:
            push(inner=h, kids=len(node.kids))
        return [alone(kid, h)[0] for kid in node.kids][-1:] or [h]

    trees = [Node((Node(),)), Node()]
    assert_batched(model, alone, trees, roots_of(trees))
    outputs = alone.over([Node()], roots_of(trees[:1]))
    assert outputs.inner.shape == (0, HIDDEN) and len(outputs.kids) == len(outputs.roots["inner"]) == 0
    nobody = alone.over([], Tensor(np.empty((0, HIDDEN))))
    assert nobody.results[0].shape == (0, HIDDEN) and nobody.results[0].dtype == np.float64
