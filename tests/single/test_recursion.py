"""Recursive functions whose structure is known beforehand: in batches, against one call after the other."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


@settings(deadline=None, max_examples=60)
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
