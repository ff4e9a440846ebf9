"""Every general operation against finite differences in float64, with shapes drawn by hypothesis, empty ones
included."""

import numpy as np
import pytest
from finite_differences import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.errors import UsageError

FEW = settings(max_examples=25, deadline=None)


def normal(shape, seed=0):
    return np.asarray(np.random.default_rng(seed).normal(size=shape))


def away_from_zero(shape, seed=0):
    values = normal(shape, seed)
    return np.asarray(np.sign(values) * (np.abs(values) + 0.5))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@FEW
@given(shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3, min_side=0))
def test_binary_with_broadcasting(name, shapes):
    a, b = shapes.input_shapes
    check_gradients(getattr(autograd, name), normal(a, 1), away_from_zero(b, 2))


@pytest.mark.parametrize("name", ["negative", "exp", "tanh", "sigmoid", "relu", "log", "mean", "sum", "transpose"])
@FEW
@given(shape=array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
def test_unary(name, shape):
    x = away_from_zero(shape)
    check_gradients(getattr(autograd, name), np.abs(x) if name == "log" else x)


@FEW
@given(shape=array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3), data=st.data(), keepdims=st.booleans())
def test_reductions_over_axes(shape, data, keepdims):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    check_gradients(lambda x: x.sum(axis=tuple(axes), keepdims=keepdims), normal(shape))
    if all(shape):
        check_gradients(lambda x: x.mean(axis=axes[0], keepdims=keepdims), normal(shape))


@FEW
@given(
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    axis=st.integers(0, 1),
)
def test_concatenate(rows, axis):
    shapes = [(n, 2) if axis == 0 else (2, n) for n in rows]
    check_gradients(
        lambda *parts: autograd.concatenate(parts, axis=axis), *[normal(s, i) for i, s in enumerate(shapes)]
    )


@FEW
@given(m=st.integers(0, 3), k=st.integers(0, 3), n=st.integers(0, 3), stack=st.integers(0, 2))
def test_products(m, k, n, stack):
    check_gradients(autograd.matmul, normal((m, k), 1), normal((k, n), 2))
    check_gradients(autograd.matmul, normal((stack, m, k), 1), normal((k, n), 2))
    check_gradients(autograd.linear, normal((stack, m, k), 1), normal((n, k), 2), normal((n,), 3))


def test_moving_elements():
    x = normal((2, 3, 4))
    check_gradients(lambda t: t.reshape(4, 6), x)
    check_gradients(lambda t: t.reshape((24,)), x)
    check_gradients(lambda t: t.transpose(1, 2, 0), x)
    check_gradients(lambda t: t[1, :, 1:3], x)
    check_gradients(lambda t: t[np.array([1, 0, 1])], x)
    check_gradients(lambda t: t**3, x)


def test_operators_take_numbers_and_arrays_on_either_side():
    x = normal((2, 3))
    array = away_from_zero((3,), 5)
    check_gradients(lambda t: 2 * (1 - t) / 4 + array - 3 / (t * t + 1) - t * array, x)
    result = 2 * Tensor(np.ones(3, np.float32), requires_grad=True) + 1
    assert result.dtype == np.float32
    np.testing.assert_array_equal((array + Tensor(np.ones(3))).data, array + 1)


@FEW
@given(count=st.integers(0, 4), classes=st.integers(1, 5))
def test_cross_entropy(count, classes):
    targets = np.random.default_rng(count).integers(0, classes, count)
    check_gradients(lambda logits: autograd.cross_entropy(logits, targets), normal((count, classes)))


def test_cross_entropy_is_stable_and_checks_targets():
    logits = Tensor(np.array([[1000.0, 0.0], [0.0, -1000.0]]))
    assert float(autograd.cross_entropy(logits, np.array([0, 0]))) == 0
    with pytest.raises(UsageError, match=r"target 2 at position 1 of 2 .* is outside \[0, 2\); they span 0 to 2"):
        autograd.cross_entropy(logits, np.array([0, 2]))


@FEW
@given(rows=st.integers(1, 4), shape=array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4))
def test_gather_rows_sums_repeated_rows(rows, shape):
    positions = np.random.default_rng(rows).integers(0, rows, shape)
    check_gradients(lambda table: autograd.gather_rows(table, positions), normal((rows, 3)))


def test_dropout_scales_what_it_keeps():
    uniform = np.random.default_rng(0).random((5, 6))
    check_gradients(lambda x: autograd.dropout(x, 0.4, uniform), normal((5, 6)))
    kept = autograd.dropout(Tensor(np.ones((5, 6))), 0.4, uniform).data
    np.testing.assert_allclose(kept, (uniform >= 0.4) / 0.6)
