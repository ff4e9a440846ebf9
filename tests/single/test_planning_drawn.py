"""Steps that are drawn for a plan: against the formula of independent draws, and against models by hand."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from hybridmpi import data
from hybridmpi.models.ctr import ClickModel
from hybridmpi.models.lm import LanguageModel
from hybridmpi.models.nmt import TranslationModel
from hybridmpi.planning.drawn import describe_model, draw_steps, ranks_of_nodes
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.sparsity import Counted, Draws, LogUniform, Zipf
from hybridmpi.planning.workload import Touched

MACHINE = Machine((2, 1), (0, 1))
RANKS, STEPS = MACHINE.ranks, 60


def drawn(model, batches_of):
    """What STEPS steps of RANKS ranks do; `batches_of(rank)`: its batches."""
    return draw_steps(model, [list(islice(batches_of(rank), STEPS)) for rank in range(RANKS)], seed=3)


def near_the_formula(found, model, name, draws, partition):
    """Whether the rows touched by ranks, nodes, all and at owners are those of independent draws, within 3 %."""
    table = next(table for table in describe_model(model, 1, partition)[1] if table.name == name)
    expected = Touched.expected(replace(table, draws=draws), MACHINE)
    got = found.touched(table, MACHINE)
    for one, other in ((got.rank, expected.rank), (got.all, expected.all), (got.nodes, expected.nodes)):
        assert np.allclose(one, other, rtol=0.03), (table.name, got, expected)
    assert np.allclose(got.all_at_owner, expected.all_at_owner, rtol=0.06, atol=1)
    assert np.allclose(got.at_owner, expected.at_owner, atol=0.02)


@pytest.mark.parametrize("partition", ["cyclic", "block"])
def test_independent_words_are_touched_as_the_formula_says(partition):
    rows, streams, length, samples = 2000, 9, 20, 40
    model = LanguageModel(rows, 4, 6, samples)
    found = drawn(model, lambda rank: iter(data.ZipfStreams(rows, 1.0, streams, length, 5, rank, RANKS)))
    assert found.examples_per_step == streams * length
    text = Draws(Zipf(rows, 1.0), streams * length / RANKS)
    near_the_formula(found, model, "embedding", (text,), partition)
    near_the_formula(found, model, "output", (text, Draws(LogUniform(rows), samples, True)), partition)


def test_generated_clicks_are_touched_as_their_law_says():
    batch, bag, exponent = 300, 2, 1.05
    clicks = data.GeneratedClicks(divide=20_000, exponent=exponent, bag=bag, held_out=0, seed=1)
    model = ClickModel(clicks.tables, clicks.features, width=3, bottom=(4,), top=(5,))
    found = drawn(model, lambda rank: data.training_batches(clicks, batch, 0, rank, RANKS))
    assert found.examples_per_step == batch
    for name in ("c03", "c26", "c12", "c02"):
        edges = np.arange(1, clicks.tables[name] + 2) ** (1 - exponent)
        draws = (Draws(Counted(edges[:-1] - edges[1:]), batch * bag / RANKS),)
        near_the_formula(found, model, f"tables.{name}", draws, "cyclic")


def test_a_full_softmax_touches_all_rows_of_ranks_that_have_a_batch():
    model = LanguageModel(50, 4, 6, softmax="full")
    batches = [[SimpleNamespace(inputs=np.full((2, 3), 7), targets=np.full((2, 3), 8), weight=6)], [None], [None]]
    found = draw_steps(model, batches, seed=1)
    dense, tables = describe_model(model, 1, "block")
    assert [(p.name, p.shape) for p in dense] == [(name, p.shape) for name, p in model.named_parameters()]
    assert {t.name: t.shape for t in tables} == {"embedding": (50, 4), "output": (50, 4), "bias": (50, 1)}
    touched = {table.name: found.touched(table, MACHINE) for table in tables}
    assert touched["output"] == Touched(50 / 3, (50.0, 0.0), 50.0, (1.0,), (50.0,))
    assert touched["embedding"] == Touched(1 / 3, (1.0, 0.0), 1.0, (1.0,), (1.0,))
    assert found.examples.tolist() == [[6], [0], [0]] and (found.flops[1:] == 0).all() and found.flops[0, 0] > 0
    assert ranks_of_nodes(MACHINE) == [[0, 1], [2]]


def test_matrix_products_by_hand():
    """A product of a x b by b x c counts 2 a b c, and backward two of that size."""
    words = SimpleNamespace(inputs=np.zeros((1, 1), int))
    # Two products of 1 x 8 by 8 x 48, one of 1 x 12 by 12 x 8, one of 1 x 8 by 8 x 5.
    step = 6 * (2 * 8 * 48 + 12 * 8 + 8 * 5)
    assert LanguageModel(200, 8, 12, 30).flops(words, {"embedding": 1, "output": 5}) == step
    # Dropout gives every occurrence of a word a row of its own.
    twice = SimpleNamespace(inputs=np.zeros((1, 2), int))
    rows = {"embedding": 1, "output": 5}
    dropped, kept = (LanguageModel(200, 8, 12, 30, dropout=rate).flops(twice, rows) for rate in (0.5, 0.0))
    assert dropped - kept == 6 * 8 * 48

    # Layers 5-7-3 and 6-4-1: three vectors of 3 have 3 dot products. The dots: 3 x 3 by 3, forward and backward once.
    clicks = SimpleNamespace(labels=np.zeros(10))
    layers = 5 * 7 + 7 * 3 + (3 + 3) * 4 + 4
    model = ClickModel({"a": 9, "b": 9}, 5, width=3, bottom=(7,), top=(4,))
    assert model.flops(clicks, {"tables.a": 1, "tables.b": 2}) == 10 * (6 * layers + 4 * 3 * 3 * 3)

    # One sentence of 2 words to one of 3, 2 and 3 rows of the tables' 5, encoder of 4, decoder of 8.
    pair = SimpleNamespace(source=np.zeros((1, 2), int), target=np.zeros((1, 3), int), target_lengths=np.array([3]))
    model = TranslationModel(9, 9, width=5, hidden=4, samples=6)
    encoder = 2 * (2 * 5 * 16 + 2 * 4 * 16) + 8 * 5
    decoder = (2 + 1) * 5 * 32 + 3 * 8 * 32
    attention = 3 * 8 * 8 + 2 * (3 * 2 * 8)
    output = 3 * 16 * 5 + 3 * 5 * 7
    rows = {"source": 2, "target": 2, "output": 7}
    assert model.flops(pair, rows) == 6 * (encoder + decoder + attention + output)
