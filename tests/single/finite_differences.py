"""The oracle of every gradient: central differences in float64. And a table store in memory."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridmpi import kernels
from hybridmpi.autograd import Tensor, multiply

STEP, TOLERANCE = 1e-6, 2e-7


def check_gradients(function: Callable[..., Tensor], *arrays: np.ndarray, seed: int = 0) -> None:
    """Compare backward's gradient of a random weighting of function(*tensors) with central differences, for every
    array."""
    tensors = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    result = function(*tensors)
    weights = np.random.default_rng(seed).normal(size=result.shape)
    multiply(result, Tensor(weights)).sum().backward()
    for which, array in enumerate(arrays):
        numeric = np.zeros_like(array)
        for place in np.ndindex(*array.shape):
            values = []
            for sign in (STEP, -STEP):
                moved = [other.copy() for other in arrays]
                moved[which][place] += sign
                values.append((function(*(Tensor(other) for other in moved)).data * weights).sum())
            numeric[place] = (values[0] - values[1]) / (2 * STEP)
        found = tensors[which].grad
        found = np.zeros_like(array) if found is None else found
        assert found.shape == array.shape
        assert found.dtype == array.dtype
        np.testing.assert_allclose(found, numeric, rtol=1e-5, atol=TOLERANCE * max(1.0, np.abs(numeric).max(initial=0)))


def check_slopes(model, batch):
    """Compare backward's gradients of a model's parameters and tables (MemoryStores, float64) with differences of its
    loss along random directions."""
    for parameter in model.parameters():
        parameter.begin_step()
    model.loss(batch).backward()
    arrays = {}
    for name, parameter in model.named_parameters():
        parameter.finish_step()
        arrays[name] = parameter.data, parameter.grad.copy()
    for name, table in model.named_tables():
        found = table.take_gradient()
        gradient = np.zeros_like(table.store.values)
        gradient[found.indices] = found.values
        arrays[name] = table.store.values, gradient
    random = np.random.default_rng(4)
    for name, (values, gradient) in arrays.items():
        along = random.standard_normal(values.shape)
        ends = []
        for step in (1e-6, -1e-6):
            values += step * along
            ends.append(float(model.loss(batch)))
            values -= step * along
        assert np.linalg.norm(gradient) > 1e-6, name
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx((gradient * along).sum(), rel=1e-5, abs=1e-8), name


def pulled_rows(model, loss):
    """Return the ids that `loss()` pulls from each table of a model with MemoryStores, sorted, by name."""
    pulled = {}
    for name, table in model.named_tables():
        pull = table.store.pull
        table.store.pull = lambda ids, name=name, pull=pull: pulled.setdefault(name, []).append(ids) or pull(ids)
    loss()
    return {name: np.unique(np.concatenate(ids)) for name, ids in pulled.items()}


class MemoryStore:
    """A whole table in memory, which serves rows and counts what it served."""

    def __init__(self, values: np.ndarray, name: str) -> None:
        self.values, self.name = values, name
        self.rows, self.dim = values.shape
        self.dtype = values.dtype
        self.pulls: list[np.ndarray] = []

    def pull(self, ids: np.ndarray) -> np.ndarray:
        """Return rows `ids`; they must be sorted, distinct and int64, as the contract says."""
        assert ids.dtype == np.int64
        assert np.all(np.diff(ids) > 0)
        self.pulls.append(ids)
        return kernels.gather(self.values, ids)
