"""Recursive functions that wait for values: in batches, against one call after the other."""

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
    assert_alike,
    assert_batched,
    chain,
    forests,
    measured,
    prepared,
    slope_is_right,
    tree,
)

from hybridmpi import autograd, nn
from hybridmpi.autograd import Parameter, Tensor, no_grad
from hybridmpi.dynamic import push, recursive


class Model(nn.Module):
    """Decides by values, in several places of a body, and calls functions that do not, and the other way round."""

    def __init__(self, dtype=np.float64):
        self.words = nn.Embedding(WORDS, WIDTH, dtype=dtype)
        self.tags = nn.Embedding(TAGS, HIDDEN, dtype=dtype)
        self.cell, self.score = Cell(dtype), nn.Linear(HIDDEN, 1, dtype=dtype)
        self.start = Parameter((1, HIDDEN), ("normal", 0.0, 1.0), dtype)

    @recursive
    async def visit(self, node, h, c):
        """Its number says for what it waits."""
        kids = node.kids
        if node.act == 1 and await h[:, :1] < 0.2:  # a part of an argument
            h = h + self.tags(node.label) * c
        if node.act == 2 and (await c)[1] < 0.3:  # an argument as it is
            kids = kids[:1]
        h = self.cell(self.words(node.word), h)
        if node.act == 3:
            score = self.score(h)
            first, second = await score, await score  # twice the same
            assert first == second and isinstance(first, float)
            if first > 0:
                push(score=score, kind=node.label)
                kids = kids[1:]
        for kid in kids:
            below = self.visit(kid, h, c) if node.act != 4 else self.plain(kid, h)
            if node.act == 5:  # what a callee returns, and then by it whether there are more
                values = await below
                assert values.shape == (HIDDEN,)
                h = h * below
                if values.sum() > 0.5:
                    break
            elif node.act == 6:  # what was computed from what a callee returns, and from before
                if await self.score(below * h) > 0:
                    c = autograd.tanh(c - below)
                h = h + c * self.tags(node.word % TAGS)
            else:
                h = h + below
        if node.act == 7 and await self.score(h) > 0:
            return c  # an argument, or what a callee has returned
        if node.act == 8:
            h = h - self.decide(node, h)[1]
        if node.act % 2:
            push(h=h, label=node.label)
        return h

    @recursive
    def plain(self, node, h):
        """Waits for nothing itself, calls what does, and hands a result on unchanged."""
        x = self.cell(self.words(node.word), None)
        for kid in node.kids:
            x = x * self.visit(kid, h, x)
        self.silent(x)
        return self.decide(node, x)[1]

    @recursive
    async def silent(self, h):
        """Returns nothing; pushes in one branch."""
        if await self.score(h) > 0:
            push(quiet=h[:, :2])

    @recursive
    async def decide(self, node, h):
        """Returns a tuple: in both branches the same widths, a parameter among them."""
        score = self.score(h)
        if await score > 0:
            return score, h * 2.0
        return score * score, self.start

    @recursive
    def root(self, node, h):
        if not node.kids:
            return h, self.cell(self.words(node.word), h)  # a root that never waits
        return h * self.start, self.visit(node, h, autograd.sigmoid(h))

    @recursive
    async def endless(self, h, steps):
        """Goes on until the value says so: a loop by recursion, two to each."""
        if steps == 9 or await self.score(h) > 0.4:
            push(h=h, steps=steps)
            return h
        below = self.endless(self.cell(self.words(steps), h), steps + 1)
        if await below[:, :1] > 0:
            below = below + self.endless(self.cell(self.words(steps), below), max(steps + 1, 7))
        return below * 0.5


@pytest.fixture(scope="module")
def model():
    """One for all: what it has learned from some trees it uses, rightly or not, for the next."""
    return prepared(Model())


def rows(count, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal((count, HIDDEN)), requires_grad=True)


@settings(deadline=None, max_examples=60)
@given(trees=forests())
def test_batches_give_what_single_calls_give(model, trees):
    assert_batched(model, model.root, trees, rows(len(trees)))


@pytest.mark.parametrize("act", range(9))
def test_every_kind_of_body_from_the_first_call_on(act):
    """Nothing is known yet of what functions return; then it is."""
    model = prepared(Model())
    trees = [tree(np.random.default_rng([act, n]), 1 + 4 * n, 1) for n in range(4)]
    for root in trees:
        for node in [root, *root.kids]:
            node.act = act
    for some in (trees, trees[::-1]):
        assert_batched(model, model.root, some, rows(len(some), act))
