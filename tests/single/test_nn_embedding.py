"""Embedding and sampled softmax over tables in a small in-memory store."""

import numpy as np
import pytest
from finite_differences import MemoryStore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from hybridmpi import nn
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.errors import SparseIndexError, UsageError

FEW = settings(max_examples=25, deadline=None)


def table(rows=7, dim=3, dtype=np.float64, name="words"):
    embedding = nn.Embedding(rows, dim, dtype=dtype)
    embedding.store = MemoryStore(np.random.default_rng(rows).normal(size=(rows, dim)).astype(dtype), name)
    return embedding


@FEW
@given(array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), st.sampled_from([np.int32, np.int64]))
def test_lookup_and_gradient_of_one_pull(shape, dtype):
    embedding, random = table(), np.random.default_rng(0)
    ids, weights = random.integers(0, 7, shape).astype(dtype), random.normal(size=(*shape, 3))
    rows = embedding(ids)
    np.testing.assert_array_equal(rows.data, embedding.store.values[ids])
    (rows * weights).sum().backward()
    gradient = embedding.take_gradient()
    np.testing.assert_array_equal(gradient.indices, np.unique(ids))
    expected = np.zeros((7, 3))
    np.add.at(expected, ids, weights)
    np.testing.assert_allclose(gradient.to_dense(), expected, atol=1e-14)
    assert (gradient.num_rows, gradient.values.shape[1], gradient.values.dtype) == (7, 3, np.float64)


def test_several_pulls_of_a_step_are_merged_and_taken_once():
    embedding = table()
    first, second = embedding(np.array([1, 4, 1])), embedding.rows_of(np.array([0, 4]))
    (first.sum() + 2 * second.sum()).backward()
    gradient = embedding.take_gradient()
    np.testing.assert_array_equal(gradient.indices, [0, 1, 4])
    np.testing.assert_array_equal(gradient.values[:, 0], [2, 2, 3])
    again = embedding.take_gradient()
    assert (len(again), again.values.shape, again.values.dtype) == (0, (0, 3), np.float64)


def test_nothing_is_remembered_under_no_grad_or_without_backward():
    embedding = table(dtype=np.float32)
    with no_grad():
        assert not embedding(np.array([1])).requires_grad
    embedding(np.array([2]))
    assert len(embedding.take_gradient()) == 0
    assert embedding.take_gradient().values.dtype == np.float32


def test_wrong_ids_change_nothing():
    embedding = table()
    for bad in (np.array([[0, 7]]), np.array([[0, -1]])):
        with pytest.raises(SparseIndexError, match=r"'words'.*position \(0, 1\)"):
            embedding(bad)
    assert embedding.store.pulls == []


def test_without_a_store_and_wrong_arguments():
    with pytest.raises(UsageError, match="without a store"):
        nn.Embedding(5, 2)(np.array([0]))
    for arguments in (
        {"rows": -1, "dim": 2},
        {"rows": 1, "dim": 0},
        {"rows": 1, "dim": 1, "reduction": "max"},
        {"rows": 1, "dim": 1, "init": "zeros"},
    ):
        with pytest.raises(UsageError, match="expected"):
            nn.Embedding(**arguments)


@FEW
@given(st.integers(0, 6), st.integers(1, 12), st.integers(0, 1000))
def test_sampled_softmax_has_one_logit_for_each_distinct_candidate(count, samples, seed):
    random = np.random.default_rng(seed)
    rows, output, bias = 9, table(9, 3), table(9, 1)
    sampler = nn.LogUniform(rows, samples)
    targets, candidates = random.integers(0, rows, count), sampler.draw(random)
    hidden = random.normal(size=(count, 3))
    h = Tensor(hidden, requires_grad=True)
    nn.sampled_softmax(h, targets, candidates, output, bias, sampler).backward()
    found = (h.grad, output.take_gradient().to_dense(), bias.take_gradient().to_dense())

    values, offset = output.store.values, bias.store.values[:, 0] - sampler.log_chance(np.arange(rows))
    expected = [np.zeros((count, 3)), np.zeros((rows, 3)), np.zeros((rows, 1))]
    for i, target in enumerate(targets):
        classes = np.array([target, *(c for c in set(candidates.tolist()) if c != target)])
        logits = values[classes] @ hidden[i] + offset[classes]
        d_logits = np.exp(logits - logits.max())
        d_logits /= d_logits.sum()
        d_logits[0] -= 1
        d_logits /= count
        expected[0][i] = d_logits @ values[classes]
        np.add.at(expected[1], classes, d_logits[:, None] * hidden[i])
        np.add.at(expected[2], classes, d_logits[:, None])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_sampled_softmax_of_so_many_draws_that_none_is_missing_is_the_full_softmax():
    random = np.random.default_rng(2)
    output, bias, sampler = table(9, 3), table(9, 1), nn.LogUniform(9, 3000)
    hidden, targets = Tensor(random.normal(size=(5, 3))), np.array([0, 0, 8, 3, 1])
    sampled = nn.sampled_softmax(hidden, targets, sampler.draw(random), output, bias, sampler)
    logits = hidden.data @ output.store.values.T + bias.store.values[:, 0]
    full = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(5), targets]
    assert float(sampled) == pytest.approx(full.mean(), rel=1e-9)


def test_training_by_sampled_softmax_finds_the_shares_of_the_words():
    """Without context the best logits are the logarithms of the words' shares, for frequent words too."""
    shares = np.array([0.6, 0.2, 0.1, 0.06, 0.04])
    output, bias, sampler = table(5, 1), table(5, 1), nn.LogUniform(5, 4)
    random, targets = np.random.default_rng(3), np.repeat(np.arange(5), (100 * shares).astype(int))
    kept = np.zeros(5)
    for step in range(1500):
        nn.sampled_softmax(Tensor(np.zeros((100, 1))), targets, sampler.draw(random), output, bias, sampler).backward()
        output.take_gradient()
        bias.store.values -= bias.take_gradient().to_dense()
        kept += bias.store.values[:, 0] * (step >= 500)
    found = np.exp(kept / 1000)
    np.testing.assert_allclose(found / found.sum(), shares, rtol=0.15)
