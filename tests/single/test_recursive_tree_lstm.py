"""The Tree-LSTM as a recursive function against that of vertex functions, with the same parameters."""

import numpy as np
import pytest
from finite_differences import MemoryStore
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.data.graph_batches import GraphBatches
from hybridmpi.errors import UsageError
from hybridmpi.graphs import from_brackets
from hybridmpi.models.recursive_tree_lstm import RecursiveTreeLSTM
from hybridmpi.models.tree_lstm import CELLS, TreeLSTM

SIZES = 7, 5, 4, 3
NUMBERS = {word: number for number, word in enumerate("abcdefg")}
LABEL = st.integers(-1, 4)
TREES = st.recursive(
    st.builds("({} {})".format, LABEL, st.sampled_from(list(NUMBERS))),
    lambda tree: st.builds("({} {})".format, LABEL, tree) | st.builds("({} {} {})".format, LABEL, tree, tree),
    max_leaves=10,
)


def pair(cell):
    """Return both forms, with the same values."""
    models = TreeLSTM(*SIZES, cell, dtype=np.float64), RecursiveTreeLSTM(*SIZES, cell, dtype=np.float64)
    rows = np.random.default_rng(1).standard_normal((SIZES[0], SIZES[2]))
    for model in models:
        model.initialise(2)
        model.words.store = MemoryStore(rows, "words")
    for (name, one), (same, other) in zip(*(model.named_parameters() for model in models), strict=True):
        assert name == same and np.array_equal(one.data, other.data)
    return models


MODELS = {cell: pair(cell) for cell in CELLS}


def gradients(model, graphs):
    """Return the loss, the gradients of parameters, and those of the table."""
    for parameter in model.parameters():
        parameter.begin_step()
    (batch,) = GraphBatches(graphs, len(graphs), 0).one_pass()
    loss = model.loss(batch)
    loss.backward()
    table = model.words.take_gradient()
    for parameter in model.parameters():
        parameter.finish_step()
    return [float(loss), *(parameter.grad.copy() for parameter in model.parameters()), table.indices, table.values]


@pytest.mark.parametrize("cell", CELLS)
@settings(max_examples=30, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=5))
def test_both_forms_are_the_same(cell, lines):
    vertex, recursive = MODELS[cell]
    graphs = from_brackets(lines, NUMBERS)
    lowered = recursive.lower(graphs)
    for found, expected in zip(gradients(recursive, lowered), gradients(vertex, graphs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


def test_another_cell_is_refused():
    with pytest.raises(UsageError, match=r'RecursiveTreeLSTM\.cell = "rnn" .*expected "nary" or "sum"'):
        RecursiveTreeLSTM(*SIZES, "rnn")
