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
        if steps == 9 or np.sin(100.0 * (await h).sum()) > 0.4:
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


@settings(deadline=None, max_examples=25)
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


def test_many_after_few_and_other_structures():
    """Arenas grow, and move, while others point into them; passes after each other have nothing in common."""
    model = prepared(Model())
    for count, seed in ((1, 0), (40, 1), (3, 2), (120, 3)):
        trees = [tree(np.random.default_rng([seed, n]), 1 + n % 9, 9) for n in range(count)]
        assert_batched(model, model.root, trees, rows(count, seed))


def test_how_deep_it_goes_is_told_by_values():
    model = prepared(Model())
    h = rows(40, 4)
    expected = measured(model, lambda: model.endless.over(h, [0] * 40, policy="serial"), [h])
    steps = np.bincount(expected["data steps"])
    assert len(expected["data steps"]) > 100 and (steps > 0).sum() > 4, "too uniform to show anything"
    for _ in range(2):
        assert_alike(measured(model, lambda: model.endless.over(h, [0] * 40), [h]), expected)


def test_gradients_are_finite_differences():
    model = prepared(Model())
    trees = [tree(np.random.default_rng([4, n]), 25, 9) for n in range(6)]
    h = rows(len(trees))

    def value():
        outputs = model.root.over(trees, h)
        pushed = (outputs.h**2).sum() + outputs.quiet.sum() + autograd.sigmoid(outputs.score).sum()
        return pushed + sum((autograd.tanh(tensor) * 0.5).sum() for tensor in outputs.results)

    slope_is_right(model, value, [h])


def test_without_gradients():
    model = prepared(Model())
    trees = [tree(np.random.default_rng([6, n]), 9, 9) for n in range(5)]
    with_gradients = model.root.over(trees, rows(5))
    with no_grad():
        without = model.root.over(trees, rows(5))
    assert with_gradients.h.requires_grad and not without.h.requires_grad
    np.testing.assert_allclose(without.h.data, with_gradients.h.data, rtol=1e-12)
    np.testing.assert_allclose(without.results[1].data, with_gradients.results[1].data, rtol=1e-12)


def test_two_passes_may_be_under_way():
    model = prepared(Model())
    trees = [tree(np.random.default_rng([7, n]), 9, 9) for n in range(4)]
    apart = [measured(model, lambda some=some: model.root.over(some, rows(2))) for some in (trees[:2], trees[2:])]
    for parameter in model.parameters():
        parameter.begin_step()
    first, second = model.root.over(trees[:2], rows(2)), model.root.over(trees[2:], rows(2))
    np.testing.assert_allclose(first.h.data, apart[0]["h"], atol=1e-13)
    np.testing.assert_allclose(second.h.data, apart[1]["h"], atol=1e-13)
    second.h.sum().backward()
    first.h.sum().backward()
    total = model.cell.own.weight.grad.copy()
    for parameter in model.parameters():
        parameter.begin_step()
    together = model.root.over(trees, Tensor(np.concatenate([rows(2).data, rows(2).data])))
    together.h.sum().backward()
    np.testing.assert_allclose(total, model.cell.own.weight.grad, atol=1e-11)


def test_a_chain_of_ten_thousand_needs_no_stack():
    class Chain(nn.Module):
        def __init__(self):
            self.words, self.cell = nn.Embedding(WORDS, WIDTH, dtype=np.float64), Cell()

        @recursive
        async def encode(self, node):
            below = self.encode(node.kids[0]) if node.kids else None
            if below is not None:
                assert np.abs(await below).max() <= 1
            return self.cell(self.words(node.word), below)

    model, long = prepared(Chain()), chain(10_000, word=3)
    outputs = model.encode.over([long, long.kids[0]])
    outputs.results.sum().backward()
    h, words = None, Tensor(model.words.store.values[3:4])
    for _ in range(10_000):
        h = model.cell(words, h)
    np.testing.assert_allclose(outputs.results.data[0], h.data[0], atol=1e-12)
    assert np.isfinite(model.cell.own.weight.grad).all() and np.abs(model.cell.own.weight.grad).max() > 0


def test_rows_of_tables_alone():
    """No parameter and no tensor of a root: the dtype is the table's."""

    class Rows(nn.Module):
        def __init__(self):
            self.words = nn.Embedding(WORDS, WIDTH, dtype=np.float64)

        @recursive
        async def total(self, node):
            row = self.words(node.word)
            if (await row).sum() > 0:
                push(row=row, lucky=node.label == 1)
            return sum((self.total(kid) for kid in node.kids), row)

    model = prepared(Rows())
    trees = [tree(np.random.default_rng(n), 7, 1) for n in range(3)]
    for _ in range(2):
        outputs = model.total.over(trees)
        assert outputs.results.dtype == np.float64 and outputs.lucky.dtype == np.int64
    assert_batched(model, model.total, trees)
    nobody = model.total.over([])
    assert nobody.results.shape == nobody.row.shape == (0, WIDTH) and not len(nobody.lucky)
