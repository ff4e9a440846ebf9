"""Tree-LSTM and Tree-FC against plain numpy, one vertex after the other, and against finite differences."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from finite_differences import MemoryStore, check_slopes, pulled_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs as some_graphs

from hybridmpi.bench.complete_trees import complete_trees
from hybridmpi.errors import UsageError
from hybridmpi.graphs import from_brackets, from_parents
from hybridmpi.models.score import perplexity
from hybridmpi.models.tree_fc import TreeFC
from hybridmpi.models.tree_lstm import BinaryFunction, TreeLSTM

WORDS, LABELS, WIDTH, HIDDEN = 7, 5, 4, 3
CELLS = ["nary", "sum"]


def batch_of(graphs):
    return SimpleNamespace(graphs=graphs, weight=int(np.count_nonzero(graphs.data["label"] >= 0)))


def at_leaves(graphs):
    """Return the graphs with words at leaves only."""
    return graphs.with_data(word=np.where(graphs.types == 0, graphs.data["word"], -1))


def model_of(cell, dtype=np.float64):
    model = TreeLSTM(WORDS, LABELS, WIDTH, HIDDEN, cell, dtype=dtype)
    model.initialise(2)
    model.words.store = MemoryStore(np.random.default_rng(3).standard_normal((WORDS, WIDTH)).astype(dtype), "words")
    return model


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle(model, graphs):
    """Return the logits and the mean loss, from the formulas."""
    p = {name: parameter.data.astype(np.float64) for name, parameter in model.named_parameters()}
    n, zero = HIDDEN, (np.zeros(HIDDEN), np.zeros(HIDDEN))
    state, logits = {}, np.empty((graphs.vertices, LABELS))
    for vertex in np.argsort(graphs.heights, kind="stable"):
        edges = range(graphs.child_starts[vertex], graphs.child_starts[vertex + 1])
        children = {int(graphs.slots[e]): state[int(graphs.children[e])] for e in edges}
        if graphs.types[vertex] == 0:
            x = model.words.store.values[graphs.data["word"][vertex]]
            gates, kept = p["leaf.gates.weight"] @ x + p["leaf.gates.bias"], 0.0
        elif "inner.forget.weight" in p:
            total = sum((h for h, _ in children.values()), zero[0])
            gates = p["inner.gates.weight"] @ total + p["inner.gates.bias"]
            forget = p["inner.forget.weight"], p["inner.forget.bias"]
            kept = sum((sigmoid(forget[0] @ h + forget[1]) * c for h, c in children.values()), zero[0])
        else:
            (left, left_c), (right, right_c) = children.get(0, zero), children.get(1, zero)
            gates = p["inner.gates.weight"] @ np.concatenate([left, right]) + p["inner.gates.bias"]
            kept = sigmoid(gates[3 * n : 4 * n]) * left_c + sigmoid(gates[4 * n :]) * right_c
        c = sigmoid(gates[:n]) * np.tanh(gates[2 * n : 3 * n]) + kept
        state[int(vertex)] = sigmoid(gates[n : 2 * n]) * np.tanh(c), c
        logits[vertex] = p["output.weight"] @ state[int(vertex)][0] + p["output.bias"]
    labels = graphs.data["label"]
    told = np.flatnonzero(labels >= 0)
    losses = np.log(np.exp(logits[told]).sum(1)) - logits[told, labels[told]]
    return logits, losses.mean() if len(told) else 0.0


def check_values(model, graphs, tolerance):
    logits, loss = oracle(model, graphs)
    np.testing.assert_allclose(model.evaluate(batch_of(graphs)), logits, rtol=0, atol=tolerance)
    assert abs(float(model.loss(batch_of(graphs))) - loss) < tolerance


MODELS = {(cell, dtype): model_of(cell, dtype) for cell in CELLS for dtype in (np.float64, np.float32)}


@pytest.mark.parametrize(("cell", "arity"), [("nary", 2), ("sum", 2), ("sum", 4)])
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_logits_and_loss_of_random_graphs(cell, arity, data):
    graphs = at_leaves(data.draw(some_graphs(types=("leaf", "inner"), arity=arity, words=WORDS)))
    check_values(MODELS[cell, np.float64], graphs, 1e-12)
    check_values(MODELS[cell, np.float32], graphs, 2e-5)


ODD = {
    "one child only": "(1 (0 (3 a)))",
    "single vertices": "(1 a)\n(0 b)",
    "a long chain": "(1 (0 a) (2 (0 b) (3 (0 c) (4 (0 d) (0 a)))))",
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("trees", ODD.values(), ids=ODD)
def test_odd_trees(cell, trees):
    check_values(MODELS[cell, np.float64], from_brackets(trees.splitlines(), {}), 1e-12)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("trees", [["(1 (0 a) (2 b))"], [], ["(1 (0 a) (2 b))", "(3 c)"]])
def test_nothing_to_learn_from(cell, trees):
    graphs = from_brackets(trees, {})
    model, batch = model_of(cell), batch_of(graphs.with_data(label=np.full(graphs.vertices, -1)))
    loss = model.loss(batch)
    assert float(loss) == 0 and model.evaluate(batch).shape == (graphs.vertices, LABELS)
    for parameter in model.parameters():
        parameter.begin_step()
    loss.backward()
    for name, parameter in model.named_parameters():
        parameter.finish_step()
        assert not parameter.grad.any(), name
    assert not model.words.take_gradient().values.any()


MIXED = ["(1 (0 (3 a) (2 (4 b) (0 (1 a)))) (2 c))", "(-1 (2 (0 c) (-1 (1 d) (2 a))))", "(4 d)", "(2 (-1 b) (0 a))"]


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_tree_lstm_are_differences(cell):
    check_slopes(model_of(cell), batch_of(from_brackets(MIXED, {})))


def test_a_sum_over_children_is_the_binary_sum():
    model, graphs = model_of("sum"), from_brackets(MIXED, {})
    expected = model.evaluate(batch_of(graphs))
    model.passing.functions[0] = BinaryFunction(model.inner)  # of "inner", the first name
    model.passing._plans.clear()
    np.testing.assert_allclose(model.evaluate(batch_of(graphs)), expected, rtol=0, atol=1e-12)


def test_rows_wanted_are_those_that_the_loss_pulls():
    model, batch = model_of("nary"), batch_of(from_brackets(MIXED[:2], dict.fromkeys("xyz", 6)))
    wanted, pulled = model.rows_wanted(batch), pulled_rows(model, lambda: model.loss(batch))
    assert {name: np.unique(ids).tolist() for name, ids in wanted.items()} == {n: i.tolist() for n, i in pulled.items()}


def test_multiplications_are_counted():
    # 4 different words at the leaves; 8 inner vertices with 14 children between them.
    batch = batch_of(from_brackets(MIXED, {}))
    output, leaf = batch.weight * HIDDEN * LABELS, 4 * WIDTH * 3 * HIDDEN
    inner = {"nary": 8 * 2 * HIDDEN * 5 * HIDDEN, "sum": 8 * HIDDEN * 3 * HIDDEN + 14 * HIDDEN**2}
    for cell in CELLS:
        assert model_of(cell).flops(batch, {"words": 4}) == 6 * (output + leaf + inner[cell])


def test_what_tree_lstm_refuses():
    with pytest.raises(UsageError, match=r'TreeLSTM\.cell = "mean" .*expected "nary" or "sum"'):
        TreeLSTM(WORDS, LABELS, cell="mean")
    with pytest.raises(UsageError, match="pulls 'word'"):
        graphs = from_brackets(["(1 (0 a) (2 b))"], {})
        model_of("nary").loss(batch_of(graphs.with_data(word=np.full(3, -1))))
    with pytest.raises(UsageError, match="a child in slot 2"):
        model_of("nary").loss(batch_of(from_brackets(["(1 (0 a) (2 b) (3 c))"], {})))


def tree_fc():
    table = np.random.default_rng(5).standard_normal((1000, 6))
    model = TreeFC(table)
    model.initialise(6)
    return model, table


def test_tree_fc_is_its_formula_level_by_level():
    model, table = tree_fc()
    graphs = complete_trees(3, 8)
    weight, bias = model.layer.weight.data, model.layer.bias.data
    state = table[graphs.data["word"].reshape(3, -1)[:, :8]]
    while state.shape[1] > 1:
        state = np.maximum(state.reshape(3, -1, 12) @ weight.T + bias, 0)
    np.testing.assert_allclose(model.evaluate(batch_of(graphs)), state[:, 0], rtol=0, atol=1e-12)
    assert float(model.loss(batch_of(graphs))) == pytest.approx(0.5 * ((state - 1) ** 2).sum() / 3, rel=1e-12)
    assert model.flops(batch_of(graphs), {}) == 6 * 3 * 7 * 12 * 6


def test_gradients_of_tree_fc_are_differences():
    model, _ = tree_fc()
    batch = batch_of(complete_trees(3, 8))
    check_slopes(model, batch)


def test_complete_trees():
    graphs = complete_trees(2, 4)
    names = ("leaf", "low", "inner", "root")
    expected = from_parents([[4, 4, 5, 5, 6, 6, -1]] * 2, [[0, 0, 0, 0, 1, 1, 3]] * 2, None, names)
    for name in ("starts", "types", "child_starts", "children", "slots", "heights"):
        np.testing.assert_array_equal(getattr(graphs, name), getattr(expected, name), name)
    assert graphs.type_names == expected.type_names
    assert ((graphs.data["word"] >= 0) == (graphs.types == 0)).all() and graphs.data["word"].max() < 1000
    assert np.flatnonzero(graphs.data["label"] >= 0).tolist() == graphs.roots().tolist() == [6, 13]
    for leaves in (1, 2, 6):
        with pytest.raises(UsageError, match="a power of two"):
            complete_trees(1, leaves)


@pytest.mark.parametrize("loss", [800.0, math.inf, 1e308])
def test_a_perplexity_beyond_all_doubles_is_a_number(loss):
    assert 1e300 < perplexity(loss) < math.inf
    assert perplexity(0.0) == 1 and math.isnan(perplexity(math.nan))
