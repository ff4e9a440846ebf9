"""Sampled softmax against the plain composition of general operations, and against finite differences."""

import sys

import numpy as np
import pytest
from finite_differences import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, sampled_softmax
from hybridmpi.errors import UsageError

FEW = settings(max_examples=20, deadline=None)


def case(count, rows, some, seed=0):
    """Return hidden, rows, bias, targets, candidates and both offsets, float64."""
    random = np.random.default_rng(seed)
    candidates = np.sort(random.permutation(rows)[:some])
    return (
        random.normal(size=(count, 3)),
        random.normal(size=(rows, 3)),
        random.normal(size=(rows, 1)),
        random.integers(0, rows, count),
        candidates,
        random.normal(size=count),
        random.normal(size=len(candidates)),
    )


def plain(hidden, rows, bias, targets, candidates, target_offsets, candidate_offsets):
    """The loss by loops: the true class and every candidate that is not it."""
    loss = 0.0
    for i, target in enumerate(targets):
        true = hidden[i] @ rows[target] + bias[target, 0] + target_offsets[i]
        others = [
            hidden[i] @ rows[c] + bias[c, 0] + candidate_offsets[j] for j, c in enumerate(candidates) if c != target
        ]
        loss += np.log(np.exp(np.array([true, *others])).sum()) - true
    return loss / max(len(targets), 1)


@FEW
@given(st.integers(0, 5), st.integers(1, 6), st.integers(0, 6))
def test_loss_and_gradients(count, rows, some):
    hidden, table, bias, *rest = case(count, rows, some)
    loss = sampled_softmax(Tensor(hidden), Tensor(table), Tensor(bias), *rest)
    assert float(loss) == pytest.approx(plain(hidden, table, bias, *rest), rel=1e-12, abs=1e-14)
    check_gradients(lambda h, r, b: sampled_softmax(h, r, b, *rest), hidden, table, bias)


@FEW
@given(st.integers(0, 5), st.integers(1, 6))
def test_every_row_a_candidate_is_the_full_softmax(count, rows):
    hidden, table, bias, targets, *_ = case(count, rows, 0)
    full = autograd.cross_entropy(autograd.linear(Tensor(hidden), Tensor(table)) + Tensor(bias[:, 0]), targets)
    found = sampled_softmax(Tensor(hidden), Tensor(table), Tensor(bias), targets, None)
    assert float(found) == pytest.approx(float(full), rel=1e-12, abs=1e-14)
    check_gradients(lambda h, r, b: sampled_softmax(h, r, b, targets, None), hidden, table, bias)


class Disguise:
    """numpy, but not recognised as such."""

    def __getattr__(self, name):
        return getattr(np, name)


def test_plain_array_form_equals_the_fused_one(monkeypatch):
    block = np.random.default_rng(0).normal(size=(4, 5))
    offsets, true, hits = np.arange(4.0), np.linspace(-3, 9, 5), np.array([0, -1, 3, -1, 2])
    module = sys.modules[sampled_softmax.__module__]  # its name in the package is the function's
    results = []
    for disguised in (False, True):
        if disguised:
            monkeypatch.setattr(
                module, "namespace", lambda array: type("Disguise", (), {"__getattr__": lambda _, n: getattr(np, n)})()
            )
        mine, its_true = block.copy(), true.copy()
        module.shift_by_maximum(mine, offsets, its_true, hits)
        results.append((mine, its_true))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isneginf(results[0][0][0, 0])
    assert max(results[0][0].max(), results[0][1].max()) == 0


def test_large_logits_do_not_overflow_and_nan_is_not_hidden():
    hidden, table, bias, *rest = case(4, 6, 4)
    assert np.isfinite(float(sampled_softmax(Tensor(hidden * 1e4), Tensor(table), Tensor(bias), *rest)))
    hidden[2, 1] = np.nan
    assert np.isnan(float(sampled_softmax(Tensor(hidden), Tensor(table), Tensor(bias), *rest)))


def test_shapes_that_do_not_fit():
    hidden, table, bias, *rest = case(4, 6, 4)
    with pytest.raises(UsageError, match="expected"):
        sampled_softmax(Tensor(hidden), Tensor(table), Tensor(bias[:, 0]), *rest)
