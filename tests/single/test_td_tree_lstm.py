"""Trees from the top down: likelihood against plain numpy; trees drawn as the probabilities say, batched or not."""

from collections import Counter

import numpy as np
import pytest
from finite_differences import MemoryStore, check_slopes, pulled_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.data.graph_batches import GraphBatches
from hybridmpi.graphs import from_parents
from hybridmpi.models.draws import below, choose
from hybridmpi.models.td_tree_lstm import TopDownTreeLSTM

KINDS, WIDTH, HIDDEN = 3, 4, 5


def model_of(kinds=KINDS, dtype=np.float64):
    model = TopDownTreeLSTM(kinds, WIDTH, HIDDEN, dtype)
    model.initialise(3)
    rows = np.random.default_rng(4).standard_normal((kinds + 1, WIDTH)).astype(dtype)
    model.kinds.store = MemoryStore(rows, "kinds")
    return model


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


class Oracle:
    """The model's formulas, one vertex after the other."""

    def __init__(self, model):
        self.p = {name: parameter.data.astype(float) for name, parameter in model.named_parameters()}
        self.rows, self.kinds = model.kinds.store.values.astype(float), model.unlabelled + 1
        self.start = self.p["start"][0], np.zeros(HIDDEN)

    def logits(self, state):
        """Return those of kinds, and those of numbers of children."""
        both = self.p["output.weight"] @ state[0] + self.p["output.bias"]
        return both[: self.kinds], both[self.kinds :]

    def children(self, kind, state):
        """Return the states of both children."""
        x = np.concatenate([self.rows[kind], state[0]])
        states, gates = [], self.p["down.gates.weight"] @ x + self.p["down.gates.bias"]
        for i, f, o, u in gates.reshape(2, 4, HIDDEN):
            c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(u)
            states.append((sigmoid(o) * np.tanh(c), c))
        return states

    def nats(self, tree, state=None):
        """Return the negative log likelihood of a tree (kind, *children)."""
        (kind, *below_it), state = tree, state or self.start
        kinds, counts = self.logits(state)
        told = -np.log(softmax(kinds)[kind] * softmax(counts)[len(below_it)])
        states = self.children(kind, state) if below_it else []
        return told + sum(self.nats(child, of) for child, of in zip(below_it, states, strict=False))


def size(tree):
    return 1 + sum(map(size, tree[1:]))


def graphs_of(trees):
    """Return trees (kind, *children) as graphs; the last kind is what vertices without a label are."""
    parents, labels = [], []
    for tree in trees:
        mine, stack = [], [(tree, -1)]
        while stack:
            (kind, *below_it), parent = stack.pop()
            stack += [(child, len(mine)) for child in reversed(below_it)]
            labels.append(kind if kind < KINDS else -1)
            mine.append(parent)
        parents.append(mine)
    return from_parents(parents).with_data(label=labels)


def batch_of(model, trees):
    (batch,) = GraphBatches(model.lower(graphs_of(trees)), len(trees), 0).one_pass()
    return batch


TREES = st.recursive(
    st.tuples(st.integers(0, KINDS)),
    lambda tree: st.tuples(st.integers(0, KINDS), tree) | st.tuples(st.integers(0, KINDS), tree, tree),
    max_leaves=12,
)
MODELS = {dtype: model_of(dtype=dtype) for dtype in (np.float64, np.float32)}


@settings(max_examples=30, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=5))
def test_likelihood_of_trees(trees):
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        model = MODELS[dtype]
        oracle, batch = Oracle(model), batch_of(model, trees)
        assert batch.weight == sum(map(size, trees))
        expected = sum(map(oracle.nats, trees)) / batch.weight
        assert float(model.loss(batch)) == pytest.approx(expected, rel=tolerance)


SOME = [(1, (2, (3,)), (0,)), (3, (1,), (3, (0, (2,), (2,)), (0,))), (2,)]


def test_gradients_are_differences():
    model = model_of()
    check_slopes(model, batch_of(model, SOME))


def test_rows_wanted_and_products():
    model = model_of()
    batch = batch_of(model, SOME)
    wanted = {name: np.unique(ids) for name, ids in model.rows_wanted(batch).items()}
    pulled = pulled_rows(model, lambda: model.loss(batch))
    assert wanted.keys() == pulled.keys() and all(np.array_equal(wanted[name], pulled[name]) for name in wanted)
    products = 5 * (WIDTH + HIDDEN) * 8 * HIDDEN + 12 * HIDDEN * (KINDS + 1 + 3)
    assert model.flops(batch, {}) == 3 * 2 * products


def test_no_trees_are_lowered_to_no_graphs():
    """As of a job without held-out trees; before any other trees too."""
    for lowered in (model_of().lower(graphs_of(SOME).select([])), MODELS[np.float64].lower(graphs_of(SOME).select([]))):
        assert len(lowered) == lowered.vertices == 0


def depth(tree):
    return 1 + max(map(depth, tree[1:]), default=0)


def fruitful(model):
    """Let vertices mostly have children."""
    model.output.bias.data[-3:] = np.log([0.3, 0.2, 0.5])
    return model


def test_drawn_trees_are_a_function_of_the_seed():
    model = fruitful(model_of())
    trees = model.draw(30, 6, seed=5)
    assert trees == model.draw(30, 6, seed=5) == fruitful(model_of()).draw(30, 6, seed=5)
    assert trees[:7] == model.draw(7, 6, seed=5)  # each tree has its own numbers
    assert trees != model.draw(30, 6, seed=6)
    assert max(map(depth, trees)) == 6 and {len(tree) for tree in trees} == {1, 2, 3}
    # Of fewer levels it is the same tree, cut.
    assert model.draw(30, 3, seed=5) == [cut(tree, 3) for tree in trees]
    assert all(depth(tree) == 1 for tree in model.draw(30, 1, seed=5))


def cut(tree, levels):
    return [tree[0], *(cut(child, levels - 1) for child in tree[1:] if levels > 1)]


def test_drawn_one_call_after_the_other_they_are_the_same():
    seeds = [below(9, tree) for tree in range(8)]
    arrays, gradients = [], []
    for policy in ("serial", "batched"):
        model = fruitful(model_of())
        for parameter in model.parameters():
            parameter.begin_step()
        drawn = model.tree.over(seeds, [5] * len(seeds), policy=policy)
        model.told(drawn).backward()
        arrays.append((drawn.h.data, drawn.label, drawn.count, drawn.roots["h"]))
        for parameter in model.parameters():
            parameter.finish_step()
        gradients.append([parameter.grad for parameter in model.parameters()] + [model.kinds.take_gradient().values])
    assert len(arrays[0][1]) > 40
    for found, expected in zip(arrays[1] + tuple(gradients[1]), arrays[0] + tuple(gradients[0]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_drawn_trees_are_as_frequent_as_they_are_likely():
    """All trees of two levels, of two kinds: each within four standard deviations of its probability."""
    model, draws = fruitful(model_of(kinds=1)), 4000
    oracle, expected = Oracle(model), {}
    kinds, counts = map(softmax, oracle.logits(oracle.start))
    for kind in range(2):
        below_it = [softmax(oracle.logits(state)[0]) for state in oracle.children(kind, oracle.start)]
        expected[kind,] = kinds[kind] * counts[0]
        for left in range(2):
            expected[kind, left] = kinds[kind] * counts[1] * below_it[0][left]
            for right in range(2):
                expected[kind, left, right] = kinds[kind] * counts[2] * below_it[0][left] * below_it[1][right]
    assert sum(expected.values()) == pytest.approx(1)
    found = Counter((kind, *(child[0] for child in below_it)) for kind, *below_it in model.draw(draws, 2, seed=1))
    assert found.keys() <= expected.keys()
    for tree, p in expected.items():
        assert abs(found[tree] - draws * p) < 4 * np.sqrt(draws * p * (1 - p)), tree


def test_choices_are_as_frequent_as_they_are_likely():
    logits, draws = np.log(np.array([0.1, 0.0 + 1e-30, 0.6, 0.3])).astype(np.float32), 20_000
    found = np.bincount([choose(logits + 50, below(7, draw)) for draw in range(draws)], minlength=4)
    assert np.abs(found - draws * np.array([0.1, 0, 0.6, 0.3])).max() < 4 * np.sqrt(draws / 4) and not found[1]
    assert choose(np.array([3.0]), 1) == 0


def test_parts_of_a_seed_differ():
    """The first numbers of Vigna's splitmix64.c from seed 1234567; and no two parts of parts alike."""
    assert [below(1234567, number) for number in range(3)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip
    seeds = {below(below(seed, part), number) for seed in range(20) for part in range(20) for number in range(20)}
    assert len(seeds) == 8000 and all(0 <= seed < 2**64 for seed in seeds)
