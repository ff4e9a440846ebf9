"""The click model against plain numpy, and the area under the curve against counting pairs."""

import math

import numpy as np
import pytest
from finite_differences import MemoryStore, pulled_rows
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.data import ClickBatch
from hybridmpi.errors import UsageError
from hybridmpi.models.ctr import ClickModel
from hybridmpi.models.ranking import area_under_curve


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_area_under_curve_counts_pairs(examples):
    """Few different scores: many ties, each worth half a pair."""
    pairs = [(p > n) + (p == n) / 2 for p, clicked in examples if clicked for n, other in examples if not other]
    scores, labels = np.array([s / 3 for s, _ in examples]), np.array([float(label) for _, label in examples])
    found = area_under_curve(scores, labels)
    assert found == sum(pairs) / len(pairs) if pairs else math.isnan(found)


def test_area_under_curve_of_known_orders():
    labels = np.repeat([0.0, 1.0], 50_000)
    assert area_under_curve(labels, labels) == 1
    assert area_under_curve(-labels, labels) == 0
    assert area_under_curve(np.zeros(100_000, np.float32), labels) == 0.5
    assert abs(area_under_curve(np.random.default_rng(0).normal(size=100_000), labels) - 0.5) < 0.01


def model_and_batch(examples=5):
    random = np.random.default_rng(0)
    model = ClickModel({"item": 7, "user": 4}, 3, width=2, bottom=(4,), top=(6, 5), dtype=np.float64)
    model.initialise(1)
    for name, table in model.named_tables():
        table.store = MemoryStore(random.normal(size=(table.rows, 2)), name)
    lengths = [random.integers(0, 4, examples), np.ones(examples, int)]
    starts = tuple(np.cumsum([0, *length]) for length in lengths)
    ids = tuple(random.integers(0, rows, s[-1]) for rows, s in zip((7, 4), starts, strict=True))
    features, labels = random.normal(size=(examples, 3)), random.integers(0, 2, examples).astype(np.float32)
    return model, ClickBatch(features, ids, starts, labels)


@pytest.mark.parametrize("broken", [[0], [1, 3], [0, 1, 2, 3]])
def test_there_is_no_area_where_scores_are_no_numbers(broken):
    scores, labels = np.arange(4.0), np.array([0, 1, 0, 1])
    assert area_under_curve(np.array([-np.inf, 1, 2, np.inf]), labels) == 0.75
    scores[broken] = np.nan
    assert math.isnan(area_under_curve(scores, labels))


def test_rows_wanted_are_those_that_the_loss_pulls():
    model, batch = model_and_batch()
    wanted, pulled = model.rows_wanted(batch), pulled_rows(model, lambda: model.loss(batch))
    assert {name: np.unique(ids).tolist() for name, ids in wanted.items()} == {n: i.tolist() for n, i in pulled.items()}


def oracle(model, batch):
    """Return the logits, one example after the other."""
    arrays = {name: parameter.data for name, parameter in model.named_parameters()}

    def layer(name, x, linear=False):
        y = arrays[f"{name}.weight"] @ x + arrays[f"{name}.bias"]
        return y if linear else np.maximum(y, 0)

    logits = []
    for e, numbers in enumerate(batch.features):
        vectors = [layer("bottom.linears.1", layer("bottom.linears.0", numbers))]
        for table, ids, starts in zip((model.tables.item, model.tables.user), batch.ids, batch.starts, strict=True):
            vectors.append(table.store.values[ids[starts[e] : starts[e + 1]]].sum(axis=0))
        dots = [vectors[i] @ vectors[j] for i in range(3) for j in range(i)]
        x = layer("top.linears.1", layer("top.linears.0", np.concatenate([vectors[0], dots])))
        logits.append(layer("top.linears.2", x, linear=True)[0])
    return np.array(logits)


def test_model_equals_plain_numpy():
    model, batch = model_and_batch()
    expected = oracle(model, batch)
    np.testing.assert_allclose(model.evaluate(batch), expected, rtol=1e-12)
    p = 1 / (1 + np.exp(-expected))
    loss = -np.where(batch.labels > 0, np.log(p), np.log(1 - p)).mean()
    np.testing.assert_allclose(float(model.loss(batch)), loss, rtol=1e-12)
    assert [name for name, _ in model.named_tables()] == ["tables.item", "tables.user"]


def test_gradients_are_those_of_differences():
    model, batch = model_and_batch()
    model.loss(batch).backward()
    found = [(p.data, p.grad) for p in model.parameters()]
    found += [(table.store.values, table.take_gradient().to_dense()) for _, table in model.named_tables()]
    for values, gradient in found:
        for place in np.ndindex(*values.shape):
            kept, losses = values[place], []
            for moved in (kept + 1e-6, kept - 1e-6):
                values[place] = moved
                losses.append(float(model.loss(batch)))
            values[place] = kept
            np.testing.assert_allclose(gradient[place], (losses[0] - losses[1]) / 2e-6, atol=1e-8)


def test_no_examples_and_impossible_models():
    model, batch = model_and_batch(0)
    assert model.evaluate(batch).shape == (0,)
    for tables, features, said in (
        ({}, 3, "no tables"),
        ({"item": 3}, 0, "features = 0 "),
        ({"item": 0}, 3, "tables = "),
    ):
        with pytest.raises(UsageError, match=f"ClickModel.*{said}.*expected"):
            ClickModel(tables, features)
