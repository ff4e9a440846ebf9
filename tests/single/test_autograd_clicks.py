"""What click models are made of: bags of rows, pairwise dot products, logistic loss. Oracles: loops and differences."""

import numpy as np
import pytest
from finite_differences import MemoryStore, check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi import nn
from hybridmpi.autograd import Tensor, sum_bags
from hybridmpi.errors import SparseIndexError, UsageError

RANDOM = np.random.default_rng(0)


def bag_table(dtype=np.float64):
    table = nn.EmbeddingBag(9, 3, dtype=dtype)
    table.store = MemoryStore(RANDOM.normal(size=(9, 3)).astype(dtype), "words")
    return table


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6), st.sampled_from([np.float32, np.float64]))
def test_ragged_bags_are_sums_of_rows(lengths, dtype):
    table, starts = bag_table(dtype), np.cumsum([0, *lengths])
    ids = RANDOM.integers(0, 9, starts[-1])
    sums = table(ids, starts)
    weights = RANDOM.normal(size=sums.shape).astype(dtype)
    expected, gradient = np.zeros((len(lengths), 3), dtype), np.zeros((9, 3), dtype)
    for b in range(len(lengths)):
        for i in ids[starts[b] : starts[b + 1]]:
            expected[b] += table.store.values[i]
            gradient[i] += weights[b]
    np.testing.assert_array_equal(sums.data, expected)
    (sums * weights).sum().backward()
    found = table.take_gradient()
    np.testing.assert_array_equal(found.indices, np.unique(ids))
    np.testing.assert_array_equal(found.to_dense(), gradient)
    assert sums.dtype == found.values.dtype == dtype


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (5, 1), (6, 4)])
def test_fixed_bags_are_ragged_bags_of_one_length(shape):
    table, ids = bag_table(), RANDOM.integers(0, 9, shape).astype(np.int32)
    fixed = table(ids).data
    np.testing.assert_array_equal(fixed, table(ids.reshape(-1), np.arange(shape[0] + 1) * shape[1]).data)
    np.testing.assert_allclose(fixed, table.store.values[ids].sum(axis=1), atol=1e-12)


def test_sum_bags_against_differences():
    positions, starts = np.array([0, 2, 2, 1, 0]), np.array([0, 2, 2, 5])
    check_gradients(lambda rows: sum_bags(rows, positions, starts), RANDOM.normal(size=(4, 3)))


def test_bags_that_do_not_fit():
    table, ids = bag_table(), np.arange(4)
    for starts in ([0, 5], [1, 4], [0, 3, 2, 4], [], [0, 2]):
        with pytest.raises(UsageError, match=r"starts .*expected"):
            table(ids, np.array(starts, np.int64))
    with pytest.raises(UsageError, match="starts"):
        table(ids.reshape(2, 2), np.array([0, 4]))
    with pytest.raises(UsageError, match="without starts"):
        table(ids)
    with pytest.raises(SparseIndexError, match="'words'"):
        table(np.array([9]), np.array([0, 1]))


@pytest.mark.parametrize(("count", "examples", "width"), [(2, 3, 1), (3, 1, 4), (5, 4, 3), (2, 0, 3)])
def test_pairwise_dots(count, examples, width):
    vectors = [RANDOM.normal(size=(examples, width)) for _ in range(count)]
    found = nn.pairwise_dots([Tensor(vector) for vector in vectors]).data
    expected = [[a[e] @ b[e] for i, a in enumerate(vectors) for b in vectors[:i]] for e in range(examples)]
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), rtol=1e-12)
    assert found.shape == (examples, count * (count - 1) // 2)
    check_gradients(lambda *parts: nn.pairwise_dots(parts), *vectors)


def test_pairwise_dots_of_the_same_vector_twice_and_of_wrong_ones():
    check_gradients(lambda x, y: nn.pairwise_dots([x, y, x]), RANDOM.normal(size=(2, 3)), RANDOM.normal(size=(2, 3)))
    x = Tensor(np.ones((2, 3)))
    for vectors in ([x], [x, Tensor(np.ones((3, 3)))], [Tensor(np.ones(3))] * 2):
        with pytest.raises(UsageError, match="expected two or more"):
            nn.pairwise_dots(vectors)


def test_binary_cross_entropy():
    logits, labels = RANDOM.normal(size=20) * 3, RANDOM.integers(0, 2, 20).astype(float)
    p = 1 / (1 + np.exp(-logits))
    expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    np.testing.assert_allclose(nn.binary_cross_entropy(Tensor(logits), labels).data, expected)
    check_gradients(lambda z: nn.binary_cross_entropy(z, labels), logits)
    check_gradients(lambda z: nn.binary_cross_entropy(z, np.full(3, 0.3)), np.array([-40.0, 0.0, 40.0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary_cross_entropy_of_large_logits(dtype):
    z = Tensor(np.array([1e4, -1e4, 1e4, -1e4], dtype), requires_grad=True)
    with np.errstate(all="raise", under="ignore"):
        loss = nn.binary_cross_entropy(z, np.array([1, 0, 0, 1], dtype))
        loss.backward()
    assert float(loss.data) == 5000 and loss.dtype == dtype
    np.testing.assert_array_equal(z.grad, np.array([0, 0, 0.25, -0.25], dtype))


def test_binary_cross_entropy_of_nothing_and_of_wrong_labels():
    assert float(nn.binary_cross_entropy(Tensor(np.zeros(0)), np.zeros(0)).data) == 0
    with pytest.raises(UsageError, match="labels span 0.0 to 2.0"):
        nn.binary_cross_entropy(Tensor(np.zeros(2)), np.array([0.0, 2.0]))
    with pytest.raises(UsageError, match=r"expected \[n\] each"):
        nn.binary_cross_entropy(Tensor(np.zeros((2, 1))), np.zeros(2))
