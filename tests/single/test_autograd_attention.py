"""Attention against loops over sequences and queries, and against finite differences."""

import numpy as np
import pytest
from finite_differences import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.autograd import Tensor, attention
from hybridmpi.errors import UsageError

FEW = settings(max_examples=20, deadline=None)
sizes = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 3))


def case(batch, queries, steps, width, seed=0):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, steps + 1, batch)
    return random.normal(size=(batch, queries, width)), random.normal(size=(batch, steps, width)), lengths


def plain(queries, memory, lengths):
    """One query after the other, over the part of the memory that counts."""
    contexts = np.zeros(queries.shape)
    for i, length in enumerate(lengths):
        for t, query in enumerate(queries[i]):
            shares = np.exp([query @ memory[i, s] for s in range(length)])
            contexts[i, t] = sum(share * memory[i, s] for s, share in enumerate(shares)) / shares.sum()
    return contexts


@FEW
@given(sizes)
def test_contexts_and_gradients(size):
    queries, memory, lengths = case(*size)
    found = attention(Tensor(queries), Tensor(memory), lengths)
    np.testing.assert_allclose(found.data, plain(queries, memory, lengths), rtol=1e-12, atol=1e-13)
    check_gradients(lambda q, m: attention(q, m, lengths), queries, memory)


def test_what_lies_beyond_a_length_changes_nothing_and_gets_no_gradient():
    queries, memory, _ = case(3, 2, 5, 4)
    lengths = np.array([5, 1, 3])
    results = []
    for filler in (0.0, 1e6):
        filled = memory.copy()
        for i, length in enumerate(lengths):
            filled[i, length:] = filler
        tensors = Tensor(queries, requires_grad=True), Tensor(filled, requires_grad=True)
        contexts = attention(*tensors, lengths)
        (contexts * contexts).sum().backward()
        assert all(not tensors[1].grad[i, length:].any() for i, length in enumerate(lengths))
        results.append((contexts.data, *(tensor.grad for tensor in tensors)))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(results[0][0][1], np.broadcast_to(memory[1, 0], (2, 4)))


def test_large_scores_do_not_overflow_and_time_first_memory_will_do():
    queries, memory, lengths = case(3, 2, 5, 4)
    assert np.isfinite(attention(Tensor(queries * 1e4), Tensor(memory), lengths).data).all()
    turned = [np.ascontiguousarray(a.transpose(1, 0, 2)).transpose(1, 0, 2) for a in (queries, memory)]
    found, expected = (attention(Tensor(q), Tensor(m), lengths).data for q, m in (turned, (queries, memory)))
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    single = attention(Tensor(queries.astype(np.float32)), Tensor(memory.astype(np.float32)), lengths)
    assert single.dtype == np.float32


@pytest.mark.parametrize("bad", ["width", "batch", "lengths", "zero", "long"])
def test_what_does_not_fit(bad):
    queries, memory, lengths = case(3, 2, 5, 4)
    queries = queries[..., :3] if bad == "width" else queries[:2] if bad == "batch" else queries
    lengths = {"lengths": lengths[:2], "zero": lengths * 0, "long": lengths + 5}.get(bad, lengths)
    with pytest.raises(UsageError, match="expected"):
        attention(Tensor(queries), Tensor(memory), lengths)
