"""What asks a tensor for its numbers gets the right ones, or is refused with the remedy."""

import numpy as np
import pytest

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.errors import UsageError

X = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
DIM = 3


@pytest.mark.parametrize(
    "ask",
    [
        bool,
        lambda x: 1 if x else 2,
        lambda x: not x,
        lambda x: x == x,
        lambda x: x != 0,
        lambda x: x < 1,
        lambda x: x >= 1,
        lambda x: np.greater(X, x),
        lambda x: 3.0 in x,
        lambda x: x in [Tensor(X)],
        np.array,
        np.asarray,
        lambda x: np.array([x, x]),
        np.mean,
        np.sum,
        np.concatenate,
        lambda x: np.concatenate([X, x]),
        np.sign,
        lambda x: np.maximum(x, 0),
        lambda x: np.add.reduce(x),
        lambda x: np.add(X, x, out=np.empty_like(X)),
        np.isnan,
        np.linalg.norm,
        np.allclose,
    ],
)
def test_refused_with_the_remedy(ask):
    with pytest.raises((UsageError, TypeError)) as caught:
        ask(Tensor(X)) if ask is not np.allclose else ask(Tensor(X), X)
    assert isinstance(caught.value, UsageError) and "`data`" in str(caught.value)


@pytest.mark.parametrize("ask", [float, int, len, list])
def test_numbers_of_many_or_lengths_of_one(ask):
    wrong = Tensor(X) if ask in (float, int) else Tensor(np.float32(3))
    with pytest.raises(UsageError, match="of a tensor of"):
        ask(wrong)


def test_right_values():
    x = Tensor(X)
    assert float(Tensor([[2.5]])) == 2.5 and int(Tensor(2.5)) == 2 and len(x) == 4
    assert [row.shape for row in x] == [(DIM,)] * 4
    assert x in [x] and len({x, x, Tensor(X)}) == 2 and {x: 1}[x] == 1
    for found, expected in (
        (X + x, X + X),
        (X - x, X - X),
        (X * x, X * X),
        (X / x, X / X),
        (X.T @ x, X.T @ X),
        (np.float32(2) * x, 2 * X),
        (2 - x, 2 - X),
        (np.exp(x), np.exp(X)),
        (np.tanh(x), np.tanh(X)),
        (x + X.astype(np.float64), X + X),
        (x + X.tolist(), X + X),
    ):
        assert isinstance(found, Tensor) and found.dtype == np.float32
        np.testing.assert_allclose(found.data, expected, rtol=1e-6)


def test_gradients_flow_through_functions_of_numpy():
    x = Tensor(X, requires_grad=True)
    (X * np.exp(x)).sum().backward()
    np.testing.assert_allclose(x.grad, X * np.exp(X), rtol=1e-5)


def test_masks_and_foreign_indices():
    np.testing.assert_array_equal(Tensor(X)[X > 0].data, X[X > 0])
    np.testing.assert_array_equal(Tensor(X)[[1, -1], :2].data, X[[1, -1], :2])
    with pytest.raises(UsageError, match="masked"):
        Tensor(X)[np.ma.masked_array([0, 1], [True, False])]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16, ">f4"])
def test_tensors_are_of_floating_point(dtype):
    x = Tensor(np.array([1, 0, 1], dtype), requires_grad=True)
    assert x.dtype == np.float32 and x.dtype.isnative and x.mean().data == np.float32(2 / 3)
    assert Tensor(np.ones(3, ">f8")).dtype == np.float64 == Tensor(np.ones(3, np.longdouble)).dtype


@pytest.mark.parametrize("exponent", ["2", None, True, X, Tensor(2.0), 1j])
def test_exponents_are_plain_numbers(exponent):
    with pytest.raises(UsageError, match="a plain number"):
        Tensor(X) ** exponent


@pytest.mark.parametrize("rate", [1.0, -0.1, np.nan, "0.5", None])
def test_rates_of_dropout(rate):
    with pytest.raises(UsageError, match="rate"):
        autograd.dropout(Tensor(X), rate, X)
