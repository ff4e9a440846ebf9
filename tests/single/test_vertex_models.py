"""Models of trees, chains and graphs against plain numpy, one vertex after the other, and against differences."""

from types import SimpleNamespace

import numpy as np
import pytest
from finite_differences import MemoryStore, pulled_rows

from hybridmpi.autograd import draws
from hybridmpi.graphs import Graphs, chains, from_nested
from hybridmpi.models.rntn import TensorNetwork
from hybridmpi.models.sequence_lstm import SequenceLSTM
from hybridmpi.models.tree_lstm import TreeLSTM
from hybridmpi.models.tree_rnn import TreeRNN
from hybridmpi.models.two_way_graph import TwoWayGraphModel

WORDS, LABELS, KINDS, WIDTH, HIDDEN = 9, 3, 4, 5, 3


def labelled(graphs, everywhere=False, **more):
    """Words at vertices without children, or everywhere; labels at some vertices."""
    random = np.random.default_rng(1)
    shown = everywhere | (np.diff(graphs.child_starts) == 0)
    word = np.where(shown, random.integers(0, WORDS, graphs.vertices), -1)
    found = graphs.with_data(word=word, label=random.integers(-1, LABELS, graphs.vertices), **more)
    return SimpleNamespace(graphs=found, weight=int(np.count_nonzero(found.data["label"] >= 0)))


def trees():
    """Two trees; a vertex with one child, one that is a root alone."""
    return labelled(from_nested([((0, 0), (0,)), 0, (0, (0, (0, 0)))]))


def sequences():
    return labelled(chains([3, 0, 1, 4]), everywhere=True)


def functions():
    """A diamond whose top has the shared vertex twice, and a chain."""
    graphs = Graphs(
        [0, 4, 6],
        [1, 0, 0, 0, 1, 0],
        [0, 0, 1, 2, 5, 5, 6],
        [0, 0, 1, 2, 0, 4],
        [0, 0, 0, 1, 2, 0],
        ("node", "variable"),
    )
    return labelled(graphs, kind=np.array([0, 1, 2, 2, 0, 3]))


MODELS = {
    "nary": (lambda **o: TreeLSTM(WORDS, LABELS, WIDTH, HIDDEN, "nary", dtype=np.float64, **o), trees),
    "rnn": (lambda **o: TreeRNN(WORDS, LABELS, WIDTH, HIDDEN, dtype=np.float64, **o), trees),
    "rntn": (lambda **o: TensorNetwork(WORDS, LABELS, WIDTH, HIDDEN, dtype=np.float64, **o), trees),
    "sequence": (lambda **o: SequenceLSTM(WORDS, LABELS, WIDTH, HIDDEN, dtype=np.float64, **o), sequences),
    "two_way": (lambda **o: TwoWayGraphModel(WORDS, KINDS, LABELS, WIDTH, HIDDEN, dtype=np.float64, **o), functions),
}


def made(name, **options):
    """Return a model with values and tables, and a batch."""
    model, batch = MODELS[name][0](**options), MODELS[name][1]()
    model.initialise(3)
    random = np.random.default_rng(0)
    for table_name, table in model.named_tables():
        table.store = MemoryStore(random.normal(size=(table.rows, table.dim)), table_name)
    return model, batch


def below(graphs):
    """Return for each vertex {slot: child}."""
    return [
        {int(graphs.slots[e]): int(graphs.children[e]) for e in range(*graphs.child_starts[v : v + 2])}
        for v in range(graphs.vertices)
    ]


def in_order(graphs):
    """Return the vertices, children before their parents."""
    return np.argsort(graphs.heights, kind="stable")


def s(x):
    return 1 / (1 + np.exp(-x))


def linear(layer, x):
    return layer.weight.data @ x + (0 if layer.bias is None else layer.bias.data)


def states_of_tree(model, graphs):
    """Recursive networks, with and without a tensor."""
    table, h, kids = model.words.store.values, np.zeros((graphs.vertices, HIDDEN)), below(graphs)
    for v in in_order(graphs):
        if not kids[v]:
            h[v] = np.tanh(linear(model.leaf.layer, table[graphs.data["word"][v]]))
            continue
        p = np.concatenate([h[kids[v][slot]] if slot in kids[v] else np.zeros(HIDDEN) for slot in (0, 1)])
        total = linear(model.inner.layer, p)
        if isinstance(model, TensorNetwork):
            for k in range(HIDDEN):
                matrix = model.inner.tensor.data[:, k * 2 * HIDDEN : (k + 1) * 2 * HIDDEN]
                total[k] += p @ matrix @ p
        h[v] = np.tanh(total)
    return h


def states_of_sequence(model, graphs):
    table, kids, step = model.words.store.values, below(graphs), model.step
    h, c = np.zeros((2, graphs.vertices, HIDDEN))
    for v in in_order(graphs):
        before = (h[kids[v][0]], c[kids[v][0]]) if kids[v] else np.zeros((2, HIDDEN))
        gates = linear(step.inputs, table[graphs.data["word"][v]]) + linear(step.state, before[0])
        i, f, o, u = np.split(gates, 4)
        c[v] = s(i) * np.tanh(u) + s(f) * before[1]
        h[v] = s(o) * np.tanh(c[v])
    return h


def gated(cell, inputs, vertices, kids):
    """Return the states of gated recurrent units whose state before is a gated sum over `kids`, a list for each."""
    n, h = HIDDEN, np.zeros((len(inputs), HIDDEN))
    for v in vertices:
        start = sum((s(linear(cell.gate, h[k])) * linear(cell.mapping, h[k]) for k in kids[v]), start=np.zeros(n))
        x, gates = inputs[v], linear(cell.gates, start)
        reset, keep = s(x[:n] + gates[:n]), s(x[n : 2 * n] + gates[n:])
        h[v] = (1 - keep) * np.tanh(x[2 * n :] + reset * linear(cell.candidate, start)) + keep * start
    return h


def states_of_functions(model, graphs):
    words, kinds = model.words.store.values, model.kinds.store.values
    order, kids = in_order(graphs), below(graphs)
    parents = [[v for v in range(graphs.vertices) for k in kids[v].values() if k == c] for c in range(graphs.vertices)]
    x = [
        linear(model.below.inputs[0], kinds[kind]) + linear(model.below.inputs[1], words[word])  # row -1: the last one
        for word, kind in zip(graphs.data["word"], graphs.data["kind"], strict=True)
    ]
    h = gated(model.below, x, order, [list(k.values()) for k in kids])
    above = gated(model.above, [linear(model.above.inputs[0], one) for one in h], order[::-1], parents)
    return np.concatenate([h, above], axis=1)


ORACLES = {
    "rnn": states_of_tree,
    "rntn": states_of_tree,
    "sequence": states_of_sequence,
    "two_way": states_of_functions,
}


@pytest.mark.parametrize("name", ORACLES)
def test_models_equal_plain_numpy(name):
    model, batch = made(name)
    states = ORACLES[name](model, batch.graphs)
    logits = np.stack([linear(model.output, h) for h in states])
    np.testing.assert_allclose(model.evaluate(batch), logits, rtol=1e-11, atol=1e-13)
    label = batch.graphs.data["label"]
    chosen = np.flatnonzero(label >= 0)
    assert 0 < len(chosen) < len(label)
    expected = np.mean(np.log(np.exp(logits[chosen]).sum(axis=1)) - logits[chosen, label[chosen]])
    np.testing.assert_allclose(float(model.loss(batch)), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_differences(name):
    model, batch = made(name)
    model.loss(batch).backward()
    found = [(p.data, p.grad) for p in model.parameters()]
    found += [(table.store.values, table.take_gradient().to_dense()) for _, table in model.named_tables()]
    random = np.random.default_rng(5)
    for values, gradient in found:
        for flat in random.permutation(values.size)[:20]:
            place = np.unravel_index(flat, values.shape)
            kept, losses = values[place], []
            for moved in (kept + 1e-6, kept - 1e-6):
                values[place] = moved
                losses.append(float(model.loss(batch)))
            values[place] = kept
            np.testing.assert_allclose(gradient[place], (losses[0] - losses[1]) / 2e-6, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_rows_wanted_are_those_that_the_loss_pulls(name):
    model, batch = made(name)
    wanted, pulled = model.rows_wanted(batch), pulled_rows(model, lambda: model.loss(batch))
    assert {n: np.unique(ids).tolist() for n, ids in wanted.items()} == {n: ids.tolist() for n, ids in pulled.items()}


@pytest.mark.parametrize("name", MODELS)
def test_dropout_is_for_training_alone(name):
    model, batch = made(name, dropout=0.5)
    model.eval()
    same = model.evaluate(batch)
    assert np.array_equal(model.evaluate(batch), same)
    assert np.array_equal(made(name)[0].evaluate(batch), same)
    whole = float(model.loss(batch))
    model.train()
    losses = []
    for step in range(3):
        draws.begin_step(1, step, 0)
        losses.append(float(model.loss(batch)))
    assert len({whole, *losses}) == 4 and np.isfinite(losses).all()


def test_products_are_counted():
    """One leaf's product for each different word, others for each vertex; backward is twice forward."""
    _, batch = made("rnn")
    inner, rows = 6, {"words": 4, "kinds": 2}
    assert np.count_nonzero(np.diff(batch.graphs.child_starts)) == inner
    told = batch.weight * LABELS * HIDDEN
    leaves, pair, d = 4 * WIDTH * HIDDEN, 2 * HIDDEN * HIDDEN, HIDDEN
    expected = {
        "nary": 3 * leaves + inner * 5 * pair + told,
        "rnn": leaves + inner * pair + told,
        "rntn": leaves + inner * (pair + 2 * d * 2 * d * d) + told,
    }
    for name, products in expected.items():
        assert made(name)[0].flops(batch, rows) == 6 * products
    model, batch = made("sequence")
    assert model.flops(batch, rows) == 6 * (4 * leaves + 8 * 4 * d * d + batch.weight * LABELS * d)
    model, batch = made("two_way")
    products = 6 * 3 * WIDTH * d + 6 * (2 * 5 * d * d + 3 * d * d) + batch.weight * LABELS * 2 * d
    assert model.flops(batch, rows) == 6 * products


@pytest.mark.parametrize("name", MODELS)
def test_no_graphs(name):
    model, batch = made(name)
    none = SimpleNamespace(graphs=batch.graphs.select([]), weight=0)
    assert float(model.loss(none)) == 0
    assert model.evaluate(none).shape == (0, LABELS)
